//! Resources that the node is short of, and the pressure conditions that follow from them.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum of available memory (`memory.available` of upstream's `evictionHard`), in bytes.
pub(crate) const MEMORY_MIN: i64 = 100 << 20;

/// Minimum of free space and inodes of a file system, in percent. These are the values of k3s
/// (`nodefs` and `imagefs` 5 %), as upstream's 10 and 15 % of a large disk are no shortage; 5 % of
/// the inodes is upstream's.
pub(crate) const DISK_PERCENT_MIN: i64 = 5;

/// A condition lasts this long after the last shortage (`evictionPressureTransitionPeriod`).
const TRANSITION_PERIOD: Duration = Duration::from_secs(300);

/// A resource that the node can be short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScarceResource {
    Memory,
    Storage,
}

impl ScarceResource {
    /// The resource's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Storage => "ephemeral-storage",
        }
    }
}

/// A threshold that is crossed, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) of: ScarceResource,
    pub(crate) threshold: i64,
    pub(crate) available: i64,
}

/// The time of the last shortage of memory and of storage.
#[derive(Debug, Default)]
pub(crate) struct NodePressure(Mutex<(Option<Instant>, Option<Instant>)>);

impl NodePressure {
    pub(super) fn record(&self, shortages: &[Shortage]) -> bool {
        let before = self.current();
        let now = base::clock::now();
        let last_shortage =
            |of: ScarceResource| shortages.iter().any(|s| s.of == of).then_some(now);
        let mut state = self.0.lock();
        state.0 = last_shortage(ScarceResource::Memory).or(state.0);
        state.1 = last_shortage(ScarceResource::Storage).or(state.1);
        drop(state);
        self.current() != before
    }

    /// The conditions MemoryPressure and DiskPressure.
    pub(crate) fn current(&self) -> (bool, bool) {
        let state = self.0.lock();
        let holds = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < TRANSITION_PERIOD);
        (holds(state.0), holds(state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pressure_condition_is_reported_when_it_begins() {
        let pressure = NodePressure::default();
        let shortage = Shortage { of: ScarceResource::Storage, threshold: 2, available: 1 };
        assert!(!pressure.record(&[]));
        assert!(pressure.record(&[shortage]));
        assert_eq!(pressure.current(), (false, true));
        assert!(!pressure.record(&[]), "it stays for a while");
    }
}
