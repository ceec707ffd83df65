//! The usage of ResourceClaims, with the cases of upstream's `resource_claims_test.go`, and quotas
//! that limit them.

use std::sync::Arc;

use lookup::testing::Fixed;
use serde_json::json;

use super::super::super::Operation;
use super::super::super::testing::{Ask, admit_reserving, creates};
use super::super::evaluate::{Evaluator, matching, usage};
use super::super::{Reservation, ResourceQuota, total_usage};
use super::*;

const COUNT: &str = "count/resourceclaims.resource.k8s.io";
const DEVICES: &str = "gpu.deviceclass.resource.k8s.io/devices";
const EXPLICIT_GPU: &str = "requests.example.com/gpu";
const IMPLICIT_GPU: &str = "requests.deviceclass.resource.kubernetes.io/gpu";

fn exact(class: &str, count: i64) -> Value {
    json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count})
}

fn all(class: &str) -> Value {
    json!({"deviceClassName": class, "allocationMode": "All"})
}

/// A claim with one request for each of these.
fn claim(requests: &[Value]) -> Value {
    let requests: Vec<Value> = requests.iter().map(|exactly| json!({"exactly": exactly})).collect();
    json!({
        "metadata": {"name": "foo", "namespace": "a"},
        "spec": {"devices": {"requests": requests}},
    })
}

fn alternatives(list: &[Value]) -> Value {
    let mut claim = claim(&[]);
    claim["spec"]["devices"]["requests"] = json!([{"firstAvailable": list}]);
    claim
}

/// The claim for the extended resources of a pod, for this number of devices.
fn extended(pod: &str, devices: usize) -> Value {
    let mut claim = claim(&vec![exact("gpu", 1); devices]);
    claim["metadata"]["annotations"] = json!({EXTENDED_CLAIM: "true"});
    claim["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": "uid", "controller": true},
    ]);
    claim
}

fn class() -> Value {
    json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}})
}

/// A container that requests one of each of these.
fn container(resources: &[&str]) -> Value {
    let requests: serde_json::Map<String, Value> =
        resources.iter().map(|name| ((*name).to_owned(), json!("1"))).collect();
    json!({"resources": {"requests": requests}})
}

const BOTH: [&str; 2] = ["example.com/gpu", "deviceclass.resource.kubernetes.io/gpu"];

/// A pod whose status names this claim, unless it is empty.
fn pod(name: &str, claim: &str, init: &[Value], containers: &[Value]) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "a", "uid": "uid"},
        "spec": {"initContainers": init, "containers": containers},
        "status": {},
    });
    if !claim.is_empty() {
        pod["status"]["extendedResourceClaimStatus"] = json!({"resourceClaimName": claim});
    }
    pod
}

fn pods() -> Vec<Value> {
    let both = || container(&BOTH);
    vec![
        pod("implicit", "foo", &[], &[container(&BOTH[1..])]),
        pod("explicit", "foo", &[container(&BOTH[..1])], &[]),
        pod("hybrid", "foo", &[both()], &[both()]),
        pod("no-status", "", &[container(&BOTH[..1])], &[container(&BOTH[1..])]),
        pod("init", "foo", &[both(), both()], &[both()]),
        pod("other-claim", "bar", &[], &[both()]),
    ]
}

fn shown(claim: &Value, classes: &[Value], others: &[Value]) -> Vec<String> {
    let pods = pods();
    let context = ClaimContext::new(classes, &pods, others);
    let used = usage(Evaluator::DeviceClaims, &lookup::RESOURCE_CLAIMS, claim, &context);
    used.iter().map(|(name, amount)| format!("{name}={amount}")).collect()
}

/// The sorted usage of one claim with these amounts; 0 if the name is absent.
fn amounts_of(devices: i64, implicit: i64, explicit: i64) -> Vec<String> {
    let mut expected = vec![format!("{COUNT}=1"), format!("{DEVICES}={devices}")];
    for (name, amount) in [(IMPLICIT_GPU, implicit), (EXPLICIT_GPU, explicit)] {
        expected.extend((amount != 0).then(|| format!("{name}={amount}")));
    }
    expected
}

