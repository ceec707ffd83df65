//! How full the volumes are that the node measures itself: a file system by its own numbers, a
//! block device by its capacity.

use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Tasks;
use tokio::sync::Semaphore;

use crate::machine::{self, Disk};
use crate::volume_usage::{
    Amounts, COLLECTION_DURATION, MeasuredVolume, UsageCache, UsageRequest, VolumeUsage,
};
use crate::volumes::device;

/// Measurements at the same time. A server of files that does not answer keeps its thread, of which
/// the process has sixteen for all blocking work.
const MEASUREMENTS_MAX: usize = 4;

/// The last measurement of each volume.
#[derive(Debug, Clone)]
pub(super) struct FileSystems {
    usage: UsageCache,
    measuring: Arc<Semaphore>,
}

impl Default for FileSystems {
    fn default() -> Self {
        let measuring = Arc::new(Semaphore::new(MEASUREMENTS_MAX));
        Self { usage: UsageCache::default(), measuring }
    }
}

impl FileSystems {
    /// Measures the volumes at these paths that were not measured for a minute. A file system that
    /// does not answer delays nothing.
    pub(super) async fn update(&self, tasks: &Tasks, paths: Vec<PathBuf>) {
        let volume = |path: PathBuf| {
            let source = path.to_string_lossy().into_owned();
            MeasuredVolume { source, path, of: () }
        };
        let measure = |request: UsageRequest<()>| {
            let measuring = Arc::clone(&self.measuring);
            async move {
                // The semaphore is never closed.
                let Ok(permit) = measuring.acquire_owned().await else { return };
                let measured = base::tasks::blocking(move || {
                    let _permit = permit;
                    for (path, ()) in request.volumes() {
                        if let Some(usage) = usage_of(path) {
                            request.answer(path, usage);
                        }
                    }
                });
                let _ = measured.await;
            }
        };
        self.usage.update(tasks, paths.into_iter().map(volume).collect(), measure).await;
    }

    /// Returns the last measurement of the volume at a path.
    pub(super) fn get(&self, path: &Path) -> Option<VolumeUsage> {
        self.usage.get(path)
    }
}

/// Measures the volume at a path (`metrics_statfs.go` and `metrics_block.go`). Blocks.
fn usage_of(path: &Path) -> Option<VolumeUsage> {
    let begun = base::clock::now();
    let at = i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default();
    let is_device = device::is_block_device(path).ok()?;
    let (source, usage) = if is_device {
        ("block", capacity_of(path).ok().map(of_device))
    } else {
        ("statfs", machine::disk(path).map(of_file_system))
    };
    COLLECTION_DURATION.took(&[source], begun.elapsed());
    usage.map(|usage| VolumeUsage { at, ..usage })
}

/// Returns the size of a device in bytes.
fn capacity_of(device: &Path) -> std::io::Result<u64> {
    std::fs::File::open(device)?.seek(SeekFrom::End(0))
}

/// Only the capacity of a device can be measured.
fn of_device(capacity: u64) -> VolumeUsage {
    let bytes = Amounts { total: capacity, ..Amounts::default() };
    VolumeUsage { bytes, ..VolumeUsage::default() }
}

fn of_file_system(disk: Disk) -> VolumeUsage {
    VolumeUsage {
        bytes: Amounts { available: disk.free, total: disk.size, used: disk.used },
        inodes: Amounts {
            available: disk.inodes_free,
            total: disk.inodes,
            used: disk.inodes.saturating_sub(disk.inodes_free),
        },
        at: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_system_is_measured_as_a_whole() {
        let home = tempfile::tempdir().unwrap();
        let tasks = Tasks::new(base::Shutdown::new());
        let volumes = FileSystems::default();
        let missing = home.path().join("missing");
        volumes.update(&tasks, vec![home.path().to_owned(), missing.clone()]).await;
        let usage = volumes.get(home.path()).unwrap();
        assert!(usage.bytes.total > 0 && usage.at > 0);
        assert_eq!(volumes.get(&missing), None);
    }

    #[test]
    fn a_device_has_a_capacity_only() {
        let usage = of_device(5);
        assert_eq!(usage.bytes, Amounts { available: 0, total: 5, used: 0 });
        assert_eq!(usage.inodes, Amounts::default());
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(7).unwrap();
        assert_eq!(capacity_of(file.path()).unwrap(), 7);
    }
}
