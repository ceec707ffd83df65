//! Cases of upstream's `helpers_test.go` and `eviction_manager_test.go`.

use std::time::Duration;

use super::*;
use crate::config::thresholds::EvictionThresholds;

fn observed(values: &[(Signal, &str, i64)]) -> Observations {
    let at = base::clock::now();
    let of = |(signal, available, capacity): &(Signal, &str, i64)| {
        let available = Quantity::parse(available).unwrap();
        (*signal, Observation { available, capacity: *capacity, at })
    };
    values.iter().map(of).collect()
}

/// Thresholds of one kind each: hard, soft, grace periods, amounts to reclaim.
fn state(hard: &str, soft: &str, grace: &str, reclaim: &str) -> EvictionState {
    let mut thresholds = EvictionThresholds::none();
    thresholds.set_hard(hard).unwrap();
    thresholds.set_soft(soft).unwrap();
    thresholds.set_soft_grace(grace).unwrap();
    thresholds.set_min_reclaim(reclaim).unwrap();
    let mut state = EvictionState::default();
    state.configure(thresholds.list());
    state
}

fn met_names(
    state: &EvictionState,
    observations: &Observations,
    reclaim: bool,
) -> Vec<&'static str> {
    met(&state.configured, observations, reclaim).iter().map(|t| t.signal.name()).collect()
}

/// `TestThresholdsMet`.
#[test]
fn a_threshold_is_met_while_less_is_available() {
    let memory = Signal::MemoryAvailable;
    let state = state("memory.available<1Gi", "", "", "memory.available=500Mi");
    let names = |available: &str, reclaim| {
        met_names(&state, &observed(&[(memory, available, 8 << 30)]), reclaim)
    };
    assert_eq!(met_names(&state, &Observations::new(), false), [""; 0]);
    assert_eq!(names("500Mi", false), ["memory.available"]);
    assert_eq!(names("1Gi", false), [""; 0]);
    assert_eq!(names("2Gi", false), [""; 0]);
    assert_eq!(names("1.05Gi", true), ["memory.available"]);
    assert_eq!(names("2Gi", true), [""; 0]);
}

/// `TestPercentageThresholdsMet`.
#[test]
fn percentages_are_of_the_capacity() {
    let (memory, disk) = (Signal::MemoryAvailable, Signal::NodeFsAvailable);
    let state = state("memory.available<20%,nodefs.available<30%", "", "", "memory.available=5%");
    let of = |of_memory: &str, of_disk: &str, reclaim| {
        let observations = observed(&[(memory, of_memory, 1000), (disk, of_disk, 1000)]);
        met_names(&state, &observations, reclaim)
    };
    assert_eq!(of("100", "100", false), ["memory.available", "nodefs.available"]);
    assert_eq!(of("300", "400", false), [""; 0]);
    assert_eq!(of("300", "100", false), ["nodefs.available"]);
    assert_eq!(of("100", "400", false), ["memory.available"]);
    assert_eq!(of("225", "400", true), ["memory.available"]);
    assert_eq!(of("300", "400", true), [""; 0]);
}

/// `TestSortByEvictionPriority`.
#[test]
fn memory_is_reclaimed_first() {
    let mut state = state("nodefs.available<1Gi,pid.available<10,memory.available<1Gi", "", "", "");
    let observations = observed(&[
        (Signal::NodeFsAvailable, "1", 1 << 40),
        (Signal::PidAvailable, "1", 100),
        (Signal::AllocatableMemoryAvailable, "1", 1 << 40),
    ]);
    let due = state.evaluate(&observations, base::clock::now()).due;
    let names: Vec<_> = due.iter().map(|t| t.signal.name()).collect();
    assert_eq!(names, ["allocatableMemory.available", "nodefs.available", "pid.available"]);
}

/// The sequence of upstream's `TestMemoryPressure`, without its pods.
#[test]
fn a_soft_threshold_is_due_after_its_grace_period() {
    let mut state =
        state("memory.available<1Gi", "memory.available<2Gi", "memory.available=2m", "");
    let start = base::clock::now();
    let mut at = |available: &str, minutes: u64| {
        let observations = observed(&[(Signal::MemoryAvailable, available, 4 << 30)]);
        let now = start + Duration::from_secs(minutes * 60);
        let Evaluation { conditions, due } = state.evaluate(&observations, now);
        (conditions.memory, due.iter().map(EvictionThreshold::is_hard).collect::<Vec<_>>())
    };
    assert_eq!(at("2Gi", 0), (false, vec![]));
    assert_eq!(at("1500Mi", 1), (true, vec![]), "the grace period begins");
    assert_eq!(at("1500Mi", 2), (true, vec![]));
    assert_eq!(at("1500Mi", 4), (true, vec![false]));
    assert_eq!(at("3Gi", 24), (false, vec![]));
    assert_eq!(at("500Mi", 25), (true, vec![true]), "the soft one begins again");
    assert_eq!(at("2Gi", 26), (false, vec![]));
}

/// `TestMinReclaim`.
#[test]
fn a_threshold_stays_met_until_enough_is_reclaimed() {
    let mut state = state("memory.available<1Gi", "", "", "memory.available=500Mi");
    let mut due = |available: &str| {
        let observations = observed(&[(Signal::MemoryAvailable, available, 4 << 30)]);
        state.evaluate(&observations, base::clock::now()).due.len()
    };
    assert_eq!(due("2Gi"), 0);
    assert_eq!(due("1.2Gi"), 0, "the threshold was not met");
    assert_eq!(due("500Mi"), 1);
    assert_eq!(due("1.2Gi"), 1, "less than the threshold and the amount to reclaim");
    assert_eq!(due("2Gi"), 0);
    assert_eq!(due("1.2Gi"), 0);
}

/// `TestNodeReclaimFuncs`: after images are removed, every threshold counts.
#[test]
fn thresholds_are_reclaimed_with_their_minimum() {
    let state = state(
        "nodefs.available<1Gi",
        "memory.available<1Gi",
        "memory.available=1h",
        "nodefs.available=500Mi",
    );
    let of = |disk: &str, memory: &str| {
        state.is_reclaimed(&observed(&[
            (Signal::NodeFsAvailable, disk, 16 << 30),
            (Signal::MemoryAvailable, memory, 16 << 30),
        ]))
    };
    assert!(of("16Gi", "2Gi"));
    assert!(!of("1.1Gi", "2Gi"));
    assert!(!of("16Gi", "500Mi"), "a soft threshold whose grace period lasts counts, too");
}

/// `TestDiskPressureNodeFs_VerifyPodStatus` and its memory and pid siblings: the numbers of the
/// message.
#[test]
fn a_message_has_the_numbers_of_the_first_threshold_of_the_resource() {
    let state = state("nodefs.available<2Gi,pid.available<1200", "", "", "");
    let observations = observed(&[
        (Signal::NodeFsAvailable, "1.5Gi", 16 << 30),
        (Signal::PidAvailable, "500", 1500),
    ]);
    let text = |resource| {
        let found = threshold_met(resource, &state.configured, &observations);
        found.map(|(quantity, available)| format!("{quantity} {available}"))
    };
    assert_eq!(text(ScarceResource::Storage).as_deref(), Some("2Gi 1536Mi"));
    assert_eq!(text(ScarceResource::Pids).as_deref(), Some("1200 500"));
    assert_eq!(text(ScarceResource::Memory), None);
}
