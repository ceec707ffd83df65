//! Calls between servers: opaque request and response messages over HTTP/2 and mutual TLS with peer
//! certificates of the cluster.

mod calls;
mod listen;

use std::time::Duration;

pub use calls::{CallError, PeerClient};
pub use listen::{PeerHandler, PeerService, serve};

/// Path of messages of the store.
const PATH: &str = "/v1-kube-lite/member";
/// Path of control messages, which do not belong to the store.
const CONTROL_PATH: &str = "/v1-kube-lite/tell";
/// Lane of control messages: a separate connection, so that they do not delay the store's.
const CONTROL_LANE: u8 = u8::MAX;
/// DNS name in every peer certificate. Members are identified by their keys; addresses may change.
pub(crate) const PEER_NAME: &str = "kube-lite-peer";
/// HTTP/2 flow-control windows in bytes: of one stream, and of a connection.
const WINDOWS: (u32, u32) = (1024 * 1024, 4 * 1024 * 1024);
/// Interval and timeout of HTTP/2 keepalive on connections with requests in flight. Elections take
/// about as long.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));

#[cfg(test)]
mod tests;
