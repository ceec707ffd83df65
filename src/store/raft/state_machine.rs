//! The key space as openraft's state machine, and its checkpoints as openraft's snapshots.

use std::io;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use openraft::storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine};

use super::applied_state::AppliedState;
use super::checkpoints::{Checkpoint, Checkpoints};
use crate::contract::StoreError;
use crate::log::{Applied, Entries, LogId, Outcomes, Payload, StoredMembership, Types};

type Snapshot = openraft::type_config::alias::SnapshotOf<Types, Checkpoint>;
type Meta = openraft::type_config::alias::SnapshotMetaOf<Types>;

/// openraft's state machine over the key space.
pub(crate) struct Machine {
    pub(super) applied_state: Arc<AppliedState>,
    pub(super) entries: Arc<Entries>,
    pub(super) checkpoints: Arc<Checkpoints>,
}

/// Number of commands of an entry, and the responder for their outcomes.
type Waiting = (usize, Option<ApplyResponder<Types>>);

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = Checkpoint;
    type SnapshotBuilder = CheckpointBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let applied = self.applied_state.applied.lock().clone();
        Ok((applied.id, applied.membership))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + Send,
    {
        let mut applied = self.applied_state.applied.lock().clone();
        let mut batches = Vec::new();
        let mut waiting: Vec<Waiting> = Vec::new();
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            applied.id = Some(entry.log_id);
            let commands = match entry.payload {
                Payload::Blank => 0,
                Payload::Membership(membership) => {
                    applied.membership = StoredMembership::new(applied.id, membership);
                    0
                }
                Payload::Normal(batch) => {
                    let commands = batch.commands().len();
                    batches.push(batch);
                    commands
                }
            };
            waiting.push((commands, responder));
        }
        let Some(last) = applied.id else { return Ok(()) };
        let behind = last.index() + 1;
        let commands = batches.iter().flat_map(|batch| batch.commands());
        let outcomes =
            self.applied_state.shared.apply(commands, || self.applied_state.set(applied));
        self.entries.applied(&last, self.applied_state.members() > 1);
        drop(batches);
        let mut outcomes = outcomes.into_iter();
        for (commands, responder) in waiting {
            let own: Vec<_> = outcomes.by_ref().take(commands).collect();
            if let Some(responder) = responder {
                responder.send(Outcomes(own));
            }
        }
        self.checkpoints.applied(behind);
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> CheckpointBuilder {
        CheckpointBuilder {
            applied_state: Arc::clone(&self.applied_state),
            checkpoints: Arc::clone(&self.checkpoints),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta,
        checkpoint: Checkpoint,
    ) -> Result<(), io::Error> {
        let applied = Applied { id: meta.last_log_id, membership: meta.last_membership.clone() };
        let replace = |state| {
            self.applied_state.shared.replace(state, || self.applied_state.set(applied.clone()));
        };
        self.checkpoints.install(&applied, checkpoint, replace).await?;
        // The events in between are unknown: watchers must relist and continue from there.
        self.applied_state.shared.end_watches(&StoreError::Overrun);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.checkpoints.current())
    }
}

/// Builds openraft's snapshots: the checkpoint just written, or a new one if openraft requests one.
pub(crate) struct CheckpointBuilder {
    applied_state: Arc<AppliedState>,
    checkpoints: Arc<Checkpoints>,
}

impl RaftSnapshotBuilder<Types> for CheckpointBuilder {
    type SnapshotData = Checkpoint;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        if let Some(fresh) = self.checkpoints.fresh() {
            return Ok(fresh);
        }
        self.checkpoints.write(&self.applied_state).await?;
        let written = self.checkpoints.fresh();
        written.ok_or_else(|| io::Error::other("no checkpoint was written"))
    }
}
