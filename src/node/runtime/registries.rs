//! `registries.yaml`: the registries of images in k3s's format, and their configuration for
//! containerd.
//!
//! containerd itself cannot rewrite names of repositories: such a mirror's endpoint is the node's
//! own registry, which redirects to the mirror.
//!
//! Mirrors and TLS settings become directories with `hosts.toml`, which containerd reads at each
//! pull. Credentials stay in this process and are sent with the calls that need them: no file of
//! containerd contains one, and a change needs no restart.

mod config;
mod file;
mod follow;
mod hosts;
mod rewrite;
#[cfg(test)]
mod tests;

pub use config::{Registries, RegistryOptions, check_registry};
#[cfg(feature = "fuzzing")]
pub(crate) use file::fuzz;
pub use file::{InvalidRegistries, load};
pub(crate) use follow::{watch_file, write_hosts};
