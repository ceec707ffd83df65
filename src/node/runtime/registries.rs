//! `registries.yaml`: the registries of images in k3s's format, and their configuration for
//! containerd.
//!
//! Mirrors and TLS settings become directories with `hosts.toml`, which containerd reads at each
//! pull. Credentials stay in this process and are sent with the calls that need them: no file of
//! containerd contains one, and a change needs no restart.

mod config;
mod file;
mod follow;
mod hosts;
#[cfg(test)]
mod tests;

pub use config::Registries;
pub use file::{InvalidRegistries, load};
pub(crate) use follow::{watch_file, write_hosts};
