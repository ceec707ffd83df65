//! `localVolumes`: creates and removes the directories of local-path volumes on this node.
//!
//! The provisioner runs on the leading server and knows the API objects; the node decides which
//! path is used. A directory is always a direct child of the node's own storage directory.

use std::io;
use std::path::{Path, PathBuf};

use api::Status;
use http::{Method, Response, StatusCode};
use serde_json::json;

use super::query::Query;
use super::response::{Body, response, text_response};
use super::state::KubeletApi;

/// The user of a pod is unknown when the directory is created, so every user may write.
const MODE: u32 = 0o777;
/// Maximum length of a file name on Linux.
const NAME_MAX: usize = 255;

/// Why a directory cannot be created or removed.
#[derive(Debug, thiserror::Error)]
enum LocalVolumeError {
    #[error("{0:?} is not the name of a local-path volume directory")]
    Name(String),
    #[error(
        "this node stores local-path volumes in {own:?}, not in {requested:?}; \
         see --default-local-storage-path"
    )]
    StorageDirectory { own: PathBuf, requested: String },
    #[error("{0:?} exists and is not a directory")]
    NotDirectory(PathBuf),
    #[error("{0:?} exists after its removal")]
    NotRemoved(PathBuf),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl LocalVolumeError {
    fn status(&self) -> Status {
        let (code, reason) = match self {
            Self::Name(_) => (400, "BadRequest"),
            Self::StorageDirectory { .. } | Self::NotDirectory(_) => (409, "Conflict"),
            Self::NotRemoved(_) | Self::Io(_) => (500, "InternalError"),
        };
        Status::failure(code, reason, self.to_string())
    }
}

/// Returns the path of the volume directory `name`, a direct child of `root`. If the caller names
/// the storage directory that it expects, it must be the node's.
fn directory(
    root: &Path,
    name: &str,
    requested: Option<&str>,
) -> Result<PathBuf, LocalVolumeError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    // The prefix rules out `.` and `..`, the characters rule out separators and escapes.
    if !name.starts_with("pvc-") || name.len() > NAME_MAX || !name.bytes().all(plain) {
        return Err(LocalVolumeError::Name(name.to_owned()));
    }
    match requested {
        Some(requested) if Path::new(requested) != root => {
            Err(LocalVolumeError::StorageDirectory {
                own: root.to_owned(),
                requested: requested.to_owned(),
            })
        }
        _ => Ok(root.join(name)),
    }
}

/// Whether a directory exists; anything else of this name, including a symbolic link, is an error.
fn exists(path: &Path) -> Result<bool, LocalVolumeError> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(true),
        Ok(_) => Err(LocalVolumeError::NotDirectory(path.to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn make(path: &Path) -> Result<(), LocalVolumeError> {
    exists(path)?;
    Ok(base::fs::create_dir(path, MODE)?)
}

fn remove(path: &Path) -> Result<(), LocalVolumeError> {
    if !exists(path)? {
        return Ok(());
    }
    base::fs::remove_dir(path)?;
    if exists(path)? { Err(LocalVolumeError::NotRemoved(path.to_owned())) } else { Ok(()) }
}

/// `POST` creates the directory and returns its path, `DELETE` removes it with its content. Both
/// are idempotent.
pub(super) async fn serve(
    api: &KubeletApi,
    method: &Method,
    name: &str,
    query: &Query,
) -> Response<Body> {
    let act = match *method {
        Method::POST => make,
        Method::DELETE => remove,
        _ => return text_response(StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed\n"),
    };
    let requested = query.first("storagePath");
    let done = match directory(&api.node.identity.config.local_storage_dir, name, requested) {
        Ok(path) => base::tasks::blocking(move || act(&path).map(|()| path))
            .await
            .unwrap_or_else(|e| Err(io::Error::other(e.to_string()).into())),
        Err(error) => Err(error),
    };
    match done {
        Ok(path) => response(StatusCode::OK, "application/json", json!({"path": path}).to_string()),
        Err(error) => {
            let status = error.status();
            let code = StatusCode::from_u16(status.code);
            let body = serde_json::to_string(&status).unwrap_or_default();
            response(code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), "application/json", body)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_direct_children_of_the_storage_directory_are_named() {
        let root = Path::new("/var/s");
        let path = |name: &str| directory(root, name, None).ok();
        assert_eq!(path("pvc-u_n_c.1"), Some("/var/s/pvc-u_n_c.1".into()));
        let long = format!("pvc-{}", "x".repeat(252));
        for name in ["", ".", "..", "pvc", "x", "../pvc-u", "pvc-u/..", "pvc-u\0", "pvc-%2e", &long]
        {
            assert_eq!(path(name), None, "{name}");
        }
    }

    #[test]
    fn a_different_storage_directory_is_rejected() {
        let root = Path::new("/var/s");
        assert!(directory(root, "pvc-u", Some("/var/s/")).is_ok());
        for other in ["/var", "/var/s/../s", "/var/s/x", ""] {
            let status = directory(root, "pvc-u", Some(other)).unwrap_err().status();
            assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"), "{other}");
        }
    }

    #[test]
    fn a_directory_is_created_for_every_user_and_removed_with_its_content() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("storage/pvc-u");
        make(&path).unwrap();
        make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o777);
        std::fs::create_dir(path.join("sub")).unwrap();
        std::fs::write(path.join("sub/file"), "x").unwrap();
        let outside = home.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        symlink(&outside, path.join("link")).unwrap();
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists() && outside.join("kept").exists());
    }

    #[test]
    fn a_symbolic_link_is_neither_used_nor_removed() {
        let home = tempfile::tempdir().unwrap();
        let (outside, link) = (home.path().join("outside"), home.path().join("pvc-u"));
        std::fs::create_dir(&outside).unwrap();
        std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&outside, &link).unwrap();
        assert!(matches!(make(&link), Err(LocalVolumeError::NotDirectory(_))));
        assert!(matches!(remove(&link), Err(LocalVolumeError::NotDirectory(_))));
        let mode = std::fs::metadata(&outside).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode, link.is_symlink()), (0o700, true));
    }
}
