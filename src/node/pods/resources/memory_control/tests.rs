//! Cases of upstream's `kuberuntime_container_linux_test.go` and `helpers_linux_test.go`.

use serde_json::{Value, json};

use super::*;
use crate::pods::pod::tests::pod;

const GIB: i64 = 1 << 30;

/// A machine with 40 GiB of memory, all of it for pods, and 5 GiB of swap.
fn control(config: MemoryConfig) -> MemoryControl {
    MemoryControl {
        config,
        hierarchy: Hierarchy::V2,
        accounts_for_swap: true,
        capacity: 40 * GIB,
        swap_capacity: 5 * GIB,
        allocatable: 40 * GIB,
        page_size: 4096,
    }
}

fn limited_swap() -> MemoryControl {
    control(MemoryConfig { swap: SwapBehavior::LimitedSwap, ..MemoryConfig::default() })
}

fn tiered(throttling_factor: Option<f64>) -> MemoryControl {
    let reservation = MemoryReservation::Tiered;
    control(MemoryConfig { reservation, throttling_factor, ..MemoryConfig::default() })
}

fn with(resources: &Value) -> Pod {
    pod(json!({"containers": [{"name": "a", "resources": resources}]}))
}

/// The value of a file of the pod's first container.
fn of_first(control: &MemoryControl, pod: &Pod, file: &str) -> Option<String> {
    let settings = control.of_container(pod, &pod.containers[0]);
    settings.into_iter().find(|(name, _)| *name == file).map(|(_, value)| value)
}

#[test]
fn only_containers_of_burstable_pods_with_other_requests_than_limits_use_swap() {
    let burstable = with(&json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}));
    let uses = |control: &MemoryControl, pod: &Pod| control.uses_swap(pod, &pod.containers[0]);
    assert!(uses(&limited_swap(), &burstable));
    assert!(!uses(&control(MemoryConfig::default()), &burstable));
    assert!(!uses(&MemoryControl { accounts_for_swap: false, ..limited_swap() }, &burstable));
    assert!(!uses(&MemoryControl { hierarchy: Hierarchy::V1, ..limited_swap() }, &burstable));
    for other in [
        json!({}),
        json!({"limits": {"memory": "1Gi", "cpu": "1"}}),
        json!({"requests": {"cpu": "1", "memory": "0"}, "limits": {"memory": "0"}}),
        json!({"requests": {"cpu": "1"}}),
        json!({"requests": {"memory": "100Mi"}, "limits": {"memory": "100Mi"}}),
    ] {
        assert!(!uses(&limited_swap(), &with(&other)), "{other}");
    }
    let critical = pod(json!({"priority": 2_000_000_000, "containers": [{"name": "a",
        "resources": {"requests": {"memory": "1Gi"}}}]}));
    assert!(!uses(&limited_swap(), &critical));
}

#[test]
fn swap_is_limited_to_the_share_of_the_requested_memory() {
    let swap = |control: &MemoryControl, resources: &Value| {
        of_first(control, &with(resources), "memory.swap.max")
    };
    let burstable = json!({"requests": {"memory": "8Gi"}});
    assert_eq!(swap(&limited_swap(), &burstable), Some(GIB.to_string()));
    assert_eq!(swap(&limited_swap(), &json!({})), Some("0".to_owned()));
    assert_eq!(swap(&control(MemoryConfig::default()), &burstable), Some("0".to_owned()));
    let more = json!({"requests": {"memory": "41Gi"}});
    assert_eq!(swap(&limited_swap(), &more), Some("0".to_owned()));
    let without = MemoryControl { accounts_for_swap: false, ..limited_swap() };
    assert_eq!(swap(&without, &burstable), None);
}

#[test]
fn a_limit_of_version_1_includes_the_swap() {
    let v1 = MemoryControl { hierarchy: Hierarchy::V1, ..limited_swap() };
    assert_eq!(v1.memory_and_swap_limit(GIB), GIB);
    assert_eq!(MemoryControl { accounts_for_swap: false, ..v1 }.memory_and_swap_limit(GIB), 0);
    assert_eq!(limited_swap().memory_and_swap_limit(GIB), 0);
    let burstable = with(&json!({"requests": {"memory": "1Gi"}}));
    assert!(v1.of_container(&burstable, &burstable.containers[0]).is_empty());
    assert!(v1.of_pod(&burstable).is_empty());
}

