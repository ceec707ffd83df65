//! Expectations follow upstream's `PodRequests`, `PodLimits` and
//! `TestConvertToAPIPodLevelResourcesStatus`.

use serde_json::{Value, json};

use super::*;
use crate::pods::pod::PodOrigin;
use crate::pods::pod::tests::pod;

fn value(resources: core::ResourceRequirements) -> Value {
    serde_json::to_value(resources).unwrap()
}

fn config(shares: i64, quota: Option<i64>, memory: Option<i64>) -> PodGroupConfig {
    PodGroupConfig { shares: Some(shares), quota, memory }
}

#[test]
fn the_allocated_amounts_are_those_of_the_pod_or_the_sum_of_its_containers() {
    let of = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "10Mi"}});
    let mut spec = json!({
        "initContainers": [
            {"name": "s", "restartPolicy": "Always", "resources": of("100m")},
            {"name": "i", "resources": of("2")},
        ],
        "containers": [{"name": "a", "resources": of("250m")}, {"name": "b"}],
    });
    let sum = allocated_requests(&pod(spec.clone()));
    assert_eq!(json!(sum), json!({"cpu": "2100m", "memory": "20Mi"}));
    spec["resources"] = json!({"requests": {"cpu": "3"}, "limits": {"memory": "1Gi"}});
    spec["overhead"] = json!({"memory": "1Mi"});
    let pod = pod(spec);
    assert_eq!(json!(allocated_requests(&pod)), json!({"cpu": "3", "memory": "21Mi"}));
    let shown = actual(&pod, false, PodGroupConfig::default(), &core::PodStatus::default());
    assert_eq!(
        value(shown),
        json!({"requests": {"cpu": "3", "memory": "21Mi"}, "limits": {"memory": "1025Mi"}})
    );
}

#[test]
fn a_running_pod_shows_what_its_group_has() {
    let none = core::PodStatus::default();
    let best_effort = pod(json!({"containers": [{"name": "a"}]}));
    let shown = actual(&best_effort, true, config(2, None, None), &none);
    assert_eq!(value(shown), json!({"limits": {}, "requests": {}}));
    let level = pod(json!({"containers": [{"name": "a"}], "resources":
        {"requests": {"cpu": "80m", "memory": "95Mi"}, "limits": {"cpu": "80m",
        "memory": "95Mi"}}}));
    let same = actual(&level, true, config(81, Some(8000), Some(95 << 20)), &none);
    let specified = json!({"cpu": "80m", "memory": "95Mi"});
    assert_eq!(value(same), json!({"limits": specified, "requests": specified}));
    let resizing = actual(&level, true, config(102, Some(10_000), Some(100 << 20)), &none);
    assert_eq!(
        value(resizing),
        json!({"limits": {"cpu": "100m", "memory": "100Mi"},
            "requests": {"cpu": "100m", "memory": "95Mi"}})
    );
    let burstable = pod(json!({"containers": [{"name": "a", "resources":
        {"requests": {"cpu": "100m", "memory": "1Mi"}}}]}));
    let shown = actual(&burstable, true, config(102, None, None), &none);
    assert_eq!(value(shown), json!({"limits": {}, "requests": {"cpu": "100m", "memory": "1Mi"}}));
    let minimal = pod(json!({"containers": [{"name": "a"}], "resources":
        {"requests": {"cpu": "1m"}, "limits": {"cpu": "5m"}}}));
    let shown = actual(&minimal, true, config(2, Some(1000), None), &none);
    assert_eq!(value(shown), json!({"limits": {"cpu": "5m"}, "requests": {"cpu": "1m"}}));
}

#[test]
fn amounts_that_cannot_be_read_are_those_of_the_previous_status() {
    let level = pod(json!({"containers": [{"name": "a"}],
        "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}}));
    let previous = |phase: &str| -> core::PodStatus {
        serde_json::from_value(json!({"phase": phase, "resources":
            {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}))
        .unwrap()
    };
    let shown = |phase| value(actual(&level, true, PodGroupConfig::default(), &previous(phase)));
    assert_eq!(shown("Running"), json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}));
    assert_eq!(shown("Pending"), json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}));
}

#[test]
fn a_deferred_resize_is_restored_from_the_status() {
    let with = |status: Value| {
        let level = json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "4"}});
        let mut object = pod(json!({"containers": [{"name": "a"}], "resources": level,
            "overhead": {"cpu": "100m"}}))
        .object;
        object.status = Some(serde_json::from_value(status).unwrap());
        restored(&Pod::new(object, PodOrigin::Api).unwrap())
    };
    assert_eq!(with(json!({})), None);
    assert_eq!(with(json!({"allocatedResources": {"cpu": "2100m", "memory": "1024Mi"}})), None);
    let deferred = with(json!({"allocatedResources": {"cpu": "600m", "memory": "1Gi"},
        "resources": {"limits": {"cpu": "1100m"}}}));
    assert_eq!(
        value(deferred.unwrap()),
        json!({"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1"}})
    );
}
