//! Messages between servers: bytes there and an answer back, over HTTP/2 and TLS with a certificate
//! of the cluster's peers on both sides. What the bytes say is not known here.

mod calls;
mod listen;

use std::time::Duration;

pub use calls::{CallError, Calls};
pub use listen::{Answer, Answers, serve};

/// Where messages are posted.
const PATH: &str = "/v1-kube-lite/member";
/// Where what is none of the store's is posted.
const TOLD_PATH: &str = "/v1-kube-lite/tell";
/// Its connection: beside those of the store, which it must not hold up.
const TOLD_LANE: u8 = u8::MAX;
/// The name that every server's certificate for its peers has: members are known by their keys,
/// addresses may change.
pub(crate) const PEER_NAME: &str = "kube-lite-peer";
/// Bytes of one stream that may be on their way, and of all streams of one connection.
const WINDOWS: (u32, u32) = (1024 * 1024, 4 * 1024 * 1024);
/// A connection with requests under way is asked after the first, and is lost without an answer
/// within the second: elections take as long.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));

#[cfg(test)]
mod tests;
