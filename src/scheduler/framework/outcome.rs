//! Outcomes of the extension points: nodes that fit, and what may make room.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::devices::binding::ClaimRelease;
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

/// A node that `post_filter` promises to the pod, and the pods to evict from it.
#[derive(Debug, Clone)]
pub(crate) struct Nomination {
    /// Name of the node.
    pub(crate) node: String,
    /// Pods to evict.
    pub(crate) victims: Vec<Arc<PodInfo>>,
}

impl Nomination {
    /// The text that follows the message of the fit error.
    pub(super) fn text(&self) -> String {
        format!(
            "preemption: found a potential placement for pod on node {}, preempting {} victims",
            self.node,
            self.victims.len()
        )
    }
}

/// A node that preemption may free, and how many of its victims violate a disruption budget.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) nomination: Nomination,
    pub(crate) violations: i64,
}

/// What becomes of the nomination of a pod that is not scheduled (upstream's `NominatingInfo`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum NominationChange<'a> {
    /// The pod keeps the nomination that it has (`ModeNoop`).
    #[default]
    Keep,
    /// The pod has none any more (`ModeOverride` with an empty name).
    Clear,
    /// The pod is nominated for the node with this name.
    Set(&'a str),
}

/// Outcome of `post_filter`.
#[derive(Debug)]
pub(crate) enum PostFilterResult {
    /// The pod fits after the victims have left.
    Nominated(Nomination),
    /// Nothing helps, and the pod loses its nomination; the text follows the message of the fit
    /// error.
    Hopeless(String),
    /// The pod may fit after a claim was released; its text follows the message of the fit error.
    Release(ClaimRelease),
    /// Nothing helps for now, and the pod keeps its nomination; the text follows the message of the
    /// fit error.
    Unschedulable(String),
    /// The plugin failed; the text follows the message of the fit error, and no further plugin
    /// runs.
    Failed(String),
}

/// The outcomes of `post_filter` of all plugins.
#[derive(Debug, Default)]
pub(crate) struct PostFilterOutcome {
    /// The node that preemption frees for the pod.
    pub(crate) nomination: Option<Nomination>,
    /// The claim to release.
    pub(crate) release: Option<ClaimRelease>,
    /// The texts of the plugins; of a nomination, its own.
    pub(crate) reasons: Vec<String>,
    /// The pod loses its nomination.
    pub(crate) clears_nomination: bool,
    /// A plugin failed.
    pub(crate) failed: bool,
}

/// The nodes that `pre_filter` restricts the pod to.
#[derive(Debug, Clone)]
pub(crate) struct Restriction {
    pub(crate) nodes: BTreeSet<String>,
    /// The plugins that know the nodes, sorted.
    pub(crate) plugins: BTreeSet<&'static str>,
}

impl Restriction {
    /// The restriction of several plugins together.
    pub(super) fn and(all: Option<Self>, plugin: &'static str, nodes: &BTreeSet<String>) -> Self {
        let Some(mut all) = all else {
            return Self { nodes: nodes.clone(), plugins: [plugin].into() };
        };
        all.nodes.retain(|name| nodes.contains(name));
        all.plugins.insert(plugin);
        all
    }

    /// The plugins in the form of Go's lists.
    pub(crate) fn plugin_list(&self) -> String {
        let names: Vec<&str> = self.plugins.iter().copied().collect();
        format!("[{}]", names.join(" "))
    }

    /// The rejection of all nodes, if no node is left.
    pub(super) fn rejection(&self) -> Option<Rejection> {
        let text = match self.plugins.first() {
            _ if !self.nodes.is_empty() => return None,
            Some(plugin) if self.plugins.len() == 1 => {
                format!("node(s) didn't satisfy plugin {plugin}")
            }
            _ => format!("node(s) didn't satisfy plugin(s) {} simultaneously", self.plugin_list()),
        };
        Some(Rejection::unresolvable(text))
    }
}
