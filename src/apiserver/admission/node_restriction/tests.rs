//! NodeRestriction: the writes that are allowed and rejected.

use super::super::testing::{Ask, admit, creates};
use super::*;
use crate::User;
use crate::authz::chain::Chain;
use lookup::testing::Fixed;
use serde_json::json;

async fn run(
    operation: Operation,
    gvr: &api::Gvr,
    subresource: &str,
    old: Option<Value>,
    object: Value,
) -> Result<(), String> {
    let pod = json!({"metadata": {"name": "web", "namespace": "a", "uid": "p1"}, "spec": {"nodeName": "n2"}});
    let world = Fixed::new(&[
        (&lookup::NODES, json!({"metadata": {"name": "n1", "uid": "u1"}})),
        (&lookup::PODS, pod),
    ]);
    let plugin = NodeRestriction::new(world, Arc::new(Chain::new(Vec::new())));
    let user = User::authenticated("system:node:n1", &["system:nodes"]);
    let ask = Ask { operation, subresource, user, old, ..creates(gvr, "X") };
    admit(&plugin, ask, object).await.map(|_| ()).map_err(|e| e.message)
}

#[tokio::test]
async fn a_node_registers_itself_without_reserved_labels() {
    let node =
        |name: &str, label: &str| json!({"metadata": {"name": name, "labels": {label: "x"}}});
    let create = |object| run(Operation::Create, &lookup::NODES, "", None, object);
    assert_eq!(create(node("n1", "kubernetes.io/hostname")).await, Ok(()));
    assert_eq!(create(node("n1", "example.com/rack")).await, Ok(()));
    assert_eq!(create(node("n1", "node.kubernetes.io/speed")).await, Ok(()));
    assert_eq!(
        create(node("n1", "node-restriction.kubernetes.io/tenant")).await.unwrap_err(),
        "nodes \"n1\" is forbidden: node \"n1\" is not allowed to set the following labels: node-restriction.kubernetes.io/tenant"
    );
    assert!(create(node("n1", "node-role.kubernetes.io/master")).await.is_err());
    assert_eq!(
        create(node("n2", "x")).await.unwrap_err(),
        "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\""
    );
}

