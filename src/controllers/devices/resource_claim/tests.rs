//! The whole controller against an API that stores objects: the cases of upstream's tests.

use serde_json::{Value, json};

use super::*;
use crate::fake_api::Cluster;

fn start(objects: &[Value]) -> Cluster {
    let cluster = Cluster::new(objects);
    let (client, recorder) = (cluster.client.clone(), cluster.recorder.clone());
    Controller::new(client, recorder, &cluster.informers).run(&cluster.tasks);
    cluster
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "test-pod", "namespace": "my-ns", "uid": "pod-uid"},
        "spec": {"containers": [],
            "resourceClaims": [{"name": "acme", "resourceClaimTemplateName": "my-template"}]},
        "status": {}})
}

fn with_status(claims: Value) -> Value {
    let mut pod = pod();
    pod["status"]["resourceClaimStatuses"] = claims;
    pod
}

fn template() -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "my-template", "namespace": "my-ns", "uid": "t"},
        "spec": {"metadata": {"annotations": {"example.com/color": "blue"}}, "spec": {}}})
}

/// A claim that the pod with this UID owns.
fn claim(name: &str, owner: &str, annotated: bool) -> Value {
    let mut claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "my-ns", "uid": name,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "test-pod",
                "uid": owner, "controller": true}]}});
    if annotated {
        claim["metadata"]["annotations"] = json!({POD_CLAIM_ANNOTATION: "acme"});
    }
    claim
}

/// An allocated claim without owner that is reserved for these pods (name and UID).
fn reserved(pods: &[(&str, &str)]) -> Value {
    let consumer =
        |(name, uid): &(&str, &str)| json!({"resource": "pods", "name": name, "uid": uid});
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "my-claim", "namespace": "my-ns", "uid": "c",
            "finalizers": [FINALIZER]},
        "status": {"allocation": {}, "reservedFor": pods.iter().map(consumer).collect::<Vec<_>>()}})
}

fn statuses(cluster: &Cluster) -> Value {
    cluster.get("pods", "my-ns/test-pod").unwrap()["status"]["resourceClaimStatuses"].clone()
}

fn my_claim(cluster: &Cluster) -> Value {
    cluster.get("resourceclaims", "my-ns/my-claim").unwrap()
}

const CREATED: [&str; 2] = ["POST resourceclaims", "PATCH pods/status"];

