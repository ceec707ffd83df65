//! Cycles of pods with claims; the cases are those of upstream's `TestPlugin`.

use api::k8s::api::core::v1::Pod;
use api::k8s::api::resource::v1::{ResourceClaim, ResourceSlice};
use serde_json::{Value, json};

use super::*;
use crate::cycle;
use crate::devices::binding::ClaimsToBind;
use crate::devices::claims::ClaimChange;
use crate::devices::request::ClaimName;
use crate::devices::slice::Slice;
use crate::framework::CycleState;
use crate::listers::Listers;
use crate::profile::Profile;
use crate::rejection::FitError;

#[derive(Default)]
struct Cluster {
    devices: Arc<Devices>,
    nodes: Vec<NodeInfo>,
}

impl Listers for Cluster {
    fn devices(&self) -> Option<&Arc<Devices>> {
        Some(&self.devices)
    }
}

/// What a cycle ends with: the writes for a node, or the message, its reasons and whether a claim
/// is released.
type Outcome = Result<Arc<ClaimsToBind>, (String, Vec<String>, Option<ClaimRelease>)>;

impl Cluster {
    /// A cluster with a node `worker`, a class, and slices with one device each on these nodes.
    fn new(nodes: &[&str]) -> Self {
        let mut cluster = Self::default();
        cluster.class(json!({}));
        cluster.node("worker", json!({}));
        for node in nodes {
            cluster.slice(node, json!([{"name": "instance-1"}]));
        }
        cluster
    }

    fn class(&mut self, spec: Value) {
        let class = json!({"metadata": {"name": "my-class"}, "spec": spec});
        self.devices.set_class(serde_json::from_value(class).unwrap());
    }

    fn node(&mut self, name: &str, resources: Value) {
        let mut allocatable = json!({"cpu": "10", "memory": "1Gi", "pods": "110"});
        let entries = resources.as_object().unwrap().clone();
        allocatable.as_object_mut().unwrap().extend(entries);
        let labels = json!({"name": name});
        let node = json!({"metadata": {"name": name, "labels": labels},
            "status": {"allocatable": allocatable}});
        let mut info = NodeInfo::default();
        info.set_node(&serde_json::from_value(node).unwrap());
        self.nodes.push(info);
    }

    fn slice(&self, node: &str, devices: Value) {
        let slice = json!({"metadata": {"name": node}, "spec": {
            "driver": "some-driver", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        }});
        let slice: ResourceSlice = serde_json::from_value(slice).unwrap();
        self.devices.set_slice(Slice::new(&slice).unwrap());
    }

    fn claim(&self, claim: &Value) -> Option<ClaimChange> {
        self.devices.observe_claim(serde_json::from_value(claim.clone()).unwrap())
    }

    fn cycle(&self, pod: &Value) -> Outcome {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        let (pod, profile) = (Arc::new(PodInfo::new(&pod)), Profile::default());
        let snapshot = Snapshot::with(&pod, &self.nodes, self);
        let state = CycleState::new(snapshot, &profile);
        let failed = |fit: &FitError| {
            let message = fit.error.clone().unwrap_or_else(|| fit.message());
            let outcome = state.post_filter(fit);
            (message, outcome.reasons, outcome.release)
        };
        let feasible = cycle::find(&state, 0).map_err(|fit| failed(&fit))?;
        let index = cycle::best(&state, &feasible, &mut |_, _| {});
        let writes = state
            .reserve(&self.nodes[index])
            .map_err(|rejection| (rejection.text(), Vec::new(), None))?;
        let claims = writes.into_iter().find_map(|write| match write {
            PreBind::BindClaims(bind) => Some(bind),
            _ => None,
        });
        Ok(claims.unwrap_or_default())
    }

    /// The message for a pod that fits no node.
    fn message(&self, pod: &Value) -> String {
        self.cycle(pod).unwrap_err().0
    }
}

fn pod(claims: Value, statuses: Value) -> Value {
    json!({
        "metadata": {"name": "my-pod", "namespace": "default", "uid": "1234"},
        "spec": {"containers": [{"name": "c"}], "resourceClaims": claims},
        "status": {"resourceClaimStatuses": statuses},
    })
}

fn pod_with_claim() -> Value {
    pod(json!([{"name": "r", "resourceClaimName": "my-claim"}]), json!([]))
}

fn pod_with_template(statuses: Value) -> Value {
    pod(json!([{"name": "r", "resourceClaimTemplateName": "t"}]), statuses)
}

fn claim(requests: Value) -> Value {
    json!({
        "metadata": {"name": "my-claim", "namespace": "default", "uid": "5678",
            "resourceVersion": "1"},
        "spec": {"devices": {"requests": requests}},
    })
}

