//! Other nodes that may have content, and the order of requests to them.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use client::{Client, ListOptions};
use parking_lot::Mutex;
use sorting::CompactSort as _;
use tokio::time::Instant;

use crate::runtime::images::name;

/// How long a list of nodes is used; a pull makes several requests.
const LIST_TTL: Duration = Duration::from_secs(10);
/// Requests to nodes for the same content.
const ASKED_MAX: usize = 16;
/// Digests for which nodes are remembered that served other content.
const CORRUPT_MAX: usize = 1024;

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) node: String,
    pub(super) address: IpAddr,
    /// The port of its kubelet API.
    pub(super) port: u16,
    /// The repositories of its images, as far as its status lists them.
    repositories: HashSet<String>,
}

impl Peer {
    /// `None` for a node that is not Ready or has no internal address.
    fn of(node: &core::Node) -> Option<Self> {
        let status = node.status.as_ref()?;
        let conditions = status.conditions.iter().flatten();
        let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
        let addresses = status.addresses.iter().flatten();
        let mut internal = addresses.filter(|a| a.type_ == "InternalIP");
        let address = internal.find_map(|a| a.address.parse().ok()).filter(|_| ready)?;
        let endpoint = status.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref()?;
        let images = status.images.iter().flatten();
        let names = images.flat_map(|image| image.names.iter().flatten());
        Some(Self {
            node: node.metadata.name.clone()?,
            address,
            port: u16::try_from(endpoint.port).ok()?,
            repositories: names.map(|full| name::split(full).0.to_owned()).collect(),
        })
    }
}

/// The peers to ask for content of `repository`: those that list an image of it first, the others
/// after them, since a status lists a limited number of images. The order among equals differs by
/// content, so that requests spread over the nodes.
fn candidates<'a>(
    peers: &'a [Peer],
    repository: &str,
    content: &str,
    corrupt: &HashSet<String>,
) -> Vec<&'a Peer> {
    let mut chosen: Vec<&Peer> = peers.iter().filter(|p| !corrupt.contains(&p.node)).collect();
    chosen.compact_sort_by_cached_key(|peer| {
        let mut hasher = DefaultHasher::new();
        (&peer.node, content).hash(&mut hasher);
        (!peer.repositories.contains(repository), hasher.finish())
    });
    chosen.truncate(ASKED_MAX);
    chosen
}

/// The other nodes of the cluster, read from the API when content is needed.
#[derive(Debug)]
pub(crate) struct Peers {
    client: Option<Client>,
    own: String,
    listed: Mutex<Option<(Instant, Arc<Vec<Peer>>)>>,
    /// Names of nodes that served other content, by digest.
    corrupt: Mutex<HashMap<String, HashSet<String>>>,
}

impl Peers {
    /// `client` may list all Nodes; `own` is the name of this node.
    pub(crate) fn new(client: Option<Client>, own: &str) -> Self {
        Self { client, own: own.to_owned(), listed: Mutex::default(), corrupt: Mutex::default() }
    }

    /// Returns the nodes; those of the last answer if no server answers.
    async fn list(&self) -> Arc<Vec<Peer>> {
        let known = self.listed.lock().clone();
        if let Some((at, peers)) = &known
            && at.elapsed() < LIST_TTL
        {
            return Arc::clone(peers);
        }
        let Some(client) = &self.client else { return Arc::default() };
        match client.list::<core::Node>("", &ListOptions::default()).await {
            Ok(nodes) => {
                let mut peers: Vec<Peer> = nodes.iter().filter_map(Peer::of).collect();
                peers.retain(|peer| peer.node != self.own);
                let peers = Arc::new(peers);
                *self.listed.lock() = Some((base::clock::now(), Arc::clone(&peers)));
                peers
            }
            Err(error) => {
                tracing::warn!(%error, "image registry: cannot list the nodes to pull from");
                known.map(|(_, peers)| peers).unwrap_or_default()
            }
        }
    }

    /// The peers to ask, in this order; `content` is a digest or tag.
    pub(super) async fn candidates(&self, repository: &str, content: &str) -> Vec<Peer> {
        let peers = self.list().await;
        let corrupt = self.corrupt.lock().get(content).cloned().unwrap_or_default();
        candidates(&peers, repository, content, &corrupt).into_iter().cloned().collect()
    }

    /// Remembers that a node's content does not match this digest.
    pub(super) fn report_corrupt(&self, digest: &str, node: &str) {
        tracing::warn!(
            node,
            digest,
            "image registry: a node served content that does not match \
            its digest; it is not asked for it again"
        );
        let mut corrupt = self.corrupt.lock();
        if corrupt.len() >= CORRUPT_MAX && !corrupt.contains_key(digest) {
            corrupt.clear();
        }
        corrupt.entry(digest.to_owned()).or_default().insert(node.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ready: &str, images: &[&str]) -> core::Node {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name},
            "status": {
                "conditions": [{"type": "Ready", "status": ready}],
                "addresses": [{"type": "Hostname", "address": name},
                    {"type": "InternalIP", "address": "192.0.2.7"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "images": [{"names": images, "sizeBytes": 1}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn ready_nodes_with_the_repository_are_asked_first() {
        let nodes = [
            node("away", "Unknown", &["docker.io/library/a:1"]),
            node("other", "True", &["docker.io/library/b:1"]),
            node("has", "True", &["docker.io/library/a@sha256:0"]),
            node("bad", "True", &["docker.io/library/a:1"]),
        ];
        let peers: Vec<Peer> = nodes.iter().filter_map(Peer::of).collect();
        let corrupt = HashSet::from(["bad".to_owned()]);
        let chosen = candidates(&peers, "docker.io/library/a", "sha256:1", &corrupt);
        let names: Vec<&str> = chosen.iter().map(|p| p.node.as_str()).collect();
        assert_eq!(names, ["has", "other"]);
        assert_eq!((chosen[0].address.to_string(), chosen[0].port), ("192.0.2.7".into(), 10250));
    }

    #[test]
    fn few_nodes_are_asked_and_different_ones_for_different_content() {
        let nodes = (0..40).map(|n| node(&format!("n{n}"), "True", &["r.io/a:1"]));
        let peers: Vec<Peer> = nodes.filter_map(|n| Peer::of(&n)).collect();
        let first = |content: &str| {
            let chosen = candidates(&peers, "r.io/a", content, &HashSet::new());
            assert_eq!(chosen.len(), ASKED_MAX);
            chosen[0].node.clone()
        };
        let firsts: HashSet<String> = (0..20).map(|n| first(&n.to_string())).collect();
        assert!(firsts.len() > 5, "{firsts:?}");
    }
}
