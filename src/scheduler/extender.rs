//! Extenders: HTTP servers that filter and score nodes, choose victims of preemption and bind pods
//! (`pkg/scheduler/extender.go`).
//!
//! A cycle of a pod that an extender takes part in runs away from the workers, on a copy of the
//! nodes, and waits there for the answers; [`CallExtenders`] is its only way to the network. What
//! is sent and how answers are read is `protocol`, the steps of a cycle are `cycle` and
//! `preemption`, and `client` sends.

mod client;
mod cycle;
mod preemption;
mod protocol;

#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::field::go_quote;
use bytes::Bytes;
use serde_json::Value;
use webhook::TransportError;
use webhook::kubeconfig::WebhookEndpoint;

use crate::framework::{Candidate, CycleError, CycleExtenders, Snapshot};
use crate::node_info::NodeInfo;
use crate::rejection::FitError;

pub(crate) use client::ExtenderClients;

/// Highest score that an extender gives a node (`MaxExtenderPriority`).
const MAX_EXTENDER_SCORE: i64 = 10;

/// An extender of the configuration. A verb that is empty is not supported by the extender.
#[derive(Debug, Clone)]
pub(crate) struct Extender {
    /// Its place among the extenders, in the order in which they are called.
    pub(crate) index: usize,
    /// `urlPrefix`, which names the extender in messages.
    pub(crate) url_prefix: String,
    /// Where it listens, with the path of `urlPrefix`.
    pub(crate) endpoint: WebhookEndpoint,
    pub(crate) filter_verb: String,
    pub(crate) prioritize_verb: String,
    pub(crate) preempt_verb: String,
    pub(crate) bind_verb: String,
    /// Multiplies its scores.
    pub(crate) weight: i64,
    /// Limit of one call.
    pub(crate) timeout: Duration,
    /// It gets the names of nodes and the identifiers of victims instead of the objects.
    pub(crate) node_cache_capable: bool,
    /// It gets pods that name one of these resources; empty for all pods.
    pub(crate) managed_resources: BTreeSet<String>,
    /// A failed call does not fail the cycle.
    pub(crate) ignorable: bool,
}

impl Extender {
    /// The URL of a verb (`HTTPExtender.send`).
    fn url(&self, verb: &str) -> String {
        format!("{}/{verb}", self.url_prefix.trim_end_matches('/'))
    }

    /// Whether it is called in scheduling cycles, and not for bindings alone.
    fn takes_part_in_cycles(&self) -> bool {
        [&self.filter_verb, &self.prioritize_verb, &self.preempt_verb].iter().any(|v| !v.is_empty())
    }

    /// Whether it gets the pod (`IsInterested`). `pod` returns the object.
    fn is_interested(&self, pod: impl FnOnce() -> Option<Arc<Object>>) -> bool {
        self.managed_resources.is_empty()
            || pod().and_then(|pod| serde_json::from_slice::<Value>(pod.raw()).ok()).is_some_and(
                |pod| names_resource(&pod, &|name| self.managed_resources.contains(name)),
            )
    }
}

/// Whether a container or init container of the pod requests or limits such a resource, in whatever
/// amount.
fn names_resource(pod: &Value, is_managed: &dyn Fn(&str) -> bool) -> bool {
    let spec = api::value::get(pod, "spec");
    let containers = ["containers", "initContainers"];
    containers.iter().flat_map(|list| api::value::items(spec, list)).any(|container| {
        ["requests", "limits"].iter().any(|kind| {
            let list = api::value::at(container, &["resources", kind]).as_object();
            list.is_some_and(|list| list.keys().any(|name| is_managed(name)))
        })
    })
}

/// The extenders of the configuration in the order in which they are called: those whose failure is
/// ignored come last (`buildExtenders`). Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extenders(Arc<[Arc<Extender>]>);

impl Extenders {
    /// Extenders in the order of the configuration.
    pub(crate) fn new(mut extenders: Vec<Extender>) -> Self {
        extenders.sort_by_key(|extender| extender.ignorable);
        for (index, extender) in extenders.iter_mut().enumerate() {
            extender.index = index;
        }
        Self(extenders.into_iter().map(Arc::new).collect())
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The extenders that take part in the cycles of a pod. `pod` returns its object.
    pub(crate) fn of_cycle(&self, pod: impl Fn() -> Option<Arc<Object>>) -> Vec<Arc<Extender>> {
        let all = self.0.iter().filter(|e| e.takes_part_in_cycles() && e.is_interested(&pod));
        all.cloned().collect()
    }

    /// The extenders that bind a pod, in order. `pod` returns its object.
    pub(crate) fn binders<'a>(
        &'a self,
        pod: impl Fn() -> Option<Arc<Object>> + 'a,
    ) -> impl Iterator<Item = &'a Extender> {
        let all = self.0.iter().map(|extender| &**extender);
        all.filter(move |e| !e.bind_verb.is_empty() && e.is_interested(&pod))
    }
}