fn exactly(count: i64) -> Value {
    json!([{"name": "req-1", "exactly": {
        "deviceClassName": "my-class", "allocationMode": "ExactCount", "count": count,
    }}])
}

fn allocated(mut claim: Value, node: &str) -> Value {
    let name = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    claim["status"]["allocation"] = json!({
        "devices": {"results": [{"request": "req-1", "driver": "some-driver", "pool": node,
            "device": "instance-1"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [name]}]},
    });
    claim
}

#[test]
fn pods_without_claims_have_no_state() {
    let cluster = Cluster::new(&[]);
    let plain = pod(json!([]), json!([]));
    let info = Arc::new(PodInfo::new(&serde_json::from_value(plain).unwrap()));
    let snapshot = Snapshot::with(&info, &cluster.nodes, &cluster);
    assert!(DynamicResources::pre_filter(&snapshot).is_none());
}

#[test]
fn a_claim_is_allocated_once_and_its_devices_are_kept_from_others() {
    let cluster = Cluster::new(&["worker"]);
    cluster.claim(&claim(exactly(1)));
    let bind = cluster.cycle(&pod_with_claim()).unwrap();
    let allocation = bind.claims[0].allocation.as_ref().unwrap();
    assert_eq!(
        serde_json::to_value(allocation).unwrap(),
        allocated(claim(exactly(1)), "worker")["status"]["allocation"]
    );
    assert!(cluster.devices.is_in_flight("5678"));
    let in_flight = "0/1 nodes are available: resource claim default/my-claim is in the process of \
                     being allocated.";
    assert_eq!(cluster.message(&pod_with_claim()), in_flight);
    let mut other = claim(exactly(1));
    other["metadata"]["name"] = "other".into();
    other["metadata"]["uid"] = "other".into();
    cluster.claim(&other);
    let wants_other = pod(json!([{"name": "r", "resourceClaimName": "other"}]), json!([]));
    let none = "0/1 nodes are available: 1 cannot allocate all claims.";
    assert_eq!(cluster.message(&wants_other), none);
    // The claim is written, then not pending any more.
    let mut written = allocated(claim(exactly(1)), "worker");
    written["metadata"]["resourceVersion"] = "2".into();
    cluster.devices.assume_claim(serde_json::from_value(written.clone()).unwrap()).unwrap();
    assert_eq!(cluster.message(&wants_other), none);
    assert!(cluster.devices.remove_in_flight("5678", true));
    assert_eq!(cluster.message(&wants_other), none);
    let bind = cluster.cycle(&pod_with_claim()).unwrap();
    assert_eq!(bind.claims[0].allocation, None, "allocated before");
    let name = ClaimName { namespace: "default".into(), name: "my-claim".into() };
    cluster.devices.restore_claim(&name).unwrap();
    assert!(cluster.cycle(&wants_other).is_ok(), "the device is free again");
}

#[test]
fn a_failed_reserve_writes_nothing() {
    let cluster = Cluster::new(&["worker"]);
    cluster.claim(&claim(exactly(1)));
    let pod = Arc::new(PodInfo::new(&serde_json::from_value(pod_with_claim()).unwrap()));
    let (profile, snapshot) = (Profile::default(), Snapshot::with(&pod, &cluster.nodes, &cluster));
    let state = CycleState::new(snapshot, &profile);
    assert_eq!(cycle::find(&state, 0).unwrap().nodes, [0]);
    let name = ClaimName { namespace: "default".into(), name: "my-claim".into() };
    cluster.devices.remove_claim(&name);
    let rejection = state.reserve(&cluster.nodes[0]).err().map(|rejection| rejection.text());
    let text = rejection.unwrap_or_default();
    assert!(text.contains("couldn't signal allocation for claim my-claim"), "{text}");
    assert!(!cluster.devices.is_in_flight("5678"));
}

#[test]
fn claims_that_cannot_be_used_reject_all_nodes() {
    let cluster = Cluster::new(&["worker"]);
    let message = |text: &str| format!("0/1 nodes are available: {text}.");
    assert_eq!(
        cluster.message(&pod_with_template(json!([]))),
        message("pod \"default/my-pod\": ResourceClaim not created yet")
    );
    assert_eq!(
        cluster.message(&pod_with_claim()),
        message("could not find ResourceClaim \"default/my-claim\"")
    );
    cluster.claim(&claim(exactly(1)));
    let statuses = json!([{"name": "r", "resourceClaimName": "my-claim"}]);
    assert_eq!(
        cluster.message(&pod_with_template(statuses)),
        message(
            "ResourceClaim default/my-claim was not created for Pod default/my-pod (Pod is not \
             owner)"
        )
    );
    let statuses = json!([{"name": "r"}]);
    assert!(cluster.cycle(&pod_with_template(statuses)).is_ok(), "needs no claim");
    let mut deleted = claim(exactly(1));
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    deleted["metadata"]["resourceVersion"] = "2".into();
    cluster.claim(&deleted);
    assert_eq!(
        cluster.message(&pod_with_claim()),
        message("resourceclaim \"my-claim\" is being deleted")
    );
    let (_, reasons, release) = cluster.cycle(&pod_with_claim()).unwrap_err();
    assert!(release.is_none());
    assert_eq!(
        reasons,
        ["preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."]
    );
}