#[test]
fn devices_are_counted_by_class() {
    let gpu = || exact("gpu", 1);
    let check = |claim: &Value, devices: i64| {
        assert_eq!(shown(claim, &[], &[]), amounts_of(devices, devices, 0), "{claim}");
    };
    check(&claim(&[gpu()]), 1);
    check(&claim(&[gpu(), gpu(), gpu(), gpu(), gpu()]), 5);
    check(&claim(&[exact("gpu", 5)]), 5);
    check(&claim(&[all("gpu")]), 32);
    check(&claim(&[json!({"deviceClassName": "gpu", "allocationMode": "future-mode"})]), 0);
    let mut admin = gpu();
    admin["adminAccess"] = json!(true);
    check(&claim(&[admin]), 1);
    check(&alternatives(&[gpu()]), 1);
    check(&alternatives(&[exact("gpu", 2), gpu()]), 2);
    check(&alternatives(&[gpu(), all("gpu")]), 32);
}

#[test]
fn each_class_counts_the_alternative_with_most_devices() {
    let expected = [
        "count/resourceclaims.resource.k8s.io=1",
        "gpu.deviceclass.resource.k8s.io/devices=1",
        "requests.deviceclass.resource.kubernetes.io/gpu=1",
        "requests.deviceclass.resource.kubernetes.io/tpu=32",
        "tpu.deviceclass.resource.k8s.io/devices=32",
    ];
    assert_eq!(shown(&alternatives(&[exact("gpu", 1), all("tpu")]), &[], &[]), expected);
    let future = json!({"deviceClassName": "gpu", "allocationMode": "future-mode"});
    assert_eq!(shown(&alternatives(&[future]), &[], &[]), [format!("{COUNT}=1")]);
    assert_eq!(shown(&json!({"spec": {}}), &[], &[]), [format!("{COUNT}=1")]);
}

