//! The tunnel: an agent opens a connection to every server, and servers reach the agent's kubelet
//! and pods through it.
//!
//! The agent sends `GET /v1-kube-lite/connect` with the client certificate of its node and asks for
//! the protocol `kube-lite-tunnel`. Behind the 101 the roles are swapped: HTTP/2 on which the
//! server is the client. `CONNECT host:port` opens a connection from the agent's machine to where
//! [`allow`] lets it; `CONNECT` to [`BEAT`] opens the stream on which both ends write a byte in
//! each interval. Any byte received is a sign of life of the other end, and silence is its loss.

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
pub use server::Tunnels;

/// The path on the API's port.
pub const PATH: &str = "/v1-kube-lite/connect";
/// The protocol of the upgrade.
pub const PROTOCOL: &str = "kube-lite-tunnel";
/// The authority of the stream of beats; no name of a host.
pub(crate) const BEAT: &str = "kube-lite-beat:1";
/// Who the server is, in its answers: an agent that reaches one under two addresses keeps one
/// tunnel.
pub(crate) const SERVER_HEADER: &str = "kube-lite-server";
/// To whom the agent has tunnels, in its request, separated by commas.
pub(crate) const HAVE_HEADER: &str = "kube-lite-have";
/// Interval of beats in milliseconds, in the server's answer.
pub(crate) const BEAT_HEADER: &str = "kube-lite-beat";
/// In the request: this connection only carries beats, beside the tunnel that the node has.
pub(crate) const BESIDE_HEADER: &str = "kube-lite-beside";
/// How many connections beside the tunnel the agent shall keep, in the server's answer.
pub(crate) const BESIDES_HEADER: &str = "kube-lite-besides";
/// Connections beside the tunnel that a node may have.
pub(crate) const BESIDES_MAX: u8 = 4;
/// Silence in milliseconds that is a loss, in the server's answer.
pub(crate) const SILENCE_HEADER: &str = "kube-lite-silence";
/// What the settings of the cluster are, in the server's answer: see [`crate::join::digest`].
pub(crate) const SETTINGS_HEADER: &str = "kube-lite-settings";
/// Why a connection did not come about, in the agent's answer.
pub(crate) const FAULT_HEADER: &str = "kube-lite-fault";
/// Streams of one tunnel at a time; more wait at the server.
pub(crate) const STREAMS_MAX: u32 = 256;
/// Bytes of one stream that may be on their way to the agent: what a stalled stream can cost its
/// memory.
pub(crate) const AGENT_STREAM_WINDOW: u32 = 64 * 1024;
/// Bytes of one stream that may be on their way to the server.
pub(crate) const SERVER_STREAM_WINDOW: u32 = 128 * 1024;
/// Bytes of one stream waiting to be sent.
pub(crate) const SEND_BUFFER_MAX: usize = 64 * 1024;

/// A connection that is silent for so long is given up, whatever the others of the node say: three
/// beats of the calm pace.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(30);

/// How the loss of the other end is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Each end says something this often, on each connection.
    pub beat: Duration,
    /// So much silence of a node, on all its connections, is its loss.
    pub silence: Duration,
    /// Connections beside the tunnel that carry beats alone. A link that loses packets holds up one
    /// TCP connection for seconds now and then, and rarely several at a time.
    pub besides: u8,
}

impl Pace {
    /// Few wake-ups: a lost machine is noticed within half a minute, before the node's lease (40 s)
    /// runs out.
    pub const CALM: Self = Self { beat: Duration::from_secs(10), silence: GIVE_UP, besides: 0 };

    /// For `--fast-node-loss`: a machine without power is noticed within 6 s; three packets of ten
    /// may be lost.
    pub const FAST: Self =
        Self { beat: Duration::from_secs(1), silence: Duration::from_millis(5500), besides: 2 };

    /// What a server says, within reason.
    pub(crate) fn within_reason(beat_ms: u64, silence_ms: u64, besides: u8) -> Self {
        let beat = Duration::from_millis(beat_ms.clamp(100, 60_000));
        let silence = Duration::from_millis(silence_ms.clamp(500, 600_000));
        Self { beat, silence: silence.max(beat * 2), besides: besides.min(BESIDES_MAX) }
    }

    /// After so much silence an agent takes a server for lost: later than servers take nodes, for
    /// it costs all connections.
    pub(crate) fn patience(&self) -> Duration {
        (self.silence * 3).min(GIVE_UP)
    }
}

#[cfg(test)]
mod tests;