#[test]
fn requests_are_checked_before_nodes_are_filtered() {
    for (requests, expected) in [
        (
            json!([{"name": "a", "exactly": {"deviceClassName": "other"}}]),
            "0/1 nodes are available: request a: device class other does not exist.",
        ),
        (
            json!([{"name": "a", "firstAvailable": [{"name": "s", "deviceClassName": "other"}]}]),
            "0/1 nodes are available: request a/s: device class other does not exist.",
        ),
        (
            json!([{"name": "a"}]),
            "0/1 nodes are available: resource claim default/my-claim, request a: unknown request \
             type.",
        ),
        (
            json!([{"name": "a", "exactly": {"deviceClassName": ""}}]),
            "running PreFilter plugin \"DynamicResources\": request a: unsupported request type",
        ),
        (
            json!([{"name": "a", "exactly": {"deviceClassName": "my-class",
                "allocationMode": "ExactCount", "count": 1,
                "selectors": [{"cel": {"expression": "device.attributes[\"x\"].y"}}]}}]),
            "running \"DynamicResources\" filter plugin: claim default/my-claim: selector #0 on \
             device some-driver/worker/instance-1: CEL runtime error: no such key: y. consider \
             using CEL optional chaining (.? followed by orValue()) or guarding the check with \
             has() for optional fields",
        ),
    ] {
        let cluster = Cluster::new(&["worker"]);
        cluster.claim(&claim(requests));
        assert_eq!(cluster.message(&pod_with_claim()), expected);
    }
}

#[test]
fn an_allocation_for_another_node_is_taken_away_unless_others_use_it() {
    let release = |reserved: Value| {
        let cluster = Cluster::new(&["worker", "other"]);
        let mut claim = allocated(claim(exactly(1)), "other");
        claim["status"]["reservedFor"] = reserved;
        cluster.claim(&claim);
        let (message, reasons, release) = cluster.cycle(&pod_with_claim()).unwrap_err();
        assert_eq!(message, "0/1 nodes are available: 1 resourceclaim not available on the node.");
        assert_eq!(release.is_some(), reasons[0] == "deallocation of ResourceClaim completed");
        release.is_some()
    };
    let consumer = |uid: &str| json!({"resource": "pods", "name": "p", "uid": uid});
    assert!(release(json!([])));
    assert!(release(json!([consumer("1234")])));
    assert!(!release(json!([consumer("other")])));
    assert!(!release(json!([consumer("1234"), consumer("other")])));
}

#[test]
fn nodes_with_earlier_subrequests_are_preferred() {
    let mut cluster = Cluster::new(&["worker"]);
    cluster.node("worker-2", json!({}));
    cluster.slice("worker-2", json!([{"name": "a"}, {"name": "b"}]));
    let sub = |name: &str, count: i64| {
        json!({"name": name, "deviceClassName": "my-class", "allocationMode": "ExactCount",
            "count": count})
    };
    cluster.claim(&claim(json!([{"name": "r", "firstAvailable": [sub("two", 2), sub("one", 1)]}])));
    let bind = cluster.cycle(&pod_with_claim()).unwrap();
    let allocation = bind.claims[0].allocation.clone().unwrap();
    let results = allocation.devices.unwrap().results.unwrap();
    let requests: Vec<&str> = results.iter().map(|result| result.request.as_str()).collect();
    assert_eq!(requests, ["r/two", "r/two"]);
}

fn pod_with_resource(claims: Value) -> Value {
    let mut pod = pod(claims, json!([]));
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"example.com/gpu": "1"}});
    pod
}

