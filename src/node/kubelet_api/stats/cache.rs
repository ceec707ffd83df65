//! State of the statistics that is kept between requests.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::cpu_rates::CpuRates;
use super::disk_usage::DiskUsage;
use super::file_systems::FileSystems;

/// State that is kept between requests.
#[derive(Debug)]
pub(crate) struct StatsCache {
    pub(super) rates: CpuRates,
    pub(super) disks: Arc<DiskUsage>,
    pub(super) file_systems: FileSystems,
    /// One request at a time walks the disks; the next one uses its results.
    pub(super) walking: Semaphore,
}

impl Default for StatsCache {
    fn default() -> Self {
        Self {
            rates: CpuRates::default(),
            disks: Arc::default(),
            file_systems: FileSystems::default(),
            walking: Semaphore::new(1),
        }
    }
}
