//! The vertical pod autoscaler (`autoscaling.k8s.io/v1`) of kubernetes/autoscaler 1.8.1 in the
//! process of the server, with `--enable=vertical-pod-autoscaler`.
//!
//! Three components work on VerticalPodAutoscaler objects, as upstream's three programs do:
//! the recommender observes the usage of containers and writes recommendations into the status,
//! the updater resizes or evicts pods whose requests differ from them, and admission writes them
//! into new pods. The objects are the only interface between the components, so that each can be
//! replaced by upstream's.

pub mod admission;
mod definitions;
pub mod model;
pub mod policy;
pub mod recommender;
pub mod target;
pub mod types;
pub mod updater;

use std::sync::Arc;

use base::Tasks;
use client::{Client, Informers};

use definitions::Definitions;
pub use recommender::UsageSource;

/// The identities of the components.
pub struct Clients {
    /// Acts as [`recommender::USER`].
    pub recommender: Client,
    /// Acts as [`updater::USER`].
    pub updater: Client,
}

/// Starts the components that run on the server that leads; they end with `tasks`. Until the kinds
/// are defined they only wait for them.
pub fn start(clients: Clients, usage: Arc<dyn UsageSource>, informers: &Informers, tasks: &Tasks) {
    let definitions = Definitions::follow(informers);
    recommender::start(usage, clients.recommender, (informers, definitions.clone()), tasks);
    updater::start(clients.updater, (informers, definitions), tasks);
}
