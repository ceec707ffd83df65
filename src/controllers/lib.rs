//! The controllers: each reconciles one kind, from shared caches, under its own service account.
//!
//! [`start`] starts all that [`all`] lists. A controller is one file: listeners that enqueue keys, a pure decision,
//! and writes through its own [`client::Client`].

mod adoption;
pub mod all;
mod claim;
mod context;
mod daemonset;
mod deployment;
mod endpoints;
mod endpoints_of;
mod endpointslice;
mod gc;
mod history;
mod int_or_percent;
mod keyed;
mod namespace;
mod node_lifecycle;
mod nodes;
mod pod_control;
mod pods;
mod replicas;
mod replicaset;
mod replication;
mod resources;
mod root_ca;
mod service_account;
mod statefulset;
mod taint_eviction;
mod template_hash;

pub use all::start;
pub use context::{ClientFor, Config, Context};
