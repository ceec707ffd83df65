//! What nodes may and may not write.

use super::super::testing::{Ask, admit, creates};
use super::*;
use crate::User;
use crate::authz::chain::Chain;
use crate::lookup::testing::Fixed;
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
async fn a_node_changes_neither_its_taints_nor_its_owners() {
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
async fn a_node_makes_only_plain_mirror_pods_of_its_own() {
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
async fn tokens_are_for_pods_of_the_node() {
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
