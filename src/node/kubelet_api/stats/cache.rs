//! What the statistics keep between requests.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::cpu_rates::CpuRates;
use super::disk_usage::DiskUsage;

/// What is remembered between requests.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(super) rates: CpuRates,
    pub(super) disks: Arc<DiskUsage>,
    /// One request at a time walks the disks; the next one finds what it measured.
    pub(super) walking: Semaphore,
}

impl Default for Cache {
    fn default() -> Self {
        Self { rates: CpuRates::default(), disks: Arc::default(), walking: Semaphore::new(1) }
    }
}
