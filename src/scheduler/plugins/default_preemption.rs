//! DefaultPreemption: evicts pods of lower priority from a node, so that the pod fits there.

use std::borrow::Cow;
use std::sync::Arc;

use api::k8s::api::policy::v1::PodDisruptionBudget;
use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;
use sorting::CompactSort as _;

use crate::framework::{
    Candidate, CycleError, CycleState, Nomination, Plugin, PostFilterResult, Snapshot,
};
use crate::metrics::PREEMPTION_ATTEMPTS;
use crate::node_info::NodeInfo;
use crate::plugin_args::PluginArgs;
use crate::pod_info::PodInfo;
use crate::rejection::{FitError, Rejection, available_nodes};

#[derive(Debug, Clone)]
pub(super) struct DefaultPreemption;

impl Plugin for DefaultPreemption {
    const NAME: &'static str = "DefaultPreemption";

    fn post_filter(state: &CycleState<'_>, fit: &FitError) -> Option<PostFilterResult> {
        PREEMPTION_ATTEMPTS.inc(&[]);
        let result = check_eligible(state, fit).and_then(|()| find(state, fit));
        Some(match result {
            Ok(nomination) => PostFilterResult::Nominated(nomination),
            Err(why @ PreemptionError::NoCandidate { .. }) => {
                PostFilterResult::Hopeless(format!("preemption: {why}"))
            }
            Err(why @ PreemptionError::Extender(_)) => {
                PostFilterResult::Failed(format!("preemption: {why}"))
            }
            Err(why) => PostFilterResult::Unschedulable(format!("preemption: {why}")),
        })
    }
}

/// Why preemption does not help a pod; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum PreemptionError {
    #[error("not eligible due to preemptionPolicy=Never.")]
    PolicyNever,
    #[error("not eligible due to a terminating pod on the nominated node.")]
    TerminatingVictim,
    /// No node fits, even after evictions; the text counts the reasons over the nodes.
    #[error("{reasons}")]
    NoCandidate { reasons: String },
    /// Extenders left no node.
    #[error("no candidate node for preemption")]
    NoCandidateNode,
    /// An extender failed.
    #[error(transparent)]
    Extender(CycleError),
}

/// Checks that the pod may preempt others (upstream's `PodEligibleToPreemptOthers`).
fn check_eligible(state: &CycleState<'_>, fit: &FitError) -> Result<(), PreemptionError> {
    let (snapshot, pod) = (&state.snapshot, state.snapshot.pod);
    if pod.never_preempts {
        return Err(PreemptionError::PolicyNever);
    }
    // A nominated node that preemption cannot help any more does not hold the pod back.
    let Some(nominated) =
        snapshot.nodes.find(&pod.nominated).filter(|node| may_help(fit, snapshot, node))
    else {
        return Ok(());
    };
    let is_victim =
        |other: &Arc<PodInfo>| other.deleting && other.preempted && other.priority < pod.priority;
    if nominated.pods.iter().any(is_victim) {
        return Err(PreemptionError::TerminatingVictim);
    }
    Ok(())
}

/// Whether the node was not rejected for good.
fn may_help(fit: &FitError, snapshot: &Snapshot<'_>, node: &NodeInfo) -> bool {
    let is_node = |index: usize| snapshot.nodes.get(index).is_some_and(|n| n.name == node.name);
    let own = fit.rejections.iter().find(|(index, _)| is_node(*index)).map(|(_, r)| r);
    match own.or(fit.pre_filter.as_ref()) {
        Some(rejection) => !rejection.unresolvable,
        None => fit.restriction.is_none() && !fit.is_filtered_by_extender,
    }
}

/// A disruption budget with the number of disruptions that it still allows.
#[derive(Debug)]
struct Budget {
    budget: PodDisruptionBudget,
    allowed: i32,
}

impl Budget {
    fn new(budget: PodDisruptionBudget) -> Self {
        let allowed = budget.status.as_ref().and_then(|s| s.disruptions_allowed).unwrap_or(0);
        Self { budget, allowed }
    }

    /// Whether an eviction of the pod counts. A budget without selector or with an empty one covers
    /// no pod, and an eviction that the API server has processed does not count twice.
    fn covers(&self, pod: &PodInfo) -> bool {
        let selector = self.budget.spec.as_ref().and_then(|s| s.selector.as_ref());
        let selects = |s: &LabelSelector| {
            !client::labels::is_empty(s) && client::labels::selects(s, Some(&pod.labels))
        };
        let disrupted = self.budget.status.as_ref().and_then(|s| s.disrupted_pods.as_ref());
        self.budget.metadata.namespace.as_deref() == Some(&pod.namespace)
            && !pod.labels.is_empty()
            && selector.is_some_and(selects)
            && !disrupted.is_some_and(|pods| pods.contains_key(&pod.name))
    }
}

