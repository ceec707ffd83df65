//! The state of each node's tunnel at this server: up since when, or lost and last active when.

use std::collections::BTreeMap;

use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum number of nodes without a tunnel that are remembered; the oldest are dropped first.
const LOST_MAX: usize = 10_000;

/// State of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The node has a tunnel.
    Up,
    /// The tunnel was closed by the agent or reset by the network: the agent stops or restarts, or
    /// its connection was reset.
    Closed,
    /// The tunnel became silent: no power, no network.
    Silent,
}

impl State {
    /// The name of the state in `kube-lite status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Closed => "closed",
            Self::Silent => "silent",
        }
    }
}

/// The tunnel of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    /// State of the tunnel.
    pub state: State,
    /// For `Up`: when the tunnel was opened. Otherwise: the last activity of the node.
    pub since: Instant,
}

/// Nodes that have had a tunnel to this server since its start, by name.
pub type Presences = BTreeMap<String, Presence>;

/// Records a change.
pub(super) fn set(all: &watch::Sender<Presences>, node: &str, presence: Presence) {
    all.send_modify(|all| {
        all.insert(node.to_owned(), presence);
        let lost = all.iter().filter(|(_, p)| p.state != State::Up);
        if all.len() > LOST_MAX && lost.clone().count() > LOST_MAX {
            let oldest = lost.min_by_key(|(_, p)| p.since).map(|(name, _)| name.clone());
            oldest.map(|name| all.remove(&name));
        }
    });
}
