//! Whose tunnel is up, and since when; whose was, and when it was heard last.

use std::collections::BTreeMap;

use tokio::sync::watch;
use tokio::time::Instant;

/// Nodes remembered whose tunnel is gone; those lost longest ago are forgotten first.
const LOST_MAX: usize = 10_000;

/// How a tunnel stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The node has a tunnel.
    Up,
    /// It had one, which its machine or a network on the way ended: the agent stops or starts anew,
    /// or its connection was reset.
    Closed,
    /// It had one, and nothing came any more: no power, no network.
    Silent,
}

impl State {
    /// In one word.
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
    /// How it stands.
    pub state: State,
    /// Up: since it was opened. Otherwise: when the node was heard last.
    pub since: Instant,
}

/// All nodes that have or had a tunnel to this server since it started, by name.
pub type Presences = BTreeMap<String, Presence>;

/// Notes a change.
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
