//! Follows the leadership, and forwards requests to the leader: proposals, reads, membership
//! changes.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::engine::{LEADER_WAIT, RaftEngine};
use super::proposals::{NotLeaderBatch, Proposal, QueuedCommand};
use super::transport::{CallError, Lane, REMOVED_TEXT};
use super::wire::{Request, Response};
use crate::contract::{Durability, Leadership, StoreError};
use crate::log::Types;
use crate::mvcc::Command;

/// Maximum wait for the response to an idempotent request.
const TRY_WAIT: Duration = Duration::from_secs(2);

/// Result of a request to the leader.
pub(super) enum LeaderReply {
    /// This member leads: the caller must handle the request itself.
    Local,
    /// The leader's response; never [`Response::NotLeader`].
    Remote(Response),
}

fn unavailable(text: impl Into<String>) -> StoreError {
    StoreError::Unavailable(text.into())
}

fn unexpected(answer: Response) -> StoreError {
    match answer {
        Response::Refused(error) => error,
        _ => unavailable("unexpected response of the leader"),
    }
}

impl RaftEngine {
    /// The leadership as this member knows it.
    pub(super) fn leadership(&self) -> Leadership {
        self.leadership.borrow().clone()
    }

    /// Follows openraft's state: term, leader and addresses. Timers run only if there are several
    /// members.
    pub(super) fn follow(&self, server: &openraft::metrics::RaftServerMetrics<Types>) {
        let members = server.membership_config.membership();
        for (id, address) in members.nodes() {
            self.links().set_agreed_address(*id, address);
        }
        let term = server.vote.leader_id().term;
        self.set_term(term);
        let leads = server.state.is_leader();
        let leader = server.current_leader.filter(|leader| leads || *leader != self.links().me);
        let address = leader.and_then(|leader| members.get_node(&leader));
        let address = address.filter(|a| !a.is_unknown()).map(|a| a.as_str().to_owned());
        let now = Leadership { term, leader, address, leads };
        let changed = self.leadership.send_if_modified(|known| {
            let changed = *known != now;
            if now.leader.is_some() && now.leader != known.leader {
                self.leader_changes.fetch_add(1, Relaxed);
            }
            *known = now;
            changed
        });
        if changed {
            self.led.notify_waiters();
        }
        // The only member leads from its start to its end: no timer wakes it.
        let several = members.nodes().count() > 1;
        let settings = self.raft().runtime_config();
        settings.heartbeat(several);
        settings.elect(several);
        settings.tick(several);
    }

