//! A volatile engine, for tests and for data that may be lost with the process.

use std::sync::Arc;

use async_trait::async_trait;
use base::Tasks;
use tokio::sync::watch;

use super::engine::Engine;
use super::shared::SharedState;
use super::store::{LocalStore, StoreOptions};
use crate::contract::{Backend, Durability, Leadership, StoreError, StoreStats};
use crate::mvcc::{Command, Outcome};

#[derive(Debug)]
struct Memory {
    shared: Arc<SharedState>,
    leads: watch::Sender<Leadership>,
}

#[async_trait]
impl Engine for Memory {
    async fn submit(
        &self,
        command: Command,
        _durability: Durability,
    ) -> Result<Outcome, StoreError> {
        let lost = || StoreError::Stopped("no outcome for a command".to_owned());
        self.shared.apply(std::iter::once(&command), || {}).pop().unwrap_or_else(|| Err(lost()))
    }

    async fn barrier(&self) -> Result<(), StoreError> {
        // A command is applied before it is acknowledged.
        Ok(())
    }

    fn leads(&self) -> watch::Receiver<Leadership> {
        self.leads.subscribe()
    }

    fn term(&self) -> u64 {
        1
    }

    fn applied_index(&self) -> u64 {
        // There is no log; every write has a revision.
        self.shared.state.read().revision().unsigned_abs()
    }

    fn stopped(&self) -> Option<StoreError> {
        None
    }

    fn disk_bytes(&self) -> u64 {
        0
    }

    async fn defragment(&self) -> Result<(), StoreError> {
        // There is no disk.
        Ok(())
    }

    fn fill_stats(&self, stats: &mut StoreStats) {
        stats.committed = self.applied_index();
    }
}

/// Opens a store in memory, lost with the process. Its tasks end when `tasks` shuts down.
pub fn open_memory_with(tasks: &Tasks) -> Arc<dyn Backend> {
    let shared = Arc::new(SharedState::default());
    let leadership = Leadership { term: 1, leads: true, ..Leadership::default() };
    let leads = watch::Sender::new(leadership);
    let engine = Arc::new(Memory { shared: Arc::clone(&shared), leads });
    LocalStore::start(shared, engine, StoreOptions::default(), tasks)
}

/// Opens a store in memory with its own tasks. Must be called within a runtime.
pub fn open_memory() -> Arc<dyn Backend> {
    open_memory_with(&Tasks::default())
}
