//! The engine of a local store: makes commands durable and replicates them.

use std::fmt::Debug;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::contract::{Durability, Leadership, StoreError, StoreStats};
use crate::mvcc::{Command, Outcome};

/// Makes commands durable in one order and applies them to [`SharedState`]. The provided methods
/// are those of an engine without other members.
#[async_trait]
pub(crate) trait Engine: Send + Sync + Debug + 'static {
    /// Resolves once the command is as durable as requested and applied, or refused.
    async fn submit(&self, command: Command, durability: Durability)
    -> Result<Outcome, StoreError>;
    /// As [`Engine::submit`], synced, and refused unless this member leads: for decisions of the
    /// leader.
    async fn submit_as_leader(&self, command: Command) -> Result<Outcome, StoreError> {
        self.submit(command, Durability::Synced).await
    }
    /// Resolves once everything acknowledged anywhere before the call is applied locally.
    async fn barrier(&self) -> Result<(), StoreError>;
    /// Whether the locally applied state contains everything acknowledged anywhere.
    fn is_alone(&self) -> bool {
        true
    }
    /// Renews a lease at the leader and returns its granted seconds; `None` if this member leads.
    async fn renew_remotely(&self, _lease: i64) -> Result<Option<i64>, StoreError> {
        Ok(None)
    }
    /// Granted and remaining seconds of a lease at the leader; `None` if this member leads.
    async fn remaining_remotely(&self, _lease: i64) -> Result<Option<(i64, i64)>, StoreError> {
        Ok(None)
    }
    /// The leadership; the leader expires leases.
    fn leads(&self) -> watch::Receiver<Leadership>;
    /// Newest known term.
    fn term(&self) -> u64;
    /// Index of the newest applied entry.
    fn applied_index(&self) -> u64;
    /// While the guard is held, the state is not replaced by another one; `None` if it never is.
    async fn lock_state(&self) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        None
    }
    /// The error that stopped the store, if any.
    fn stopped(&self) -> Option<StoreError>;
    /// Bytes on disk.
    fn disk_bytes(&self) -> u64;
    /// Replaces the log by a checkpoint of the current state.
    async fn defragment(&self) -> Result<(), StoreError>;
    /// Adds the statistics of the engine.
    fn fill_stats(&self, stats: &mut StoreStats);
}