    /// Sends a request to the current leader and follows leader changes; `again` says that the
    /// request is idempotent.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if no leader answered until `deadline`.
    pub(super) async fn call_leader(
        &self,
        request: &Request,
        again: bool,
        deadline: Instant,
    ) -> Result<LeaderReply, StoreError> {
        let mut backoff = base::Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            // Registered before the check, so that no change is missed.
            let changed = self.led.notified();
            let leadership = self.leadership();
            if leadership.leads {
                return Ok(LeaderReply::Local);
            }
            let left = deadline.saturating_duration_since(base::clock::now());
            let (why, pause) = match leadership.leader {
                None => ("no leader is known".to_owned(), left),
                Some(leader) => {
                    let limit = if again { left.min(TRY_WAIT) } else { left };
                    let answer = tokio::select! {
                        biased;
                        answer = self.links().call(leader, Lane::Steps, request, limit) => answer,
                        () = self.other_leader(leader) => {
                            Err(CallError::Unanswered("it is not the leader any more".to_owned()))
                        }
                    };
                    let why = match answer {
                        Ok(Response::NotLeader(_)) => {
                            "the former leader is not the leader any more".to_owned()
                        }
                        Ok(answer) => return Ok(LeaderReply::Remote(answer)),
                        Err(error @ CallError::Unanswered(_)) if !again => {
                            return Err(unavailable(error.to_string()));
                        }
                        Err(error) => error.to_string(),
                    };
                    (why, backoff.next_delay().min(left))
                }
            };
            if left.is_zero() {
                let removed = self.links().is_removed();
                return Err(unavailable(if removed { REMOVED_TEXT.to_owned() } else { why }));
            }
            if self.is_closed() {
                return Err(self.stop_reason());
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = base::clock::sleep(pause) => {}
            }
        }
    }

    /// Resolves once another member leads, or this one.
    async fn other_leader(&self, leader: u64) {
        loop {
            let changed = self.led.notified();
            let now = self.leadership();
            if now.leads || now.leader.is_some_and(|now| now != leader) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until openraft's refusal to lead shows in the leadership, or briefly if it does not.
    pub(super) async fn await_other_leadership(&self) {
        let changed = self.led.notified();
        if self.leadership().leads {
            // A timeout is harmless: the next attempt decides.
            let _ = tokio::time::timeout(Duration::from_millis(20), changed).await;
        }
    }

    /// Forwards commands to the leader and answers once this member has applied them; proposes them
    /// itself if it leads.
    pub(super) async fn forward(self: &std::sync::Arc<Self>, not_leader: NotLeaderBatch) {
        let NotLeaderBatch { commands, replies, refused } = not_leader;
        if commands.is_empty() {
            return;
        }
        if refused {
            self.await_other_leadership().await;
        }
        let deadline = base::clock::now() + LEADER_WAIT;
        let request = Request::Propose(commands);
        let asked = self.call_leader(&request, false, deadline).await;
        let Request::Propose(commands) = request else { return };
        let result = match asked {
            Ok(LeaderReply::Local) => {
                let request = |(command, reply)| QueuedCommand {
                    command,
                    durability: Durability::Synced,
                    reply,
                    forward: true,
                };
                let waits = |(_, reply): &(Command, oneshot::Sender<_>)| !reply.is_closed();
                let waiting = commands.into_iter().zip(replies).filter(waits);
                let requests: Vec<QueuedCommand> = waiting.map(request).collect();
                if !requests.is_empty() {
                    self.propose(Proposal::again(requests)).await;
                }
                return;
            }
            Ok(LeaderReply::Remote(Response::Proposed(applied, outcomes))) => {
                self.await_applied(applied, deadline).await.map(|()| outcomes)
            }
            Ok(LeaderReply::Remote(other)) => Err(unexpected(other)),
            Err(error) => Err(error),
        };
        match result {
            Ok(outcomes) if outcomes.len() == replies.len() => {
                for (reply, outcome) in replies.into_iter().zip(outcomes) {
                    // The receiver may be gone.
                    let _ = reply.send(outcome);
                }
            }
            result => {
                let error = match result {
                    Ok(_) => unavailable("the leader returned outcomes of other commands"),
                    Err(error) => error,
                };
                for reply in replies {
                    // As above.
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
    }

    /// Waits until the entries before `next` are applied.
    async fn await_applied(&self, next: u64, deadline: Instant) -> Result<(), StoreError> {
        let Some(index) = next.checked_sub(1) else { return Ok(()) };
        let left = deadline.saturating_duration_since(base::clock::now());
        let wait = self.raft().wait(Some(left));
        match wait.applied_index_at_least(Some(index), "applied as by the leader").await {
            Ok(_) => Ok(()),
            Err(_) => match self.status.stopped.lock().clone() {
                Some(error) => Err(error),
                None => Err(unavailable("entries applied by the leader did not arrive in time")),
            },
        }
    }

    /// Number of entries to apply for a linearizable read, after a quorum has confirmed this
    /// member's leadership; `None` if it does not lead.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] without a quorum.
    pub(super) async fn read_index(&self) -> Result<Option<u64>, StoreError> {
        match self.raft().get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(linearizer) => Ok(Some(linearizer.read_log_id().index() + 1)),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => Ok(None),
            Err(RaftError::APIError(error)) => Err(unavailable(error.to_string())),
            Err(RaftError::Fatal(error)) => Err(self.fatal(&error)),
        }
    }

    /// Resolves once everything acknowledged anywhere before the call is applied.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if no leader with a quorum was found in time.
    pub(super) async fn read_barrier(&self) -> Result<(), StoreError> {
        let deadline = base::clock::now() + LEADER_WAIT;
        loop {
            let next = match self.call_leader(&Request::ReadIndex, true, deadline).await? {
                LeaderReply::Local => match self.read_index().await? {
                    Some(next) => next,
                    None if base::clock::now() >= deadline => {
                        return Err(unavailable("this member is not the leader any more"));
                    }
                    None => {
                        self.await_other_leadership().await;
                        continue;
                    }
                },
                LeaderReply::Remote(Response::ReadAt(next)) => next,
                LeaderReply::Remote(other) => return Err(unexpected(other)),
            };
            return self.await_applied(next, deadline).await;
        }
    }

    /// Whether this member leads, confirmed by a quorum, once it has applied all earlier committed
    /// entries.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] without a quorum.
    pub(super) async fn confirm_lead(&self) -> Result<bool, StoreError> {
        let deadline = base::clock::now() + LEADER_WAIT;
        let Some(next) = self.read_index().await? else { return Ok(false) };
        self.await_applied(next, deadline).await.map(|()| true)
    }

    /// Renews a lease at the leader; `None` if this member leads.
    ///
    /// # Errors
    /// [`StoreError::LeaseNotFound`], [`StoreError::Unavailable`].
    pub(super) async fn renew_at_leader(&self, lease: i64) -> Result<Option<i64>, StoreError> {
        let deadline = base::clock::now() + LEADER_WAIT;
        match self.call_leader(&Request::KeepAlive(lease), true, deadline).await? {
            // A former leader does not expire leases any more.
            LeaderReply::Local => match self.confirm_lead().await? {
                true => Ok(None),
                false => Err(unavailable("this member is not the leader any more")),
            },
            LeaderReply::Remote(Response::KeptAlive(ttl)) => Ok(Some(ttl)),
            LeaderReply::Remote(other) => Err(unexpected(other)),
        }
    }

    /// Granted and remaining seconds of a lease at the leader; `None` if this member leads.
    ///
    /// # Errors
    /// [`StoreError::LeaseNotFound`], [`StoreError::Unavailable`].
    pub(super) async fn remaining_at_leader(
        &self,
        lease: i64,
    ) -> Result<Option<(i64, i64)>, StoreError> {
        let deadline = base::clock::now() + LEADER_WAIT;
        match self.call_leader(&Request::Remaining(lease), true, deadline).await? {
            LeaderReply::Local => Ok(None),
            LeaderReply::Remote(Response::Remains(granted, left)) => Ok(Some((granted, left))),
            LeaderReply::Remote(other) => Err(unexpected(other)),
        }
    }

    /// Ends lazy durability; resolves once everything acknowledged is on disk, and every later
    /// write is synced.
    ///
    /// # Errors
    /// The errors of a write.
    pub(super) async fn end_lazy(&self) -> Result<(), StoreError> {
        use crate::local::engine::Engine;
        self.lazy_ended.store(true, Relaxed);
        // Raises nothing, but is synced, after every proposal that was still lazy.
        self.submit(Command::Raise { revision: 0 }, Durability::Synced).await.map(drop)
    }
}
