//! Encryption at rest: what is written is sealed before it reaches the store, in upstream's forms.

mod config;
mod configured;
mod counts;
mod keys;
mod kms;
mod providers;
pub mod reseal;
mod ring;

pub use self::ring::{Error, Next, Ring, Stage, Wish};
pub use configured::{Configured, Plan};
pub use keys::Keys;

/// The value begins as encrypted ones do, by whatever provider.
pub fn is_encrypted(stored: &[u8]) -> bool {
    stored.starts_with(b"k8s:enc:")
}
