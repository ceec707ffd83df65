//! How the API server reaches nodes and pods: through the tunnel of the node whose address it is, otherwise directly.

mod node_addresses;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::k8s::api::core::v1::Node;
use apiserver::User;
use apiserver::interfaces::ExtraRoutes;
use apiserver::request::body;
use apiserver::request::body::Body;
use async_trait::async_trait;
use base::io::{BoxIo, Dial, Tcp};
use client::{Change, Informers};
use cluster::tunnel::{self, Tunnels};
use http::{Request, Response};
use parking_lot::RwLock;

use node_addresses::{Place, Places};

/// Time to reach a node directly that had a tunnel and lost it: it rarely can be reached otherwise.
const DIRECT_AFTER_LOSS_MAX: Duration = Duration::from_secs(5);

/// Dials through tunnels.
pub(crate) struct Reach {
    tunnels: Tunnels,
    places: RwLock<Places>,
}

impl Reach {
    /// Knows no node yet.
    pub(crate) fn new(tunnels: Tunnels) -> Arc<Self> {
        Arc::new(Self { tunnels, places: RwLock::default() })
    }

    /// From now on knows the addresses of all nodes.
    pub(crate) fn follow(self: &Arc<Self>, informers: &Informers) {
        let this = Arc::clone(self);
        informers.of::<Node>().on_change(move |change| this.note(change));
    }

    fn note(&self, change: &Change) {
        match change {
            Change::Deleted(node) => self.places.write().remove(&node.key.name),
            Change::Added(node) | Change::Updated { new: node, .. } => self.put(node),
        }
    }

    fn put(&self, node: &Object) {
        match serde_json::from_slice::<Place>(node.raw()) {
            Ok(place) => self.places.write().put(&node.key.name, place),
            Err(error) => {
                tracing::warn!(node = %node.key, %error, "the addresses of a node cannot be read")
            }
        }
    }

    /// The node that is, or holds, `host`.
    fn node_of(&self, host: &str) -> Option<Arc<str>> {
        let host = host.trim_matches(['[', ']']);
        let places = self.places.read();
        let by_block = || host.parse::<IpAddr>().ok().and_then(|ip| places.of_pod(ip));
        places.of_host(host).or_else(by_block)
    }
}

/// Answers [`tunnel::PATH`] on the API's port.
pub(crate) fn accept(
    tunnels: &Tunnels,
    user: Option<&User>,
    mut request: Request<Body>,
) -> Response<Body> {
    let user = user.map(|u| (u.name.as_str(), u.groups.as_slice()));
    tunnels.accept(user, &mut request).map(body::full)
}

/// Only tunnels, beside the API.
pub(crate) struct Connects(pub(crate) Tunnels);

#[async_trait]
impl ExtraRoutes for Connects {
    fn matches(&self, path: &str) -> bool {
        path == tunnel::PATH
    }

    async fn handle(
        &self,
        _: std::net::SocketAddr,
        user: Option<User>,
        request: Request<Body>,
    ) -> Response<Body> {
        accept(&self.0, user.as_ref(), request)
    }
}

#[async_trait]
impl Dial for Reach {
    async fn dial(&self, host: &str, port: u16) -> io::Result<BoxIo> {
        let Some(node) = self.node_of(host) else { return Tcp.dial(host, port).await };
        if self.tunnels.has(&node) {
            return self.tunnels.dial(&node, host, port).await;
        }
        if !self.tunnels.presences().borrow().contains_key(&*node) {
            return Tcp.dial(host, port).await;
        }
        let direct = tokio::time::timeout(DIRECT_AFTER_LOSS_MAX, Tcp.dial(host, port)).await;
        let because = match direct {
            Ok(Ok(io)) => return Ok(io),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "i/o timeout".to_owned(),
        };
        let text = format!("{because} (the tunnel of node {node} is down)");
        Err(io::Error::new(io::ErrorKind::NotConnected, text))
    }
}
