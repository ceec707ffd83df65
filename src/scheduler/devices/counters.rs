//! The counters of a pool that its devices share: partitions of one device are allocated until a
//! counter is used up.

use std::collections::BTreeMap;

use api::quantity::Quantity;

use super::allocated::AllocatedState;
use super::pools::Pool;
use super::slice::{Counters, Device};

/// Amounts by counter set and counter.
pub(crate) type CounterSets = BTreeMap<String, Counters>;

/// What allocated devices leave of the counters of a pool, also those for other nodes; negative if
/// a counter is used more than once.
pub(crate) fn available(pool: &Pool<'_>, allocated: &AllocatedState) -> CounterSets {
    let sets = pool.counter_sets.iter();
    let mut left: CounterSets = sets.map(|(name, c)| ((*name).to_owned(), (*c).clone())).collect();
    let devices = pool.slices.iter().chain(&pool.others).flat_map(|slice| &slice.devices);
    let in_use = |d: &&Device| allocated.is_dedicated(&d.id) || allocated.is_shared(&d.id);
    for consumed in devices.filter(in_use).flat_map(|device| &device.consumes) {
        let Some(counters) = left.get_mut(&consumed.name) else { continue };
        for (name, amount) in &consumed.counters {
            if let Some(value) = counters.get_mut(name) {
                *value -= *amount;
            }
        }
    }
    left
}

/// What the devices of an attempt consume of the counters of a pool.
#[derive(Debug, Default)]
pub(crate) struct ConsumedCounters<'a>(BTreeMap<(&'a str, &'a str), Quantity>);

impl<'a> ConsumedCounters<'a> {
    /// Adds what the device consumes, if the pool has that much of every counter; returns whether
    /// it is added. As upstream, a counter that is used up rejects the device even if the device
    /// does not consume it.
    pub(crate) fn add(&mut self, device: &'a Device, available: &CounterSets) -> bool {
        for set in &device.consumes {
            for (name, amount) in &set.counters {
                let sum = self.0.entry((set.name.as_str(), name.as_str())).or_default();
                *sum += *amount;
            }
        }
        let mut counters = available
            .iter()
            .flat_map(|(set, counters)| counters.iter().map(move |(name, left)| (set, name, left)));
        let fits = counters.all(|(set, name, left)| {
            let consumed = self.0.get(&(set.as_str(), name.as_str()));
            *left >= consumed.copied().unwrap_or_default()
        });
        if !fits {
            self.remove(device);
        }
        fits
    }

    /// Removes what the device consumes.
    pub(crate) fn remove(&mut self, device: &'a Device) {
        for set in &device.consumes {
            for (name, amount) in &set.counters {
                if let Some(sum) = self.0.get_mut(&(set.name.as_str(), name.as_str())) {
                    *sum -= *amount;
                }
            }
        }
    }
}
