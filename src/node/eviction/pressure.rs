//! Resources that the node is short of, and the pressure conditions that follow from them.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

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
#[derive(Debug)]
pub(crate) struct NodePressure {
    last: Mutex<(Option<Instant>, Option<Instant>)>,
    /// A condition lasts this long after the last shortage (`evictionPressureTransitionPeriod`).
    transition_period: Duration,
}

impl NodePressure {
    pub(crate) fn new(transition_period: Duration) -> Self {
        Self { last: Mutex::default(), transition_period }
    }

    pub(super) fn record(&self, shortages: &[Shortage]) -> bool {
        let before = self.current();
        let now = base::clock::now();
        let last_shortage =
            |of: ScarceResource| shortages.iter().any(|s| s.of == of).then_some(now);
        let mut state = self.last.lock();
        state.0 = last_shortage(ScarceResource::Memory).or(state.0);
        state.1 = last_shortage(ScarceResource::Storage).or(state.1);
        drop(state);
        self.current() != before
    }

    /// The conditions MemoryPressure and DiskPressure.
    pub(crate) fn current(&self) -> (bool, bool) {
        let state = self.last.lock();
        let holds =
            |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < self.transition_period);
        (holds(state.0), holds(state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pressure_condition_is_reported_when_it_begins() {
        let pressure = NodePressure::new(Duration::from_secs(300));
        let shortage = Shortage { of: ScarceResource::Storage, threshold: 2, available: 1 };
        assert!(!pressure.record(&[]));
        assert!(pressure.record(&[shortage]));
        assert_eq!(pressure.current(), (false, true));
        assert!(!pressure.record(&[]), "it stays for a while");
    }
}
