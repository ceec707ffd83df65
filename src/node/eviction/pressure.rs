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
const TRANSITION: Duration = Duration::from_secs(300);

/// A resource that the node can be short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Starved {
    Memory,
    Storage,
}

impl Starved {
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
    pub(crate) of: Starved,
    pub(crate) threshold: i64,
    pub(crate) available: i64,
}

/// The time of the last shortage of memory and of storage.
#[derive(Debug, Default)]
pub(crate) struct Pressure(Mutex<(Option<Instant>, Option<Instant>)>);

impl Pressure {
    pub(super) fn note(&self, shortages: &[Shortage]) -> bool {
        let before = self.now();
        let now = base::clock::now();
        let seen = |of: Starved| shortages.iter().any(|s| s.of == of).then_some(now);
        let mut state = self.0.lock();
        state.0 = seen(Starved::Memory).or(state.0);
        state.1 = seen(Starved::Storage).or(state.1);
        drop(state);
        self.now() != before
    }

    /// The conditions MemoryPressure and DiskPressure.
    pub(crate) fn now(&self) -> (bool, bool) {
        let state = self.0.lock();
        let holds = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < TRANSITION);
        (holds(state.0), holds(state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_told_when_it_begins() {
        let pressure = Pressure::default();
        let shortage = Shortage { of: Starved::Storage, threshold: 2, available: 1 };
        assert!(!pressure.note(&[]));
        assert!(pressure.note(&[shortage]));
        assert_eq!(pressure.now(), (false, true));
        assert!(!pressure.note(&[]), "it stays for a while");
    }
}
