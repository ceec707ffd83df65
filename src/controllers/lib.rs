//! The controllers: each reconciles one kind, from shared caches, under its own service account.
//!
//! [`start`] starts all that [`all`] lists. A controller is one file: listeners that enqueue keys,
//! a pure decision, and writes through its own [`client::Client`].

pub mod all;
mod auth;
mod devices;
#[cfg(test)]
mod fake_api;
mod framework;
pub mod metrics;
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
