//! Watches directories for changes of their files, with inotify.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use futures::{FutureExt, StreamExt};
use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask};

/// A change in the single watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileChange {
    /// A file was written and closed, moved in, or linked.
    Written(String),
    /// A file was removed or moved away.
    Removed(String),
    /// Events were lost, or the directory was created or removed: it must be watched and read
    /// again.
    Unknown,
}

/// An inotify instance with the watched directories.
#[derive(Debug)]
pub(crate) struct FileWatcher {
    watches: inotify::Watches,
    events: inotify::EventStream<Vec<u8>>,
    /// The last directory given to [`FileWatcher::watch`], and whether it existed.
    watched: Option<(PathBuf, bool)>,
    /// The directories that exist, by their watch.
    directories: HashMap<WatchDescriptor, PathBuf>,
}

impl FileWatcher {
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        let events = inotify.into_event_stream(vec![0; 4096])?;
        Ok(Self { watches, events, watched: None, directories: HashMap::new() })
    }

    /// Watches the directories; for a missing one, watches the nearest ancestor that exists.
    pub(crate) fn watch(&mut self, folders: &[PathBuf]) {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        self.directories.clear();
        for folder in folders {
            let there = folder.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("/"));
            match self.watches.add(there, mask) {
                Ok(watch) if there == folder => {
                    self.directories.insert(watch, folder.clone());
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(folder = %there.display(), %error, "cannot watch directory");
                }
            }
            self.watched = Some((folder.clone(), there == folder));
        }
    }

    /// Resolves at the next change of a file in the single watched directory. Hidden files are
    /// ignored, and so is a created file until it is closed.
    pub(crate) async fn next_change(&mut self) -> FileChange {
        loop {
            let event = match self.events.next().await {
                Some(Ok(event)) => event,
                Some(Err(_)) | None => std::future::pending().await,
            };
            let Some((folder, true)) = &self.watched else { return FileChange::Unknown };
            if let Some(change) = change_of(&event, folder) {
                return change;
            }
        }
    }

    /// Resolves at the next relevant change, together with those that are known by then. Returns
    /// the files that were removed or moved away, also if there is one with that name again.
    pub(crate) async fn removed_by_changes(&mut self, folders: &[PathBuf]) -> BTreeSet<PathBuf> {
        let mut removed = BTreeSet::new();
        let mut is_changed = false;
        loop {
            let next = match is_changed {
                false => self.events.next().await,
                true => match self.events.next().now_or_never() {
                    Some(next) => next,
                    None => return removed,
                },
            };
            match next {
                Some(Ok(event)) if is_relevant(&event, folders) => {
                    is_changed = true;
                    removed.extend(self.removed_file(&event));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None if is_changed => return removed,
                Some(Err(_)) | None => std::future::pending().await,
            }
        }
    }

    /// The file that an event reports as removed from a watched directory.
    fn removed_file(&self, event: &Event<std::ffi::OsString>) -> Option<PathBuf> {
        let gone = EventMask::DELETE | EventMask::MOVED_FROM;
        let name = event.name.as_ref().filter(|_| event.mask.intersects(gone))?;
        Some(self.directories.get(&event.wd)?.join(name))
    }

    /// Resolves at the next relevant change.
    pub(crate) async fn changed(&mut self, folders: &[PathBuf]) {
        loop {
            match self.events.next().await {
                Some(Ok(event)) if is_relevant(&event, folders) => return,
                Some(Ok(_)) => {}
                Some(Err(_)) | None => std::future::pending().await,
            }
        }
    }
}

/// The change that an event of `folder` reports; `None` if it is not relevant.
fn change_of(event: &Event<std::ffi::OsString>, folder: &Path) -> Option<FileChange> {
    let Some(name) = &event.name else { return Some(FileChange::Unknown) };
    if !is_relevant(event, std::slice::from_ref(&folder.to_path_buf())) {
        return None;
    }
    let name = name.to_string_lossy().into_owned();
    let gone = EventMask::DELETE | EventMask::MOVED_FROM;
    let removed = event.mask.intersects(gone);
    Some(if removed { FileChange::Removed(name) } else { FileChange::Written(name) })
}

/// Whether an event is relevant. A created file is not written yet, unless it is a link or a
/// socket.
fn is_relevant(event: &Event<std::ffi::OsString>, folders: &[PathBuf]) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let Some(name) = &event.name else { return true };
    if name.to_string_lossy().starts_with('.') {
        return false;
    }
    if !event.mask.contains(EventMask::CREATE) || event.mask.contains(EventMask::ISDIR) {
        return true;
    }
    let is_complete =
        |m: std::fs::Metadata| m.is_symlink() || m.nlink() > 1 || m.file_type().is_socket();
    folders.iter().any(|f| std::fs::symlink_metadata(f.join(name)).is_ok_and(is_complete))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_name_closed_moved_and_removed_files() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("images");
        let outside = directory.path().join("outside");
        std::fs::create_dir(&folder).unwrap();
        let mut watcher = FileWatcher::new().unwrap();
        watcher.watch(std::slice::from_ref(&folder));
        let written = |name: &str| FileChange::Written(name.to_owned());
        // Open, and so incomplete: no change.
        let open = std::fs::File::create(folder.join("open.tar")).unwrap();
        std::fs::write(folder.join(".hidden"), "x").unwrap();
        std::fs::write(folder.join("a.tar"), "x").unwrap();
        assert_eq!(watcher.next_change().await, written("a.tar"));
        std::fs::write(&outside, "x").unwrap();
        std::fs::rename(&outside, folder.join("b.tar")).unwrap();
        assert_eq!(watcher.next_change().await, written("b.tar"));
        std::os::unix::fs::symlink(&outside, folder.join("c.tar")).unwrap();
        assert_eq!(watcher.next_change().await, written("c.tar"));
        drop(open);
        assert_eq!(watcher.next_change().await, written("open.tar"));
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("d.sock")).unwrap();
        assert_eq!(watcher.next_change().await, written("d.sock"));
        std::fs::remove_file(folder.join("a.tar")).unwrap();
        assert_eq!(watcher.next_change().await, FileChange::Removed("a.tar".to_owned()));
    }

    #[tokio::test]
    async fn a_removed_file_is_reported_although_there_is_a_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let folders = [directory.path().join("a"), directory.path().join("b")];
        for folder in &folders {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("web.yaml"), "x").unwrap();
        }
        let mut watcher = FileWatcher::new().unwrap();
        watcher.watch(&folders);
        let file = folders[1].join("web.yaml");
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "x").unwrap();
        assert_eq!(watcher.removed_by_changes(&folders).await, [file.clone()].into());
        // A file that replaces another one at once is not removed.
        let new = directory.path().join("new");
        std::fs::write(&new, "x").unwrap();
        std::fs::rename(&new, &file).unwrap();
        assert_eq!(watcher.removed_by_changes(&folders).await, BTreeSet::new());
    }

    #[tokio::test]
    async fn a_directory_that_is_created_later_must_be_watched_again() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("images");
        let mut watcher = FileWatcher::new().unwrap();
        watcher.watch(std::slice::from_ref(&folder));
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(watcher.next_change().await, FileChange::Unknown);
        watcher.watch(std::slice::from_ref(&folder));
        std::fs::write(folder.join("a.tar"), "x").unwrap();
        assert_eq!(watcher.next_change().await, FileChange::Written("a.tar".to_owned()));
    }
}
