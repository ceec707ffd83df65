//! DefaultPreemption: evicts pods of lower priority from a node, so that the pod fits there.

use std::sync::Arc;

use api::k8s::api::policy::v1::PodDisruptionBudget;
use sorting::CompactSort as _;

use crate::framework::{CycleState, Nomination, Plugin, PostFilterResult};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::rejection::{FitError, available_nodes};

#[derive(Debug, Clone)]
pub(super) struct DefaultPreemption;

impl Plugin for DefaultPreemption {
    const NAME: &'static str = "DefaultPreemption";

    fn post_filter(state: &CycleState<'_>, fit: &FitError) -> Option<PostFilterResult> {
        let result = check_eligible(state).and_then(|()| find(state, fit));
        Some(match result {
            Ok(nomination) => PostFilterResult::Nominated(nomination),
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
}

/// Checks that the pod may preempt others (upstream's `PodEligibleToPreemptOthers`).
fn check_eligible(state: &CycleState<'_>) -> Result<(), PreemptionError> {
    let pod = state.snapshot.pod;
    if pod.never_preempts {
        return Err(PreemptionError::PolicyNever);
    }
    let nominated = state.snapshot.nodes.iter().find(|node| node.name == pod.nominated);
    let is_victim = |other: &Arc<PodInfo>| other.deleting && other.priority < pod.priority;
    if nominated.is_some_and(|node| node.pods.iter().any(is_victim)) {
        return Err(PreemptionError::TerminatingVictim);
    }
    Ok(())
}

/// A node, the pods that must leave it, and how many budgets that violates.
#[derive(Debug)]
struct Candidate {
    nomination: Nomination,
    violations: usize,
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

    fn covers(&self, pod: &PodInfo) -> bool {
        let selector = self.budget.spec.as_ref().and_then(|s| s.selector.as_ref());
        let here = self.budget.metadata.namespace.as_deref() == Some(&pod.namespace);
        here && selector.is_some_and(|s| client::labels::selects(s, Some(&pod.labels)))
    }
}

/// Finds the node that loses least.
///
/// # Errors
///
/// No node fits, even after evictions.
fn find(state: &CycleState<'_>, fit: &FitError) -> Result<Nomination, PreemptionError> {
    let budgets = state.snapshot.listers.pod_disruption_budgets();
    let budgets: Vec<Budget> = budgets.into_iter().map(Budget::new).collect();
    let mut candidates = Vec::new();
    let mut reasons = Vec::new();
    if fit.pre_filter.is_some() {
        reasons.resize(fit.nodes, "Preemption is not helpful for scheduling");
    }
    for (index, rejection) in &fit.rejections {
        let Some(node) = state.snapshot.nodes.get(*index) else { continue };
        if rejection.unresolvable {
            reasons.push("Preemption is not helpful for scheduling");
            continue;
        }
        match victims(state, node, &budgets) {
            Some(candidate) => candidates.push(candidate),
            None => reasons.push("No preemption victims found for incoming pod"),
        }
    }
    let best = best(candidates).map(|candidate| candidate.nomination);
    best.ok_or_else(|| PreemptionError::NoCandidate {
        reasons: available_nodes(fit.nodes, reasons.into_iter()),
    })
}

/// Removes all pods of lower priority, then puts back as many as possible, important ones first.
fn victims(state: &CycleState<'_>, node: &NodeInfo, budgets: &[Budget]) -> Option<Candidate> {
    let pod = state.snapshot.pod;
    let mut lower: Vec<Arc<PodInfo>> =
        node.pods.iter().filter(|p| p.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        return None;
    }
    let mut trial = Trial { state: state.clone(), node: node.clone() };
    for victim in &lower {
        trial.remove(victim);
    }
    if !trial.fits() {
        return None;
    }
    lower.compact_sort_by(|a, b| b.priority.cmp(&a.priority).then(a.started.cmp(&b.started)));
    let (violating, others) = split_by_budget(&lower, budgets);
    let mut violations = 0;
    let mut victims = Vec::new();
    for (group, violates) in [(violating, true), (others, false)] {
        for candidate in group {
            trial.add(&candidate);
            if !trial.fits() {
                trial.remove(&candidate);
                violations += usize::from(violates);
                victims.push(candidate);
            }
        }
    }
    let nomination = Nomination { node: node.name.clone(), victims };
    (!nomination.victims.is_empty()).then_some(Candidate { nomination, violations })
}

/// Pods whose eviction would violate a budget, and the others, each in the given order.
fn split_by_budget(
    pods: &[Arc<PodInfo>],
    budgets: &[Budget],
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut allowed: Vec<i32> = budgets.iter().map(|b| b.allowed).collect();
    pods.iter().cloned().partition(|pod| {
        let mut violates = false;
        for (_, allowed) in budgets.iter().zip(&mut allowed).filter(|(b, _)| b.covers(pod)) {
            *allowed -= 1;
            violates |= *allowed < 0;
        }
        violates
    })
}

/// A copy of a node and of the plugins' state, to try evictions on.
struct Trial<'a> {
    state: CycleState<'a>,
    node: NodeInfo,
}

impl Trial<'_> {
    fn fits(&self) -> bool {
        self.state.filter(&self.node).is_ok()
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
    let highest =
        |c: &Candidate| c.nomination.victims.iter().map(|v| v.priority).max().unwrap_or(i32::MIN);
    // Shifted, so that many victims of negative priority do not add up to less than one.
    let sum = |c: &Candidate| {
        c.nomination
            .victims
            .iter()
            .map(|v| i64::from(v.priority) + i64::from(i32::MAX) + 1)
            .sum::<i64>()
    };
    let earliest = |c: &Candidate| {
        c.nomination
            .victims
            .iter()
            .filter(|v| v.priority == highest(c))
            .map(|v| v.started)
            .min()
            .unwrap_or(0)
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
    use crate::framework::Snapshot;
    use crate::listers::NoObjects;
    use crate::plugins::PLUGINS;
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
        let mut node =
            NodeInfo { name: name.into(), known: true, allocatable, ..NodeInfo::default() };
        for pod in pods {
            node.add_pod(pod);
        }
        node
    }

    /// What preemption finds for the pod after all nodes rejected it.
    fn preempt(pod: &Arc<PodInfo>, nodes: &[NodeInfo]) -> Result<Nomination, PreemptionError> {
        let state = CycleState::new(Snapshot { pod, nodes, listers: &NoObjects }, PLUGINS);
        let rejections = nodes.iter().map(|node| state.filter(node).unwrap_err()).enumerate();
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
