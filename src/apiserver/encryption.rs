//! Encryption at rest: what is written is sealed before it reaches the store, in upstream's forms.

mod config;
mod configured;
mod key_ring;
mod keys;
mod kms;
mod metrics;
mod providers;
pub mod rewrite;

pub use crate::encryption::key_ring::{Error, Next, Ring, Stage, Wish};
pub use configured::{Configured, Plan};
pub use keys::Keys;

/// The value begins as encrypted ones do, by whatever provider.
pub fn is_encrypted(stored: &[u8]) -> bool {
    stored.starts_with(b"k8s:enc:")
}
