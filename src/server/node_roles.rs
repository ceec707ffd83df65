//! Role labels of a server's own Node, as k3s sets them: `kubectl get nodes` shows them, and
//! workloads select nodes by them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use base::{Backoff, Kind, Tasks};
use client::{Change, Client, Informers, Patch};
use serde_json::{Value, json};
use tokio::sync::Notify;

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
const ETCD: &str = "node-role.kubernetes.io/etcd";

/// The patch that gives a server's Node the roles it lacks, and takes the role `etcd` where the
/// store is an external datastore. A value that is already there stays: a user may have set it.
fn role_patch(labels: Option<&BTreeMap<String, String>>, embedded_store: bool) -> Option<Value> {
    let has = |role: &str| labels.is_some_and(|labels| labels.contains_key(role));
    let mut changes = serde_json::Map::new();
    if !has(CONTROL_PLANE) {
        changes.insert(CONTROL_PLANE.to_owned(), "true".into());
    }
    match (embedded_store, has(ETCD)) {
        (true, false) => drop(changes.insert(ETCD.to_owned(), "true".into())),
        (false, true) => drop(changes.insert(ETCD.to_owned(), Value::Null)),
        _ => {}
    }
    (!changes.is_empty()).then(|| json!({"metadata": {"labels": changes}}))
}

/// Labels the Node `name` at each start, and when it is created again. Between these a user may
/// remove a role. `client` acts as the API server: NodeRestriction keeps nodes from labels of
/// roles.
pub(crate) fn follow(
    name: String,
    embedded_store: bool,
    client: Client,
    informers: &Informers,
    tasks: &Tasks,
) {
    let added = Arc::new(Notify::new());
    let (notify, own) = (Arc::clone(&added), name.clone());
    informers.of::<Node>().on_change(move |change| {
        if matches!(change, Change::Added(node) if *node.key.name == *own) {
            notify.notify_one();
        }
    });
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "node roles", async move {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        loop {
            tokio::select! {
                () = added.notified() => {}
                () = shutdown.requested() => return Ok::<(), Infallible>(()),
            }
            while let Err(error) = label(&client, &name, embedded_store).await {
                if error.is_not_found() {
                    break;
                }
                tracing::warn!(%error, node = name, "node roles: cannot label the Node, retrying");
                if !backoff.wait(&shutdown).await {
                    return Ok(());
                }
            }
            backoff.reset();
        }
    });
}

async fn label(client: &Client, name: &str, embedded_store: bool) -> Result<(), client::Error> {
    let node: Node = client.get("", name).await?;
    if let Some(patch) = role_patch(node.metadata.labels.as_ref(), embedded_store) {
        client.patch::<Node>("", name, "", &Patch::Merge(&patch)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_node_gets_the_roles_it_lacks_and_keeps_values_of_users() {
        let patch = |labels: &[(&str, &str)], embedded| {
            let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            role_patch(Some(&labels), embedded).map(|p| p["metadata"]["labels"].clone())
        };
        let both = json!({CONTROL_PLANE: "true", ETCD: "true"});
        assert_eq!(role_patch(None, true).map(|p| p["metadata"]["labels"].clone()), Some(both));
        assert_eq!(patch(&[("a", "b")], false), Some(json!({CONTROL_PLANE: "true"})));
        assert_eq!(patch(&[(CONTROL_PLANE, "")], true), Some(json!({ETCD: "true"})));
        assert_eq!(patch(&[(CONTROL_PLANE, "true"), (ETCD, "mine")], true), None);
        assert_eq!(
            patch(&[(CONTROL_PLANE, "true"), (ETCD, "true")], false),
            Some(json!({ETCD: null}))
        );
    }
}
