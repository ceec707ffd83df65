//! Replicated bytes: keys, values, revisions, watches and leases, durable before acknowledged.
//!
//! Knows nothing of Kubernetes: it keeps bytes under keys, like etcd.

pub mod kv;

pub use kv::*;
