//! The pools whose devices can be used on a node.

use std::collections::{BTreeMap, BTreeSet};

use sorting::CompactSort as _;

use super::id::PoolId;
use super::slice::{Counters, Slice};
use super::slices::SliceIndex;
use crate::node_info::NodeInfo;

/// Whether devices of a pool can be allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PoolState {
    /// They can.
    Usable,
    /// Slices of the pool are missing: the driver is publishing it.
    Incomplete,
    /// The slices contradict each other.
    Invalid(InvalidPool),
}

/// Why a pool is invalid; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidPool {
    #[error("duplicate device name {0}")]
    DuplicateDevice(String),
    #[error("duplicate counter set name {0}")]
    DuplicateCounterSet(String),
    #[error("counter set {0} not found")]
    UnknownCounterSet(String),
    #[error("counter {counter} not found in counter set {set}")]
    UnknownCounter { set: String, counter: String },
}

/// A pool with devices for a node.
#[derive(Debug)]
pub(crate) struct Pool<'a> {
    pub(crate) id: &'a PoolId,
    pub(crate) state: PoolState,
    /// The slices with devices for the node, by name.
    pub(crate) slices: Vec<&'a Slice>,
    /// The other slices with devices; they consume counters.
    pub(crate) others: Vec<&'a Slice>,
    pub(crate) counter_sets: BTreeMap<&'a str, &'a Counters>,
}

/// Returns the pools for a node in the order in which they are searched: by driver and name, those
/// with binding conditions last. As the first solution is taken, names express a preference.
pub(crate) fn gather<'a>(index: &'a SliceIndex, node: &NodeInfo) -> Vec<Pool<'a>> {
    let mut newest: BTreeMap<&PoolId, Vec<&Slice>> = BTreeMap::new();
    for slice in index.for_node(&node.name) {
        if slice.uses_compatibility_groups || !slice.is_for(node) {
            continue;
        }
        let slices = newest.entry(&slice.pool).or_default();
        match slices.first().map(|first| first.generation.cmp(&slice.generation)) {
            Some(std::cmp::Ordering::Greater) => {}
            Some(std::cmp::Ordering::Less) => *slices = vec![slice],
            Some(std::cmp::Ordering::Equal) | None => slices.push(slice),
        }
    }
    let pools = newest.into_iter().filter_map(|(id, slices)| pool(index, id, slices));
    let (last, mut first): (Vec<_>, Vec<_>) = pools.partition(has_binding_conditions);
    first.extend(last);
    first
}

fn has_binding_conditions(pool: &Pool<'_>) -> bool {
    let mut devices = pool.slices.iter().flat_map(|slice| &slice.devices);
    pool.state == PoolState::Usable && devices.any(|device| device.binding_conditions.is_some())
}

/// Completes a pool with the slices for other nodes. `None` if a newer generation exists.
fn pool<'a>(index: &'a SliceIndex, id: &'a PoolId, slices: Vec<&'a Slice>) -> Option<Pool<'a>> {
    let first = *slices.first()?;
    let is_complete = |count: usize| i64::try_from(count) == Ok(first.slice_count);
    if is_complete(slices.len()) {
        return Some(Pool::new(id, slices, Vec::new()));
    }
    if index.of_pool(id).any(|slice| slice.generation > first.generation) {
        return None;
    }
    let current =
        |slice: &&Slice| slice.generation == first.generation && !slice.uses_compatibility_groups;
    let all: Vec<&Slice> = index.of_pool(id).filter(current).collect();
    if !is_complete(all.len()) {
        return Some(Pool::empty(id, PoolState::Incomplete));
    }
    let is_other = |slice: &&Slice| slices.iter().all(|own| own.name != slice.name);
    let others = all.into_iter().filter(is_other).collect();
    Some(Pool::new(id, slices, others))
}

impl<'a> Pool<'a> {
    fn empty(id: &'a PoolId, state: PoolState) -> Self {
        let (slices, others) = (Vec::new(), Vec::new());
        Self { id, state, slices, others, counter_sets: BTreeMap::new() }
    }

    fn new(id: &'a PoolId, mut slices: Vec<&'a Slice>, others: Vec<&'a Slice>) -> Self {
        slices.compact_sort_by(|a, b| a.name.cmp(&b.name));
        match Self::build(id, slices, others) {
            Ok(pool) => pool,
            Err(why) => Self::empty(id, PoolState::Invalid(why)),
        }
    }

    fn build(
        id: &'a PoolId,
        slices: Vec<&'a Slice>,
        others: Vec<&'a Slice>,
    ) -> Result<Self, InvalidPool> {
        let is_counters = |slice: &&Slice| !slice.counter_sets.is_empty();
        let (mut counters, slices): (Vec<_>, Vec<_>) = slices.into_iter().partition(is_counters);
        let (more, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_counters);
        counters.extend(more);
        let mut names = BTreeSet::new();
        for device in slices.iter().flat_map(|slice| &slice.devices) {
            if !names.insert(&device.id.device) {
                return Err(InvalidPool::DuplicateDevice(device.id.device.to_string()));
            }
        }
        let mut counter_sets = BTreeMap::new();
        for set in counters.iter().flat_map(|slice| &slice.counter_sets) {
            if counter_sets.insert(set.name.as_str(), &set.counters).is_some() {
                return Err(InvalidPool::DuplicateCounterSet(set.name.clone()));
            }
        }
        check_consumption(&counter_sets, &slices)?;
        check_consumption(&counter_sets, &others)?;
        Ok(Self { id, state: PoolState::Usable, slices, others, counter_sets })
    }
}

/// Checks that the counters which devices consume exist.
fn check_consumption(
    sets: &BTreeMap<&str, &Counters>,
    slices: &[&Slice],
) -> Result<(), InvalidPool> {
    let devices = slices.iter().flat_map(|slice| &slice.devices);
    for consumed in devices.flat_map(|device| &device.consumes) {
        let Some(set) = sets.get(consumed.name.as_str()) else {
            return Err(InvalidPool::UnknownCounterSet(consumed.name.clone()));
        };
        if let Some(counter) = consumed.counters.keys().find(|name| !set.contains_key(*name)) {
            let (set, counter) = (consumed.name.clone(), counter.clone());
            return Err(InvalidPool::UnknownCounter { set, counter });
        }
    }
    Ok(())
}