/// Text of the nodes on which evictions do not help.
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

/// Finds the node that loses least.
///
/// # Errors
///
/// No node fits, even after evictions.
fn find(state: &CycleState<'_>, fit: &FitError) -> Result<Nomination, PreemptionError> {
    let snapshot = &state.snapshot;
    let potential = potential_nodes(state, fit);
    let mut reasons: Vec<Cow<'static, str>> = Vec::new();
    let mut candidates = Vec::new();
    if !potential.is_empty() {
        let budgets = snapshot.listers.pod_disruption_budgets();
        let budgets: Vec<Budget> = budgets.into_iter().map(Budget::new).collect();
        let enough = candidates_to_find(snapshot.args, potential.len());
        let offset = (snapshot.random)(potential.len());
        let nodes = potential.iter().cycle().skip(offset).take(potential.len());
        for node in nodes {
            match victims(state, node, &budgets) {
                Ok(candidate) => candidates.push(candidate),
                Err(rejection) => reasons.extend(rejection.reasons),
            }
            // Among enough candidates one must keep all budgets.
            let keeps_budgets = candidates.iter().any(|c| c.violations == 0);
            if keeps_budgets && candidates.len() >= enough {
                break;
            }
        }
    }
    let rest = fit.nodes.saturating_sub(potential.len());
    reasons.extend(std::iter::repeat_n(Cow::Borrowed(NOT_HELPFUL), rest));
    if candidates.is_empty() {
        let reasons = available_nodes(fit.nodes, reasons.iter().map(AsRef::as_ref));
        return Err(PreemptionError::NoCandidate { reasons });
    }
    if let Some(extenders) = snapshot.extenders {
        candidates = extenders.preempt(snapshot, candidates).map_err(PreemptionError::Extender)?;
    }
    let best = best(candidates).map(|candidate| candidate.nomination);
    best.ok_or(PreemptionError::NoCandidateNode)
}

/// The nodes on which evictions may help.
fn potential_nodes<'a>(state: &CycleState<'a>, fit: &FitError) -> Vec<&'a NodeInfo> {
    let nodes = state.snapshot.nodes;
    match &fit.pre_filter {
        Some(rejection) if rejection.unresolvable => Vec::new(),
        Some(_) => nodes.iter().collect(),
        None => {
            let resolvable = fit.rejections.iter().filter(|(_, r)| !r.unresolvable);
            resolvable.filter_map(|(index, _)| nodes.get(*index)).collect()
        }
    }
}

/// How many candidates are enough (`calculateNumCandidates`).
fn candidates_to_find(args: &PluginArgs, nodes: usize) -> usize {
    let share = nodes * args.min_candidate_nodes_percentage / 100;
    share.max(args.min_candidate_nodes_absolute).min(nodes)
}

/// Time since which the pod runs; a pod that has not started yet counts as started now.
fn started(pod: &PodInfo) -> i64 {
    if pod.started == 0 { i64::MAX } else { pod.started }
}

/// The more important pod first: by priority, then the one that runs longer.
fn by_importance(a: &Arc<PodInfo>, b: &Arc<PodInfo>) -> std::cmp::Ordering {
    b.priority.cmp(&a.priority).then_with(|| started(a).cmp(&started(b)))
}

/// Removes all pods of lower priority, then puts back as many as possible, important ones first
/// (`SelectVictimsOnNode`).
///
/// # Errors
///
/// Why the pod does not fit the node.
fn victims(
    state: &CycleState<'_>,
    node: &NodeInfo,
    budgets: &[Budget],
) -> Result<Candidate, Rejection> {
    let pod = state.snapshot.pod;
    let mut lower: Vec<Arc<PodInfo>> =
        node.pods.iter().filter(|p| p.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        return Err(Rejection::unresolvable("No preemption victims found for incoming pod"));
    }
    let mut trial = Trial { state: state.clone(), node: node.clone() };
    for victim in &lower {
        trial.remove(victim);
    }
    trial.check()?;
    lower.compact_sort_by(by_importance);
    let (violating, others) = split_by_budget(&lower, budgets);
    let mut violations: i64 = 0;
    let mut victims = Vec::new();
    for (group, violates) in [(violating, true), (others, false)] {
        for candidate in group {
            trial.add(&candidate);
            if trial.check().is_err() {
                trial.remove(&candidate);
                violations += i64::from(violates);
                victims.push(candidate);
            }
        }
    }
    victims.compact_sort_by(by_importance);
    if victims.is_empty() {
        let text = format!("expected at least one victim pod on node {:?}", node.name);
        return Err(Rejection::error(text));
    }
    Ok(Candidate { nomination: Nomination { node: node.name.clone(), victims }, violations })
}

