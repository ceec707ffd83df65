//! The plugin over a fixed set of objects.

use api::{Gvk, Gvr};
use apiserver::User;
use apiserver::admission::Options;
use lookup::testing::Fixed;
use serde_json::json;

use super::*;

const NAMESPACE: &str = "a";

fn gvr(group: &str, resource: &str) -> Gvr {
    Gvr::new(group, "v1", resource)
}

fn meta(name: &str, owner: Option<(&str, &str, &str)>) -> Value {
    let mut meta = json!({"name": name, "namespace": NAMESPACE, "uid": name});
    if let Some((api_version, kind, name)) = owner {
        meta["ownerReferences"] = json!([{"apiVersion": api_version, "kind": kind, "name": name,
            "uid": name, "controller": true}]);
    }
    meta
}

fn autoscaler(name: &str, kind: &str, target: &str, cpu: &str) -> Value {
    json!({"apiVersion": "autoscaling.k8s.io/v1", "kind": KIND, "metadata": meta(name, None),
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": kind, "name": target},
            "updatePolicy": {"updateMode": "Initial"}},
        "status": {"recommendation": {"containerRecommendations": [
            {"containerName": "c", "target": {"cpu": cpu}}]}}})
}

fn selector() -> Value {
    json!({"matchLabels": {"app": "web"}})
}

/// A Deployment `web` with its ReplicaSet `web-1`, and an autoscaler of the Deployment.
fn world() -> Arc<Fixed> {
    let owner = Some(("apps/v1", "Deployment", "web"));
    Fixed::new(&[
        (
            &gvr("apps", "deployments"),
            json!({"metadata": meta("web", None), "spec": {"selector": selector()}}),
        ),
        (
            &gvr("apps", "replicasets"),
            json!({"metadata": meta("web-1", owner), "spec": {"selector": selector()}}),
        ),
        (&autoscalers(), autoscaler("vpa", "Deployment", "web", "2")),
    ])
}

