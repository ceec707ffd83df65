//! Syncs the unpacked files of images to disk.
//!
//! The runtime records in its database, which it syncs, that an image is unpacked, and leaves its
//! files to the kernel's page cache: a power failure within the next half minute would permanently
//! leave an image with empty files (containerd before 2.0, and later versions without
//! `image_pull_with_sync_fs`; observed with 1.6). The runtime unpacks at a pull or for the first
//! container, so the file system is synced before that container starts, once for each image.

use std::collections::HashSet;
use std::fs::File;

use parking_lot::Mutex;
use proto::runtime::v1::FilesystemUsage;

/// Maximum number of recorded images; beyond it the file system is synced again for each, which is
/// cheap without new data.
const IMAGES_MAX: usize = 1000;

/// The images that were synced since the start.
#[derive(Debug, Default)]
pub(super) struct SyncedImages(Mutex<HashSet<String>>);

impl SyncedImages {
    /// Whether this is the first container of an image, given by id or name.
    pub(super) fn is_first(&self, image: &str) -> bool {
        let mut images = self.0.lock();
        if images.len() >= IMAGES_MAX {
            images.clear();
        }
        images.insert(image.to_owned())
    }

    /// Forgets all images, as after a pull or a removal an image may be unpacked again.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }
}

/// Syncs the file systems of images; logs failures.
pub(super) async fn sync(file_systems: Vec<FilesystemUsage>) {
    for folder in file_systems.into_iter().filter_map(|usage| usage.fs_id).map(|id| id.mountpoint) {
        let path = folder.clone();
        let synced = base::tasks::blocking(move || {
            nix::unistd::syncfs(File::open(path)?).map_err(std::io::Error::from)
        });
        let error = match synced.await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic.to_string(),
        };
        tracing::warn!(folder, error, "cannot sync an image to disk");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_first_once_until_the_set_is_full() {
        let unpacked = SyncedImages::default();
        assert_eq!(["a", "b", "a"].map(|image| unpacked.is_first(image)), [true, true, false]);
        unpacked.forget();
        assert!(unpacked.is_first("a"));
        for number in 0..IMAGES_MAX {
            unpacked.is_first(&number.to_string());
        }
        assert!(unpacked.is_first("a"));
    }
}
