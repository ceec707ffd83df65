//! The option `distribute-cpus-across-numa`: equal shares on as few NUMA nodes as possible, as in
//! the kubelet's `takeByTopologyNUMADistributed`.

use std::collections::BTreeMap;

use super::super::cpu_set::CpuSet;
use super::super::cpu_topology::{CpuTopology, Level};
use super::super::numa_mask::combinations;
use super::assignment::{Accumulator, AssignmentError, take_packed};

/// A choice of NUMA nodes.
struct Combination {
    /// Standard deviation of the CPUs that are left on all nodes.
    balance: f64,
    nodes: Vec<usize>,
    /// The nodes that give the CPUs that do not divide evenly.
    remainder: Vec<usize>,
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Converts a number of CPUs, which is far below the precision of a float.
fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Standard deviation with three decimals.
fn standard_deviation(values: &BTreeMap<usize, usize>) -> f64 {
    let count = float(values.len().max(1));
    let mean = rounded(values.values().map(|value| float(*value)).sum::<f64>() / count);
    let squares = values.values().map(|value| (float(*value) - mean).powi(2)).sum::<f64>();
    rounded((squares / count).sqrt())
}

/// Removes `remainder` CPUs in groups, round robin.
fn hand_out(left: &mut BTreeMap<usize, usize>, nodes: &[usize], remainder: usize, group: usize) {
    let mut remainder = remainder;
    while remainder > 0 {
        let before = remainder;
        for node in nodes {
            if let Some(count) = left.get_mut(node).filter(|c| remainder > 0 && **c >= group) {
                *count -= group;
                remainder = remainder.saturating_sub(group);
            }
        }
        if remainder == before {
            return;
        }
    }
}

/// Takes equal shares, in groups of `group` CPUs, from as few NUMA nodes as possible.
///
/// # Errors
///
/// Fewer CPUs are available than requested.
pub(crate) fn take_distributed(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    group: usize,
) -> Result<CpuSet, AssignmentError> {
    let group = group.max(1);
    if !count.is_multiple_of(group) {
        return take_packed(topology, available, count, false);
    }
    let mut acc = Accumulator::new(topology, available, count);
    if acc.is_satisfied() {
        return Ok(acc.taken);
    }
    if count > acc.free.0.len() {
        let available = available.len();
        return Err(AssignmentError::NotEnough { requested: count, available });
    }
    let nodes = acc.order(Level::Numa);
    let groups = topology.details.0.len().div_ceil(group);
    let groups_per_node = groups.div_ceil(topology.count(Level::Numa).max(1)).max(1);
    let groups_needed = count.div_ceil(group);
    for size in groups_needed.div_ceil(groups_per_node)..=groups_needed.min(nodes.len()) {
        if let Some(best) = best_combination(&acc, &nodes, size, count, group) {
            return take_from(&mut acc, topology, &best, count, group);
        }
    }
    take_packed(topology, available, count, false)
}

/// The combination of `size` nodes that leaves the machine most balanced.
fn best_combination(
    acc: &Accumulator<'_>,
    nodes: &[usize],
    size: usize,
    count: usize,
    group: usize,
) -> Option<Combination> {
    let free: BTreeMap<usize, usize> =
        nodes.iter().map(|node| (*node, acc.free.count_in(Level::Numa, *node))).collect();
    let mut best: Option<Combination> = None;
    for nodes in combinations(nodes, size) {
        if best.as_ref().is_some_and(|best| best.balance == 0.0) {
            break;
        }
        if let Some(next) = evaluate(&free, nodes, count, group)
            && best.as_ref().is_none_or(|best| next.balance < best.balance)
        {
            best = Some(next);
        }
    }
    best
}

/// Evaluates a combination; `None` if its nodes have too few CPUs.
fn evaluate(
    free: &BTreeMap<usize, usize>,
    nodes: Vec<usize>,
    count: usize,
    group: usize,
) -> Option<Combination> {
    let on = |node: &usize| free.get(node).copied().unwrap_or_default();
    let whole: usize = nodes.iter().map(|node| on(node) / group * group).sum();
    let share = count / nodes.len().max(1) / group * group;
    if whole < count || nodes.iter().any(|node| on(node) < share) {
        return None;
    }
    let mut after = free.clone();
    for node in &nodes {
        after.entry(*node).and_modify(|count| *count -= share);
    }
    let rest = count - share * nodes.len();
    if rest == 0 {
        let balance = standard_deviation(&after);
        return Some(Combination { balance, nodes, remainder: Vec::new() });
    }
    let left = |node: &usize| after.get(node).copied().unwrap_or_default();
    let givers: Vec<usize> = nodes.iter().copied().filter(|node| left(node) >= group).collect();
    let mut best: Option<(f64, Vec<usize>)> = None;
    for size in (1..=givers.len()).rev() {
        for subset in combinations(&givers, size) {
            if subset.iter().map(left).sum::<usize>() < rest {
                continue;
            }
            let mut left = after.clone();
            hand_out(&mut left, &subset, rest, group);
            let balance = standard_deviation(&left);
            if best.as_ref().is_none_or(|(least, _)| balance < *least) {
                best = Some((balance, subset));
            }
        }
    }
    best.map(|(balance, remainder)| Combination { balance, nodes, remainder })
}

fn take_from(
    acc: &mut Accumulator<'_>,
    topology: &CpuTopology,
    best: &Combination,
    count: usize,
    group: usize,
) -> Result<CpuSet, AssignmentError> {
    let free = |acc: &Accumulator<'_>, node: usize| acc.free.count_in(Level::Numa, node);
    let share = count / best.nodes.len().max(1) / group * group;
    let least = best.nodes.iter().map(|node| free(acc, *node) / group * group).min();
    let share = share.min(least.unwrap_or_default());
    for node in &best.nodes {
        let cpus = acc.free.cpus_in(Level::Numa, *node);
        acc.take(&take_packed(topology, &cpus, share, false)?);
    }
    while acc.needed > 0 {
        let before = acc.needed;
        for node in &best.remainder {
            if acc.needed > 0 && free(acc, *node) >= group {
                let cpus = acc.free.cpus_in(Level::Numa, *node);
                acc.take(&take_packed(topology, &cpus, group, false)?);
            }
        }
        if acc.needed == before {
            return Err(AssignmentError::TooFew(before));
        }
    }
    match acc.taken.len().checked_sub(count) {
        Some(0) => Ok(acc.taken.clone()),
        Some(more) => Err(AssignmentError::TooMany(more)),
        None => Err(AssignmentError::TooFew(count - acc.taken.len())),
    }
}

#[cfg(test)]
mod tests;
