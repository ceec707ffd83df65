//! etcd v3's gRPC interface over the store, so that etcdctl, etcd's clients and programs that keep their state in etcd work.
//!
//! One file per service. What etcd answers is the specification, down to the texts of its errors (etcd 3.7.3); what is not
//! there is refused by name in [`refuse`].

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
pub(crate) mod http2;
mod kv;
mod kv_fast_path;
mod lease;
mod maintenance;
mod metrics;
mod range_plan;
mod range_response;
mod server;
mod service;
mod snapshot_stream;
mod txn;
mod urls;
mod watch;

pub use server::serve;
pub use service::{ETCD_VERSION, Etcd};

#[cfg(test)]
mod tests;
