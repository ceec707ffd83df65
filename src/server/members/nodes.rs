//! A server whose Node is deleted leaves the store, as in k3s: `kubectl delete node` removes a
//! server that is permanently lost.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use api::Object;
use api::k8s::api::core::v1::Node;
use base::{Kind, Tasks};
use client::{Change, Client, Informers, Patch};
use serde_json::{Value, json};
use sorting::CollectOrdered as _;
use store::Members;
use tokio::sync::mpsc;

use super::{CHECK_INTERVAL, UNRESPONSIVE_AFTER, accepts_connections};

/// Annotation with the id of the member that runs on a Node, 16 hex characters.
const ANNOTATION: &str = "kube-lite.io/member";
/// Events in the queue. An event that does not fit is repeated by the next change of its Node.
const EVENTS_MAX: usize = 256;

/// What a change of a Node means for the members.
#[derive(Debug, PartialEq, Eq)]
enum NodeEvent {
    /// This server's Node lacks the annotation with its member.
    Unmarked,
    /// The member has a Node.
    Present(u64),
    /// The Node of the member was deleted.
    Deleted(u64),
}

/// This server's own Node.
pub(crate) struct OwnNode {
    /// Its name.
    pub(crate) name: String,
    /// Acts as the node.
    pub(crate) client: Client,
}

fn member_of(node: &Object) -> Option<u64> {
    let value = node.value().ok()?;
    let text =
        value.get("metadata")?.get("annotations")?.get(ANNOTATION).and_then(Value::as_str)?;
    u64::from_str_radix(text, 16).ok()
}

fn node_event(change: &Change, own: Option<&str>, id: u64) -> Option<NodeEvent> {
    match change {
        Change::Deleted(node) => member_of(node).map(NodeEvent::Deleted),
        Change::Added(node) | Change::Updated { new: node, .. } => match member_of(node) {
            Some(member) if member == id || own != Some(&*node.key.name) => {
                Some(NodeEvent::Present(member))
            }
            _ if own == Some(&*node.key.name) => Some(NodeEvent::Unmarked),
            _ => None,
        },
    }
}

/// Annotates this server's Node with its member. On the leader, removes members whose Node was
/// deleted once they no longer respond.
pub(crate) fn follow(
    members: &Arc<Members>,
    informers: &Informers,
    own: Option<OwnNode>,
    tasks: &Tasks,
) {
    let (sender, mut waiting) = mpsc::channel(EVENTS_MAX);
    let (id, name) = (members.id(), own.as_ref().map(|own| own.name.clone()));
    informers.of::<Node>().on_change(move |change| {
        if let Some(node_event) = node_event(change, name.as_deref(), id) {
            // A full queue drops the event, see `EVENTS_MAX`.
            let _ = sender.try_send(node_event);
        }
    });
    let (members, shutdown) = (Arc::clone(members), tasks.shutdown().clone());
    tasks.spawn(Kind::Critical, "members' nodes", async move {
        let mut deleted = BTreeSet::new();
        loop {
            let node_event = tokio::select! {
                node_event = waiting.recv() => node_event,
                () = base::clock::sleep(CHECK_INTERVAL), if !deleted.is_empty() => None,
                () = shutdown.requested() => return Ok::<(), Infallible>(()),
            };
            match node_event {
                Some(NodeEvent::Unmarked) => annotate(own.as_ref(), id).await,
                Some(NodeEvent::Present(member)) => drop(deleted.remove(&member)),
                Some(NodeEvent::Deleted(member)) if member != id => drop(deleted.insert(member)),
                _ => {}
            }
            remove_deleted(&members, &mut deleted).await;
        }
    });
}

async fn annotate(own: Option<&OwnNode>, id: u64) {
    let Some(own) = own else { return };
    let patch = json!({"metadata": {"annotations": {ANNOTATION: format!("{id:016x}")}}});
    let marked = own.client.patch::<Node>("", &own.name, "", &Patch::Merge(&patch)).await;
    if let Err(error) = marked {
        tracing::warn!(%error, node = own.name, "members: cannot annotate the Node");
    }
}

/// Whether nothing listens at the address of a member that has not responded to this leader yet.
async fn is_lost(members: &Members, id: u64) -> bool {
    match members.list().into_iter().find(|member| member.id == id) {
        Some(member) => !accepts_connections(&member.address).await,
        None => false,
    }
}

async fn remove_deleted(members: &Members, deleted: &mut BTreeSet<u64>) {
    let listed: BTreeSet<u64> = members.list().into_iter().map(|member| member.id).collect_set();
    deleted.retain(|id| listed.contains(id));
    // Only the leader knows which members respond.
    let Some(responses) = members.responses(UNRESPONSIVE_AFTER).filter(|_| !deleted.is_empty())
    else {
        return;
    };
    for id in deleted.difference(&responses.responsive) {
        if responses.unknown.contains(id) && !is_lost(members, *id).await {
            continue;
        }
        let member = format!("{id:016x}");
        match members.remove(*id).await {
            Ok(()) => tracing::info!(member, "members: removed, its Node was deleted"),
            Err(error) => tracing::warn!(member, %error, "members: cannot remove, retrying"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, member: Option<&str>) -> Arc<Object> {
        let annotations = member.map_or(json!({}), |member| json!({ANNOTATION: member}));
        let value = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "resourceVersion": "5", "annotations": annotations},
        });
        Arc::new(Object::from_value(value).unwrap())
    }

    #[test]
    fn node_changes_map_to_members_with_and_without_a_node() {
        let event = |change| node_event(&change, Some("a"), 0x1f);
        assert_eq!(event(Change::Added(node("a", None))), Some(NodeEvent::Unmarked));
        // A server that was created again under its former name.
        assert_eq!(event(Change::Added(node("a", Some("2f")))), Some(NodeEvent::Unmarked));
        assert_eq!(
            event(Change::Added(node("a", Some("000000000000001f")))),
            Some(NodeEvent::Present(0x1f))
        );
        assert_eq!(event(Change::Added(node("b", Some("2f")))), Some(NodeEvent::Present(0x2f)));
        assert_eq!(event(Change::Added(node("b", None))), None);
        assert_eq!(event(Change::Deleted(node("b", Some("2f")))), Some(NodeEvent::Deleted(0x2f)));
        assert_eq!(event(Change::Deleted(node("b", Some("no")))), None);
    }
}
