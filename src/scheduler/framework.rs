//! The scheduling framework: the `Plugin` trait with its extension points, and what plugins read.

mod cycle_state;
mod observe;
mod outcome;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::devices::binding::{ClaimRelease, ClaimsToBind};
use crate::devices::store::Devices;
use crate::event::Event;
use crate::listers::Listers;
use crate::node_info::NodeInfo;
use crate::nodes::Nodes;
use crate::plugin_args::PluginArgs;
use crate::pod_info::PodInfo;
use crate::rejection::{FitError, Rejection};

pub(crate) use cycle_state::CycleState;
pub(crate) use outcome::{
    Candidate, Nomination, NominationChange, PostFilterOutcome, PostFilterResult, Restriction,
};

/// Highest score that a plugin gives a node (`framework.MaxNodeScore`).
pub(crate) const MAX_NODE_SCORE: i64 = 100;

/// What every plugin reads during a cycle.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot<'a> {
    /// The pod that needs a node.
    pub(crate) pod: &'a Arc<PodInfo>,
    /// All nodes.
    pub(crate) nodes: &'a Nodes,
    /// Objects of other kinds.
    pub(crate) listers: &'a dyn Listers,
    /// Arguments of the plugins.
    pub(crate) args: &'a PluginArgs,
    /// Returns a random number below the given one, which is at least 1.
    pub(crate) random: &'a dyn Fn(usize) -> usize,
    /// Pods that are nominated for nodes.
    pub(crate) nominated: &'a [Arc<PodInfo>],
    /// The extenders that take part in the cycle; `None` without any.
    pub(crate) extenders: Option<&'a dyn CycleExtenders>,
}

impl Snapshot<'_> {
    /// The other pods of at least the pod's priority that are nominated for a node.
    fn nominated_for(&self, node: &NodeInfo) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.nominated.iter().filter(|other| {
            other.nominated == node.name
                && other.priority >= self.pod.priority
                && (&other.namespace, &other.name) != (&self.pod.namespace, &self.pod.name)
        })
    }
}

#[cfg(test)]
impl<'a> Snapshot<'a> {
    /// A snapshot without objects of other kinds, with default arguments.
    pub(crate) fn of(pod: &'a Arc<PodInfo>, nodes: &[NodeInfo]) -> Self {
        Self::with(pod, nodes, &crate::listers::NoObjects)
    }

    /// A snapshot with default arguments.
    pub(crate) fn with(
        pod: &'a Arc<PodInfo>,
        nodes: &[NodeInfo],
        listers: &'a dyn Listers,
    ) -> Self {
        let nodes: &'a Nodes = Box::leak(Box::new(nodes.iter().cloned().collect()));
        static ARGS: std::sync::LazyLock<PluginArgs> =
            std::sync::LazyLock::new(PluginArgs::default);
        let (random, nominated) = (&|_| 0, &[]);
        Self { pod, nodes, listers, args: &ARGS, random, nominated, extenders: None }
    }
}

/// A plugin or an extender failed: the cycle ends with this message, and the pod is tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CycleError(pub(crate) String);

/// The extenders that take part in a cycle: servers that it calls after the plugins. An error is
/// the message of the extender that failed and may not be ignored.
pub(crate) trait CycleExtenders {
    /// The feasible nodes that pass the filters of all extenders, as indexes of the snapshot; adds
    /// the rejections to `fit`.
    fn filter(
        &self,
        snapshot: &Snapshot<'_>,
        feasible: Vec<usize>,
        fit: &mut FitError,
    ) -> Result<Vec<usize>, CycleError>;

