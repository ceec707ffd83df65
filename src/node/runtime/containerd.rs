//! Our own containerd: found, configured, supervised, watched and fed with images.
//!
//! It has its own root, state and socket, so that it never meets a Docker on the host. Containers outlive it, and it
//! outlives us: a start finds the running one and adopts it.

pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod find;
pub(crate) mod import;
mod results;
pub(crate) mod supervise;
#[cfg(test)]
mod tests;

/// Namespace in which containerd's CRI plugin keeps everything.
pub(crate) const NAMESPACE: &str = "k8s.io";
