//! The pressure conditions that follow from thresholds that are met.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::thresholds::{EvictionThreshold, ScarceResource};

/// The conditions of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PressureConditions {
    /// `MemoryPressure`
    pub(crate) memory: bool,
    /// `DiskPressure`
    pub(crate) disk: bool,
    /// `PIDPressure`
    pub(crate) pid: bool,
}

impl PressureConditions {
    /// The conditions of thresholds that are met (`nodeConditions`).
    pub(super) fn of(met: &[EvictionThreshold]) -> Self {
        let any = |resources: &[ScarceResource]| {
            met.iter().any(|threshold| resources.contains(&threshold.signal.resource()))
        };
        Self {
            memory: any(&[ScarceResource::Memory]),
            disk: any(&[ScarceResource::Storage, ScarceResource::Inodes]),
            pid: any(&[ScarceResource::Pids]),
        }
    }

    /// The names of the conditions that are true.
    pub(crate) fn names(self) -> Vec<&'static str> {
        let all = [
            (self.memory, "MemoryPressure"),
            (self.disk, "DiskPressure"),
            (self.pid, "PIDPressure"),
        ];
        all.into_iter().filter_map(|(is_true, name)| is_true.then_some(name)).collect()
    }
}

/// When a threshold of each condition was last met, and the conditions that are reported.
#[derive(Debug, Default)]
struct PressureState {
    memory: Option<Instant>,
    disk: Option<Instant>,
    pid: Option<Instant>,
    reported: PressureConditions,
}

/// The conditions that the node reports.
#[derive(Debug)]
pub(crate) struct NodePressure {
    state: Mutex<PressureState>,
    /// A condition lasts this long after a threshold was last met
    /// (`evictionPressureTransitionPeriod`).
    transition_period: Duration,
}

impl NodePressure {
    pub(crate) fn new(transition_period: Duration) -> Self {
        Self { state: Mutex::default(), transition_period }
    }

    /// Records the conditions of the thresholds that are met now; returns whether the reported
    /// conditions changed (`nodeConditionsLastObservedAt`, `nodeConditionsObservedSince`).
    pub(super) fn record(&self, met: PressureConditions, now: Instant) -> bool {
        let holds = |last: &mut Option<Instant>, is_met: bool| {
            *last = is_met.then_some(now).or(*last);
            last.is_some_and(|at| now.saturating_duration_since(at) < self.transition_period)
        };
        let mut state = self.state.lock();
        let reported = PressureConditions {
            memory: holds(&mut state.memory, met.memory),
            disk: holds(&mut state.disk, met.disk),
            pid: holds(&mut state.pid, met.pid),
        };
        std::mem::replace(&mut state.reported, reported) != reported
    }

    /// The conditions that are reported.
    pub(crate) fn current(&self) -> PressureConditions {
        self.state.lock().reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's `TestNodeConditionsLastObservedAt` and `TestNodeConditionsObservedSince`.
    #[test]
    fn a_condition_lasts_for_the_transition_period() {
        let pressure = NodePressure::new(Duration::from_secs(120));
        let start = base::clock::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let none = PressureConditions::default();
        let disk = PressureConditions { disk: true, ..none };
        assert!(!pressure.record(none, start));
        assert!(pressure.record(disk, start));
        assert!(!pressure.record(disk, after(10)));
        assert!(!pressure.record(none, after(129)), "it was last met at 10 s");
        assert_eq!(pressure.current(), disk);
        assert!(pressure.record(none, after(130)));
        assert_eq!(pressure.current(), none);
        assert!(pressure.record(PressureConditions { memory: true, ..disk }, after(131)));
        assert_eq!(pressure.current().names(), ["MemoryPressure", "DiskPressure"]);
    }
}
