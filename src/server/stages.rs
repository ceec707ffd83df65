//! The stages of the start of a server, in the order in which [`super::control_plane`] runs them:
//! ports, data directory, membership, certificates, store, objects, security, API server, bootstrap
//! objects, joining, listener. Each stage is one function that returns its result as a
//! typed part.

mod api_server;
mod bootstrap;
mod certificates;
mod directory;
mod listen;
mod membership;
mod objects;
mod ports;
mod security;
mod store;

use std::time::Duration;

use base::{Shutdown, Tasks};

pub(crate) use api_server::{build_api_server, connections};
pub(crate) use bootstrap::{Bootstrapped, write_bootstrap_objects};
pub(crate) use certificates::{Certificates, load_certificates};
pub(crate) use directory::open_directory;
pub(crate) use listen::{accept_joins, listen};
pub(crate) use membership::join_cluster;
pub(crate) use objects::{ObjectLayer, serve_objects};
pub(crate) use ports::bind_ports;
pub(crate) use security::start_security;
pub(crate) use store::{OpenStore, open_store};

/// How long the tasks of each set may take to end after SIGTERM.
const GRACE: Duration = Duration::from_millis(700);

/// The tasks of a server, in three sets that end one after the other.
pub(crate) struct TaskSets {
    /// Everything that uses the store: API server, controllers, node.
    pub(crate) api: Tasks,
    /// The store and the logs that record writes. Ends after everything that writes.
    pub(crate) store: Tasks,
    /// Connections between members. Ends last: the store transfers its leadership before it ends.
    pub(crate) peers: Tasks,
}

impl TaskSets {
    /// Creates three empty sets.
    pub(crate) fn new() -> Self {
        let set = || Tasks::new(Shutdown::new());
        Self { api: set(), store: set(), peers: set() }
    }

    fn in_order(&self) -> [&Tasks; 3] {
        [&self.api, &self.store, &self.peers]
    }

    /// Resolves once one of the sets shuts down, because of SIGTERM or a critical task that
    /// failed.
    pub(crate) async fn shutdown_requested(&self) {
        let [api, store, peers] = self.in_order().map(|set| set.shutdown().clone());
        tokio::select! {
            () = api.requested() => {}
            () = store.requested() => {}
            () = peers.requested() => {}
        }
    }

    /// Ends the sets one after the other.
    pub(crate) async fn drain(&self) {
        for set in self.in_order() {
            set.shutdown().request();
            for name in set.drain(GRACE).await {
                tracing::warn!(task = name, "server: task did not stop in time");
            }
        }
    }

    /// The failure of the first critical task that ended early.
    pub(crate) fn fault(&self) -> Option<String> {
        self.in_order().into_iter().find_map(Tasks::fault)
    }
}
