//! What differs between the stores that keep their state here: how a command becomes durable, and who else has it.

use std::fmt::Debug;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::contract::{Durability, Leadership, StoreError, StoreStats};
use crate::mvcc::{Command, Outcome};

/// Makes commands durable in one order and applies them to [`SharedState`]. What is said here of other members is said of none.
#[async_trait]
pub(crate) trait Engine: Send + Sync + Debug + 'static {
    /// Resolves once the command is as durable as asked and applied, or refused.
    async fn submit(&self, command: Command, durability: Durability)
    -> Result<Outcome, StoreError>;
    /// As [`Engine::submit`], synced, and refused unless this member leads: for what a leader decides.
    async fn submit_as_leader(&self, command: Command) -> Result<Outcome, StoreError> {
        self.submit(command, Durability::Synced).await
    }
    /// Resolves once everything acknowledged anywhere before the call is applied here.
    async fn barrier(&self) -> Result<(), StoreError>;
    /// Whether what is applied here is all that was acknowledged anywhere.
    fn is_alone(&self) -> bool {
        true
    }
    /// Starts a lease's time again where its end is watched over, and answers its seconds; `None` when that is here.
    async fn renew_remotely(&self, _lease: i64) -> Result<Option<i64>, StoreError> {
        Ok(None)
    }
    /// Granted seconds of a lease and those left where its end is watched over; `None` when that is here.
    async fn remaining_remotely(&self, _lease: i64) -> Result<Option<(i64, i64)>, StoreError> {
        Ok(None)
    }
    /// Who leads: the leader watches over the ends of leases.
    fn leads(&self) -> watch::Receiver<Leadership>;
    /// Newest term known here.
    fn term(&self) -> u64;
    /// Index of the newest applied entry.
    fn applied_index(&self) -> u64;
    /// While the guard is held the state is not exchanged for another one; `None` where there is no other.
    async fn lock_state(&self) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        None
    }
    /// Why the store stopped, if it did.
    fn stopped(&self) -> Option<StoreError>;
    /// Bytes on disk.
    fn disk_bytes(&self) -> u64;
    /// Replaces the log by the present state.
    async fn defragment(&self) -> Result<(), StoreError>;
    /// Fills in what the engine counted.
    fn fill_stats(&self, stats: &mut StoreStats);
}
