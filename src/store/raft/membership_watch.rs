//! The leader's view of the other members: learners to promote, and responsive members.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver;

use super::members::{Members, to_promote};
use crate::contract::Role;

/// The members by their responses to the leader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Responses {
    /// Those that responded lately, with the leader itself.
    pub responsive: BTreeSet<u64>,
    /// Those that have not responded since this member began to lead. Right after an election these
    /// may be all.
    pub unknown: BTreeSet<u64>,
}

impl Members {
    /// Learners to promote now; resolves when there are some and this member leads.
    pub async fn promotable(&self) -> Vec<u64> {
        let raft = self.engine.raft();
        let (mut server, mut log) = (raft.server_metrics(), raft.metrics());
        loop {
            server.borrow_and_update();
            log.borrow_and_update();
            let members = self.list();
            let voters = members.iter().filter(|m| m.role == Role::Voter).count();
            let learners: Vec<u64> =
                members.iter().filter(|m| m.role == Role::Learner).map(|m| m.id).collect();
            let promote = to_promote(voters, &self.ready()).to_vec();
            if !promote.is_empty() {
                return promote;
            }
            // The log's progress changes with every write: it matters only while a learner could
            // catch up.
            let waits =
                self.leadership().borrow().leads && !to_promote(voters, &learners).is_empty();
            let ended = tokio::select! {
                changed = server.changed() => changed.is_err(),
                changed = log.changed(), if waits => changed.is_err(),
            };
            if ended {
                return std::future::pending().await;
            }
        }
    }

    /// Resolves at the next change of the membership or the leadership.
    pub async fn changed(&self) {
        let mut server = self.engine.raft().server_metrics();
        server.borrow_and_update();
        if server.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// How the members respond to this one; `None` if it does not lead. A member is responsive if
    /// it responded within this time.
    pub fn responses(&self, within: Duration) -> Option<Responses> {
        let metrics = self.engine.raft().metrics().borrow_watched().clone();
        let heartbeats = metrics.heartbeat.filter(|_| metrics.state.is_leader())?;
        let mut responses = Responses::default();
        responses.responsive.insert(self.id());
        for (id, at) in heartbeats.into_iter().filter(|(id, _)| *id != self.id()) {
            match at {
                Some(at) if at.elapsed() <= within => drop(responses.responsive.insert(id)),
                Some(_) => {}
                None => drop(responses.unknown.insert(id)),
            }
        }
        Some(responses)
    }
}
