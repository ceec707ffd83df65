//! Hints of providers for NUMA nodes, and the best choice among them
//! (`pkg/kubelet/cm/topologymanager/policy.go`).

use std::collections::{BTreeMap, BTreeSet};

use super::super::numa_mask::NumaMask;
use super::config::TopologyPolicy;

/// NUMA nodes that could provide a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TopologyHint {
    /// `None` for no preference.
    pub(crate) mask: Option<NumaMask>,
    pub(crate) preferred: bool,
}

/// The hints of one provider by resource. `None` for no preference; an empty list means that no
/// nodes can provide the resource. An empty map has no preference at all.
pub(crate) type ProviderHints = BTreeMap<String, Option<Vec<TopologyHint>>>;

/// The nodes of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NumaDistances {
    pub(crate) nodes: NumaMask,
    /// Distances of each node to others by their numbers; empty without the option
    /// `prefer-closest-numa-nodes`.
    pub(crate) distances: BTreeMap<usize, Vec<u64>>,
}

impl NumaDistances {
    /// The mean of the distances between all pairs of nodes, each node with itself included.
    fn average(&self, mask: NumaMask) -> f64 {
        let (mut count, mut sum) = (0_u32, 0.0);
        for from in mask.nodes() {
            for to in mask.nodes() {
                let distance = self.distances.get(&from).and_then(|all| all.get(to));
                // Distances are below 256.
                let distance = distance.and_then(|d| u32::try_from(*d).ok()).unwrap_or_default();
                sum += f64::from(distance);
                count += 1;
            }
        }
        if count == 0 { 0.0 } else { sum / f64::from(count) }
    }

    /// The better of two masks: the narrower one, or the one with the shorter distances if they
    /// have the same size.
    fn closest(&self, a: NumaMask, b: NumaMask) -> NumaMask {
        let (of_a, of_b) = (self.average(a), self.average(b));
        let is_a = match a.count() == b.count() {
            true if of_a < of_b => true,
            true if of_a > of_b => false,
            true => a < b,
            false => a.is_narrower(b),
        };
        if is_a { a } else { b }
    }
}

/// The rules of one policy on one machine.
#[derive(Debug, Clone)]
pub(crate) struct HintMerger {
    pub(crate) policy: TopologyPolicy,
    pub(crate) prefer_closest: bool,
    pub(crate) numa: NumaDistances,
}

/// A combination of one hint of each list, up to some list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Combination {
    mask: NumaMask,
    /// The first mask; all others are equal as long as the combination is preferred.
    first: Option<NumaMask>,
    preferred: bool,
}

impl Combination {
    fn with(self, hint: TopologyHint) -> Self {
        let Some(mask) = hint.mask else {
            let preferred = self.preferred && hint.preferred;
            return Self { first: self.first.filter(|_| preferred), preferred, ..self };
        };
        let is_equal = self.first.is_none_or(|first| first == mask);
        let preferred = self.preferred && hint.preferred && is_equal;
        // Only a preferred combination compares masks, which bounds the number of combinations.
        let first = if preferred { self.first.or(Some(mask)) } else { None };
        Self { mask: self.mask.and(mask), first, preferred }
    }
}

impl HintMerger {
    /// Merges the hints of all providers; returns the best hint and whether the pod may start.
    pub(crate) fn merge(&self, providers: &[ProviderHints]) -> (TopologyHint, bool) {
        let mut lists: Vec<Vec<TopologyHint>> = providers.iter().flat_map(lists).collect();
        if self.policy == TopologyPolicy::SingleNumaNode {
            let is_single = |hint: &TopologyHint| {
                hint.preferred && hint.mask.is_none_or(|mask| mask.count() == 1)
            };
            lists.iter_mut().for_each(|hints| hints.retain(is_single));
        }
        let mut best = self.best(&lists);
        if self.policy == TopologyPolicy::SingleNumaNode && best.mask == Some(self.numa.nodes) {
            best.mask = None;
        }
        let admits = match self.policy {
            TopologyPolicy::None | TopologyPolicy::BestEffort => true,
            TopologyPolicy::Restricted | TopologyPolicy::SingleNumaNode => best.preferred,
        };
        (best, admits)
    }

    fn best(&self, lists: &[Vec<TopologyHint>]) -> TopologyHint {
        let begin = Combination { mask: self.numa.nodes, first: None, preferred: true };
        let mut combinations = BTreeSet::from([begin]);
        for hints in lists {
            let with = |combination: &Combination| {
                let combination = *combination;
                hints.iter().map(move |hint| combination.with(*hint))
            };
            combinations = combinations.iter().flat_map(with).collect();
        }
        let largest = max_of_min_counts(lists);
        let candidates = combinations.into_iter().filter(|c| !c.mask.is_empty());
        let best = candidates
            .map(|c| (c.mask, c.preferred))
            .reduce(|current, candidate| self.compare(current, candidate, largest));
        let (mask, preferred) = best.unwrap_or((self.numa.nodes, false));
        TopologyHint { mask: Some(mask), preferred }
    }

    /// Returns the better of two merged hints. `largest` is the size of the largest among the
    /// narrowest masks of all resources: no combination can be narrower and satisfy them all.
    fn compare(
        &self,
        current: (NumaMask, bool),
        candidate: (NumaMask, bool),
        largest: usize,
    ) -> (NumaMask, bool) {
        let better_mask = || {
            let is_closest = self.prefer_closest && self.policy != TopologyPolicy::SingleNumaNode;
            let best = match is_closest {
                true => self.numa.closest(current.0, candidate.0),
                false if current.0.is_narrower(candidate.0) => current.0,
                false => candidate.0,
            };
            if best == current.0 { current } else { candidate }
        };
        let (has, wants) = (current.0.count(), candidate.0.count());
        match (current.1, candidate.1) {
            (false, true) => candidate,
            (true, false) => current,
            (true, true) => better_mask(),
            (false, false) if has > largest => better_mask(),
            (false, false) if has == largest && wants != largest => current,
            (false, false) if has == largest => better_mask(),
            (false, false) if wants > largest => current,
            (false, false) if wants > has => candidate,
            (false, false) if wants < has => current,
            (false, false) => better_mask(),
        }
    }
}

/// The lists of one provider; one without a preference has a single hint without a mask.
fn lists(provider: &ProviderHints) -> Vec<Vec<TopologyHint>> {
    let any = |preferred| vec![TopologyHint { mask: None, preferred }];
    if provider.is_empty() {
        return vec![any(true)];
    }
    let list = |hints: &Option<Vec<TopologyHint>>| match hints {
        None => any(true),
        Some(hints) if hints.is_empty() => any(false),
        Some(hints) => hints.clone(),
    };
    provider.values().map(list).collect()
}

/// The size of the narrowest mask of each list, and the largest of these.
fn max_of_min_counts(lists: &[Vec<TopologyHint>]) -> usize {
    let narrowest = |hints: &Vec<TopologyHint>| {
        hints.iter().filter_map(|hint| hint.mask).map(NumaMask::count).min()
    };
    lists.iter().filter_map(narrowest).max().unwrap_or_default()
}

/// Marks those hints as preferred that have as few nodes as possible.
pub(crate) fn mark_preferred(masks: Vec<NumaMask>, size: usize) -> Vec<TopologyHint> {
    let hint = |mask: NumaMask| TopologyHint { mask: Some(mask), preferred: mask.count() == size };
    masks.into_iter().map(hint).collect()
}

#[cfg(test)]
pub(crate) mod tests;
