//! The supervised containerd: search, configuration, supervision, events and image import.
//!
//! It has its own root, state and socket, so that it does not conflict with Docker on the host.
//! Containers survive its restart, and it survives a restart of the agent, which then adopts it.

pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod find;
pub(crate) mod import;
mod results;
pub(crate) mod supervise;
#[cfg(test)]
mod tests;

/// The namespace of containerd's CRI plugin.
pub(crate) const NAMESPACE: &str = "k8s.io";
