//! Which work a change of a pod causes: the cases of upstream's tests of event handlers.

use serde_json::{Value, json};

use super::*;

fn pod(spec: Value, status: Value, meta: Value) -> ClaimPod {
    let mut metadata = json!({"name": "p", "namespace": "n", "uid": "u"});
    metadata.as_object_mut().unwrap().extend(meta.as_object().cloned().unwrap_or_default());
    let object = json!({"kind": "Pod", "metadata": metadata, "spec": spec, "status": status});
    ClaimPod::of(&Object::from_value(object).unwrap()).unwrap()
}

fn claim(owner: &str, status: Value) -> ResourceClaim {
    serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner,
            "controller": true}]}, "status": status}))
    .unwrap()
}

/// `pod` and `claim <name>` of each item.
fn items(pod: &ClaimPod, is_gone: bool, found: Option<&ResourceClaim>) -> Vec<String> {
    let items = work_items(pod, is_gone, |_| found.cloned());
    let text = |item: &WorkItem| match item {
        WorkItem::Claim(_, name) => format!("claim {name}"),
        WorkItem::Pod(..) => "pod".to_owned(),
    };
    items.iter().map(text).collect()
}

fn template() -> Value {
    json!({"resourceClaims": [{"name": "r", "resourceClaimTemplateName": "t"}]})
}

fn on_node(mut spec: Value) -> Value {
    spec["nodeName"] = "node".into();
    spec
}

fn made() -> Value {
    json!({"resourceClaimStatuses": [{"name": "r", "resourceClaimName": "c"}]})
}

#[test]
fn a_pod_has_work_when_a_claim_must_be_created_or_reserved() {
    let (own, foreign) = (claim("u", json!({})), claim("v", json!({})));
    let allocated = claim("u", json!({"allocation": {}}));
    let reserved = claim(
        "u",
        json!({"allocation": {},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}),
    );
    let none = || json!({});
    let direct = json!({"resourceClaims": [{"name": "r", "resourceClaimName": "c"}]});
    let odd = json!({"resourceClaims": [{"name": "r"}]});
    let not_needed = json!({"resourceClaimStatuses": [{"name": "r"}]});
    let of = |spec: &Value, status: Value| pod(spec.clone(), status, json!({}));
    for (name, pod, found, want) in [
        ("no claims", of(&none(), none()), None, false),
        ("not created", of(&template(), none()), None, true),
        ("unsupported", of(&odd, none()), None, true),
        ("not needed", of(&template(), not_needed), None, false),
        ("lost", of(&template(), made()), None, true),
        ("the user creates it", of(&direct, none()), None, false),
        ("wrong owner", of(&on_node(template()), made()), Some(&foreign), false),
        ("not scheduled", of(&template(), made()), Some(&allocated), false),
        ("not allocated", of(&on_node(template()), made()), Some(&own), false),
        ("not reserved", of(&on_node(template()), made()), Some(&allocated), true),
        ("not reserved, direct", of(&on_node(direct.clone()), none()), Some(&allocated), true),
        ("reserved", of(&on_node(template()), made()), Some(&reserved), false),
    ] {
        let want: &[&str] = if want { &["pod"] } else { &[] };
        assert_eq!(items(&pod, false, found), want, "{name}");
    }
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    let deleted = pod(on_node(template()), json!({}), deleted);
    assert!(items(&deleted, false, None).is_empty());
}

#[test]
fn the_claims_of_a_pod_that_is_done_are_released() {
    let extended = || json!({"extendedResourceClaimStatus": {"resourceClaimName": "e"}});
    let phase = |mut status: Value, phase: &str| {
        status["phase"] = phase.into();
        status
    };
    let node = || on_node(json!({}));
    let deletion = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    let none = json!({});
    // A running pod keeps its claim.
    let running = pod(node(), phase(extended(), "Running"), none.clone());
    assert!(items(&running, false, None).is_empty());
    for done in ["Succeeded", "Failed"] {
        let pod = pod(node(), phase(extended(), done), none.clone());
        assert_eq!(items(&pod, false, None), ["claim e"], "{done}");
    }
    assert_eq!(items(&running, true, None), ["claim e"], "deleted");
    // Deleted, but its containers still run.
    let ending = pod(node(), extended(), deletion.clone());
    assert!(items(&ending, false, None).is_empty());
    let never_ran = pod(json!({}), extended(), deletion.clone());
    assert_eq!(items(&never_ran, false, None), ["claim e"]);
    // A claim that cannot be resolved is skipped.
    let unresolved = pod(on_node(template()), phase(extended(), "Succeeded"), none.clone());
    assert_eq!(items(&unresolved, false, None), ["claim e", "pod"]);
    let mut status = made();
    merge_status(&mut status, &extended());
    let both = pod(on_node(template()), phase(status, "Failed"), none);
    assert_eq!(items(&both, true, Some(&claim("u", json!({})))), ["claim c", "claim e"]);
}

fn merge_status(target: &mut Value, other: &Value) {
    target.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
}
