//! Cases of upstream's `helpers_test.go`.

use serde_json::{Value, json};

use super::*;
use crate::pods::pod::tests::pod;

const ALL: DiskParts = DiskParts { layers: true, logs: true, volumes: true };
const MIB: i64 = 1 << 20;

/// A pod with a request, and its priority.
fn requests(resource: &str, amount: &str, priority: i32) -> Pod {
    pod(json!({"priority": priority, "containers": [{"name": "a",
        "resources": {"requests": {resource: amount}}}]}))
}

fn memory(mebibytes: i64) -> PodUsage {
    PodUsage { memory: mebibytes * MIB, ..PodUsage::default() }
}

/// Layer, logs and volume, each as bytes and inodes.
fn disk(layer: i64, logs: i64, volume: i64) -> PodUsage {
    let of = |amount: i64| DiskAmount { bytes: amount * MIB, inodes: amount };
    let (layer, logs) = (Some(of(layer)), Some(of(logs)));
    let container = ContainerUsage { name: "a".into(), memory: None, layer, logs };
    let volume = LocalVolumeUsage { name: "v".into(), used: of(volume), is_memory: false };
    PodUsage { containers: vec![container], volumes: vec![volume], ..PodUsage::default() }
}

fn ranked(pods: &[(Pod, Option<PodUsage>)], order: EvictionOrder) -> Vec<usize> {
    let pods: Vec<_> = pods.iter().map(|(pod, used)| (pod, used.as_ref())).collect();
    rank(&pods, order)
}

/// `TestOrderedByExceedsRequestMemory`, `TestOrderedByExceedsRequestDisk`.
#[test]
fn pods_above_their_requests_come_first_whatever_their_priority() {
    let pods = [
        (requests("memory", "200Mi", -1), Some(memory(199))),
        (requests("memory", "100Mi", 1), Some(memory(101))),
    ];
    assert_eq!(ranked(&pods, EvictionOrder::Memory), [1, 0]);
    let pods = [
        (requests("ephemeral-storage", "200Mi", -1), Some(disk(100, 99, 0))),
        (requests("ephemeral-storage", "100Mi", 1), Some(disk(90, 11, 0))),
    ];
    assert_eq!(ranked(&pods, EvictionOrder::Storage(ALL)), [1, 0]);
}

/// `TestOrderedByPriority`.
#[test]
fn pods_of_a_low_priority_come_first() {
    let of = |priority: i32| (requests("cpu", "1", priority), Some(memory(1)));
    assert_eq!(ranked(&[of(12534), of(1), of(-134)], EvictionOrder::Memory), [2, 1, 0]);
}

/// `TestOrderedByPriorityMemory`, `TestOrderedByPriorityDisk`: each pod with its priority, request
/// and usage.
const EIGHT: [(i32, &str, i64); 8] = [
    (0, "100Mi", 600),
    (0, "100Mi", 150),
    (10, "100Mi", 600),
    (10, "100Mi", 150),
    (0, "1000Mi", 800),
    (0, "1000Mi", 200),
    (10, "1000Mi", 800),
    (10, "1000Mi", 200),
];

#[test]
fn priority_counts_among_pods_above_and_among_pods_below_their_requests() {
    let mut reversed: Vec<_> = EIGHT.to_vec();
    reversed.reverse();
    let of_memory = |(priority, request, used): &(i32, &str, i64)| {
        (requests("memory", request, *priority), Some(memory(*used)))
    };
    let of_disk = |(priority, request, used): &(i32, &str, i64)| {
        (requests("ephemeral-storage", request, *priority), Some(disk(used - 50, 25, 25)))
    };
    let pods: Vec<_> = reversed.iter().map(of_memory).collect();
    assert_eq!(ranked(&pods, EvictionOrder::Memory), [7, 6, 5, 4, 3, 2, 1, 0]);
    let pods: Vec<_> = reversed.iter().map(of_disk).collect();
    assert_eq!(ranked(&pods, EvictionOrder::Storage(ALL)), [7, 6, 5, 4, 3, 2, 1, 0]);
}