#[tokio::test]
async fn a_node_cannot_change_its_taints_or_owners() {
    let old = json!({"metadata": {"name": "n1"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    let update = |object| run(Operation::Update, &lookup::NODES, "", Some(old.clone()), object);
    assert_eq!(update(old.clone()).await, Ok(()));
    let free = json!({"metadata": {"name": "n1"}, "spec": {}});
    assert_eq!(
        update(free).await.unwrap_err(),
        "nodes \"n1\" is forbidden: node \"n1\" is not allowed to modify taints"
    );
    let mut claims = old.clone();
    claims["metadata"]["annotations"] = json!({"kube-lite.io/applied-flag-taints": "x"});
    assert!(
        update(claims)
            .await
            .unwrap_err()
            .ends_with("the annotation kube-lite.io/applied-flag-taints")
    );
    let mut owned = old.clone();
    owned["metadata"]["ownerReferences"] = json!([{"name": "x"}]);
    assert!(update(owned).await.unwrap_err().ends_with("is not allowed to modify ownerReferences"));
}

#[tokio::test]
async fn a_node_creates_only_mirror_pods_bound_to_itself() {
    let mirror = json!({
        "metadata": {"name": "m", "annotations": {"kubernetes.io/config.mirror": "h"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
    });
    let create = |object| run(Operation::Create, &lookup::PODS, "", None, object);
    assert_eq!(create(mirror.clone()).await, Ok(()));
    let mut secret = mirror.clone();
    secret["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "s"}}]);
    assert_eq!(
        create(secret).await.unwrap_err(),
        "pods \"m\" is forbidden: node \"n1\" can not create pods that reference secrets"
    );
    let mut other = mirror.clone();
    other["spec"]["nodeName"] = json!("n2");
    assert!(create(other).await.is_err());
    assert!(create(json!({"metadata": {"name": "m"}, "spec": {"nodeName": "n1"}})).await.is_err());
}

#[tokio::test]
async fn a_node_creates_and_deletes_only_its_own_resource_slices() {
    let slice = |node: &str| json!({"metadata": {"name": "s"}, "spec": {"nodeName": node}});
    let gvr = &lookup::RESOURCE_SLICES;
    let create = |object| run(Operation::Create, gvr, "", None, object);
    let delete = |old| run(Operation::Delete, gvr, "", Some(old), Value::Null);
    assert_eq!(create(slice("n1")).await, Ok(()));
    assert_eq!(delete(slice("n1")).await, Ok(()));
    let same = "ResourceSlice with the same NodeName as the requesting node";
    assert!(create(slice("n2")).await.unwrap_err().ends_with(&format!("can only create {same}")));
    assert!(delete(slice("n2")).await.unwrap_err().ends_with(&format!("can only delete {same}")));
    let update = run(Operation::Update, gvr, "", Some(slice("n2")), slice("n2"));
    assert_eq!(update.await, Ok(()));
}

#[tokio::test]
async fn a_node_requests_tokens_for_its_own_pods_only() {
    let request = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "p1"}}});
    let error = run(Operation::Create, &lookup::SERVICE_ACCOUNTS, "token", None, request)
        .await
        .unwrap_err();
    assert!(
        error.ends_with("node requested token bound to a pod scheduled on a different node"),
        "{error}"
    );
    let error =
        run(Operation::Create, &lookup::SERVICE_ACCOUNTS, "token", None, json!({"spec": {}}))
            .await
            .unwrap_err();
    assert!(error.ends_with("node requested token not bound to a pod"), "{error}");
}

fn certificate_request() -> Value {
    json!({"metadata": {"generateName": "req-"}, "spec": {
        "signerName": "a.b/c", "podName": "api", "podUID": "p2", "serviceAccountName": "bot",
        "serviceAccountUID": "s1", "nodeName": "n1", "nodeUID": "u1"}})
}

/// The outcome of a node's certificate request, in a cluster with its pod `a/api` and the mirror
/// pod `a/static`.
async fn ask(operation: Operation, change: impl FnOnce(&mut Value)) -> Result<(), (u16, String)> {
    let pod = |name: &str, uid: &str, node: &str, annotations: Value| {
        json!({"metadata": {"name": name, "namespace": "a", "uid": uid, "annotations": annotations},
            "spec": {"nodeName": node, "serviceAccountName": "bot", "volumes": [
                {"projected": {"sources": [{"podCertificate": {"signerName": "a.b/c"}}]}}]}})
    };
    let mirror = json!({"kubernetes.io/config.mirror": "h"});
    let world = Fixed::new(&[
        (&lookup::NODES, json!({"metadata": {"name": "n1", "uid": "u1"}})),
        (&lookup::PODS, pod("api", "p2", "n1", json!({}))),
        (&lookup::PODS, pod("far", "p3", "n2", json!({}))),
        (&lookup::PODS, pod("static", "p4", "n1", mirror)),
        (
            &lookup::SERVICE_ACCOUNTS,
            json!({"metadata": {"name": "bot", "namespace": "a", "uid": "s1"}}),
        ),
    ]);
    let plugin = NodeRestriction::new(world, Arc::new(Chain::new(Vec::new())));
    let user = User::authenticated("system:node:n1", &["system:nodes"]);
    let gvr = api::Gvr::new("certificates.k8s.io", "v1", "podcertificaterequests");
    let mut request = certificate_request();
    change(&mut request);
    let old = (operation == Operation::Update).then(|| request.clone());
    let ask = Ask { operation, user, old, ..creates(&gvr, "PodCertificateRequest") };
    admit(&plugin, ask, request).await.map(|_| ()).map_err(|e| (e.code, e.message))
}

#[tokio::test]
async fn a_node_requests_pod_certificates_for_its_own_pods_only() {
    assert_eq!(ask(Operation::Create, |_| {}).await, Ok(()));
    let refused = async |change: fn(&mut Value)| {
        let (code, message) = ask(Operation::Create, change).await.unwrap_err();
        let prefix = "podcertificaterequests.certificates.k8s.io \"req-\" is forbidden: ";
        assert_eq!(code, 403, "{message}");
        message.strip_prefix(prefix).unwrap().to_owned()
    };
    assert_eq!(
        refused(|r| r["spec"]["nodeName"] = json!("n2")).await,
        "PodCertificateRequest.Spec.NodeName=\"n2\", which is not the requesting node \"n1\""
    );
    let far = |r: &mut Value| {
        r["spec"]["podName"] = json!("far");
        r["spec"]["podUID"] = json!("p3");
    };
    assert_eq!(
        refused(far).await,
        "pod \"a/far\" is not running on node \"n1\" named in the PodCertificateRequest"
    );
    let mirror = |r: &mut Value| {
        r["spec"]["podName"] = json!("static");
        r["spec"]["podUID"] = json!("p4");
    };
    assert_eq!(refused(mirror).await, "pod \"a/static\" is a mirror pod");
    assert_eq!(
        refused(|r| r["spec"]["serviceAccountName"] = json!("root")).await,
        "PodCertificateRequest for pod \"a/api\" contains serviceAccountName (\"root\") that differs from running pod (\"bot\")"
    );
    assert_eq!(
        refused(|r| r["spec"]["signerName"] = json!("a.b/d")).await,
        "pod \"a/api\" does not mount a podCertificate projected volume for signer \"a.b/d\""
    );
    let (_, message) = ask(Operation::Update, |_| {}).await.unwrap_err();
    assert!(message.ends_with("is forbidden: unexpected operation UPDATE"), "{message}");
}

#[tokio::test]
async fn rejections_due_to_a_stale_cache_are_retriable() {
    let later = async |change: fn(&mut Value)| {
        let (code, message) = ask(Operation::Create, change).await.unwrap_err();
        assert_eq!(code, 500, "{message}");
        message
    };
    assert_eq!(
        later(|r| r["spec"]["nodeUID"] = json!("u0")).await,
        "PodCertificateRequest for pod \"a/api\" names node UID \"u0\", inconsistent with the running node (\"u1\")"
    );
    assert_eq!(
        later(|r| r["spec"]["podName"] = json!("new")).await,
        "while retrieving pod \"a/new\" named in the PodCertificateRequest: pod \"new\" not found"
    );
    assert_eq!(
        later(|r| r["spec"]["podUID"] = json!("p0")).await,
        "PodCertificateRequest for pod \"a/api\" contains pod UID (\"p0\") which differs from running pod \"p2\""
    );
    assert_eq!(
        later(|r| r["spec"]["serviceAccountUID"] = json!("s0")).await,
        "PodCertificateRequest for pod \"a/api\" names service account UID \"s0\", which differs from the running service account (\"s1\")"
    );
}