    /// Adds the scores of all extenders to those of the nodes that fit.
    fn prioritize(&self, snapshot: &Snapshot<'_>, nodes: &[&NodeInfo], scores: &mut [i64]);

    /// The candidates of a preemption that all extenders leave, with the victims that they choose.
    fn preempt(
        &self,
        snapshot: &Snapshot<'_>,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Candidate>, CycleError>;
}

/// A write that must succeed before the pod is bound. `reserve` names it, `bind.rs` executes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PreBind {
    /// Bind a volume to a claim of the pod.
    BindVolume {
        /// Name of the claim.
        claim: String,
        /// Name of the volume.
        volume: String,
    },
    /// Ask the provisioner of the claim's class for a volume on the node.
    ProvisionVolume {
        /// Name of the claim.
        claim: String,
    },
    /// Allocate and reserve the ResourceClaims of the pod.
    BindClaims(Arc<ClaimsToBind>),
}

/// A scheduler plugin. The extension points have upstream's names and meaning.
///
/// A value of the plugin is the state of one pod in one phase of one cycle: `pre_filter` builds it
/// for `filter` and `reserve`, `pre_score` for `score` and `normalize_score`. Both run once per
/// cycle, so whatever is expensive belongs there; `filter` and `score` run for every node.
///
/// A new plugin is a file in `plugins/` and its line in the table of `plugins.rs`.
pub(crate) trait Plugin: Clone + 'static {
    /// Name of the plugin, as kube-scheduler has it.
    const NAME: &'static str;

    /// Whether the pod may enter the scheduling queue.
    fn pre_enqueue(_pod: &PodInfo, _devices: &Devices) -> bool {
        true
    }

    /// Whether the event may make a pod schedulable that this plugin rejected. A hint that is true
    /// too often costs cycles; one that is missing leaves the pod pending for minutes.
    fn queueing_hint(event: &Event<'_>, _pod: &PodInfo) -> bool {
        matches!(event, Event::Node)
    }

    /// Prepares `filter`; `None` skips it for this pod.
    fn pre_filter(_snapshot: &Snapshot<'_>) -> Option<Self> {
        None
    }

    /// Whether `pre_filter` found that the pod fits no node; no node is filtered then.
    fn verdict(&self) -> Result<(), Rejection> {
        Ok(())
    }

    /// The names of the only nodes that may fit, if `pre_filter` found them (`PreFilterResult`).
    fn only_nodes(&self) -> Option<&BTreeSet<String>> {
        None
    }

    /// Whether the pod fits the node.
    fn filter(&self, _snapshot: &Snapshot<'_>, _node: &NodeInfo) -> Result<(), Rejection> {
        Ok(())
    }

    /// Preemption puts `pod` on the node: updates the state of `pre_filter`.
    fn add_pod(&mut self, _snapshot: &Snapshot<'_>, _pod: &PodInfo, _node: &NodeInfo) {}

    /// Preemption takes `pod` off the node: updates the state of `pre_filter`.
    fn remove_pod(&mut self, _snapshot: &Snapshot<'_>, _pod: &PodInfo, _node: &NodeInfo) {}

    /// Releases what the pod has, with the state of `pre_filter` and `filter`, when no node fits.
    fn release(&self, _pod: &PodInfo) -> Option<ClaimRelease> {
        None
    }

    /// Makes room for the pod when no node fits; the first nomination decides.
    fn post_filter(_state: &CycleState<'_>, _fit: &FitError) -> Option<PostFilterResult> {
        None
    }

    /// Prepares `score` for the nodes that fit; `None` skips it, as if all nodes scored 0.
    fn pre_score(_snapshot: &Snapshot<'_>, _feasible: &[&NodeInfo]) -> Option<Self> {
        None
    }

    /// Whether `score` needs the state of `filter`, so that `pre_score` does not build another.
    fn scores_after_filter(&self) -> bool {
        false
    }

    /// Score of a node; higher is better.
    fn score(&self, _snapshot: &Snapshot<'_>, _node: &NodeInfo) -> i64 {
        0
    }

    /// Brings the scores of all nodes into 0 to `MAX_NODE_SCORE`.
    fn normalize_score(&self, _scores: &mut [i64]) {}

    /// Adds what must be written before the pod is bound to the node.
    ///
    /// # Errors
    ///
    /// The pod cannot be bound; what the plugin has reserved is free again.
    fn reserve(&self, _node: &NodeInfo, _writes: &mut Vec<PreBind>) -> Result<(), Rejection> {
        Ok(())
    }
}

/// [`Plugin`] in a form that a list can hold. A plugin without fields needs no allocation.
trait Active {
    fn name(&self) -> &'static str;
    fn verdict(&self) -> Result<(), Rejection>;
    fn only_nodes(&self) -> Option<&BTreeSet<String>>;
    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection>;
    fn add_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo);
    fn remove_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo);
    fn score(&self, snapshot: &Snapshot<'_>, nodes: &[&NodeInfo], scores: &mut Vec<i64>);
    fn reserve(&self, node: &NodeInfo, writes: &mut Vec<PreBind>) -> Result<(), Rejection>;
    fn release(&self, pod: &PodInfo) -> Option<ClaimRelease>;
    fn scores_after_filter(&self) -> bool;
    fn boxed_clone(&self) -> Box<dyn Active>;
}

impl<P: Plugin> Active for P {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn verdict(&self) -> Result<(), Rejection> {
        Plugin::verdict(self)
    }

