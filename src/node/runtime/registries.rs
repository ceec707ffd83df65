//! `registries.yaml`: which registries images come from, in k3s's form, and what containerd and its calls are told of it.
//!
//! Mirrors and TLS settings become folders of `hosts.toml`, which containerd reads at each pull. Credentials stay in this process and
//! go along with the calls that need them, so that no file of containerd's holds one and a change needs no restart.

mod config;
mod file;
mod follow;
mod hosts;
#[cfg(test)]
mod tests;

pub use config::Registries;
pub use file::{BadRegistries, load};
pub(crate) use follow::{follow, write};
