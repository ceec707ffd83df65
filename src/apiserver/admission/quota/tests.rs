//! Quotas, with literal messages of upstream.

use super::super::testing::{Ask, admit_reserving, creates};
use super::*;
use api::Gvr;
use lookup::testing::Fixed;
use serde_json::json;

fn world(spec: Value, hard: Value, used: Value) -> (Arc<Fixed>, ResourceQuota) {
    let quota = json!({"metadata": {"name": "q", "namespace": "a", "resourceVersion": "5"}, "spec": spec, "status": {"hard": hard, "used": used}});
    let fixed = Fixed::new(&[(&lookup::RESOURCE_QUOTAS, quota)]);
    (Arc::clone(&fixed), ResourceQuota::new(fixed))
}

async fn used(fixed: &Fixed) -> Value {
    fixed.get(&lookup::RESOURCE_QUOTAS, "a", "q").await.unwrap().unwrap().value().unwrap()["status"]
        ["used"]
        .clone()
}

/// Admits the object and stores its usage, as the store does together with the object.
async fn store(
    fixed: &Fixed,
    plugin: &ResourceQuota,
    ask: Ask<'_>,
    object: Value,
) -> Result<(), Status> {
    let (_, _, reservation) = admit_reserving(plugin, ask, object).await?;
    for quota in reservation.iter().flat_map(Reservation::quotas) {
        fixed.put(&lookup::RESOURCE_QUOTAS, quota.clone());
    }
    Ok(())
}

fn pod(cpu: &str) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
}

#[tokio::test]
async fn concurrent_creates_do_not_exceed_the_quota() {
    let (fixed, plugin) = world(
        json!({}),
        json!({"pods": "2", "requests.cpu": "1"}),
        json!({"pods": "1", "requests.cpu": "500m"}),
    );
    store(&fixed, &plugin, creates(&lookup::PODS, "Pod"), pod("250m")).await.unwrap();
    assert_eq!(used(&fixed).await, json!({"pods": "2", "requests.cpu": "750m"}));
    let error =
        store(&fixed, &plugin, creates(&lookup::PODS, "Pod"), pod("500m")).await.unwrap_err();
    assert_eq!(
        error.message,
        "pods \"p\" is forbidden: exceeded quota: q, requested: pods=1,requests.cpu=500m, used: pods=2,requests.cpu=750m, limited: pods=2,requests.cpu=1"
    );
}

#[tokio::test]
async fn limited_resources_must_be_set() {
    let (fixed, plugin) = world(
        json!({}),
        json!({"limits.memory": "1Gi", "cpu": "1"}),
        json!({"limits.memory": "0", "cpu": "0"}),
    );
    let error = store(
        &fixed,
        &plugin,
        creates(&lookup::PODS, "Pod"),
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}),
    )
    .await;
    assert_eq!(
        error.unwrap_err().message,
        "pods \"p\" is forbidden: failed quota: q: must specify cpu for: c; limits.memory for: c"
    );
}

#[tokio::test]
async fn a_quota_without_status_rejects() {
    let (fixed, plugin) = world(json!({}), json!({"configmaps": "5"}), json!({}));
    let error = store(
        &fixed,
        &plugin,
        creates(&lookup::CONFIG_MAPS, "ConfigMap"),
        json!({"metadata": {"name": "m"}}),
    )
    .await
    .unwrap_err();
    assert_eq!(
        error.message,
        "configmaps \"m\" is forbidden: status unknown for quota: q, resources: configmaps"
    );
}

#[tokio::test]
async fn object_counts_use_the_full_resource_name() {
    let (fixed, plugin) = world(
        json!({}),
        json!({"count/deployments.apps": "1"}),
        json!({"count/deployments.apps": "0"}),
    );
    let gvr = Gvr::new("apps", "v1", "deployments");
    let create =
        || store(&fixed, &plugin, creates(&gvr, "Deployment"), json!({"metadata": {"name": "d"}}));
    create().await.unwrap();
    assert_eq!(used(&fixed).await, json!({"count/deployments.apps": "1"}));
    assert_eq!(
        create().await.unwrap_err().message,
        "deployments.apps \"d\" is forbidden: exceeded quota: q, requested: count/deployments.apps=1, used: count/deployments.apps=1, limited: count/deployments.apps=1"
    );
}

#[tokio::test]
async fn scopes_select_pods() {
    let scoped = json!({"scopes": ["BestEffort"]});
    let (fixed, plugin) = world(scoped, json!({"pods": "5"}), json!({"pods": "0"}));
    store(&fixed, &plugin, creates(&lookup::PODS, "Pod"), pod("1")).await.unwrap();
    assert_eq!(used(&fixed).await, json!({"pods": "0"}));
    let best_effort = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
    store(&fixed, &plugin, creates(&lookup::PODS, "Pod"), best_effort).await.unwrap();
    assert_eq!(used(&fixed).await, json!({"pods": "1"}));
    let selector = json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}});
    let (fixed, plugin) = world(selector, json!({"pods": "5"}), json!({"pods": "0"}));
    let mut high = pod("1");
    high["spec"]["priorityClassName"] = json!("high");
    store(&fixed, &plugin, creates(&lookup::PODS, "Pod"), high).await.unwrap();
    store(&fixed, &plugin, creates(&lookup::PODS, "Pod"), pod("1")).await.unwrap();
    assert_eq!(used(&fixed).await, json!({"pods": "1"}));
}

#[tokio::test]
async fn an_update_is_charged_for_its_difference() {
    let (fixed, plugin) = world(
        json!({}),
        json!({"services": "5", "services.nodeports": "3"}),
        json!({"services": "1", "services.nodeports": "0"}),
    );
    let service = |kind: &str, ports: usize| {
        json!({
            "metadata": {"name": "s", "resourceVersion": "3"},
            "spec": {"type": kind, "ports": vec![json!({"port": 80}); ports]},
        })
    };
    let ask = |old| Ask {
        operation: Operation::Update,
        old: Some(old),
        ..creates(&lookup::SERVICES, "Service")
    };
    store(&fixed, &plugin, ask(service("ClusterIP", 2)), service("NodePort", 2)).await.unwrap();
    assert_eq!(used(&fixed).await, json!({"services": "1", "services.nodeports": "2"}));
    assert!(
        store(&fixed, &plugin, ask(service("ClusterIP", 2)), service("NodePort", 2)).await.is_err()
    );
}

#[test]
fn claims_are_also_counted_per_storage_class() {
    let claim = json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "2Gi"}}}});
    let used = usage(
        Evaluator::Claims,
        &lookup::PERSISTENT_VOLUME_CLAIMS,
        &claim,
        &ClaimContext::default(),
    );
    let shown: Vec<String> = used.iter().map(|(name, q)| format!("{name}={q}")).collect();
    assert_eq!(
        shown,
        [
            "count/persistentvolumeclaims=1",
            "gold.storageclass.storage.k8s.io/persistentvolumeclaims=1",
            "gold.storageclass.storage.k8s.io/requests.storage=2Gi",
            "persistentvolumeclaims=1",
            "requests.storage=2Gi",
        ]
    );
}
