//! The input of a pod status: the observed state and the decisions of the node.

use std::collections::HashMap;
use std::net::IpAddr;

use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;

use crate::cgroups::PodGroupConfig;
use crate::pods::observed::ObservedPod;
use crate::pods::plan::ProbeResults;
use crate::pods::rejection::{Rejection, STATUS_PREFIX};
use crate::pods::resize::DeferredResize;

/// Reason and message of the waiting state of a container that should run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitingReason {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// The node's decision that a pod failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodFailure {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Upper limit of the grace period, in seconds.
    pub(crate) grace: Option<i64>,
    /// The pod was evicted in favour of others, which sets the condition `DisruptionTarget`.
    pub(crate) disruption: bool,
}

impl From<Rejection> for PodFailure {
    fn from(rejection: Rejection) -> Self {
        let message = format!("{STATUS_PREFIX}{}", rejection.message);
        Self { reason: rejection.reason, message, grace: None, disruption: false }
    }
}

/// Input of a status besides the pod.
#[derive(Debug)]
pub(crate) struct StatusInput<'a> {
    pub(crate) observed: &'a ObservedPod,
    /// What the pod's group has.
    pub(crate) group: PodGroupConfig,
    /// Probe results by container id.
    pub(crate) health: &'a HashMap<String, ProbeResults>,
    /// Waiting states by container name.
    pub(crate) waiting: &'a HashMap<String, WaitingReason>,
    /// The previous status, or that of the API.
    pub(crate) previous: &'a core::PodStatus,
    pub(crate) node_ips: &'a [IpAddr],
    /// The pod ended and starts no container again.
    pub(crate) terminal: bool,
    pub(crate) failure: Option<&'a PodFailure>,
    /// A deferred resize.
    pub(crate) deferred: Option<&'a DeferredResize>,
    /// A resize is in progress: the last error, or empty.
    pub(crate) resizing: Option<&'a str>,
    /// Whether the runtime can mount volumes read-only with all mounts below them.
    pub(crate) recursive_read_only: bool,
    /// The scheme of container ids, such as `containerd`.
    pub(crate) runtime_name: &'a str,
    pub(crate) now: Timestamp,
}

impl StatusInput<'_> {
    /// Returns the decision once no container runs: a final phase releases the resources of the
    /// pod.
    pub(super) fn effective_failure(&self) -> Option<&PodFailure> {
        self.failure.filter(|_| !self.observed.any_running())
    }
}

/// Converts a time of the runtime to whole seconds, as in the API; `None` for zero.
pub(super) fn time(nanoseconds: i64) -> Option<Time> {
    (nanoseconds > 0)
        .then(|| Timestamp::from_second(nanoseconds / 1_000_000_000).ok())
        .flatten()
        .map(Time)
}
