//! The tunnel: an agent opens a connection to every server, and servers reach the agent's kubelet
//! and pods through it.
//!
//! The agent sends `GET /v1-kube-lite/connect` with the client certificate of its node and requests
//! an upgrade to the protocol `kube-lite-tunnel`. After the 101 response the roles are swapped: the
//! connection carries HTTP/2 with the server as the client. `CONNECT host:port` opens a connection
//! from the agent's machine to a destination that [`allow`] permits. `CONNECT` to
//! [`HEARTBEAT_AUTHORITY`] opens a stream on which both ends write one byte per interval. Any
//! received byte is a sign of life of the peer; silence means its loss.

pub mod agent;
pub mod allow;
mod heartbeat;
mod liveness;
pub mod presence;
pub mod server;
pub mod socket;

use std::time::Duration;

pub use agent::Agent;
pub use presence::{Presence, Presences, State};
pub use server::{Tunnels, node_of};

/// The path on the API's port.
pub const PATH: &str = "/v1-kube-lite/connect";
/// The protocol of the upgrade.
pub const PROTOCOL: &str = "kube-lite-tunnel";
/// The authority of the heartbeat stream; not a host name.
pub(crate) const HEARTBEAT_AUTHORITY: &str = "kube-lite-beat:1";
/// Response header: the id of the server. An agent that reaches one server by two addresses keeps
/// one tunnel.
pub(crate) const SERVER_HEADER: &str = "kube-lite-server";
/// Request header: ids of the servers to which the agent has tunnels, separated by commas.
pub(crate) const HAVE_HEADER: &str = "kube-lite-have";
/// Response header: interval of heartbeats in milliseconds.
pub(crate) const INTERVAL_HEADER: &str = "kube-lite-beat";
/// Request header: this connection only carries heartbeats, in addition to the node's tunnel.
pub(crate) const HEARTBEAT_ONLY_HEADER: &str = "kube-lite-beside";
/// Response header: how many heartbeat connections the agent keeps in addition to the tunnel.
pub(crate) const EXTRA_CONNECTIONS_HEADER: &str = "kube-lite-besides";
/// Maximum number of heartbeat connections of a node.
pub(crate) const EXTRA_CONNECTIONS_MAX: u8 = 4;
/// Response header: silence in milliseconds after which the peer is lost.
pub(crate) const SILENCE_HEADER: &str = "kube-lite-silence";
/// Response header: digest of the cluster's settings, see [`crate::join::digest`].
pub(crate) const SETTINGS_HEADER: &str = "kube-lite-settings";
/// Header in the agent's response: why a connection failed.
pub(crate) const FAULT_HEADER: &str = "kube-lite-fault";
/// Maximum number of concurrent streams of a tunnel; more wait at the server.
pub(crate) const STREAMS_MAX: u32 = 256;
/// Flow-control window of one stream to the agent, in bytes. It bounds the agent's memory per
/// stalled stream.
pub(crate) const AGENT_STREAM_WINDOW: u32 = 64 * 1024;
/// Flow-control window of one stream to the server, in bytes.
pub(crate) const SERVER_STREAM_WINDOW: u32 = 128 * 1024;
/// Send buffer of one stream, in bytes.
pub(crate) const SEND_BUFFER_MAX: usize = 64 * 1024;

/// A connection that is silent for this long is closed, independent of the node's other
/// connections: three intervals of [`HeartbeatConfig::CALM`].
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How the loss of a peer is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatConfig {
    /// Interval of heartbeats of each end on each connection.
    pub interval: Duration,
    /// Silence of a node on all its connections after which it is lost.
    pub silence: Duration,
    /// Number of connections that only carry heartbeats. On a link with packet loss one TCP
    /// connection may stall for seconds; several rarely stall together.
    pub extra_connections: u8,
}

impl HeartbeatConfig {
    /// Few wake-ups: a lost machine is detected within 30 s, before the node's lease (40 s)
    /// expires.
    pub const CALM: Self =
        Self { interval: Duration::from_secs(10), silence: SILENCE_MAX, extra_connections: 0 };

    /// For `--fast-node-loss`: a machine without power is detected within 6 s, at a packet loss of
    /// up to 30 %.
    pub const FAST: Self = Self {
        interval: Duration::from_secs(1),
        silence: Duration::from_millis(5500),
        extra_connections: 2,
    };

    /// The values of a server's response, clamped to safe ranges.
    pub(crate) fn within_reason(beat_ms: u64, silence_ms: u64, extra_connections: u8) -> Self {
        let interval = Duration::from_millis(beat_ms.clamp(100, 60_000));
        let silence = Duration::from_millis(silence_ms.clamp(500, 600_000));
        Self {
            interval,
            silence: silence.max(interval * 2),
            extra_connections: extra_connections.min(EXTRA_CONNECTIONS_MAX),
        }
    }

    /// Silence after which an agent considers a server lost: longer than servers wait for nodes,
    /// because the agent then cuts all connections to that server.
    pub(crate) fn server_silence(&self) -> Duration {
        (self.silence * 3).min(SILENCE_MAX)
    }
}

#[cfg(test)]
mod tests;
