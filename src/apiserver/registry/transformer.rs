//! Encryption of stored values as the storage sees it.

use std::sync::Arc;

use api::Gvr;
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::RwLock;

/// What a stored value was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Its bytes in the clear.
    pub plain: Bytes,
    /// The value is sealed with an outdated key or provider: an update writes it even if nothing
    /// else changes.
    pub stale: bool,
}

/// Seals values of some resources before they reach the store, such as Secrets (encryption at
/// rest).
#[async_trait]
pub trait Transformer: Send + Sync + std::fmt::Debug {
    /// Whether values of this resource may be sealed.
    fn covers(&self, resource: &Gvr) -> bool;

    /// The value to store under `key` for an object of `resource`.
    ///
    /// # Errors
    /// A sentence; nothing is written then.
    fn seal(&self, resource: &Gvr, key: &str, plain: &Bytes) -> Result<Bytes, String>;

    /// The plain value of what `seal` made, or of what was stored before anything was sealed.
    ///
    /// # Errors
    /// A sentence.
    fn open(&self, resource: &Gvr, key: &str, stored: &Bytes) -> Result<Opened, String>;

    /// Held for reading from sealing a value to its end in the store, so that keys are not dropped
    /// in between.
    fn gate(&self, _resource: &Gvr) -> Option<Arc<RwLock<()>>> {
        None
    }

    /// Fetches the keys that these values need and that are not cached yet; `open` reports those
    /// that cannot be had.
    async fn fetch(&self, _resource: &Gvr, _stored: &[&Bytes]) {}

    /// Whether there is something that may be unwell.
    fn has_health(&self) -> bool {
        false
    }

    /// Whether it is well.
    ///
    /// # Errors
    /// What is wrong.
    async fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Appends what it counts, in Prometheus' text form.
    fn render(&self, _out: &mut String) {}
}
