//! SPDY/3.1 between Kubernetes clients, kubelets and container runtimes: framing and sessions.
//!
//! Peers (the Go implementation in all of Kubernetes) neither send nor respect window updates, so
//! windows cannot limit the data in flight: streams have short queues instead, and a full one stops
//! reading from the connection.

mod frame;
mod headers;
mod session;

pub use frame::{Frame, FrameError, Head};
pub use headers::{Deflater, Headers, Inflater};
pub use session::{Connection, Role, SessionError, Stream};

/// Value of the header `Upgrade`.
pub const UPGRADE: &str = "SPDY/3.1";
/// Header that negotiates the protocol inside the streams.
pub const PROTOCOL_HEADER: &str = "x-stream-protocol-version";

#[cfg(test)]
mod tests;
