//! The source of `--cluster-reset-restore-path`: a snapshot, a compressed one, or the data
//! directory of etcd or k3s.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::zip;

/// Paths of the database below a member's directory, k3s' server directory, and k3s' data
/// directory.
const BELOW: [&str; 4] = [
    "member/snap/db",
    "etcd/member/snap/db",
    "db/etcd/member/snap/db",
    "server/db/etcd/member/snap/db",
];

/// The uncompressed database of a snapshot.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// The database.
    pub(crate) file: File,
    /// Whether it belongs to a data directory: then entries that etcd had only in its log are
    /// missing.
    pub(crate) of_directory: bool,
}

/// Why a source cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    /// The path does not exist.
    #[error("snapshot path does not exist: {}", .0.display())]
    NotFound(PathBuf),
    /// The path is a device, a socket or the like.
    #[error("{}: it is neither a file nor a directory", .0.display())]
    NotAFile(PathBuf),
    /// The directory does not contain a database.
    #[error(
        "{}: it is not a data directory of etcd or k3s, it contains no member/snap/db",
        .0.display()
    )]
    NotADataDirectory(PathBuf),
    /// A server has the database open.
    #[error("{}: a server uses it; stop that server first", .0.display())]
    InUse(PathBuf),
    /// The file cannot be read or unpacked.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The directory for the unpacked snapshot cannot be used.
    #[error(transparent)]
    Scratch(io::Error),
}

/// Opens `path`; a compressed snapshot is unpacked into an unnamed file in `scratch`.
///
/// # Errors
/// The path is not a source, is in use, or cannot be read.
pub(crate) fn open(path: &Path, scratch: &Path) -> Result<Source, SourceError> {
    let failed = |source| SourceError::File { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => SourceError::NotFound(path.to_owned()),
        _ => failed(e),
    })?;
    if metadata.is_dir() {
        return open_directory(path);
    }
    if !metadata.is_file() {
        return Err(SourceError::NotAFile(path.to_owned()));
    }
    let file = File::open(path).map_err(failed)?;
    if !zip::is_archive(&file).map_err(failed)? {
        return Ok(Source { path: path.to_owned(), file, of_directory: false });
    }
    let unpacked = base::fs::scratch(scratch).map_err(SourceError::Scratch)?;
    zip::unpack(&file, &mut &unpacked).map_err(failed)?;
    Ok(Source { path: path.to_owned(), file: unpacked, of_directory: false })
}

fn open_directory(path: &Path) -> Result<Source, SourceError> {
    let candidates = BELOW.iter().map(|below| path.join(below));
    let Some(path) = candidates.into_iter().find(|candidate| candidate.is_file()) else {
        return Err(SourceError::NotADataDirectory(path.to_owned()));
    };
    let failed = |source| SourceError::File { path: path.clone(), source };
    let file = File::open(&path).map_err(failed)?;
    // bbolt holds an exclusive lock while it has the file open; this lock is released after the
    // check.
    let copy = file.try_clone().map_err(failed)?;
    match Flock::lock(copy, FlockArg::LockSharedNonblock) {
        Ok(_) => {}
        Err((_, nix::Error::EWOULDBLOCK)) => {
            return Err(SourceError::InUse(path));
        }
        Err((_, error)) => return Err(failed(error.into())),
    }
    Ok(Source { path, file, of_directory: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_archives_and_data_directories_are_opened() {
        use std::io::Read;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("k3s/server/db/etcd/member/snap")).unwrap();
        std::fs::create_dir_all(at("empty")).unwrap();
        std::fs::write(at("k3s/server/db/etcd/member/snap/db"), "database").unwrap();
        std::fs::write(at("plain"), "database").unwrap();
        zip::pack(&at("plain"), &at("packed.zip"), "plain").unwrap();
        for (name, of_directory) in
            [("k3s", true), ("k3s/server/db/etcd", true), ("plain", false), ("packed.zip", false)]
        {
            let source = open(&at(name), dir.path()).unwrap();
            assert_eq!(source.of_directory, of_directory, "{name}");
            let mut text = String::new();
            io::Seek::rewind(&mut &source.file).unwrap();
            (&source.file).read_to_string(&mut text).unwrap();
            assert_eq!(text, "database");
        }
        let error = |name: &str| open(&at(name), dir.path()).unwrap_err().to_string();
        assert_eq!(
            error("absent"),
            format!("snapshot path does not exist: {}", at("absent").display())
        );
        assert!(error("empty").contains("it contains no member/snap/db"));
        let db = File::open(at("k3s/server/db/etcd/member/snap/db")).unwrap();
        let held = Flock::lock(db, FlockArg::LockExclusiveNonblock).unwrap();
        assert!(error("k3s").contains("a server uses it"));
        drop(held);
        assert!(open(&at("k3s"), dir.path()).is_ok());
    }
}
