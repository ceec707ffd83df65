//! The controllers: each reconciles one kind, from shared caches, under its own service account.
//!
//! [`start`] starts all that [`all`] lists. A controller is one file: listeners that enqueue keys, a pure decision,
//! and writes through its own [`client::Client`].

mod account_tokens;
mod adoption;
pub mod all;
pub mod autoregister;
mod certificate_requests;
mod claim;
mod claims_of;
mod class_protection;
mod cluster_role_aggregation;
mod context;
mod cronjob;
mod daemonset;
mod deployment;
mod disruption;
mod edit;
mod endpoints;
mod endpoints_of;
mod endpointslice;
mod endpointslice_mirroring;
mod ephemeral_volume;
mod gc;
mod history;
mod horizontal;
mod int_or_percent;
mod job;
mod keyed;
mod local_path;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod nodes;
mod persistent_volume;
mod pod_certificate_cleaner;
mod pod_control;
mod pod_gc;
mod pods;
mod policy_status;
mod prefix;
mod replicas;
mod replicaset;
mod replication;
mod resource_quota;
mod resources;
mod root_ca;
mod service_account;
mod service_cidr;
mod signing;
mod statefulset;
mod taint_eviction;
mod template_hash;
mod tokens;
mod ttl_after_finished;
mod volume_protection;

pub use all::start;
pub use context::{ClientFor, Config, Context, FastLoss, QuotaUsage, Tunnel, Tunnels};
pub use signing::{SignRequest, SignToken, Signer};
