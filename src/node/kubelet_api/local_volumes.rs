//! `localVolumes`: creates and removes the directories of local-path volumes on this node.
//!
//! The provisioner runs on the leading server and knows the API objects; the node decides which
//! path is used. A directory is below the node's own storage directory, or below one that the
//! ConfigMap `local-path-config` lists for this node. The node records the path of each volume that
//! it made: a recorded path is removed also after the ConfigMap has changed.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use api::Status;
use api::k8s::api::core::v1::ConfigMap;
use api::local_path::{CONFIG_MAP, KEY, LocalPathConfig, LocalPathConfigError, NAMESPACE};
use http::{Method, Response, StatusCode};
use serde_json::json;

use super::query::Query;
use super::response::{Body, response, text_response};
use super::state::KubeletApi;
use crate::config::Config;

/// The user of a pod is unknown when the directory is created, so every user may write.
const MODE: u32 = 0o777;
/// Mode of a storage directory that does not exist: only pods reach the volumes, by their mounts.
const STORAGE_MODE: u32 = 0o700;
/// Mode of the directories between the storage directory and a volume.
const FOLDER_MODE: u32 = 0o755;
/// Maximum length of a file name on Linux.
const NAME_MAX: usize = 255;
/// Maximum length of a path below the storage directory.
const FOLDER_MAX: usize = 1024;

/// Why a directory cannot be created or removed.
#[derive(Debug, thiserror::Error)]
enum LocalVolumeError {
    #[error("{0:?} is not the name of a local-path volume directory")]
    Name(String),
    #[error("{0:?} is not a path below a storage directory")]
    Folder(String),
    #[error(
        "this node stores local-path volumes in {own:?}, not in {requested:?}; list the path in \
         ConfigMap {NAMESPACE}/{CONFIG_MAP}, or see --default-local-storage-path"
    )]
    StorageDirectory { own: PathBuf, requested: String },
    #[error("this node made the volume at {made:?}, not at {requested:?}")]
    OtherPath { made: PathBuf, requested: PathBuf },
    #[error(
        "this node has no record that it made {0:?}; remove the directory and the volume by hand"
    )]
    NotRecorded(PathBuf),
    #[error("{0:?} exists and is not a directory")]
    NotDirectory(PathBuf),
    #[error("{0:?} exists after its removal")]
    NotRemoved(PathBuf),
    #[error("ConfigMap {NAMESPACE}/{CONFIG_MAP} is invalid: {0}")]
    InvalidConfig(LocalPathConfigError),
    #[error("cannot read ConfigMap {NAMESPACE}/{CONFIG_MAP}: {0}")]
    Config(client::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl LocalVolumeError {
    fn status(&self) -> Status {
        let (code, reason) = match self {
            Self::Name(_) | Self::Folder(_) => (400, "BadRequest"),
            Self::StorageDirectory { .. }
            | Self::OtherPath { .. }
            | Self::NotRecorded(_)
            | Self::InvalidConfig(_)
            | Self::NotDirectory(_) => (409, "Conflict"),
            Self::Config(_) => (503, "ServiceUnavailable"),
            Self::NotRemoved(_) | Self::Io(_) => (500, "InternalError"),
        };
        Status::failure(code, reason, self.to_string())
    }
}

/// A volume directory as the caller names it.
#[derive(Debug, Clone)]
struct VolumeDirectory {
    /// Name of the volume, and of its directory without a `folder`.
    name: String,
    /// The storage directory that the caller expects; `None` for the node's own.
    storage: Option<String>,
    /// Whether that is the one of the nodes that the ConfigMap does not list.
    is_default: bool,
    /// Path below the storage directory.
    folder: Option<String>,
}

impl VolumeDirectory {
    fn parse(name: &str, query: &Query) -> Result<Self, LocalVolumeError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        // The prefix rules out `.` and `..`, the characters rule out separators and escapes.
        if !name.starts_with("pvc-") || name.len() > NAME_MAX || !name.bytes().all(plain) {
            return Err(LocalVolumeError::Name(name.to_owned()));
        }
        let folder = query.first("folder").map(str::to_owned);
        let is_plain = |folder: &str| {
            let mut components = Path::new(folder).components();
            let names = components.all(|c| matches!(c, Component::Normal(_)));
            let is_normalized = folder.split('/').all(|part| !matches!(part, "" | "." | ".."));
            names && is_normalized && !folder.chars().any(char::is_control)
        };
        if let Some(folder) = folder.as_ref().filter(|f| f.len() > FOLDER_MAX || !is_plain(f)) {
            return Err(LocalVolumeError::Folder(folder.clone()));
        }
        Ok(Self {
            name: name.to_owned(),
            storage: query.first("storagePath").map(str::to_owned),
            is_default: query.flag("storageDefault"),
            folder,
        })
    }

    /// The path below the storage directory.
    fn below(&self) -> &str {
        self.folder.as_deref().unwrap_or(&self.name)
    }

    /// The storage directory if no ConfigMap is needed to allow it: the node's own. An agent's own
    /// flag overrides the default of the ConfigMap.
    fn own_storage(&self, config: &Config) -> Option<PathBuf> {
        let own = &config.local_storage_dir;
        let is_own = match &self.storage {
            None => true,
            Some(path) => Path::new(path) == own || self.is_default && config.local_storage_is_set,
        };
        is_own.then(|| own.clone())
    }
}