fn pod(owner: Option<(&str, &str, &str)>, app: &str) -> Value {
    let mut meta = meta("", owner);
    meta["labels"] = json!({"app": app});
    json!({"metadata": meta, "spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "1"}}}]}})
}

const WEB: Option<(&str, &str, &str)> = Some(("apps/v1", "ReplicaSet", "web-1"));

/// What the plugin makes of an object, and the warnings.
async fn admit(
    lookup: Arc<Fixed>,
    (operation, gvr, subresource): (Operation, &Gvr, &str),
    object: &Value,
    old: Option<&Value>,
) -> Result<(Value, Vec<String>), Status> {
    let (warnings, reservation) = Default::default();
    let request = Request {
        operation,
        gvr,
        gvk: &Gvk::new(&gvr.group, &gvr.version, "Kind"),
        subresource,
        namespace: NAMESPACE,
        name: object["metadata"]["name"].as_str().unwrap_or_default(),
        user: &User::authenticated("admin", &[]),
        dry_run: false,
        old,
        options: Options::default(),
        reinvocation: &Default::default(),
        reservation: &reservation,
        warnings: &warnings,
    };
    let mut object = Some(object.clone());
    Admission::new(lookup).mutate(&request, &mut object).await?;
    Ok((object.unwrap(), warnings.into_inner()))
}

async fn created_pod(lookup: Arc<Fixed>, pod: &Value) -> Value {
    admit(lookup, (Operation::Create, &lookup::PODS, ""), pod, None).await.unwrap().0
}

fn cpu(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"].as_str().unwrap()
}

#[tokio::test]
async fn a_new_pod_receives_the_recommendation_of_its_top_most_controller() {
    let found = created_pod(world(), &pod(WEB, "web")).await;
    assert_eq!(cpu(&found), "2");
    let annotations = &found["metadata"]["annotations"];
    assert_eq!(annotations["vpaObservedContainers"], "c");
    assert_eq!(annotations["vpaUpdates"], "Pod resources updated by vpa: container 0: cpu request");
}

#[tokio::test]
async fn other_pods_and_requests_are_unchanged() {
    for pod in [pod(WEB, "other"), pod(None, "web"), pod(Some(("v1", "Node", "n")), "web")] {
        assert_eq!(created_pod(world(), &pod).await, pod);
    }
    let web = pod(WEB, "web");
    for (operation, subresource) in [(Operation::Update, ""), (Operation::Create, "binding")] {
        let at = (operation, &*lookup::PODS, subresource);
        assert_eq!(admit(world(), at, &web, None).await.unwrap().0, web);
    }
    // An autoscaler of the ReplicaSet does not control the pods of its Deployment.
    let lookup = world();
    lookup.put(&autoscalers(), autoscaler("vpa", "ReplicaSet", "web-1", "2"));
    assert_eq!(created_pod(lookup, &web).await, web);
}

#[tokio::test]
async fn recommendations_stay_within_the_limit_ranges_of_the_namespace() {
    let lookup = world();
    let range = json!({"metadata": meta("limits", None), "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "1500m"}, "default": {"cpu": "1"}}]}});
    lookup.put(&lookup::LIMIT_RANGES, range);
    let found = created_pod(lookup, &pod(WEB, "web")).await;
    assert_eq!(cpu(&found), "1500m");
}

#[tokio::test]
async fn a_pod_is_created_when_objects_cannot_be_read() {
    let web = pod(WEB, "web");
    for gvr in [autoscalers(), gvr("apps", "replicasets"), lookup::LIMIT_RANGES.clone()] {
        let lookup = world();
        lookup.break_reads(&gvr);
        assert_eq!(created_pod(lookup, &web).await, web, "{gvr}");
    }
    let orphaned = pod(Some(("apps/v1", "ReplicaSet", "gone")), "web");
    assert_eq!(created_pod(world(), &orphaned).await, orphaned);
}

#[tokio::test]
async fn a_custom_resource_with_a_scale_is_a_target() {
    let scale = json!({"labelSelectorPath": ".status.selector"});
    let definition = |subresources: Value| {
        json!({"metadata": {"name": "rollouts.argoproj.io"}, "spec": {"group": "argoproj.io",
            "names": {"kind": "Rollout", "plural": "rollouts"},
            "versions": [{"name": "v1", "subresources": subresources}]}})
    };
    let definitions = gvr("apiextensions.k8s.io", "customresourcedefinitions");
    let lookup = world();
    let rollout = json!({"metadata": meta("shop", None), "status": {"selector": "app=web"}});
    lookup.put(&gvr("argoproj.io", "rollouts"), rollout);
    let owner = Some(("argoproj.io/v1", "Rollout", "shop"));
    let owned = json!({"metadata": meta("shop-1", owner), "spec": {"selector": selector()}});
    lookup.put(&gvr("apps", "replicasets"), owned);
    lookup.put(&autoscalers(), autoscaler("shop", "Rollout", "shop", "3"));
    let mut target = autoscaler("shop", "Rollout", "shop", "3");
    target["spec"]["targetRef"]["apiVersion"] = "argoproj.io/v1".into();
    lookup.put(&autoscalers(), target);
    let shop = pod(Some(("apps/v1", "ReplicaSet", "shop-1")), "web");
    lookup.put(&definitions, definition(json!({"scale": scale})));
    assert_eq!(cpu(&created_pod(Arc::clone(&lookup), &shop).await), "3");
    // Without a scale subresource, the ReplicaSet is the top-most controller.
    lookup.put(&definitions, definition(json!({})));
    assert_eq!(created_pod(Arc::clone(&lookup), &shop).await, shop);
    lookup.put(&autoscalers(), autoscaler("shop", "ReplicaSet", "shop-1", "3"));
    assert_eq!(cpu(&created_pod(lookup, &shop).await), "3");
}

#[tokio::test]
async fn a_cycle_of_owners_ends() {
    let lookup = world();
    let owner = Some(("apps/v1", "ReplicaSet", "web-1"));
    lookup.put(&gvr("apps", "replicasets"), json!({"metadata": meta("web-1", owner), "spec": {}}));
    let web = pod(WEB, "web");
    assert_eq!(created_pod(lookup, &web).await, web);
}

#[tokio::test]
async fn autoscalers_are_defaulted_and_validated() {
    let write = |operation, object: Value, old: Option<Value>| async move {
        admit(world(), (operation, &autoscalers(), ""), &object, old.as_ref()).await
    };
    let of = |spec: Value| json!({"metadata": meta("vpa", None), "spec": spec});
    let (found, warnings) = write(Operation::Create, of(json!({})), None).await.unwrap();
    assert_eq!(found["spec"]["updatePolicy"], json!({"updateMode": "Recreate"}));
    assert_eq!(warnings, Vec::<String>::new());

    let auto = of(json!({"updatePolicy": {"updateMode": "Auto"}}));
    let (_, warnings) = write(Operation::Update, auto, Some(of(json!({})))).await.unwrap();
    assert!(warnings[0].starts_with("spec.updatePolicy: \"Auto\" mode is deprecated"));

    let bad = of(json!({"updatePolicy": {}}));
    let refused = write(Operation::Create, bad.clone(), None).await.unwrap_err();
    assert_eq!((refused.code, &*refused.reason), (422, "Invalid"));
    assert_eq!(
        refused.message,
        "admission webhook \"vpa.k8s.io\" denied the request: \
         VerticalPodAutoscaler.autoscaling.k8s.io \"vpa\" is invalid: \
         spec.updatePolicy.updateMode: Required value: updateMode is required if UpdatePolicy is \
         used"
    );
    assert_eq!(refused.details.unwrap().causes.len(), 1);
    // The status is written by the recommender and not validated.
    let at = (Operation::Update, &autoscalers(), "status");
    assert_eq!(admit(world(), at, &bad, None).await.unwrap().0, bad);
}
