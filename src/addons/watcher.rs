//! Reports changes of the manifests folder and the folders below it, with inotify.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};

/// Bytes of the buffer for events.
const BUFFER_BYTES: usize = 16 << 10;
/// Names of one batch of changes; of further ones only the fact is reported.
const NAMES_MAX: usize = 10_000;

/// Changes since the last call.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Names of the files that a writer closed or moved here: their content is complete.
    pub(crate) complete: BTreeSet<OsString>,
}

/// An inotify instance and its watches.
#[derive(Debug)]
pub(crate) struct FolderWatcher {
    watches: inotify::Watches,
    events: EventStream<Vec<u8>>,
    watched: Vec<(PathBuf, WatchDescriptor)>,
}

impl FolderWatcher {
    /// Creates a watcher of no folder.
    ///
    /// # Errors
    /// The limit of inotify instances.
    pub(crate) fn new() -> std::io::Result<Self> {
        let inotify = Inotify::init()?;
        Ok(Self {
            watches: inotify.watches(),
            events: inotify.into_event_stream(vec![0; BUFFER_BYTES])?,
            watched: Vec::new(),
        })
    }

    /// Watches exactly these folders. Returns those that cannot be watched.
    pub(crate) fn watch(&mut self, folders: &BTreeSet<PathBuf>) -> Vec<(PathBuf, std::io::Error)> {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        let (mut now, mut errors) = (Vec::new(), Vec::new());
        for folder in folders {
            // Adding a watched folder again returns its descriptor; a folder that was replaced by
            // another of the same name gets a new one.
            match self.watches.add(folder, mask) {
                Ok(descriptor) => now.push((folder.clone(), descriptor)),
                Err(error) => errors.push((folder.clone(), error)),
            }
        }
        for (_, descriptor) in std::mem::replace(&mut self.watched, now) {
            if !self.watched.iter().any(|(_, kept)| *kept == descriptor) {
                // The kernel has removed the watch of a deleted folder itself.
                let _ = self.watches.remove(descriptor);
            }
        }
        errors
    }

    /// Resolves at the next change; with it come all that are available.
    pub(crate) async fn next(&mut self) -> Changes {
        let mut changes = Changes::default();
        let Some(Ok(first)) = self.events.next().await else { return std::future::pending().await };
        changes.add(&first);
        while let Some(Some(Ok(event))) = futures::FutureExt::now_or_never(self.events.next()) {
            changes.add(&event);
        }
        changes
    }
}

impl Changes {
    fn add(&mut self, event: &inotify::EventOwned) {
        let is_complete = event.mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO);
        if let Some(name) = event.name.as_ref().filter(|_| is_complete)
            && self.complete.len() < NAMES_MAX
        {
            self.complete.insert(name.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    async fn next(watcher: &mut FolderWatcher) -> Vec<String> {
        let changes = tokio::time::timeout(Duration::from_secs(10), watcher.next()).await.unwrap();
        changes.complete.iter().map(|name| name.to_string_lossy().into_owned()).collect()
    }

    #[tokio::test]
    async fn a_written_or_moved_file_is_complete_and_a_created_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let folders = |paths: &[&Path]| paths.iter().map(|p| p.to_path_buf()).collect();
        let mut watcher = FolderWatcher::new().unwrap();
        assert!(watcher.watch(&folders(&[folder.path()])).is_empty());
        let file = std::fs::File::create(at("a.yaml")).unwrap();
        assert!(next(&mut watcher).await.is_empty());
        drop(file);
        assert_eq!(next(&mut watcher).await, ["a.yaml"]);
        std::fs::rename(at("a.yaml"), at("b.yaml")).unwrap();
        assert_eq!(next(&mut watcher).await, ["b.yaml"]);
        std::fs::create_dir(at("sub")).unwrap();
        assert!(next(&mut watcher).await.is_empty());
        let sub = at("sub");
        assert!(watcher.watch(&folders(&[folder.path(), &sub])).is_empty());
        std::fs::write(sub.join("c.yaml"), "x").unwrap();
        let names = next(&mut watcher).await;
        assert!(names.is_empty() || names == ["c.yaml"]);
        let missing = at("none");
        assert_eq!(watcher.watch(&folders(&[&missing])).len(), 1);
    }
}
