//! DefaultPreemption: which pods of lower priority would make room. Pure.

use std::sync::Arc;

use api::k8s::api::policy::v1::PodDisruptionBudget;

use crate::cycle::{Unfit, histogram};
use crate::node_info::NodeInfo;
use crate::plugins::{Round, filter};
use crate::pod_info::PodInfo;

/// A node and the pods that must leave it.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) node: String,
    pub(crate) victims: Vec<Arc<PodInfo>>,
    violations: usize,
}

/// A budget as far as preemption needs it.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    budget: PodDisruptionBudget,
    left: i32,
}

impl Budget {
    pub(crate) fn new(budget: PodDisruptionBudget) -> Self {
        let left = budget.status.as_ref().and_then(|s| s.disruptions_allowed).unwrap_or(0);
        Self { budget, left }
    }

    fn covers(&self, pod: &PodInfo) -> bool {
        let selector = self.budget.spec.as_ref().and_then(|s| s.selector.as_ref());
        let here = self.budget.metadata.namespace.as_deref() == Some(&pod.namespace);
        here && selector.is_some_and(|s| client::labels::selects(s, Some(&pod.labels)))
    }
}

/// Finds the node where the least is lost, or says why there is none (after `preemption: `).
pub(crate) fn find(
    round: &Round<'_>,
    unfit: &Unfit,
    budgets: &[Budget],
) -> Result<Candidate, String> {
    let mut candidates = Vec::new();
    let mut reasons = Vec::new();
    for (index, misfit) in &unfit.misfits {
        let Some(node) = round.nodes.get(*index) else { continue };
        if misfit.unresolvable {
            reasons.push("Preemption is not helpful for scheduling".to_owned());
            continue;
        }
        match victims(round, node, budgets) {
            Some(candidate) => candidates.push(candidate),
            None => reasons.push("No preemption victims found for incoming pod".to_owned()),
        }
    }
    best(candidates).ok_or_else(|| {
        format!("0/{} nodes are available: {}.", unfit.nodes, histogram(reasons.iter()))
    })
}

/// Takes all pods of lower priority off, then gives back as many as possible, the important ones first.
fn victims(round: &Round<'_>, node: &NodeInfo, budgets: &[Budget]) -> Option<Candidate> {
    let pod = round.pod;
    let mut lower: Vec<Arc<PodInfo>> =
        node.pods.iter().filter(|p| p.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        return None;
    }
    let mut trial = Trial {
        round: Round {
            affinities: round.affinities.clone(),
            spreads: round.spreads.clone(),
            ..*round
        },
        node: node.clone(),
    };
    for victim in &lower {
        trial.remove(victim);
    }
    if filter(&trial.round, &trial.node).is_err() {
        return None;
    }
    lower.sort_by(|a, b| b.priority.cmp(&a.priority).then(a.started.cmp(&b.started)));
    let (violating, others) = split_by_budget(&lower, budgets);
    let mut violations = 0;
    let mut chosen = Vec::new();
    for (group, violates) in [(violating, true), (others, false)] {
        for candidate in group {
            trial.add(&candidate);
            if filter(&trial.round, &trial.node).is_err() {
                trial.remove(&candidate);
                violations += usize::from(violates);
                chosen.push(candidate);
            }
        }
    }
    (!chosen.is_empty()).then(|| Candidate { node: node.name.clone(), victims: chosen, violations })
}

/// Pods whose eviction would break a budget, and the others, each in the order given.
fn split_by_budget(
    pods: &[Arc<PodInfo>],
    budgets: &[Budget],
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut left: Vec<i32> = budgets.iter().map(|b| b.left).collect();
    pods.iter().cloned().partition(|pod| {
        let mut violates = false;
        for (budget, left) in budgets.iter().zip(&mut left).filter(|(b, _)| b.covers(pod)) {
            let _ = budget;
            *left -= 1;
            violates |= *left < 0;
        }
        violates
    })
}

/// A node as it would be, with the counts of the round kept in step.
struct Trial<'a> {
    round: Round<'a>,
    node: NodeInfo,
}

impl Trial<'_> {
    fn moved(&mut self, pod: &PodInfo, by: i64) {
        let owner = Arc::clone(self.round.pod);
        self.round.affinities.moved(&owner, pod, &self.node, by, self.round.namespace_labels);
        self.round.spreads.moved(&owner, pod, &self.node, by);
    }

    fn remove(&mut self, pod: &Arc<PodInfo>) {
        self.node.remove_pod(&pod.namespace, &pod.name);
        self.moved(pod, -1);
    }

    fn add(&mut self, pod: &Arc<PodInfo>) {
        self.node.add_pod(Arc::clone(pod));
        self.moved(pod, 1);
    }
}

/// Fewest broken budgets, lowest highest priority, lowest sum of priorities, fewest victims, latest start of the most
/// important ones (`pickOneNodeForPreemption`).
fn best(candidates: Vec<Candidate>) -> Option<Candidate> {
    let highest = |c: &Candidate| c.victims.iter().map(|v| v.priority).max().unwrap_or(i32::MIN);
    // Shifted so that negative priorities do not make many victims look cheap.
    let sum = |c: &Candidate| {
        c.victims.iter().map(|v| i64::from(v.priority) + i64::from(i32::MAX) + 1).sum::<i64>()
    };
    let earliest = |c: &Candidate| {
        c.victims.iter().filter(|v| v.priority == highest(c)).map(|v| v.started).min().unwrap_or(0)
    };
    candidates.into_iter().min_by_key(|c| {
        (c.violations, highest(c), sum(c), c.victims.len(), std::cmp::Reverse(earliest(c)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cycle::select;
    use crate::resources::Resources;
    use crate::volumes::VolumeView;

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

    #[test]
    fn no_more_pods_leave_than_needed_and_the_cheapest_node_is_chosen() {
        let nodes = [
            node("a", vec![pod("high", 50, 900)]),
            node("b", vec![pod("low", 1, 400), pod("mid", 5, 400)]),
        ];
        let incoming = pod("in", 100, 500);
        let volumes = VolumeView::default();
        let round = Round::new(&incoming, &nodes, &|_| None, &volumes);
        let unfit = select(&round, 0, &|_| Vec::new(), &|_| 0).unwrap_err();
        let candidate = find(&round, &unfit, &[]).unwrap();
        assert_eq!(candidate.node, "b");
        assert_eq!(candidate.victims.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["low"]);
    }

    #[test]
    fn pods_of_equal_priority_are_no_victims() {
        let nodes = [node("a", vec![pod("same", 100, 900)])];
        let incoming = pod("in", 100, 500);
        let volumes = VolumeView::default();
        let round = Round::new(&incoming, &nodes, &|_| None, &volumes);
        let unfit = select(&round, 0, &|_| Vec::new(), &|_| 0).unwrap_err();
        let text = find(&round, &unfit, &[]).unwrap_err();
        assert_eq!(
            text,
            "0/1 nodes are available: 1 No preemption victims found for incoming pod."
        );
    }
}
