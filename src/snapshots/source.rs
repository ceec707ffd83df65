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

/// Opens `path`; a compressed snapshot is unpacked into an unnamed file in `scratch`.
///
/// # Errors
/// An error message.
pub(crate) fn open(path: &Path, scratch: &Path) -> Result<Source, String> {
    let told = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let about = std::fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => format!("snapshot path does not exist: {}", path.display()),
        _ => told(path, &e),
    })?;
    if about.is_dir() {
        return directory(path);
    }
    if !about.is_file() {
        return Err(told(path, &"it is neither a file nor a directory"));
    }
    let file = File::open(path).map_err(|e| told(path, &e))?;
    if !zip::is_archive(&file).map_err(|e| told(path, &e))? {
        return Ok(Source { path: path.to_owned(), file, of_directory: false });
    }
    let unpacked = base::fs::scratch(scratch).map_err(|e| e.to_string())?;
    zip::unpack(&file, &mut &unpacked).map_err(|e| told(path, &e))?;
    Ok(Source { path: path.to_owned(), file: unpacked, of_directory: false })
}

fn directory(path: &Path) -> Result<Source, String> {
    let candidates = BELOW.iter().map(|below| path.join(below));
    let Some(path) = candidates.into_iter().find(|candidate| candidate.is_file()) else {
        let text = "it is no data directory of etcd or k3s, there is no member/snap/db in it";
        return Err(format!("{}: {text}", path.display()));
    };
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = File::open(&path).map_err(|e| told(&e))?;
    // bbolt holds an exclusive lock while it has the file open; this lock is released after the
    // check.
    let copy = file.try_clone().map_err(|e| told(&e))?;
    match Flock::lock(copy, FlockArg::LockSharedNonblock) {
        Ok(_) => {}
        Err((_, nix::Error::EWOULDBLOCK)) => {
            return Err(told(&"a server works on it: stop that one first"));
        }
        Err((_, error)) => return Err(told(&error)),
    }
    Ok(Source { path, file, of_directory: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_archives_and_data_directories_are_found_and_nothing_else() {
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
        let refused = |name: &str| open(&at(name), dir.path()).unwrap_err();
        assert_eq!(
            refused("absent"),
            format!("snapshot path does not exist: {}", at("absent").display())
        );
        assert!(refused("empty").contains("there is no member/snap/db in it"));
        let db = File::open(at("k3s/server/db/etcd/member/snap/db")).unwrap();
        let held = Flock::lock(db, FlockArg::LockExclusiveNonblock).unwrap();
        assert!(refused("k3s").contains("a server works on it"));
        drop(held);
        assert!(open(&at("k3s"), dir.path()).is_ok());
    }
}
