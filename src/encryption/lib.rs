//! Encryption at rest: values are encrypted before they reach the store, in upstream's formats.

mod config;
mod configured;
mod errors;
mod key_ring;
mod keys;
mod kms;
mod metrics;
mod providers;
pub mod rewrite;
mod transformer;

pub use configured::{Configured, EncryptionConfig, EncryptionConfigError, StartError};
pub use key_ring::{Error, Next, NextError, Ring, Stage, Wish};
pub use keys::{AdoptError, Keys, WriteError};
pub use kms::metrics::ALL as METRICS;
pub use transformer::{NoKeyConfigured, Opened, TransformError, Transformer};

/// Whether a stored value has the prefix of encrypted values, of any provider.
pub fn is_encrypted(stored: &[u8]) -> bool {
    stored.starts_with(b"k8s:enc:")
}
