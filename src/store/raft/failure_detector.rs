//! Detects the end of a leader's process by the end of its connections, without waiting for the
//! election timeout.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::tasks::Kind;
use futures::future::BoxFuture;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use sorting::CollectOrdered as _;

use super::members::Members;
use super::wire::Envelope;
use crate::contract::StoreError;

/// Time between the campaigns of two members after a leader's connections ended; simultaneous ones
/// would split the votes.
const TURN: Duration = Duration::from_millis(150);

/// A connection of another member, from its first message until it is dropped.
#[derive(Debug)]
pub struct PeerConnection {
    members: Arc<Members>,
    /// Id of the member; 0 until it is known.
    from: AtomicU64,
}

impl PeerConnection {
    /// Handles a request of the member, see [`Members::answer`]. Boxed, so that it is compiled in
    /// this crate with full optimization.
    #[inline(never)]
    pub fn answer<'a>(&'a self, request: &'a [u8]) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(self.answer_to(request))
    }

    async fn answer_to(&self, request: &[u8]) -> Vec<u8> {
        if self.from.load(Relaxed) == 0
            && let Ok((envelope, _)) = Envelope::decode(request)
            && envelope.cluster == self.members.cluster()
            && self.from.compare_exchange(0, envelope.from, Relaxed, Relaxed).is_ok()
        {
            *self.members.connections.lock().entry(envelope.from).or_default() += 1;
            self.members.met.notify_waiters();
        }
        self.members.answer(request).await
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        let from = self.from.load(Relaxed);
        if from == 0 {
            return;
        }
        let mut connections = self.members.connections.lock();
        let left = connections.get_mut(&from).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left > 0 {
            return;
        }
        connections.remove(&from);
        drop(connections);
        let members = Arc::clone(&self.members);
        if members.leadership().borrow().leader == Some(from) {
            let tasks = members.tasks.clone();
            tasks.spawn(Kind::Request, "store suspicion", async move {
                members.campaign_in_turn(from).await;
                Ok::<(), StoreError>(())
            });
        }
    }
}

impl Members {
    /// Accepts a connection of another member.
    pub fn accept_connection(self: &Arc<Self>) -> PeerConnection {
        PeerConnection { members: Arc::clone(self), from: AtomicU64::new(0) }
    }

    /// Campaigns for leadership after the leader has ended, when it is this member's turn.
    async fn campaign_in_turn(&self, leader: u64) {
        let raft = self.engine.raft();
        let voters: BTreeSet<u64> = raft
            .server_metrics()
            .borrow_watched()
            .membership_config
            .membership()
            .voter_ids()
            .filter(|id| *id != leader)
            .collect_set();
        let Some(turn) = voters.iter().position(|id| *id == self.id()) else { return };
        let wait = TURN.saturating_mul(u32::try_from(turn).unwrap_or(u32::MAX));
        let mut leadership = self.leadership();
        let other = leadership.wait_for(|now| now.leader.is_some_and(|id| id != leader));
        let back = async {
            loop {
                let connected = self.met.notified();
                if self.connections.lock().contains_key(&leader) {
                    return;
                }
                connected.await;
            }
        };
        tokio::select! {
            () = base::clock::sleep(wait) => {}
            _ = other => return,
            () = back => return,
            () = self.tasks.shutdown().requested() => return,
        }
        let metrics = raft.metrics().borrow_watched().clone();
        if metrics.current_leader != Some(leader) {
            return;
        }
        tracing::info!(
            leader = format!("{leader:016x}"),
            "all connections of the leader ended, campaigning for leadership"
        );
        let request = TransferLeaderRequest::new(metrics.vote, self.id(), None);
        if let Ok(Err(error)) = raft.handle_transfer_leader(request).await {
            tracing::debug!(%error, "not now");
        }
    }
}