/// A call of an extender.
pub(crate) struct ExtenderCall<'a> {
    pub(crate) extender: &'a Extender,
    pub(crate) verb: &'a str,
    /// The arguments as JSON.
    pub(crate) body: Bytes,
    /// Most bytes of the answer.
    pub(crate) answer_max: usize,
}

/// Calls extenders and waits for their answers.
pub(crate) trait CallExtenders {
    /// Sends the calls at the same time; returns the bodies of the answers in the same order.
    fn call(&self, calls: Vec<ExtenderCall<'_>>) -> Vec<Result<Bytes, ExtenderError>>;
}

/// The extenders of the cycle of a pod: those that take part in it.
pub(crate) struct PodExtenders<'a> {
    pub(crate) extenders: &'a [Arc<Extender>],
    pub(crate) calls: &'a dyn CallExtenders,
}

impl CycleExtenders for PodExtenders<'_> {
    fn filter(
        &self,
        snapshot: &Snapshot<'_>,
        feasible: Vec<usize>,
        fit: &mut FitError,
    ) -> Result<Vec<usize>, CycleError> {
        self.pass_filters(snapshot, feasible, fit).map_err(|error| CycleError(error.to_string()))
    }

    fn prioritize(&self, snapshot: &Snapshot<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) {
        self.add_scores(snapshot, nodes, scores);
    }

    fn preempt(
        &self,
        snapshot: &Snapshot<'_>,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Candidate>, CycleError> {
        self.choose_victims(snapshot, candidates).map_err(|error| CycleError(error.to_string()))
    }
}

/// An extender gives no usable answer; the messages are upstream's where it has one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExtenderError {
    /// There is no response.
    #[error("Post {}: {source}", go_quote(.url))]
    Transport {
        /// The URL of the call.
        url: String,
        /// The cause.
        source: TransportError,
    },
    /// There is no response within `httpTimeout`.
    #[error(
        "Post {}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
        go_quote(.url)
    )]
    Timeout {
        /// The URL of the call.
        url: String,
    },
    /// The server stops.
    #[error("Post {}: context canceled", go_quote(.url))]
    Stopping {
        /// The URL of the call.
        url: String,
    },
    /// The response has another code than 200.
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Code {
        /// The verb of the configuration.
        verb: String,
        /// The URL of the call.
        url: String,
        /// The HTTP code.
        code: u16,
    },
    /// The answer is longer than its bound, or ends early.
    #[error("the answer of the extender at URL {url} ends early or has more than {max} bytes")]
    Body {
        /// The URL of the call.
        url: String,
        /// The bound in bytes.
        max: usize,
    },
    /// The answer is no JSON of the protocol.
    #[error("the answer of the extender at URL {url} cannot be read: {reason}")]
    Answer {
        /// The URL of the call.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The answer is an error.
    #[error("{0}")]
    Refused(String),
    /// A node of the answer was not in the call.
    #[error(
        "extender {} claims a filtered node {} which is not found in the input node list",
        go_quote(.extender),
        go_quote(.node)
    )]
    UnknownNode {
        /// `urlPrefix`.
        extender: String,
        /// The name in the answer.
        node: String,
    },
    /// A node with victims does not exist.
    #[error("nodeinfo not found for node name {}", go_quote(.0))]
    NoNode(String),
    /// A victim is not on its node.
    #[error(
        "extender: {extender} claims to preempt pod (UID: &{{{uid}}}) on node: {node}, but the pod \
         is not found on that node"
    )]
    NoVictim {
        /// `urlPrefix`.
        extender: String,
        /// The identifier in the answer.
        uid: String,
        /// The node in the answer.
        node: String,
    },
    /// A node of the answer has no victims.
    #[error("expected at least one victim pod on node {}", go_quote(.0))]
    WithoutVictims(String),
    /// The pod was deleted during the cycle.
    #[error("pod {} not found", go_quote(.0))]
    NoPod(String),
}
