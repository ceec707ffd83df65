//! The directory of device plugins at the start: the checkpoint is read, sockets are removed.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use super::checkpoint::{Checkpoint, CheckpointError};
use super::error::CHECKPOINT;

/// What the directory contained.
#[derive(Debug, Default)]
pub(super) struct PreparedDirectory {
    pub(super) checkpoint: Checkpoint,
    /// No file was there, which indicates a machine without an earlier kubelet.
    pub(super) is_new: bool,
}

/// Reads the checkpoint, creates the directory, and removes the sockets in it.
///
/// # Errors
///
/// The directory cannot be created or read, or a socket cannot be removed.
pub(super) fn prepare(directory: &Path) -> io::Result<PreparedDirectory> {
    let checkpoint = read(&directory.join(CHECKPOINT)).unwrap_or_else(|error| {
        tracing::warn!(
            %error,
            "Continue after failing to read checkpoint file. Device allocation info may NOT be \
             up-to-date"
        );
        Default::default()
    });
    base::fs::create_dir(directory, 0o750)?;
    let is_new = clean(directory)?;
    Ok(PreparedDirectory { checkpoint, is_new })
}

/// Returns the checkpoint; empty without a file.
fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
    match std::fs::read(path) {
        Ok(content) => Checkpoint::parse(&content),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Checkpoint::default()),
        Err(error) => Err(error.into()),
    }
}

/// Removes the sockets of a directory. Returns whether it contained no file except hidden ones.
fn clean(directory: &Path) -> io::Result<bool> {
    let mut is_new = true;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        is_new &= entry.file_name().to_string_lossy().starts_with('.');
        let path = entry.path();
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.file_type().is_socket() => std::fs::remove_file(&path)?,
            Ok(_) => {}
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "devices: cannot examine a file");
            }
        }
    }
    Ok(is_new)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_are_removed_and_other_files_stay() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("device-plugins");
        let first = prepare(&directory).unwrap();
        assert!(first.is_new && first.checkpoint == Checkpoint::default());
        drop(UnixListener::bind(directory.join("kubelet.sock")).unwrap());
        drop(UnixListener::bind(directory.join("plugin.sock")).unwrap());
        std::fs::create_dir(directory.join("folder")).unwrap();
        let registered = [("example.com/foo".to_owned(), Vec::new())].into();
        let checkpoint = Checkpoint { registered, ..Checkpoint::default() };
        std::fs::write(directory.join(CHECKPOINT), checkpoint.to_json().unwrap()).unwrap();
        let second = prepare(&directory).unwrap();
        assert!(!second.is_new);
        assert_eq!(second.checkpoint, checkpoint);
        let names = std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["folder", CHECKPOINT]);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_read_is_ignored() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(CHECKPOINT), "{}").unwrap();
        let prepared = prepare(root.path()).unwrap();
        assert_eq!(prepared.checkpoint, Checkpoint::default());
        assert!(!prepared.is_new);
    }
}
