//! Transfers leadership to another member, and takes it back if that member does not lead in time.

use std::sync::Arc;
use std::time::Duration;

use base::tasks::Kind;
use openraft::raft::VoteRequest;
use tokio::sync::oneshot;

use super::engine::RaftEngine;
use super::members::Members;
use crate::contract::{Role, StoreError};
use crate::local::engine::Engine;
use crate::log::{LogId, Types, Vote};

/// Maximum wait for another member to lead. Meanwhile this one accepts no writes: at most as long
/// as an election.
const TAKE_WAIT: Duration = Duration::from_secs(2);

/// An id that no member has: the candidate of a vote without an owner.
const NOBODY: u64 = 0;

fn unavailable(text: &str) -> StoreError {
    StoreError::Unavailable(text.to_owned())
}

impl Members {
    /// Transfers leadership to a voter; resolves once that voter leads. Only the leader can.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the member is no voter; [`StoreError::Unavailable`] if it does
    /// not lead in time: then the voters elect a leader.
    pub async fn transfer(&self, id: u64) -> Result<(), StoreError> {
        let now = self.engine.leadership();
        if now.leader == Some(id) {
            return Ok(());
        }
        if !self.list().iter().any(|member| member.id == id && member.role == Role::Voter) {
            let text = format!("{id:016x} is not a voter: only a voter can lead");
            return Err(StoreError::Invalid(text));
        }
        if !now.leads {
            return Err(unavailable("only the leader can transfer leadership"));
        }
        let (done, moved) = oneshot::channel();
        let engine = Arc::clone(&self.engine);
        // A task of its own, in case the caller is dropped: openraft's leader accepts no writes
        // from here on.
        self.tasks.spawn(Kind::Request, "store transfer", async move {
            let result = engine.transfer_to(id, now.term).await;
            // The receiver may be gone.
            let _ = done.send(result);
            Ok::<(), StoreError>(())
        });
        moved.await.unwrap_or_else(|_| Err(unavailable("this member is stopping")))
    }
}

impl RaftEngine {
    async fn transfer_to(&self, id: u64, term: u64) -> Result<(), StoreError> {
        let mut leadership = self.leads();
        let transfer = self.raft().trigger().transfer_leader(id).await;
        transfer.map_err(|error| self.fatal(&error))?;
        let taken = async { leadership.wait_for(|now| now.leader == Some(id)).await.map(drop) };
        match tokio::time::timeout(TAKE_WAIT, taken).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(unavailable("this member is stopping")),
            Err(_) => {
                self.step_down(term).await?;
                Err(unavailable("the other member did not become leader in time"))
            }
        }
    }

    /// Steps down if this member still leads in that term, because openraft's leader would wait
    /// forever for the target. The vote of the next term goes to no member, so this member may be
    /// elected again. It must not go to the target: only that member may start a term in its own
    /// name.
    async fn step_down(&self, term: u64) -> Result<(), StoreError> {
        let newest = |state: &openraft::RaftState<Types>| -> (Vote, Option<LogId>) {
            (*state.vote_ref(), state.log_ids.last().copied())
        };
        let newest = self.raft().with_raft_state(newest).await;
        let (vote, last) = newest.map_err(|error| self.fatal(&error))?;
        if vote != Vote::new_committed(term, self.links().me) {
            return Ok(());
        }
        let mut request = VoteRequest::new(Vote::new(term + 1, NOBODY), last);
        request.leadership_transfer = true;
        match self.raft().vote(request).await {
            Ok(_) => Ok(()),
            Err(error) => Err(StoreError::Stopped(error.to_string())),
        }
    }
}