#[test]
fn requests_are_protected_by_class_and_usage_is_throttled_below_the_limit() {
    const MIB: i64 = 1 << 20;
    let high = |request: i64, limit: i64| {
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "test")]
        let share = (request as f64 + (limit - request) as f64 * 0.9) as i64;
        Some((share / 4096 * 4096).to_string())
    };
    let of = |resources: Value| {
        let pod = with(&resources);
        ["memory.min", "memory.low", "memory.high"]
            .map(|file| of_first(&tiered(Some(0.9)), &pod, file))
    };
    let bytes = |mebibytes: i64| Some((mebibytes * MIB).to_string());
    let burstable = of(json!({"requests": {"memory": "128Mi"}, "limits": {"memory": "256Mi"}}));
    assert_eq!(burstable, [None, bytes(128), high(128 * MIB, 256 * MIB)]);
    let unlimited = of(json!({"requests": {"memory": "128Mi"}}));
    assert_eq!(unlimited, [None, bytes(128), high(128 * MIB, 40 * GIB)]);
    let none = Some("0".to_owned());
    assert_eq!(of(json!({})), [none.clone(), none.clone(), high(0, 40 * GIB)]);
    let guaranteed = of(json!({"limits": {"memory": "256Mi", "cpu": "1"}}));
    assert_eq!(guaranteed, [bytes(256), None, None]);

    let default = control(MemoryConfig::default());
    let pod = with(&json!({"requests": {"memory": "128Mi"}}));
    assert_eq!(of_first(&default, &pod, "memory.low"), none);
    assert_eq!(of_first(&default, &pod, "memory.high"), None);
}

#[test]
fn the_limit_of_a_pod_throttles_its_containers_without_a_limit() {
    let factor = control(MemoryConfig { throttling_factor: Some(0.9), ..MemoryConfig::default() });
    let whole = |level: Value| {
        pod(json!({"resources": level, "containers": [
            {"name": "a", "resources": {"requests": {"memory": "256Mi", "cpu": "100m"},
                "limits": {"memory": "512Mi", "cpu": "200m"}}},
            {"name": "b", "resources": {"requests": {"memory": "256Mi", "cpu": "100m"}}}]}))
    };
    let memory = whole(json!({"limits": {"memory": "1Gi"}}));
    let has_high = |pod: &Pod| {
        [0, 1].map(|at| {
            let settings = factor.of_container(pod, &pod.containers[at]);
            settings.iter().any(|(file, _)| *file == "memory.high")
        })
    };
    assert_eq!(has_high(&memory), [true, false]);
    assert_eq!(has_high(&whole(json!({"limits": {"cpu": "2"}}))), [true, true]);

    let level = |overhead: Value| {
        let resources = json!({"requests": {"memory": "128Mi", "cpu": "1"},
            "limits": {"memory": "256Mi", "cpu": "1"}});
        factor.of_pod(&pod(json!({"overhead": overhead, "resources": resources,
            "containers": [{"name": "a"}]})))
    };
    // 128 MiB and 90 % of the other 128 MiB, in pages of 4096 bytes.
    assert_eq!(level(json!({})), [("memory.high", "255012864".to_owned())]);
    let with_overhead = level(json!({"memory": "64Mi"}));
    assert_eq!(with_overhead, [("memory.high", "322121728".to_owned())]);
    assert!(factor.of_pod(&whole(json!({"limits": {"cpu": "2"}}))).is_empty());
}

#[test]
fn the_groups_of_classes_protect_the_requests_of_their_pods() {
    let requests = ClassRequests { guaranteed: 5, burstable: 2 };
    let (all, burstable) = tiered(None).of_classes(requests);
    let low = ("memory.low", "2".to_owned());
    assert_eq!((all, burstable), (vec![("memory.min", "7".to_owned()), low.clone()], vec![low]));
    let (all, burstable) = control(MemoryConfig::default()).of_classes(requests);
    assert!(all.iter().chain(&burstable).all(|(_, value)| value == "0"));

    let pod = with(&json!({"requests": {"memory": "3Mi"}}));
    assert_eq!(tiered(None).of_pod(&pod), [("memory.low", "3145728".to_owned())]);
}