    fn only_nodes(&self) -> Option<&BTreeSet<String>> {
        Plugin::only_nodes(self)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        Plugin::filter(self, snapshot, node)
    }

    fn add_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo) {
        Plugin::add_pod(self, snapshot, pod, node);
    }

    fn remove_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo) {
        Plugin::remove_pod(self, snapshot, pod, node);
    }

    fn score(&self, snapshot: &Snapshot<'_>, nodes: &[&NodeInfo], scores: &mut Vec<i64>) {
        scores.clear();
        scores.extend(nodes.iter().map(|node| Plugin::score(self, snapshot, node)));
        self.normalize_score(scores);
    }

    fn reserve(&self, node: &NodeInfo, writes: &mut Vec<PreBind>) -> Result<(), Rejection> {
        Plugin::reserve(self, node, writes)
    }

    fn release(&self, pod: &PodInfo) -> Option<ClaimRelease> {
        Plugin::release(self, pod)
    }

    fn scores_after_filter(&self) -> bool {
        Plugin::scores_after_filter(self)
    }

    fn boxed_clone(&self) -> Box<dyn Active> {
        Box::new(self.clone())
    }
}

/// The state of a plugin for one phase, unless it skips the phase.
type Phase = Option<Box<dyn Active>>;

/// A plugin that is part of the scheduler.
pub(crate) struct Registration {
    pub(crate) name: &'static str,
    /// Weight of its scores in the default profile; 0 if it gives none.
    pub(crate) weight: i64,
    pub(crate) pre_enqueue: fn(&PodInfo, &Devices) -> bool,
    pub(crate) queueing_hint: fn(&Event<'_>, &PodInfo) -> bool,
    pre_filter: fn(&Snapshot<'_>) -> Phase,
    post_filter: fn(&CycleState<'_>, &FitError) -> Option<PostFilterResult>,
    pre_score: fn(&Snapshot<'_>, &[&NodeInfo]) -> Phase,
}

/// A plugin that gives no scores.
pub(crate) const fn plugin<P: Plugin>() -> Registration {
    scored::<P>(0)
}

/// A plugin whose scores count `weight` times.
pub(crate) const fn scored<P: Plugin>(weight: i64) -> Registration {
    fn boxed<P: Plugin>(state: P) -> Box<dyn Active> {
        Box::new(state)
    }
    Registration {
        name: P::NAME,
        weight,
        pre_enqueue: P::pre_enqueue,
        queueing_hint: P::queueing_hint,
        pre_filter: |snapshot| P::pre_filter(snapshot).map(boxed),
        post_filter: P::post_filter,
        pre_score: |snapshot, feasible| P::pre_score(snapshot, feasible).map(boxed),
    }
}

/// Scales scores so that the highest becomes `MAX_NODE_SCORE`; `reverse` turns the order round
/// (`helper.DefaultNormalizeScore`).
pub(crate) fn default_normalize_score(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        *score = if max == 0 { 0 } else { *score * MAX_NODE_SCORE / max };
        if reverse {
            *score = MAX_NODE_SCORE - *score;
        }
    }
}
