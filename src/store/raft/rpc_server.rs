//! Handles the requests of other members.

use base::tasks::Kind;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::RaftError;
use openraft::storage::{Snapshot, SnapshotMeta};
use tokio::sync::oneshot;

use super::checkpoints::Checkpoint;
use super::members::Members;
use super::proposals::ROOM_SLACK;
use super::transport::MAX_MESSAGE_BYTES;
use super::wire::{Chunk, Envelope, Request, Response};
use crate::contract::{Durability, StoreError};
use crate::local::engine::Engine;
use crate::log::{LogEntry, Types, behind, entry_bytes};
use crate::mvcc::Command;

/// Maximum wait for the leader's confirmation that a sender is a member.
const SURE_WAIT: std::time::Duration = std::time::Duration::from_millis(500);

fn refused(text: impl Into<String>) -> Response {
    Response::Refused(StoreError::Unavailable(text.into()))
}

fn failed(error: &RaftError<Types>) -> Response {
    refused(format!("the member is stopping: {error}"))
}

impl Members {
    /// Handles a request that another member sent by its [`super::Transport`]; the caller must have
    /// authenticated the sender.
    pub async fn answer(&self, request: &[u8]) -> Vec<u8> {
        let links = self.engine.links();
        let mut from = 0;
        let answer = match Envelope::decode(request) {
            Ok((envelope, reader)) => match self.check(&envelope) {
                None if self.was_removed(envelope.from).await => Response::Removed,
                None => {
                    from = envelope.from;
                    match Request::decode(reader) {
                        Ok(request) => self.answer_to(request).await,
                        Err(error) => {
                            links.count(from, |traffic| traffic.received_failures += 1);
                            refused(format!("the request is {error}"))
                        }
                    }
                }
                Some(refusal) => refusal,
            },
            Err(error) => refused(format!("the request is {error}, or from another release")),
        };
        let bytes = answer.encode();
        links.count(from, |traffic| {
            traffic.received_bytes += request.len() as u64;
            traffic.sent_bytes += bytes.len() as u64;
        });
        if bytes.len() <= MAX_MESSAGE_BYTES {
            return bytes;
        }
        refused(format!("the response of {} bytes exceeds the maximum message size", bytes.len()))
            .encode()
    }

    /// Whether the sender may send requests to this member; records its address.
    fn check(&self, envelope: &Envelope) -> Option<Response> {
        let links = self.engine.links();
        if envelope.cluster != links.cluster {
            let text = format!(
                "this is a member of the cluster {}, not of {}",
                links.cluster, envelope.cluster
            );
            return Some(refused(text));
        }
        if envelope.to != links.me {
            let text = format!("this is the member {:016x}, not {:016x}", links.me, envelope.to);
            return Some(refused(text));
        }
        if envelope.from == links.me {
            let text = format!(
                "the member {:016x} exists twice: one of the servers runs on a copy of the other's \
                 data",
                links.me
            );
            tracing::error!("{text}");
            return Some(refused(text));
        }
        links.set_announced(envelope.from, &envelope.address);
        None
    }

    fn has(&self, member: u64) -> bool {
        let server = self.engine.raft().server_metrics();
        server.borrow_watched().membership_config.membership().get_node(&member).is_some()
    }

    /// Whether the sender was removed from the cluster, which it may not know if it was away. This
    /// member may know less than the sender, so only the word of a leader with a quorum counts;
    /// without one, the sender may be the next leader. The leader itself is not checked: a member
    /// with an empty or old log would block it forever.
    async fn was_removed(&self, from: u64) -> bool {
        let leader = self.engine.leadership().leader;
        if self.has(from) || leader.is_none_or(|leader| leader == from) {
            return false;
        }
        let sure = tokio::time::timeout(SURE_WAIT, self.engine.read_barrier()).await;
        matches!(sure, Ok(Ok(()))) && !self.has(from)
    }

    async fn answer_to(&self, request: Request) -> Response {
        let raft = self.engine.raft();
        match request {
            Request::Append(append) => {
                // Refused before it is accepted: a log that cannot be written would stop this
                // member.
                if let Err(error) = self.room_for(&append.entries).await {
                    return Response::Refused(error);
                }
                match raft.append_entries(append).await {
                    Ok(answer) => {
                        self.engine.links().set_removed(false);
                        Response::Append(answer)
                    }
                    Err(error) => failed(&error),
                }
            }
            Request::Vote(vote) => match raft.vote(vote).await {
                Ok(answer) => Response::Vote(answer),
                Err(error) => failed(&error),
            },
            Request::PreVote(vote) => match raft.pre_vote(vote).await {
                Ok(answer) => Response::Vote(answer),
                Err(error) => failed(&error),
            },
            Request::Transfer(transfer) => match raft.handle_transfer_leader(transfer).await {
                Ok(answer) => Response::Transfer(answer),
                Err(error) => failed(&RaftError::Fatal(error)),
            },
            Request::Chunk(chunk) => self.take_chunk(chunk).await,
            Request::Propose(_)
            | Request::ReadIndex
            | Request::KeepAlive(_)
            | Request::Remaining(_)
            | Request::Change(_) => self.answer_as_leader(request).await,
        }
    }

