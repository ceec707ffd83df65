//! The interface between storage and encryption at rest.

use std::sync::Arc;

use api::Gvr;
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::RwLock;

/// A decrypted value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The plaintext.
    pub plain: Bytes,
    /// Whether the value is encrypted with an outdated key or provider: an update writes it even if
    /// nothing else changes.
    pub stale: bool,
}

/// A value cannot be encrypted or decrypted, or the keys are unavailable; the cause is that of the
/// [`Transformer`].
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TransformError(Box<dyn std::error::Error + Send + Sync>);

impl TransformError {
    /// Wraps the error of a transformer.
    pub fn new(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(cause))
    }
}

/// The value is encrypted, and the storage has no transformer.
#[derive(Debug, thiserror::Error)]
#[error("it is encrypted and no key is configured")]
pub struct NoKeyConfigured;

/// Encrypts the values of some resources, such as Secrets, before they reach the store.
#[async_trait]
pub trait Transformer: Send + Sync + std::fmt::Debug {
    /// Whether values of this resource may be encrypted.
    fn covers(&self, resource: &Gvr) -> bool;

    /// Encrypts a value that is stored under `key`.
    ///
    /// # Errors
    /// If the value cannot be encrypted; nothing is written then.
    fn seal(&self, resource: &Gvr, key: &str, plain: &Bytes) -> Result<Bytes, TransformError>;

    /// Decrypts a stored value; a value that is not encrypted is returned as it is.
    ///
    /// # Errors
    /// If the value cannot be decrypted.
    fn open(&self, resource: &Gvr, key: &str, stored: &Bytes) -> Result<Opened, TransformError>;

    /// The lock that a write holds for reading from encryption until the value is stored, so that
    /// keys are not dropped meanwhile.
    fn gate(&self, _resource: &Gvr) -> Option<Arc<RwLock<()>>> {
        None
    }

    /// Fetches the keys of these values that are not cached; `open` fails for keys that cannot be
    /// fetched.
    async fn fetch(&self, _resource: &Gvr, _stored: &[&Bytes]) {}

    /// Whether the transformer has a health check.
    fn has_health(&self) -> bool {
        false
    }

    /// Checks the health of the transformer.
    ///
    /// # Errors
    /// The reason when it is not healthy.
    async fn check(&self) -> Result<(), TransformError> {
        Ok(())
    }

    /// Appends its metrics in the text format of Prometheus.
    fn render(&self, _out: &mut String) {}
}
