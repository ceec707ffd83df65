//! The input of a pod status: the observed state and the decisions of the node.

use std::collections::HashMap;
use std::net::IpAddr;

use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;

use crate::pods::observed::Observed;
use crate::pods::plan::Health;
use crate::pods::resize::Deferred;

/// Why a container that should run does not: reason and message of its waiting state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// The node's decision that a pod failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Grace in seconds that its containers get at most.
    pub(crate) grace: Option<i64>,
    /// The pod was in the way of others: the condition `DisruptionTarget` says so.
    pub(crate) disruption: bool,
}

/// What a status is made of, beside the pod.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub(crate) observed: &'a Observed,
    /// Probe results by container id.
    pub(crate) health: &'a HashMap<String, Health>,
    /// By container name.
    pub(crate) waiting: &'a HashMap<String, Waiting>,
    /// The status made last, or that of the API.
    pub(crate) previous: &'a core::PodStatus,
    pub(crate) node_ips: &'a [IpAddr],
    /// The pod ended and starts nothing again; with phase, reason and message when the node decided so.
    pub(crate) terminal: bool,
    pub(crate) decided: Option<&'a Verdict>,
    /// New resources that the node does not have.
    pub(crate) deferred: Option<&'a Deferred>,
    /// New resources are not in force yet: the last error, empty without one.
    pub(crate) resizing: Option<&'a str>,
    /// `containerd`: the scheme of container ids.
    pub(crate) runtime_name: &'a str,
    pub(crate) now: Timestamp,
}

impl Input<'_> {
    /// The decision, once no container runs any more: a phase that says the end frees what the pod had.
    pub(super) fn verdict(&self) -> Option<&Verdict> {
        self.decided.filter(|_| !self.observed.any_running())
    }
}

/// A time of the runtime, in whole seconds as the API keeps it; `None` for never.
pub(super) fn time(nanoseconds: i64) -> Option<Time> {
    (nanoseconds > 0)
        .then(|| Timestamp::from_second(nanoseconds / 1_000_000_000).ok())
        .flatten()
        .map(Time)
}