    /// Ensures room for the leader's entries.
    async fn room_for(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let bytes: usize = entries.iter().map(entry_bytes).sum();
        self.engine.make_room(bytes as u64 + ROOM_SLACK).await
    }

    async fn answer_as_leader(&self, request: Request) -> Response {
        let leadership = self.engine.leadership();
        if !leadership.leads || self.engine.is_closed() {
            return Response::NotLeader(leadership.leader.filter(|_| !leadership.leads));
        }
        let done = match request {
            Request::Propose(commands) => return self.propose(commands).await,
            Request::ReadIndex => match self.engine.read_index().await {
                Ok(Some(next)) => {
                    self.engine.links().await_elsewhere(next);
                    return Response::ReadAt(next);
                }
                Ok(None) => return Response::NotLeader(None),
                Err(error) => Err(error),
            },
            Request::KeepAlive(lease) => match self.engine.confirm_lead().await {
                Ok(true) => match self.engine.applied_state.shared.renew(lease).await {
                    Ok(ttl) => return Response::KeptAlive(ttl),
                    Err(error) => Err(error),
                },
                Ok(false) => return Response::NotLeader(None),
                Err(error) => Err(error),
            },
            Request::Remaining(lease) => match self.engine.applied_state.shared.remaining(lease) {
                Some((granted, left)) => return Response::Remains(granted, left),
                None => Err(StoreError::LeaseNotFound),
            },
            Request::Change(change) => match self.change_here(&change).await {
                Ok(true) => return Response::Changed,
                Ok(false) => return Response::NotLeader(None),
                Err(error) => Err(error),
            },
            _ => Err(StoreError::Invalid("not a request of a leader".to_owned())),
        };
        done.map_or_else(Response::Refused, |()| Response::Changed)
    }

    async fn propose(&self, commands: Vec<Command>) -> Response {
        let submit = |command| self.engine.submit(command, Durability::Synced);
        let outcomes = futures::future::join_all(commands.into_iter().map(submit)).await;
        let applied = behind(self.engine.applied_state.applied.lock().id.as_ref());
        self.engine.links().await_elsewhere(applied);
        Response::Proposed(applied, outcomes)
    }

    async fn take_chunk(&self, chunk: Chunk) -> Response {
        let own = self.engine.raft().server_metrics().borrow_watched().vote;
        if own > chunk.vote {
            // The sender does not lead any more.
            return Response::Installed(own);
        }
        let term = chunk.applied.id.map_or(0, |id| id.committed_leader_id().term);
        if term > chunk.vote.leader_id().term {
            return refused("the checkpoint has a later term than its sender");
        }
        let mut snapshot_receiver =
            std::sync::Arc::clone(&self.snapshot_receiver).lock_owned().await;
        match snapshot_receiver.take(&chunk).await {
            Ok(have) if have < chunk.total => return Response::Have(have),
            Ok(_) => {}
            Err(error) => return refused(format!("cannot write the checkpoint: {error}")),
        }
        let meta = SnapshotMeta {
            last_log_id: chunk.applied.id,
            last_membership: chunk.applied.membership,
        };
        let snapshot = Checkpoint::snapshot_receiver(self.engine.checkpoints.disk());
        let raft = self.engine.raft().clone();
        let (done, installed) = oneshot::channel();
        // A task of its own, in case the caller is dropped: until the file has its final name no
        // other transfer may write to it.
        self.tasks.spawn(Kind::Request, "store snapshot", async move {
            let snapshot = Snapshot { meta, snapshot };
            let answer = raft.install_full_snapshot(chunk.vote, snapshot).await;
            snapshot_receiver.end();
            // The receiver may be gone.
            let _ = done.send(answer);
            Ok::<(), StoreError>(())
        });
        match installed.await {
            Ok(Ok(answer)) => Response::Installed(answer.vote),
            Ok(Err(error)) => failed(&RaftError::Fatal(error)),
            Err(_) => refused("the checkpoint was not installed"),
        }
    }
}