/// Where the volume is, and the storage directory above it.
#[derive(Debug, PartialEq)]
struct VolumePath {
    storage: PathBuf,
    path: PathBuf,
}

/// The records of the volumes that this node made: one file each, with the storage directory and
/// the path below it.
struct Records<'a>(&'a Path);

impl Records<'_> {
    fn read(&self, name: &str) -> io::Result<Option<VolumePath>> {
        let text = match std::fs::read_to_string(self.0.join(name)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut lines = text.lines().map(PathBuf::from);
        let (storage, below) = (lines.next(), lines.next());
        Ok(storage.zip(below).map(|(storage, below)| {
            let path = storage.join(below);
            VolumePath { storage, path }
        }))
    }

    fn write(&self, name: &str, storage: &Path, below: &str) -> io::Result<()> {
        base::fs::create_dir(self.0, 0o700)?;
        let text = format!("{}\n{below}\n", storage.display());
        base::fs::write_atomic(&self.0.join(name), text.as_bytes(), 0o600)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.0.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// The path of the volume to remove: the recorded one, or a direct child of `storage`, which is
/// allowed.
fn path_to_remove(
    volume: &VolumeDirectory,
    recorded: Option<VolumePath>,
    storage: PathBuf,
) -> Result<VolumePath, LocalVolumeError> {
    let path = storage.join(volume.below());
    match recorded {
        Some(made) if made.path == path => Ok(made),
        Some(made) => Err(LocalVolumeError::OtherPath { made: made.path, requested: path }),
        None if volume.folder.is_some() => Err(LocalVolumeError::NotRecorded(path)),
        None => Ok(VolumePath { storage, path }),
    }
}

/// Whether the ConfigMap lists this path for this node.
async fn is_configured(api: &KubeletApi, path: &str) -> Result<bool, LocalVolumeError> {
    let map = match api.node.api.client.get::<ConfigMap>(NAMESPACE, CONFIG_MAP).await {
        Ok(map) => map,
        Err(error) if error.is_not_found() => return Ok(false),
        Err(error) => return Err(LocalVolumeError::Config(error)),
    };
    let text = map.data.as_ref().and_then(|data| data.get(KEY));
    let config = match LocalPathConfig::parse(text.map(String::as_str).unwrap_or_default()) {
        Ok(config) => {
            let config = Arc::new(config);
            api.local_paths.store(Some(Arc::clone(&config)));
            config
        }
        // As the provisioner, the node uses the former configuration.
        Err(error) => api.local_paths.load_full().ok_or(LocalVolumeError::InvalidConfig(error))?,
    };
    Ok(config.allows(&api.node.identity.config.node_name, path))
}

/// The storage directory of a volume, which this node allows.
async fn allowed_storage(
    api: &KubeletApi,
    volume: &VolumeDirectory,
) -> Result<PathBuf, LocalVolumeError> {
    let config = &api.node.identity.config;
    if let Some(own) = volume.own_storage(config) {
        return Ok(own);
    }
    let requested = volume.storage.clone().unwrap_or_default();
    if is_configured(api, &requested).await? {
        return Ok(requested.into());
    }
    let own = config.local_storage_dir.clone();
    Err(LocalVolumeError::StorageDirectory { own, requested })
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

/// Checks that nothing between the storage directory and the volume is a symbolic link: pods could
/// have made it. Returns the directories that are missing, outermost first.
fn missing(at: &VolumePath) -> Result<Vec<PathBuf>, LocalVolumeError> {
    let below = at.path.strip_prefix(&at.storage).unwrap_or(&at.path);
    let (mut path, mut out) = (at.storage.clone(), Vec::new());
    for name in below.components() {
        path.push(name);
        if !exists(&path)? {
            out.push(path.clone());
        }
    }
    Ok(out)
}

fn make(at: &VolumePath) -> Result<(), LocalVolumeError> {
    // The storage directory itself may be a symbolic link of the administrator.
    if !at.storage.exists() {
        base::fs::create_dir(&at.storage, STORAGE_MODE)?;
    }
    for path in missing(at)?.iter().filter(|path| **path != at.path) {
        base::fs::create_dir(path, FOLDER_MODE)?;
    }
    Ok(base::fs::create_dir(&at.path, MODE)?)
}

fn remove(at: &VolumePath) -> Result<(), LocalVolumeError> {
    if !missing(at)?.is_empty() {
        return Ok(());
    }
    base::fs::remove_dir(&at.path)?;
    if exists(&at.path)? { Err(LocalVolumeError::NotRemoved(at.path.clone())) } else { Ok(()) }
}

/// Runs `act` with the records on a thread that may block.
async fn blocking<T: Send + 'static>(
    api: &KubeletApi,
    act: impl FnOnce(&Records<'_>) -> Result<T, LocalVolumeError> + Send + 'static,
) -> Result<T, LocalVolumeError> {
    let folder = api.node.identity.config.local_volume_records.clone();
    base::tasks::blocking(move || act(&Records(&folder)))
        .await
        .unwrap_or_else(|e| Err(io::Error::other(e.to_string()).into()))
}

/// Makes the directory; a second request returns the path of the first.
async fn create(api: &KubeletApi, volume: VolumeDirectory) -> Result<PathBuf, LocalVolumeError> {
    let name = volume.name.clone();
    let recorded = blocking(api, move |records| Ok(records.read(&name)?)).await?;
    let storage = match &recorded {
        Some(_) => PathBuf::new(),
        None => allowed_storage(api, &volume).await?,
    };
    blocking(api, move |records| {
        let at = match recorded {
            Some(at) => at,
            None => {
                records.write(&volume.name, &storage, volume.below())?;
                VolumePath { path: storage.join(volume.below()), storage }
            }
        };
        make(&at)?;
        Ok(at.path)
    })
    .await
}

/// Removes the directory with its content.
async fn delete(api: &KubeletApi, volume: VolumeDirectory) -> Result<PathBuf, LocalVolumeError> {
    let name = volume.name.clone();
    let recorded = blocking(api, move |records| Ok(records.read(&name)?)).await?;
    let storage = match (&recorded, &volume.storage) {
        (Some(_), Some(storage)) => PathBuf::from(storage),
        _ => allowed_storage(api, &volume).await?,
    };
    let at = path_to_remove(&volume, recorded, storage)?;
    blocking(api, move |records| {
        remove(&at)?;
        records.remove(&volume.name)?;
        Ok(at.path)
    })
    .await
}

/// `POST` creates the directory and returns its path, `DELETE` removes it with its content. Both
/// are idempotent.
pub(super) async fn serve(
    api: &KubeletApi,
    method: &Method,
    name: &str,
    query: &Query,
) -> Response<Body> {
    if !matches!(*method, Method::POST | Method::DELETE) {
        return text_response(StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed\n");
    }
    let done = match VolumeDirectory::parse(name, query) {
        Ok(volume) if *method == Method::POST => create(api, volume).await,
        Ok(volume) => delete(api, volume).await,
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

    fn volume(name: &str, query: &str) -> Result<VolumeDirectory, LocalVolumeError> {
        VolumeDirectory::parse(name, &Query::parse(query))
    }

    fn at(storage: &Path, below: &str) -> VolumePath {
        VolumePath { storage: storage.to_owned(), path: storage.join(below) }
    }

    #[test]
    fn only_paths_below_the_storage_directory_are_named() {
        let long = format!("pvc-{}", "x".repeat(252));
        assert_eq!(volume("pvc-u_n_c.1", "").unwrap().below(), "pvc-u_n_c.1");
        for name in ["", ".", "..", "pvc", "x", "../pvc-u", "pvc-u/..", "pvc-u\0", "pvc-%2e", &long]
        {
            assert!(matches!(volume(name, ""), Err(LocalVolumeError::Name(_))), "{name}");
        }
        assert_eq!(volume("pvc-u", "folder=n%2Fc%2Fx").unwrap().below(), "n/c/x");
        for folder in ["", "/", "..", "a/../b", "a/./b", "a//b", "/a", "a/", "a%0Ab"] {
            let parsed = volume("pvc-u", &format!("folder={folder}"));
            assert!(matches!(parsed, Err(LocalVolumeError::Folder(_))), "{folder}");
        }
    }

    #[test]
    fn the_own_storage_directory_needs_no_config_map() {
        let mut config = Config::new("n", "10.0.0.1".parse().unwrap(), "/d".into(), "/r".into());
        config.local_storage_dir = "/var/s".into();
        let own =
            |config: &Config, query: &str| volume("pvc-u", query).unwrap().own_storage(config);
        let storage = Some(PathBuf::from("/var/s"));
        assert_eq!(own(&config, ""), storage);
        assert_eq!(own(&config, "storagePath=/var/s/"), storage);
        for other in ["/var", "/var/s/../s", "/var/s/x", ""] {
            assert_eq!(own(&config, &format!("storagePath={other}")), None, "{other}");
        }
        let default = "storagePath=/opt&storageDefault=true";
        assert_eq!(own(&config, default), None);
        config.local_storage_is_set = true;
        assert_eq!(own(&config, default), storage, "the node's flag overrides the default");
        assert_eq!(own(&config, "storagePath=/opt"), None);
    }

    #[test]
    fn a_recorded_path_is_removed_and_no_other() {
        let home = tempfile::tempdir().unwrap();
        let records = Records(&home.path().join("records"));
        assert_eq!(records.read("pvc-u").unwrap(), None);
        records.write("pvc-u", Path::new("/s"), "n/c/x").unwrap();
        let made = || records.read("pvc-u").unwrap();
        assert_eq!(made(), Some(at(Path::new("/s"), "n/c/x")));
        let folder = volume("pvc-u", "folder=n/c/x").unwrap();
        assert!(path_to_remove(&folder, made(), "/s".into()).is_ok());
        let other = path_to_remove(&folder, made(), "/t".into());
        assert!(matches!(other, Err(LocalVolumeError::OtherPath { .. })));
        let unknown = path_to_remove(&folder, None, "/s".into());
        assert!(matches!(unknown, Err(LocalVolumeError::NotRecorded(_))));
        let plain = path_to_remove(&volume("pvc-u", "").unwrap(), None, "/s".into()).unwrap();
        assert_eq!(plain, at(Path::new("/s"), "pvc-u"));
        records.remove("pvc-u").unwrap();
        records.remove("pvc-u").unwrap();
        assert_eq!(made(), None);
    }

    #[test]
    fn a_directory_is_created_for_every_user_and_removed_with_its_content() {
        let home = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let storage = home.path().join("storage");
        for below in ["pvc-u", "n/c/x"] {
            let volume = at(&storage, below);
            make(&volume).unwrap();
            make(&volume).unwrap();
            assert_eq!((mode(&volume.path), mode(&storage)), (0o777, 0o700));
        }
        let volume = at(&storage, "pvc-u");
        std::fs::create_dir(volume.path.join("sub")).unwrap();
        std::fs::write(volume.path.join("sub/file"), "x").unwrap();
        let outside = home.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        symlink(&outside, volume.path.join("link")).unwrap();
        remove(&volume).unwrap();
        remove(&volume).unwrap();
        assert!(!volume.path.exists() && outside.join("kept").exists());
    }

    #[test]
    fn a_symbolic_link_is_neither_used_nor_removed() {
        let home = tempfile::tempdir().unwrap();
        let (outside, link) = (home.path().join("outside"), home.path().join("pvc-u"));
        std::fs::create_dir(&outside).unwrap();
        std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::create_dir(outside.join("x")).unwrap();
        symlink(&outside, &link).unwrap();
        for below in ["pvc-u", "pvc-u/x"] {
            let volume = at(home.path(), below);
            assert!(matches!(make(&volume), Err(LocalVolumeError::NotDirectory(_))));
            assert!(matches!(remove(&volume), Err(LocalVolumeError::NotDirectory(_))));
        }
        let mode = std::fs::metadata(&outside).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode, link.is_symlink(), outside.join("x").exists()), (0o700, true, true));
    }
}