/// Pods whose eviction would violate a budget, and the others, each in the given order. As
/// upstream, a pod is not counted against the budgets after the first one that it violates.
fn split_by_budget(
    pods: &[Arc<PodInfo>],
    budgets: &[Budget],
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut allowed: Vec<i32> = budgets.iter().map(|b| b.allowed).collect();
    pods.iter().cloned().partition(|pod| {
        budgets.iter().zip(&mut allowed).filter(|(b, _)| b.covers(pod)).any(|(_, allowed)| {
            *allowed -= 1;
            *allowed < 0
        })
    })
}

/// A copy of a node and of the plugins' state, to try evictions on.
struct Trial<'a> {
    state: CycleState<'a>,
    node: NodeInfo,
}

impl Trial<'_> {
    fn check(&self) -> Result<(), Rejection> {
        let result = self.state.filter_with_nominated_pods(&self.node);
        self.state.count_filter(&result);
        result
    }

    fn remove(&mut self, pod: &Arc<PodInfo>) {
        self.node.remove_pod(&pod.namespace, &pod.name);
        self.state.remove_pod(pod, &self.node);
    }

    fn add(&mut self, pod: &Arc<PodInfo>) {
        self.node.add_pod(Arc::clone(pod));
        self.state.add_pod(pod, &self.node);
    }
}

/// The candidate with, in this order, the fewest violated budgets, the lowest highest priority, the
/// lowest sum of priorities, the fewest victims, and the latest start of its most important victims
/// (`pickOneNodeForPreemption`).
fn best(candidates: Vec<Candidate>) -> Option<Candidate> {
    // The victims are ordered by importance. As upstream, an extender's order is taken as such.
    let highest =
        |c: &Candidate| c.nomination.victims.first().map_or(i32::MIN, |victim| victim.priority);
    // Shifted, so that many victims of negative priority do not add up to less than one.
    let sum = |c: &Candidate| {
        c.nomination
            .victims
            .iter()
            .map(|v| i64::from(v.priority) + i64::from(i32::MAX) + 1)
            .sum::<i64>()
    };
    let earliest = |c: &Candidate| {
        let victims = c.nomination.victims.iter().filter(|v| v.priority == highest(c));
        victims.map(|v| started(v)).min().unwrap_or(0)
    };
    candidates.into_iter().min_by_key(|c| {
        (
            c.violations,
            highest(c),
            sum(c),
            c.nomination.victims.len(),
            std::cmp::Reverse(earliest(c)),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use crate::resources::Resources;

    fn pod(name: &str, priority: i32, cpu: i64) -> Arc<PodInfo> {
        let requests = Resources { milli_cpu: cpu, pods: 1, ..Resources::default() };
        Arc::new(PodInfo {
            name: name.into(),
            namespace: "n".into(),
            priority,
            requests,
            ..PodInfo::default()
        })
    }

    fn node(name: &str, pods: Vec<Arc<PodInfo>>) -> NodeInfo {
        let allocatable =
            Resources { milli_cpu: 1000, memory: 1 << 30, pods: 110, ..Resources::default() };
        let mut node = NodeInfo { name: name.into(), allocatable, ..NodeInfo::default() };
        for pod in pods {
            node.add_pod(pod);
        }
        node
    }

    /// What preemption finds for the pod after all nodes rejected it.
    fn preempt(pod: &Arc<PodInfo>, nodes: &[NodeInfo]) -> Result<Nomination, PreemptionError> {
        let profile = Profile::default();
        let state = CycleState::new(Snapshot::of(pod, nodes), &profile);
        let rejections = nodes
            .iter()
            .map(|node| state.filter_with_nominated_pods(node).unwrap_err())
            .enumerate();
        find(
            &state,
            &FitError {
                rejections: rejections.collect(),
                nodes: nodes.len(),
                ..FitError::default()
            },
        )
    }

    #[test]
    fn no_more_pods_leave_than_needed_and_the_cheapest_node_is_chosen() {
        let nodes = [
            node("a", vec![pod("high", 50, 900)]),
            node("b", vec![pod("low", 1, 400), pod("mid", 5, 400)]),
        ];
        let nomination = preempt(&pod("in", 100, 500), &nodes).unwrap();
        assert_eq!(nomination.node, "b");
        assert_eq!(nomination.victims.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["low"]);
    }

    #[test]
    fn pods_of_equal_priority_are_no_victims() {
        let nodes = [node("a", vec![pod("same", 100, 900)])];
        assert_eq!(
            preempt(&pod("in", 100, 500), &nodes).unwrap_err().to_string(),
            "0/1 nodes are available: 1 No preemption victims found for incoming pod."
        );
    }
}
