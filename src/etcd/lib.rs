//! etcd v3's gRPC interface over the store, for etcdctl, etcd's clients and programs that keep
//! their state in etcd.
//!
//! One file per service. etcd's behaviour is the specification, including the texts of its errors
//! (etcd 3.7.3); unsupported requests are refused by name, see [`service::refuse`].

mod auth;
mod checks;
mod cluster;
mod compact_hashes;
mod counters;
mod errors;
mod front;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grpc_frame;
mod health;
mod kv;
mod kv_fast_path;
mod lease;
mod maintenance;
mod metrics;
mod metrics_listener;
mod range_plan;
mod range_response;
mod server;
mod service;
mod snapshot_stream;
mod txn;
mod urls;
mod watch;

pub use metrics_listener::serve_metrics;
pub use server::serve;
pub use service::{ETCD_VERSION, Etcd};

#[cfg(test)]
mod tests;
