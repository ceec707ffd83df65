//! Watches a configuration file for changes: it is written, replaced, or part of a mounted volume
//! that is updated.

use std::path::{Path, PathBuf};

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchMask};

/// The inotify events of the directories of a file and of its symlink target.
pub struct FileWatcher {
    events: Option<EventStream<Vec<u8>>>,
    paths: Vec<PathBuf>,
}

impl FileWatcher {
    /// Starts watching the file. A failure is logged; then there are no events.
    pub async fn new(path: &Path) -> Self {
        let own = path.to_owned();
        let real = base::tasks::blocking(move || std::fs::canonicalize(&own).ok()).await;
        Self::with_target(path, real.ok().flatten())
    }

    fn with_target(path: &Path, real: Option<PathBuf>) -> Self {
        let mut paths = vec![path.to_owned()];
        paths.extend(real.filter(|real| real != path));
        let made = Inotify::init().and_then(|inotify| {
            let mut watches = inotify.watches();
            let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::CREATE;
            for folder in paths.iter().filter_map(|path| path.parent()) {
                let here = folder.as_os_str().is_empty();
                watches.add(if here { Path::new(".") } else { folder }, mask)?;
            }
            inotify.into_event_stream(vec![0; 4096])
        });
        if let Err(error) = &made {
            tracing::error!(file = %path.display(), %error, "cannot watch the file, changes take effect at the next start");
        }
        Self { events: made.ok(), paths }
    }

    /// Resolves at a possible change of the file: an event of its name, or of a symlinked directory
    /// (`..data` of a mounted volume).
    pub async fn next(&mut self) {
        let Some(events) = &mut self.events else { return std::future::pending().await };
        loop {
            let Some(Ok(event)) = events.next().await else { return std::future::pending().await };
            let Some(name) = &event.name else { return };
            let mut named = self.paths.iter().filter(|path| path.file_name() == Some(name));
            let is_made = event.mask.contains(EventMask::CREATE);
            if name.to_string_lossy().starts_with("..")
                || named.any(|path| !is_made || is_link(path))
            {
                return;
            }
        }
    }
}

/// A regular file that was just created has no content yet; a link has.
fn is_link(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink() || m.nlink() > 1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;

    async fn wait_for_event(changes: &mut FileWatcher) {
        tokio::time::timeout(Duration::from_secs(10), changes.next()).await.unwrap();
    }

    #[tokio::test]
    async fn a_written_or_replaced_file_causes_an_event() {
        let dir = tempfile::tempdir().unwrap();
        let (file, new) = (dir.path().join("c.yaml"), dir.path().join("new"));
        std::fs::write(&file, "a").unwrap();
        let mut changes = FileWatcher::with_target(&file, None);
        std::fs::write(&file, "b").unwrap();
        wait_for_event(&mut changes).await;
        std::fs::write(&new, "c").unwrap();
        std::fs::rename(&new, &file).unwrap();
        wait_for_event(&mut changes).await;
    }

    #[tokio::test]
    async fn an_updated_mounted_volume_causes_an_event() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for version in ["..1", "..2"] {
            std::fs::create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("c.yaml"), version).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/c.yaml", at("c.yaml")).unwrap();
        let mut changes =
            FileWatcher::with_target(&at("c.yaml"), std::fs::canonicalize(at("c.yaml")).ok());
        symlink("..2", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        wait_for_event(&mut changes).await;
        assert_eq!(std::fs::read_to_string(at("c.yaml")).unwrap(), "..2");
    }
}
