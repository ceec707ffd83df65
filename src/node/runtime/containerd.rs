//! The supervised containerd: search, configuration, supervision, events and image import.
//!
//! It has its own root, state and socket, so that it does not conflict with Docker on the host.
//! Containers survive its restart, and it survives a restart of the agent, which then adopts it.

pub(crate) mod config;
mod customization;
mod environment;
pub(crate) mod events;
pub(crate) mod find;
mod handlers;
pub(crate) mod import;
pub(crate) mod pins;
mod results;
pub(crate) mod snapshotter;
pub(crate) mod supervise;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

/// The namespace of containerd's CRI plugin.
pub(crate) const NAMESPACE: &str = "k8s.io";
/// Prefix of the labels of a blob that name its repositories, by registry.
pub(crate) const SOURCE_LABEL: &str = "containerd.io/distribution.source.";
/// Time limit for small calls.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Labels of an object in containerd.
pub(crate) type Labels = HashMap<String, String>;

/// A request to a service of containerd, in the namespace of the CRI plugin.
pub(crate) fn request<T>(message: T, timeout: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(timeout);
    let namespace = tonic::metadata::MetadataValue::from_static(NAMESPACE);
    request.metadata_mut().insert("containerd-namespace", namespace);
    request
}
