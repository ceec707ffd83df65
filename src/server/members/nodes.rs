//! A server whose Node is deleted leaves the store, as with k3s: who is lost for good is removed by `kubectl delete node`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use api::Object;
use api::k8s::api::core::v1::Node;
use base::{Kind, Tasks};
use client::{Change, Client, Informers, Patch};
use serde_json::{Value, json};
use store::Members;
use tokio::sync::mpsc;

use super::{LOOK_INTERVAL, SILENT};

/// Which member the server on a Node is, 16 hex characters.
const ANNOTATION: &str = "kube-lite.io/member";
/// Changes of Nodes that wait; one that is lost comes with the next change of its Node.
const NEWS_MAX: usize = 256;

/// What a change of a Node means.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// This server's Node does not say whose member it is.
    Unmarked,
    /// A member has a Node.
    There(u64),
    /// Its Node was deleted.
    Deleted(u64),
}

/// This server's own Node.
pub(crate) struct Own {
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

fn news(change: &Change, own: Option<&str>, id: u64) -> Option<News> {
    match change {
        Change::Deleted(node) => member_of(node).map(News::Deleted),
        Change::Added(node) | Change::Updated { new: node, .. } => match member_of(node) {
            Some(member) if member == id || own != Some(&*node.key.name) => {
                Some(News::There(member))
            }
            _ if own == Some(&*node.key.name) => Some(News::Unmarked),
            _ => None,
        },
    }
}

/// Says on this server's Node which member it is, and removes members whose Node was deleted once they are silent, where the
/// store is led from.
pub(crate) fn follow(
    members: &Arc<Members>,
    informers: &Informers,
    own: Option<Own>,
    tasks: &Tasks,
) {
    let (sender, mut waiting) = mpsc::channel(NEWS_MAX);
    let (id, name) = (members.id(), own.as_ref().map(|own| own.name.clone()));
    informers.of::<Node>().on_change(move |change| {
        if let Some(news) = news(change, name.as_deref(), id) {
            // See NEWS_MAX.
            let _ = sender.try_send(news);
        }
    });
    let (members, shutdown) = (Arc::clone(members), tasks.shutdown().clone());
    tasks.spawn(Kind::Critical, "members' nodes", async move {
        let mut gone = BTreeSet::new();
        loop {
            let news = tokio::select! {
                news = waiting.recv() => news,
                () = base::clock::sleep(LOOK_INTERVAL), if !gone.is_empty() => None,
                () = shutdown.requested() => return Ok::<(), Infallible>(()),
            };
            match news {
                Some(News::Unmarked) => mark(own.as_ref(), id).await,
                Some(News::There(member)) => drop(gone.remove(&member)),
                Some(News::Deleted(member)) if member != id => drop(gone.insert(member)),
                _ => {}
            }
            remove(&members, &mut gone).await;
        }
    });
}

async fn mark(own: Option<&Own>, id: u64) {
    let Some(own) = own else { return };
    let patch = json!({"metadata": {"annotations": {ANNOTATION: format!("{id:016x}")}}});
    let marked = own.client.patch::<Node>("", &own.name, "", &Patch::Merge(&patch)).await;
    if let Err(error) = marked {
        tracing::warn!(%error, node = own.name, "the Node cannot say which member of the store is there");
    }
}

async fn remove(members: &Members, gone: &mut BTreeSet<u64>) {
    let listed: BTreeSet<u64> = members.list().into_iter().map(|member| member.id).collect();
    gone.retain(|id| listed.contains(id));
    // On a member that does not lead nobody is known to be silent.
    let Some(heard) = members.responsive(SILENT).filter(|_| !gone.is_empty()) else { return };
    for id in gone.difference(&heard) {
        let member = format!("{id:016x}");
        match members.remove(*id).await {
            Ok(()) => tracing::info!(member, "its Node was deleted, it is no member any more"),
            Err(error) => tracing::warn!(member, %error, "cannot be removed, trying again"),
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
    fn nodes_tell_which_members_are_there_and_which_are_gone() {
        let seen = |change| news(&change, Some("a"), 0x1f);
        assert_eq!(seen(Change::Added(node("a", None))), Some(News::Unmarked));
        // Of a server that was made anew under its old name.
        assert_eq!(seen(Change::Added(node("a", Some("2f")))), Some(News::Unmarked));
        assert_eq!(
            seen(Change::Added(node("a", Some("000000000000001f")))),
            Some(News::There(0x1f))
        );
        assert_eq!(seen(Change::Added(node("b", Some("2f")))), Some(News::There(0x2f)));
        assert_eq!(seen(Change::Added(node("b", None))), None);
        assert_eq!(seen(Change::Deleted(node("b", Some("2f")))), Some(News::Deleted(0x2f)));
        assert_eq!(seen(Change::Deleted(node("b", Some("no")))), None);
    }
}
