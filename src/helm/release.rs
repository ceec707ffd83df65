//! Releases as Helm records them, and the Secrets that hold them.

mod record;
mod storage;

pub use record::{Hook, HookExecution, Info, Release, Status, now};
pub use storage::{Storage, StorageError};