#[tokio::test(start_paused = true)]
async fn a_claim_is_created_from_the_template_and_recorded() {
    let mut other = claim("acme", "pod-uid", true);
    other["metadata"]["namespace"] = "other-ns".into();
    let cluster = start(&[pod(), template(), other]);
    assert_eq!(cluster.requests().await, CREATED);
    let claims = cluster.list("resourceclaims");
    let meta = &claims.iter().find(|c| c["metadata"]["namespace"] == "my-ns").unwrap()["metadata"];
    assert_eq!(meta["generateName"], "test-pod-acme-");
    let want = json!({"example.com/color": "blue", POD_CLAIM_ANNOTATION: "acme"});
    assert_eq!(meta["annotations"], want);
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "test-pod", "uid": "pod-uid",
        "controller": true}]);
    assert_eq!(meta["ownerReferences"], owner);
    assert_eq!(statuses(&cluster), json!([{"name": "acme", "resourceClaimName": meta["name"]}]));
    let kept = cluster.get("resourceclaimtemplates", "my-ns/my-template").unwrap();
    assert_eq!(kept["spec"], template()["spec"]);
    assert!(cluster.events().is_empty());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_for_a_recorded_claim() {
    let status = json!([{"name": "acme", "resourceClaimName": "made"}]);
    let cluster = start(&[with_status(status), template(), claim("made", "pod-uid", true)]);
    assert!(cluster.requests().await.is_empty());
    // A lost claim is created again, and the entry replaced.
    cluster.remove("resourceclaims", "my-ns/made");
    assert_eq!(cluster.requests().await, ["GET resourceclaims", CREATED[0], CREATED[1]]);
    let name = cluster.list("resourceclaims")[0]["metadata"]["name"].clone();
    assert_eq!(statuses(&cluster), json!([{"name": "acme", "resourceClaimName": name}]));
    // Without claims, deleted, or gone: nothing.
    let (mut plain, mut deleted) = (pod(), pod());
    plain["metadata"]["name"] = "plain".into();
    plain["spec"]["resourceClaims"] = json!([]);
    cluster.put(&plain);
    deleted["metadata"]["name"] = "deleted".into();
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    deleted["spec"]["nodeName"] = "n".into();
    cluster.put(&deleted);
    assert!(cluster.requests().await.is_empty());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_recorded_claim_of_another_pod_is_replaced() {
    // The wrong claim is the only change after the start: its event does nothing, the pod's does.
    let status = json!([{"name": "acme", "resourceClaimName": "made"}]);
    let cluster = start(&[template(), claim("made", "other-uid", true)]);
    assert!(cluster.requests().await.is_empty());
    let (client, recorder) = (cluster.client.clone(), cluster.recorder.clone());
    let controller = Controller::new(client, recorder, &cluster.informers);
    let pod = with_status(status);
    cluster.put(&pod);
    cluster.requests().await;
    controller.sync_pod("my-ns", "test-pod").await.unwrap();
    assert_eq!(cluster.requests().await, CREATED);
    assert_eq!(cluster.list("resourceclaims").len(), 2);
    let name = statuses(&cluster)[0]["resourceClaimName"].clone();
    assert_ne!(name, "made");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_only_the_server_has_is_found() {
    let cluster = Cluster::new(&[template()]);
    let (client, recorder) = (cluster.client.clone(), cluster.recorder.clone());
    let controller = Controller::new(client, recorder, &cluster.informers);
    controller.synced().await;
    cluster.put_unseen(&claim("made", "pod-uid", true));
    cluster.put(&with_status(json!([{"name": "acme", "resourceClaimName": "made"}])));
    cluster.requests().await;
    controller.sync_pod("my-ns", "test-pod").await.unwrap();
    assert_eq!(cluster.requests().await, ["GET resourceclaims"]);
    // A failing request is an error, not a missing claim.
    cluster.fail("GET resourceclaims", 500);
    let error = controller.sync_pod("my-ns", "test-pod").await.unwrap_err().to_string();
    let want = "pod my-ns/test-pod, PodResourceClaim acme: checking claim existence: ";
    assert!(error.starts_with(want), "{error}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_a_recorded_name_is_adopted() {
    let cluster = start(&[pod(), template(), claim("orphan", "pod-uid", true)]);
    assert_eq!(cluster.requests().await, ["PATCH pods/status"]);
    assert_eq!(statuses(&cluster), json!([{"name": "acme", "resourceClaimName": "orphan"}]));
    cluster.stop().await;
    // The write of the status fails; the retry finds the claim again.
    let cluster = Cluster::new(&[pod(), template()]);
    let (client, recorder) = (cluster.client.clone(), cluster.recorder.clone());
    cluster.fail("PATCH pods/status", 500);
    cluster.fail("PATCH pods/status", 500);
    Controller::new(client, recorder, &cluster.informers).run(&cluster.tasks);
    let requests = cluster.requests().await;
    assert_eq!(requests.iter().filter(|r| **r == "POST resourceclaims").count(), 1);
    assert_eq!(cluster.list("resourceclaims").len(), 1);
    assert!(!statuses(&cluster).is_null());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_template_is_reported_until_it_exists() {
    // A claim of similar name without an owner is left alone.
    let mut similar = claim("test-pod-acme", "none", false);
    similar["metadata"]["ownerReferences"] = json!([]);
    let cluster = start(&[pod(), similar]);
    assert!(cluster.requests().await.is_empty());
    let text = "resource claim template \"my-template\": \
                resourceclaimtemplate.resource.k8s.io \"my-template\" not found";
    let event = format!("FailedResourceClaimCreation PodResourceClaim acme: {text}");
    assert_eq!(cluster.events().first(), Some(&event));
    cluster.put(&template());
    let requests = cluster.requests().await;
    assert_eq!(requests, CREATED);
    assert_eq!(cluster.list("resourceclaims").len(), 2);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_claim_is_reported() {
    let cluster = Cluster::new(&[pod(), template()]);
    let (client, recorder) = (cluster.client.clone(), cluster.recorder.clone());
    let controller = Controller::new(client, recorder, &cluster.informers);
    controller.synced().await;
    cluster.fail("POST resourceclaims", 409);
    let error = controller.sync_pod("my-ns", "test-pod").await.unwrap_err();
    let text = "pod my-ns/test-pod, PodResourceClaim acme: create ResourceClaim : refused";
    assert_eq!(error.to_string(), text);
    assert!(!error.is_permanent());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_of_a_pod_group_is_refused_once() {
    let mut grouped = pod();
    grouped["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
    let cluster = Cluster::new(&[grouped, template()]);
    let (client, recorder) = (cluster.client.clone(), cluster.recorder.clone());
    let controller = Controller::new(client, recorder, &cluster.informers);
    controller.synced().await;
    let error = controller.sync_pod("my-ns", "test-pod").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "get PodGroup for Pod my-ns/test-pod: Pod is a member of PodGroup g but GenericWorkload \
         feature is disabled"
    );
    let item = WorkItem::Pod("my-ns".into(), "test-pod".into());
    assert_eq!(controller.reconcile(item).await.unwrap(), Action::Done);
    assert!(cluster.requests().await.is_empty());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_write_has_the_names_of_all_claims() {
    let mut two = with_status(json!([{"name": "other", "resourceClaimName": "made"}]));
    two["spec"]["resourceClaims"] = json!([
        {"name": "other", "resourceClaimTemplateName": "my-template"},
        {"name": "acme", "resourceClaimTemplateName": "my-template"}]);
    let cluster = start(&[two, template(), claim("made", "pod-uid", false)]);
    assert_eq!(cluster.requests().await, CREATED);
    let found = statuses(&cluster);
    assert_eq!((&found[0]["name"], &found[1]["name"]), (&json!("acme"), &json!("other")));
    assert_eq!(found[1]["resourceClaimName"], "made");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_allocated_claim_is_reserved_for_a_pod_with_a_node() {
    let mut bound = with_status(json!([{"name": "acme", "resourceClaimName": "made"}]));
    bound["spec"]["nodeName"] = "n".into();
    let mut made = claim("made", "pod-uid", true);
    made["status"] = json!({"allocation": {}});
    let cluster = start(&[bound, template(), made]);
    assert_eq!(cluster.requests().await, ["PUT resourceclaims/status"]);
    let claim = cluster.get("resourceclaims", "my-ns/made").unwrap();
    let want = json!([{"resource": "pods", "name": "test-pod", "uid": "pod-uid"}]);
    assert_eq!(claim["status"]["reservedFor"], want);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn reservations_of_pods_that_are_gone_are_removed() {
    // In the cache: kept without a request.
    let cluster = start(&[pod(), template(), reserved(&[("test-pod", "pod-uid")])]);
    cluster.requests().await;
    assert_eq!(my_claim(&cluster)["status"]["reservedFor"].as_array().unwrap().len(), 1);
    cluster.stop().await;
    // Not in the cache and nowhere else: released, deallocated, without finalizer.
    let cluster = start(&[reserved(&[("test-pod", "pod-uid")])]);
    let writes = ["GET pods", "PUT resourceclaims/status", "PUT resourceclaims"];
    assert_eq!(cluster.requests().await, writes);
    let found = my_claim(&cluster);
    assert!(found["status"]["allocation"].is_null() && found["status"]["reservedFor"].is_null());
    assert_eq!(found["metadata"]["finalizers"].as_array().map_or(0, Vec::len), 0);
    cluster.stop().await;
    // Only the server has the pod.
    let cluster = start(&[]);
    cluster.requests().await;
    cluster.put_unseen(&pod());
    cluster.put(&reserved(&[("test-pod", "pod-uid")]));
    assert_eq!(cluster.requests().await, ["GET pods"]);
    cluster.stop().await;
    // One of two pods is gone.
    let cluster = start(&[pod(), reserved(&[("test-pod", "pod-uid"), ("b", "b")])]);
    cluster.requests().await;
    let found = my_claim(&cluster);
    assert_eq!(found["status"]["reservedFor"].as_array().unwrap().len(), 1);
    assert!(found["status"]["allocation"].is_object());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_deletion_of_a_pod_releases_its_claims_without_a_lookup() {
    let direct = |mut pod: Value| {
        pod["spec"]["resourceClaims"] = json!([{"name": "acme", "resourceClaimName": "my-claim"}]);
        pod
    };
    let cluster = start(&[direct(pod()), reserved(&[("test-pod", "pod-uid")])]);
    assert!(cluster.requests().await.is_empty());
    cluster.remove("pods", "my-ns/test-pod");
    assert_eq!(cluster.requests().await, ["PUT resourceclaims/status", "PUT resourceclaims"]);
    cluster.stop().await;
    // A consumer of another kind stays, and the allocation with it.
    let mut shared = reserved(&[("test-pod", "pod-uid")]);
    shared["status"]["reservedFor"]
        .as_array_mut()
        .unwrap()
        .push(json!({"apiGroup": "foo.com", "resource": "foo", "name": "f", "uid": "f"}));
    let cluster = start(&[shared]);
    cluster.requests().await;
    let found = my_claim(&cluster);
    assert_eq!(found["status"]["reservedFor"][0]["resource"], "foo");
    assert!(found["status"]["allocation"].is_object());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_claim_is_deallocated_and_goes() {
    let mut deleted = reserved(&[]);
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let cluster = start(&[deleted]);
    assert_eq!(cluster.requests().await, ["PUT resourceclaims/status", "PUT resourceclaims"]);
    assert_eq!(cluster.get("resourceclaims", "my-ns/my-claim"), None);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_pod_that_is_done_is_deleted() {
    let mut done = with_status(json!([{"name": "acme", "resourceClaimName": "made"}]));
    done["spec"]["nodeName"] = "n".into();
    done["status"]["phase"] = "Running".into();
    let cluster = start(&[done, template(), claim("made", "pod-uid", true)]);
    assert!(cluster.requests().await.is_empty());
    cluster.edit("pods", "my-ns/test-pod", |pod| pod["status"]["phase"] = "Succeeded".into());
    assert_eq!(cluster.requests().await, ["DELETE resourceclaims"]);
    cluster.stop().await;
}
