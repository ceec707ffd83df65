//! An engine that keeps nothing: a volatile store, for tests and for what may be lost with the process.

use std::sync::Arc;

use async_trait::async_trait;
use base::Tasks;

use crate::backend::{Engine, Shared, Store};
use crate::command::Command;
use crate::kv::{Backend, Durability, StoreError};
use crate::mvcc::Outcome;

#[derive(Debug)]
struct Memory(Arc<Shared>);

#[async_trait]
impl Engine for Memory {
    async fn submit(
        &self,
        command: Command,
        _durability: Durability,
    ) -> Result<Outcome, StoreError> {
        let lost = || StoreError::Stopped("a command was not answered".to_owned());
        self.0.apply(std::iter::once(&command), || {}).pop().unwrap_or_else(|| Err(lost()))
    }

    async fn barrier(&self) -> Result<(), StoreError> {
        // Applied before it is acknowledged.
        Ok(())
    }

    fn term(&self) -> u64 {
        1
    }

    fn applied_index(&self) -> u64 {
        // There is no log; every command that wrote has a revision.
        self.0.state.read().revision().unsigned_abs()
    }

    fn stopped(&self) -> Option<StoreError> {
        None
    }

    fn disk_bytes(&self) -> u64 {
        0
    }
}

/// A store in memory only, lost with the process. Its tasks end when `tasks` shuts down.
pub fn open_memory_with(tasks: &Tasks) -> Arc<dyn Backend> {
    let shared = Arc::new(Shared::default());
    Store::start(Arc::clone(&shared), Arc::new(Memory(shared)), tasks)
}

/// A store in memory only, lost with the process, with tasks of its own. Must be called within a runtime.
pub fn open_memory() -> Arc<dyn Backend> {
    open_memory_with(&Tasks::default())
}
