//! The scheduler: finds a node for every pod without one.
//!
//! Floors, from the bottom: the data (`resources`, `pod_claims`, `pod_info`, `node_info`), helpers
//! on it (`node_selector`, `tolerations`), the devices of the cluster (`devices`), the framework
//! (`event`, `rejection`, `listers`, `framework`), the plugins with their one ordered table
//! (`plugins`), one cycle (`cycle`) with the servers that it calls (`extender`), and the queue, the
//! `state` that joins both, and the shell that reads and writes the API (`bind`, `run`). All but
//! the shell and the client of extenders is pure, apart from the `metrics` that it records.
//! Decisions follow kube-scheduler's default profile.

mod bind;
pub mod config;
mod cycle;
mod devices;
mod event;
mod extender;
mod framework;
mod inline_volumes;
mod listers;
mod metrics;
mod node_info;
mod node_selector;
mod nodes;
#[cfg(any(test, feature = "offline"))]
pub mod offline;
mod plugin_args;
mod plugins;
mod pod_claims;
mod pod_classes;
mod pod_info;
mod pod_requests;
mod profile;
mod queue;
mod rejection;
mod resources;
mod run;
mod state;
mod tolerations;
mod topology;

pub use metrics::render as render_metrics;
pub use run::start;
