//! Watches directories for changes of their files, with inotify.

use std::io;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use inotify::{Event, EventMask, Inotify, WatchMask};

/// An inotify instance with the watched directories.
#[derive(Debug)]
pub(crate) struct FileWatcher {
    watches: inotify::Watches,
    events: inotify::EventStream<Vec<u8>>,
}

impl FileWatcher {
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        Ok(Self { watches: inotify.watches(), events: inotify.into_event_stream(vec![0; 4096])? })
    }

    /// Watches the directories; for a missing one, watches the nearest ancestor that exists.
    pub(crate) fn watch(&mut self, folders: &[PathBuf]) {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        for folder in folders {
            let there = folder.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("/"));
            if let Err(error) = self.watches.add(there, mask) {
                tracing::error!(folder = %there.display(), %error, "cannot watch directory");
            }
        }
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

/// Whether an event is relevant. A created file is not written yet, unless it is a link.
fn is_relevant(event: &Event<std::ffi::OsString>, folders: &[PathBuf]) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Some(name) = &event.name else { return true };
    if name.to_string_lossy().starts_with('.') {
        return false;
    }
    if !event.mask.contains(EventMask::CREATE) || event.mask.contains(EventMask::ISDIR) {
        return true;
    }
    let is_link = |m: std::fs::Metadata| m.is_symlink() || m.nlink() > 1;
    folders.iter().any(|f| std::fs::symlink_metadata(f.join(name)).is_ok_and(is_link))
}
