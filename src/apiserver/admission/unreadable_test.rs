//! Plugins that cannot read an object they depend on: they reject with 500 or with upstream's 403,
//! and never treat the object as absent.

use std::sync::Arc;

use api::{Gvr, Status};
use serde_json::{Value, json};

use super::testing::{Ask, admit, creates};
use super::*;
use crate::authz::chain::Chain;
use lookup::testing::{Fixed, UNREADABLE};

/// A cluster without objects where this resource cannot be read.
fn without(gvr: &Gvr) -> Arc<Fixed> {
    let fixed = Fixed::new(&[]);
    fixed.break_reads(gvr);
    fixed
}

fn pod(spec: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": spec})
}

async fn refused(plugin: &dyn Plugin, ask: Ask<'_>, object: Value) -> (u16, String) {
    let Status { code, message, .. } = admit(plugin, ask, object).await.unwrap_err();
    (code, message)
}

fn create<'a>() -> Ask<'a> {
    creates(&lookup::PODS, "Pod")
}

#[tokio::test]
async fn an_unreadable_namespace_is_an_internal_error() {
    let internal = (500, format!("Internal error occurred: {UNREADABLE}"));
    let plugin = namespace::NamespaceLifecycle::new(without(&lookup::NAMESPACES));
    assert_eq!(refused(&plugin, create(), pod(json!({}))).await, internal);
    let found = matching::namespace(&*without(&lookup::NAMESPACES), "a").await.unwrap_err();
    assert_eq!((found.code, found.message), internal);
    // For an absent object, the response differs.
    let found = matching::namespace(&*Fixed::new(&[]), "a").await.unwrap_err();
    assert_eq!(found.code, 404);
}

#[tokio::test]
async fn unreadable_classes_are_internal_errors() {
    let named = pod(json!({"priorityClassName": "high"}));
    let plugin = pods::Priority(without(&lookup::PRIORITY_CLASSES));
    assert_eq!(
        refused(&plugin, create(), named.clone()).await,
        (500, format!("failed to resolve PriorityClass with name high: {UNREADABLE}"))
    );
    // The default class may be among those that cannot be read.
    assert_eq!(
        refused(&plugin, create(), pod(json!({}))).await,
        (500, format!("error occurred while retrieving default priority class: {UNREADABLE}"))
    );
    let plugin = pods::Priority(Fixed::new(&[]));
    assert_eq!(refused(&plugin, create(), named).await.0, 403);
    let named = pod(json!({"runtimeClassName": "vm"}));
    let plugin = pods::RuntimeClass(without(&lookup::RUNTIME_CLASSES));
    assert_eq!(
        refused(&plugin, create(), named.clone()).await,
        (500, format!("cannot read RuntimeClass vm: {UNREADABLE}"))
    );
    let plugin = pods::RuntimeClass(Fixed::new(&[]));
    assert_eq!(refused(&plugin, create(), named).await.0, 403);
}

#[tokio::test]
async fn an_unreadable_node_rejects_the_binding() {
    let bound = pod(json!({"nodeName": "n1"}));
    let plugin = pods::PodTopologyLabels(without(&lookup::NODES));
    let found = refused(&plugin, create(), bound.clone()).await;
    assert_eq!(found, (503, UNREADABLE.to_owned()));
    // Upstream ignores a node that does not exist.
    let plugin = pods::PodTopologyLabels(Fixed::new(&[]));
    assert!(admit(&plugin, create(), bound).await.is_ok());
}

#[tokio::test]
async fn an_unreadable_service_account_is_not_reported_missing() {
    let plugin = service_account::ServiceAccount::new(without(&lookup::SERVICE_ACCOUNTS));
    let found = refused(&plugin, create(), pod(json!({"serviceAccountName": "bot"}))).await;
    assert_eq!(
        found,
        (
            403,
            format!(
                "pods \"p\" is forbidden: error looking up service account a/bot: {UNREADABLE}"
            )
        )
    );
}

#[tokio::test]
async fn an_unreadable_storage_class_rejects_expansion() {
    let claim = |size: &str| {
        json!({"metadata": {"name": "c"}, "status": {"phase": "Bound"},
            "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": size}}}})
    };
    let plugin = storage::PersistentVolumeClaimResize(without(&lookup::STORAGE_CLASSES));
    let ask = Ask {
        operation: Operation::Update,
        old: Some(claim("1Gi")),
        ..creates(&lookup::PERSISTENT_VOLUME_CLAIMS, "PersistentVolumeClaim")
    };
    let (code, message) = refused(&plugin, ask, claim("2Gi")).await;
    assert_eq!(code, 500);
    assert!(
        message.ends_with(&format!("cannot read StorageClass fast: {UNREADABLE}")),
        "{message}"
    );
}

async fn as_node(world: Arc<Fixed>, ask: Ask<'_>, object: Value) -> (u16, String) {
    let plugin = node_restriction::NodeRestriction::new(world, Arc::new(Chain::new(Vec::new())));
    let user = User::authenticated("system:node:n1", &["system:nodes"]);
    refused(&plugin, Ask { user, ..ask }, object).await
}

#[tokio::test]
async fn unreadable_objects_reject_requests_of_nodes() {
    let forbidden = |what: &str, why: &str| (403, format!("{what} is forbidden: {why}"));
    let delete = Ask { operation: Operation::Delete, ..create() };
    assert_eq!(
        as_node(without(&lookup::PODS), delete, pod(json!({}))).await,
        forbidden("pods \"p\"", UNREADABLE)
    );
    let owner =
        json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": true});
    let mirror = json!({"metadata": {"name": "p", "ownerReferences": [owner],
        "annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {"nodeName": "n1"}});
    assert_eq!(
        as_node(without(&lookup::NODES), create(), mirror).await,
        forbidden("pods \"p\"", &format!("error looking up node n1 to verify uid: {UNREADABLE}"))
    );
}

/// The claim may lead to a driver with this audience: upstream rejects before it calls the
/// authorizer.
#[tokio::test]
async fn an_unreadable_claim_rejects_an_audience() {
    let own = json!({"metadata": {"name": "web", "namespace": "a", "uid": "p1"}, "spec": {"nodeName": "n1",
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    let request = json!({"metadata": {"name": "bot"}, "spec": {"audiences": ["vault"],
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "p1"}}});
    let world = || Fixed::new(&[(&lookup::PODS, own.clone())]);
    let ask = || Ask { subresource: "token", ..creates(&lookup::SERVICE_ACCOUNTS, "TokenRequest") };
    let broken = world();
    broken.break_reads(&lookup::PERSISTENT_VOLUME_CLAIMS);
    let (code, message) = as_node(broken, ask(), request.clone()).await;
    assert_eq!(code, 403);
    let why = format!("error validating audience \"vault\": {UNREADABLE}");
    assert!(message.ends_with(&why), "{message}");
    let (code, message) = as_node(world(), ask(), request).await;
    assert_eq!(code, 403);
    let why = "error validating audience \"vault\": persistentvolumeclaim \"data\" not found";
    assert!(message.ends_with(why), "{message}");
}
