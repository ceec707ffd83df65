//! Slices of Services by their pods.

use super::*;
use serde_json::json;

fn service() -> Service {
    serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "n", "uid": "u"},
        "spec": {"clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"],
        "selector": {"a": "b"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}))
    .unwrap()
}

fn pod(name: &str, ip: &str, ready: &str, deleting: bool) -> Pod {
    let mut pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name},
        "spec": {"nodeName": "x", "containers": []},
        "status": {"phase": "Running", "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": ready}]}});
    if deleting {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    serde_json::from_value(pod).unwrap()
}

#[test]
fn conditions_tell_ready_serving_and_terminating_apart() {
    let pods = [
        pod("a", "10.1.0.1", "True", false),
        pod("b", "10.1.0.2", "False", false),
        pod("c", "10.1.0.3", "True", true),
    ];
    let groups = groups(&service(), &pods, &|_| Some("z".into()));
    let told: Vec<(bool, bool, bool)> = groups[0]
        .endpoints
        .iter()
        .map(|e| e.conditions.as_ref().unwrap())
        .map(|c| (c.ready.unwrap(), c.serving.unwrap(), c.terminating.unwrap()))
        .collect();
    assert_eq!(told, [(true, true, false), (false, false, false), (false, true, true)]);
    assert_eq!(groups[0].ports[0].port, Some(8080));
    assert_eq!(groups[0].endpoints[0].zone.as_deref(), Some("z"));
}

#[test]
fn slices_hold_a_hundred_and_unchanged_ones_are_not_written() {
    let pods: Vec<Pod> =
        (0..150).map(|i| pod(&format!("p{i}"), &format!("10.1.0.{i}"), "True", false)).collect();
    let all = plan(&service(), groups(&service(), &pods, &|_| None), Vec::new());
    let sizes: Vec<usize> =
        all.create.iter().map(|s| s.endpoints.as_ref().unwrap().len()).collect();
    assert_eq!(sizes, [100, 50]);
    let mut have = all.create;
    for (i, slice) in have.iter_mut().enumerate() {
        slice.metadata.name = Some(format!("s{i}"));
    }
    let again = plan(&service(), groups(&service(), &pods, &|_| None), have.clone());
    assert!(
        again.create.is_empty() && again.update.is_empty() && again.delete.is_empty(),
        "{again:?}"
    );
    let fewer = plan(&service(), groups(&service(), &pods[..1], &|_| None), have);
    assert_eq!((fewer.create.len(), fewer.update.len(), fewer.delete.len()), (0, 1, 1));
}

#[test]
fn hints_stay_until_they_are_wrong_or_the_endpoint_changes() {
    let zone = |_: &str| Some("z".into());
    let pods = [pod("a", "10.1.0.1", "True", false), pod("b", "10.1.0.2", "True", false)];
    let mut first = plan(&service(), groups(&service(), &pods, &zone), Vec::new());
    hints::reconcile(&mut first, Some("PreferSameZone"));
    let mut have = first.create;
    have[0].metadata.name = Some("x".into());
    let zones = |slice: &EndpointSlice| -> Vec<bool> {
        slice.endpoints.iter().flatten().map(|e| e.hints.is_some()).collect()
    };
    assert_eq!(zones(&have[0]), [true, true]);
    let again = plan(&service(), groups(&service(), &pods, &zone), have.clone());
    assert_eq!((again.update.len(), again.unchanged.len()), (0, 1));
    let pods = [pod("a", "10.1.0.1", "False", false), pod("b", "10.1.0.2", "True", false)];
    let mut changed = plan(&service(), groups(&service(), &pods, &zone), have.clone());
    hints::reconcile(&mut changed, Some("PreferSameZone"));
    assert_eq!(zones(&changed.update[0]), [false, true]);
    let mut off = plan(&service(), groups(&service(), &pods, &zone), have);
    hints::reconcile(&mut off, None);
    assert_eq!(zones(&off.update[0]), [false, false]);
}

#[test]
fn a_service_without_pods_has_one_empty_slice() {
    let first = plan(&service(), groups(&service(), &[], &|_| None), Vec::new());
    assert_eq!((first.create.len(), first.create[0].endpoints.clone()), (1, None));
    let mut have = first.create;
    have[0].metadata.name = Some("x".into());
    let again = plan(&service(), groups(&service(), &[], &|_| None), have);
    assert!(
        again.create.is_empty() && again.update.is_empty() && again.delete.is_empty(),
        "{again:?}"
    );
}