#[test]
fn a_claim_for_extended_resources_uses_what_its_pod_does_not() {
    let mut copy = extended("no-status", 2);
    copy["metadata"]["name"] = json!("foo-copy");
    let mut older = copy.clone();
    older["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut younger = extended("no-status", 2);
    younger["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:01Z");
    let mut foreign = extended("implicit", 1);
    foreign["metadata"]["ownerReferences"][0]["uid"] = json!("earlier");
    let mut no_owner = extended("implicit", 1);
    no_owner["metadata"]["ownerReferences"][0]["controller"] = json!(false);
    let mut no_annotation = extended("implicit", 1);
    no_annotation["metadata"]["annotations"] = json!({});
    for (claim, others, expected) in [
        (extended("implicit", 1), vec![], amounts_of(1, 0, 1)),
        (extended("explicit", 1), vec![], amounts_of(1, 1, 0)),
        (extended("hybrid", 2), vec![], amounts_of(2, 1, 1)),
        (extended("init", 2), vec![], amounts_of(2, 1, 1)),
        (extended("no-status", 2), vec![extended("no-status", 2)], amounts_of(2, 1, 1)),
        // A pod covers one claim: the first.
        (copy.clone(), vec![extended("no-status", 2)], amounts_of(2, 2, 2)),
        (extended("no-status", 2), vec![copy], amounts_of(2, 1, 1)),
        (younger.clone(), vec![older.clone()], amounts_of(2, 2, 2)),
        (older, vec![younger], amounts_of(2, 1, 1)),
        (extended("other-claim", 2), vec![], amounts_of(2, 2, 2)),
        (extended("absent", 2), vec![], amounts_of(2, 2, 2)),
        (foreign, vec![], amounts_of(1, 1, 1)),
        (no_owner, vec![], amounts_of(1, 1, 1)),
        (no_annotation, vec![], amounts_of(1, 1, 1)),
    ] {
        assert_eq!(shown(&claim, &[class()], &others), expected, "{claim}");
    }
}

#[test]
fn of_classes_with_one_resource_the_one_with_most_devices_counts() {
    let mut newer = class();
    newer["metadata"]["name"] = json!("tpu");
    let used = shown(&claim(&[exact("gpu", 1), exact("tpu", 2)]), &[class(), newer], &[]);
    assert!(used.contains(&format!("{EXPLICIT_GPU}=2")), "{used:?}");
}

#[test]
fn claims_use_their_number_devices_and_extended_resources_of_classes() {
    let classes = [class(), json!({"metadata": {"name": "plain"}, "spec": {}})];
    let context = ClaimContext::new(&classes, &[], &[]);
    let matches =
        |name| matching(Evaluator::DeviceClaims, &lookup::RESOURCE_CLAIMS, name, &context);
    let plain = "requests.deviceclass.resource.kubernetes.io/plain";
    for name in [COUNT, DEVICES, EXPLICIT_GPU, IMPLICIT_GPU, plain] {
        assert!(matches(name), "{name}");
    }
    for name in [
        "resourceclaims",
        "storage",
        "ephemeral-storage",
        "bronze.deviceclass.resource.k8s.io/storage",
        "gpu.storage.k8s.io/requests.storage",
        "requests.deviceclass.resource.kubernetes.io/absent",
        "requests.example.com/other",
        "requests.",
        "example.com/gpu",
    ] {
        assert!(!matches(name), "{name}");
    }
}

fn quota(spec: Value, limit: i64, used: i64) -> Value {
    let of = |amount: i64| {
        let names = [COUNT, DEVICES, EXPLICIT_GPU, IMPLICIT_GPU];
        let map: serde_json::Map<String, Value> = names
            .iter()
            .map(|name| ((*name).to_owned(), Value::from(amount.to_string())))
            .collect();
        Value::from(map)
    };
    let mut quota = json!({
        "metadata": {"name": "q", "namespace": "a", "resourceVersion": "5"},
        "spec": spec,
        "status": {"hard": of(limit), "used": of(used)},
    });
    quota["spec"]["hard"] = of(limit);
    quota
}

fn world(spec: Value, limit: i64) -> (Arc<Fixed>, ResourceQuota) {
    let mut objects = vec![
        (&*lookup::RESOURCE_QUOTAS, quota(spec, limit, 0)),
        (&lookup::DEVICE_CLASSES, class()),
    ];
    objects.extend(pods().into_iter().map(|pod| (&*lookup::PODS, pod)));
    let fixed = Fixed::new(&objects);
    (Arc::clone(&fixed), ResourceQuota::new(fixed))
}

/// Admits a write and returns the new usage, if it changes.
async fn admitted(
    plugin: &ResourceQuota,
    ask: Ask<'_>,
    claim: Value,
) -> Result<Option<Value>, Status> {
    let (_, _, reservation) = admit_reserving(plugin, ask, claim).await?;
    let quotas = reservation.as_ref().map(Reservation::quotas);
    Ok(quotas.map(|quotas| quotas[0]["status"]["used"].clone()))
}

fn create() -> Ask<'static> {
    creates(&lookup::RESOURCE_CLAIMS, "ResourceClaim")
}

#[tokio::test]
async fn a_claim_over_the_limit_is_refused() {
    let (_, plugin) = world(json!({}), 2);
    let used = admitted(&plugin, create(), claim(&[exact("gpu", 2)])).await.unwrap();
    let used = used.unwrap();
    assert_eq!(used, json!({COUNT: "1", DEVICES: "2", EXPLICIT_GPU: "2", IMPLICIT_GPU: "2"}));
    let error = admitted(&plugin, create(), claim(&[exact("gpu", 3)])).await.unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "resourceclaims.resource.k8s.io \"foo\" is forbidden: exceeded quota: q, requested: \
             {DEVICES}=3,{IMPLICIT_GPU}=3,{EXPLICIT_GPU}=3, used: \
             {DEVICES}=0,{IMPLICIT_GPU}=0,{EXPLICIT_GPU}=0, limited: \
             {DEVICES}=2,{IMPLICIT_GPU}=2,{EXPLICIT_GPU}=2"
        )
    );
    // Nothing of this quota is a resource of other classes besides the number.
    let other = admitted(&plugin, create(), claim(&[exact("tpu", 9)])).await.unwrap();
    assert_eq!(other.unwrap()[COUNT], "1");
}