/// The cases of upstream's `TestPlugin` with extended resources.
#[test]
fn extended_resources_come_from_the_node_or_from_a_class() {
    let class = json!({"extendedResourceName": "example.com/gpu"});
    for (on_node, is_mapped, slices, expected) in [
        (json!({"example.com/gpu": "1"}), true, &["worker"][..], Ok(false)),
        (json!({"example.com/gpu": "0"}), true, &["worker"], Ok(true)),
        (json!({}), true, &["worker"], Ok(true)),
        (json!({}), true, &[], Err("1 cannot allocate all claims")),
        (json!({}), false, &["worker"], Err("1 Insufficient example.com/gpu")),
    ] {
        let mut cluster = Cluster::new(slices);
        cluster.nodes.clear();
        cluster.node("worker", on_node.clone());
        if is_mapped {
            cluster.class(class.clone());
        }
        match (cluster.cycle(&pod_with_resource(json!([]))), expected) {
            (Ok(bind), Ok(is_made)) => {
                assert_eq!(bind.extended.is_some(), is_made, "{on_node}");
                let Some((extended, _)) = &bind.extended else { continue };
                assert_eq!(extended.mappings[0].request_name, "container-0-request-0");
                let uid = extended.claim.metadata.uid.as_deref().unwrap();
                assert!(cluster.devices.is_in_flight(uid));
            }
            (Err((message, ..)), Err(text)) => {
                assert_eq!(message, format!("0/1 nodes are available: {text}."));
            }
            (got, _) => panic!("{on_node}: {got:?}"),
        }
    }
}

#[test]
fn a_pod_with_a_claim_and_a_resource_of_the_node_gets_no_second_claim() {
    let mut cluster = Cluster::new(&["worker"]);
    cluster.class(json!({"extendedResourceName": "example.com/gpu"}));
    cluster.nodes.clear();
    cluster.node("worker", json!({"example.com/gpu": "1"}));
    cluster.claim(&claim(exactly(1)));
    let claims = json!([{"name": "r", "resourceClaimName": "my-claim"}]);
    let bind = cluster.cycle(&pod_with_resource(claims)).unwrap();
    assert!(bind.extended.is_none());
    assert!(bind.claims[0].allocation.is_some());
}

#[test]
fn a_claim_for_extended_resources_of_an_earlier_cycle_is_deleted() {
    let mut cluster = Cluster::new(&["worker"]);
    cluster.class(json!({"extendedResourceName": "example.com/gpu"}));
    let mut earlier = allocated(claim(exactly(1)), "worker");
    earlier["metadata"]["annotations"] =
        json!({"resource.kubernetes.io/extended-resource-claim": "true"});
    earlier["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod", "name": "my-pod", "uid": "1234",
            "controller": true}]);
    cluster.claim(&earlier);
    let (message, reasons, release) = cluster.cycle(&pod_with_resource(json!([]))).unwrap_err();
    assert_eq!(message, "0/1 nodes are available: 1 cannot schedule extended resource claim.");
    assert_eq!(reasons[0], "deletion of ResourceClaim completed");
    assert!(matches!(release, Some(ClaimRelease::Delete(_))));
}

/// Rows of upstream's `Test_isSchedulableAfterClaimChange`.
#[test]
fn changes_of_claims_concern_pods_that_use_them_or_need_devices() {
    let cluster = Cluster::new(&[]);
    let typed = |value: &Value| -> Arc<ResourceClaim> {
        Arc::new(serde_json::from_value(value.clone()).unwrap())
    };
    let free = claim(exactly(1));
    cluster.claim(&free);
    let used = allocated(free.clone(), "worker");
    let mut other = used.clone();
    other["metadata"]["uid"] = "other".into();
    let mut other_free = free.clone();
    other_free["metadata"]["uid"] = "other".into();
    let mut finalized = free.clone();
    finalized["metadata"]["finalizers"] = json!(["f"]);
    let info = |pod: Value| PodInfo::new(&serde_json::from_value(pod).unwrap());
    let (mine, waiting) = (info(pod_with_claim()), info(pod_with_template(json!([]))));
    for (old, new, pod, expected, why) in [
        (Some(&free), None, &mine, false, "deleted without allocation"),
        (Some(&used), None, &mine, true, "deleted with allocation"),
        (None, Some(&free), &mine, true, "added"),
        (None, Some(&free), &waiting, false, "the pod waits for another claim"),
        (None, Some(&other_free), &mine, false, "unrelated"),
        (Some(&free), Some(&finalized), &mine, false, "only metadata"),
        (Some(&free), Some(&used), &mine, true, "status"),
        (Some(&other), Some(&other_free), &mine, true, "another claim was deallocated"),
    ] {
        let change = ClaimChange { old: old.map(typed), new: new.map(typed) };
        let event = Event::ResourceClaim { change: &change, devices: &cluster.devices };
        assert_eq!(DynamicResources::queueing_hint(&event, pod), expected, "{why}");
    }
    let event = Event::GeneratedResourceClaim(&cluster.devices);
    assert!(DynamicResources::queueing_hint(&event, &mine));
    assert!(!DynamicResources::queueing_hint(&event, &waiting));
    assert!(DynamicResources::pre_enqueue(&mine, &cluster.devices));
    assert!(!DynamicResources::pre_enqueue(&waiting, &cluster.devices));
}