/// `TestOrderedbyDisk`, `TestOrderedbyInodes`, `TestOrderedByMemory`.
#[test]
fn pods_far_above_their_requests_come_first() {
    let besteffort = || pod(json!({"containers": [{"name": "a"}]}));
    let burstable = |name: &str| requests(name, "100Mi", 0);
    let pods = [
        (besteffort(), Some(memory(500))),
        (besteffort(), Some(memory(300))),
        (burstable("memory"), Some(memory(800))),
        (burstable("memory"), Some(memory(300))),
        (requests("memory", "1000Mi", 0), Some(memory(800))),
        (requests("memory", "1000Mi", 0), Some(memory(200))),
    ];
    assert_eq!(ranked(&pods, EvictionOrder::Memory), [2, 0, 1, 3, 4, 5]);
    let pods = [
        (besteffort(), Some(disk(50, 100, 50))),
        (besteffort(), Some(disk(100, 150, 50))),
        (besteffort(), Some(disk(200, 150, 50))),
    ];
    assert_eq!(ranked(&pods, EvictionOrder::Inodes(ALL)), [2, 1, 0]);
    let layers = DiskParts { layers: true, logs: false, volumes: false };
    let logs = DiskParts { layers: false, logs: true, volumes: false };
    assert_eq!(ranked(&pods, EvictionOrder::Storage(layers)), [2, 1, 0]);
    assert_eq!(ranked(&pods, EvictionOrder::Storage(logs)), [1, 2, 0], "the order of the table");
}

/// `TestOrderedByPriorityProcesses`.
#[test]
fn the_priority_counts_before_the_number_of_processes() {
    let of = |priority: i32, processes: u64| {
        let used = PodUsage { processes, ..PodUsage::default() };
        (requests("cpu", "1", priority), Some(used))
    };
    let pods = [of(10, 5), of(10, 20), of(0, 6), of(0, 20)];
    assert_eq!(ranked(&pods, EvictionOrder::Processes), [3, 2, 1, 0]);
    let unmeasured = [of(0, 20), (requests("cpu", "1", 0), None), (requests("cpu", "1", -1), None)];
    assert_eq!(ranked(&unmeasured, EvictionOrder::Processes), [2, 1, 0]);
}

/// `TestStatsNotFoundForPod`.
#[test]
fn pods_that_are_not_measured_come_first() {
    let pods =
        [(requests("memory", "1Mi", -5), Some(memory(900))), (requests("memory", "1Gi", 7), None)];
    assert_eq!(ranked(&pods, EvictionOrder::Memory), [1, 0]);
    assert_eq!(ranked(&pods, EvictionOrder::Storage(ALL)), [1, 0]);
}

#[test]
fn files_in_memory_use_no_disk() {
    let mut used = disk(1, 2, 4);
    used.hosts = DiskAmount { bytes: 7, inodes: 1 };
    assert_eq!(used.ephemeral_storage(), 7 * MIB + 7);
    used.volumes[0].is_memory = true;
    assert_eq!(used.disk(ALL), DiskAmount { bytes: 3 * MIB, inodes: 3 });
}

#[test]
fn with_resources_of_the_whole_pod_only_these_are_the_request() {
    let of = |level: Value| {
        pod(json!({"resources": {"requests": level}, "containers": [{"name": "a",
            "resources": {"requests": {"memory": "1Gi", "ephemeral-storage": "1Gi"}}}]}))
    };
    let whole = of(json!({"memory": "2Gi"}));
    assert_eq!((request(&whole, "memory"), request(&whole, "ephemeral-storage")), (2 << 30, 0));
    assert_eq!(request(&of(json!({"cpu": "1"})), "memory"), 0);
    assert_eq!(request(&of(json!({})), "memory"), 1 << 30);
}
