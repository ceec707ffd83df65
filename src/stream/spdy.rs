//! SPDY/3.1 as Kubernetes speaks it between clients, kubelets and container runtimes: framing and
//! sessions.
//!
//! Peers (the Go implementation in all of Kubernetes) neither send nor obey window updates, so
//! windows cannot bound what is in flight: streams have short queues instead, and a full one stops
//! reading from the connection.

mod frame;
mod headers;
mod session;

pub use frame::{Frame, FrameError, Head};
pub use headers::{Deflater, Headers, Inflater};
pub use session::{Connection, Role, SessionError, Stream};

/// Value of `Upgrade`.
pub const UPGRADE: &str = "SPDY/3.1";
/// Header in which both sides agree on what is spoken inside the streams.
pub const PROTOCOL_HEADER: &str = "x-stream-protocol-version";

#[cfg(test)]
mod tests;
