//! The controllers: each reconciles one kind, from shared caches, under its own service account.
//!
//! [`start`] starts all that [`all`] lists. A controller is one file: listeners that enqueue keys,
//! a pure decision, and writes through its own [`client::Client`].

pub mod all;
mod auth;
mod devices;
mod framework;
mod network;
mod nodes;
mod objects;
mod policy;
mod storage;
mod workloads;

pub use all::start;
pub use auth::legacy_token_tracking;
pub use framework::context::{
    ClientFor, Config, Context, FastLoss, PortKey, Protocol, QuotaUsage, ReservedPort, Tunnel,
    Tunnels,
};
pub use framework::signing::{SignRequest, SignToken, Signer, SigningError};
pub use framework::tuning::{Autoscaling, Startup, Tuning};
pub use objects::autoregister;

/// The metrics of the controllers, by controller, in the order in which they are rendered.
pub static METRICS: [&[&base::metrics::Family]; 5] = [
    &storage::attach_detach::metrics::ALL,
    &devices::metrics::ALL,
    &network::endpointslice::metrics::ALL,
    &workloads::job::metrics::ALL,
    &nodes::node_lifecycle::metrics::ALL,
];