#[tokio::test]
async fn a_claim_for_extended_resources_is_charged_for_the_rest() {
    let (fixed, plugin) = world(json!({}), 10);
    let used = admitted(&plugin, create(), extended("no-status", 4)).await.unwrap().unwrap();
    assert_eq!(used, json!({COUNT: "1", DEVICES: "4", EXPLICIT_GPU: "3", IMPLICIT_GPU: "3"}));
    fixed.put(&lookup::RESOURCE_CLAIMS, extended("no-status", 4));
    let mut second = extended("no-status", 4);
    second["metadata"]["name"] = json!("second");
    let used = admitted(&plugin, create(), second).await.unwrap().unwrap();
    assert_eq!(used[EXPLICIT_GPU], "4");
}

#[tokio::test]
async fn an_update_of_a_claim_is_charged_for_its_difference() {
    let (_, plugin) = world(json!({}), 10);
    let with_version = |mut claim: Value| {
        claim["metadata"]["resourceVersion"] = json!("7");
        claim
    };
    let update = |old: Value| Ask { operation: Operation::Update, old: Some(old), ..create() };
    let old = with_version(claim(&[exact("gpu", 2)]));
    assert_eq!(admitted(&plugin, update(old.clone()), old.clone()).await.unwrap(), None);
    // The pod covers the claim no more.
    let covered = with_version(extended("hybrid", 2));
    let alone = with_version(claim(&[exact("gpu", 1), exact("gpu", 1)]));
    let used = admitted(&plugin, update(covered), alone).await.unwrap().unwrap();
    assert_eq!(used, json!({COUNT: "0", DEVICES: "0", EXPLICIT_GPU: "1", IMPLICIT_GPU: "1"}));
    let status = Ask { subresource: "status", ..update(claim(&[])) };
    let written = with_version(claim(&[exact("gpu", 11)]));
    assert_eq!(admitted(&plugin, status, written).await.unwrap(), None);
}

#[tokio::test]
async fn a_quota_with_scopes_does_not_limit_claims() {
    let (_, plugin) = world(json!({"scopes": ["NotTerminating"]}), 1);
    assert_eq!(admitted(&plugin, create(), claim(&[exact("gpu", 5)])).await.unwrap(), None);
}

/// The amounts of upstream's e2e test "must run a pod with extended resource with resource quota".
#[test]
fn pods_and_claims_are_counted_together() {
    let container = |policy: &str| {
        let mut container = container(&BOTH);
        container["restartPolicy"] = json!(policy);
        container
    };
    let init = [container(""), container("Always"), container("")];
    let pods = vec![pod("p", "foo", &init, &[container("")])];
    let mut external = claim(&[exact("gpu", 1)]);
    external["metadata"]["name"] = json!("external");
    let claims = [extended("p", 4), external];
    let quota = quota(json!({}), 10, 0);
    let mut sum = total_usage(&lookup::PODS, &quota, &pods, &BTreeMap::new());
    let related = BTreeMap::from([
        (lookup::PODS.clone(), pods),
        (lookup::DEVICE_CLASSES.clone(), vec![class()]),
    ]);
    let used = total_usage(&lookup::RESOURCE_CLAIMS, &quota, &claims, &related);
    add(&mut sum, &used);
    for (name, amount) in [(COUNT, 2), (DEVICES, 5), (EXPLICIT_GPU, 5), (IMPLICIT_GPU, 5)] {
        assert_eq!(sum[name], Quantity::units(amount), "{name}");
    }
}

#[test]
fn a_quota_of_other_resources_counts_no_claims() {
    let quota = json!({"spec": {"hard": {"requests.example.com/other": "1", "pods": "1"}}});
    let claims = [claim(&[exact("gpu", 1)])];
    let related = BTreeMap::from([(lookup::DEVICE_CLASSES.clone(), vec![class()])]);
    assert!(total_usage(&lookup::RESOURCE_CLAIMS, &quota, &claims, &related).is_empty());
}
