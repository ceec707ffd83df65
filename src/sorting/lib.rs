//! Sorts and ordered maps whose code exists once instead of once per type of element.
//!
//! `slice::sort` compiles to about five kilobytes for each type of element and comparison, and
//! collecting into a `BTreeMap` or `BTreeSet` contains it: 283 copies were 1.4 MB of the program.
//! Here one function sorts positions; per type there is only the code that moves the elements.
//! Elements that are in order already are found by one pass without an allocation.
//!
//! Paths where sorting takes a relevant part of the time use the functions of the standard library.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Stable sorts of slices.
pub trait CompactSort<T> {
    /// [`slice::sort`].
    fn compact_sort(&mut self)
    where
        T: Ord;

    /// [`slice::sort_by`].
    fn compact_sort_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// [`slice::sort_by_key`].
    fn compact_sort_by_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K);

    /// [`slice::sort_by_cached_key`]: computes each key once.
    fn compact_sort_by_cached_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K);
}

impl<T> CompactSort<T> for [T] {
    fn compact_sort(&mut self)
    where
        T: Ord,
    {
        let order = positions(self.len(), &mut |a, b| self[a].cmp(&self[b]));
        permute(self, order);
    }

    fn compact_sort_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let order = positions(self.len(), &mut |a, b| compare(&self[a], &self[b]));
        permute(self, order);
    }

    fn compact_sort_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        let order = positions(self.len(), &mut |a, b| key(&self[a]).cmp(&key(&self[b])));
        permute(self, order);
    }

    fn compact_sort_by_cached_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K) {
        let keys: Vec<K> = self.iter().map(key).collect();
        permute(self, positions(keys.len(), &mut |a, b| keys[a].cmp(&keys[b])));
    }
}

/// Ordered maps and sets of the items of an iterator. As in the standard library, of equal keys the
/// last value counts.
pub trait CollectOrdered: Iterator + Sized {
    /// Collects into a map.
    fn collect_map<K: Ord, V>(self) -> BTreeMap<K, V>
    where
        Self: Iterator<Item = (K, V)>,
    {
        let mut map = BTreeMap::new();
        self.for_each(|(key, value)| {
            map.insert(key, value);
        });
        map
    }

    /// Collects into a set.
    fn collect_set<T: Ord>(self) -> BTreeSet<T>
    where
        Self: Iterator<Item = T>,
    {
        let mut set = BTreeSet::new();
        self.for_each(|item| {
            set.insert(item);
        });
        set
    }
}

impl<I: Iterator> CollectOrdered for I {}

/// Returns for each place the position of the element that belongs there; nothing if the elements
/// are in order.
fn positions(length: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    if (1..length).all(|next| compare(next - 1, next) != Ordering::Greater) {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..length).collect();
    order.sort_by(|a, b| compare(*a, *b));
    order
}

/// Moves the elements along the cycles of the permutation.
fn permute<T>(items: &mut [T], mut order: Vec<usize>) {
    for start in 0..order.len() {
        let mut place = start;
        loop {
            let from = std::mem::replace(&mut order[place], place);
            if from == start || from == place {
                break;
            }
            items.swap(place, from);
            place = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence without a pattern.
    fn numbers(length: u32, below: u32) -> Vec<(u32, u32)> {
        let mut state = 1_u32;
        (0..length)
            .map(|index| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) % below, index)
            })
            .collect()
    }

    #[test]
    fn the_order_is_that_of_the_stable_sort() {
        for length in [0, 1, 2, 3, 10, 100, 1000] {
            for below in [1, 2, 10, 100_000] {
                let unsorted = numbers(length, below);
                let mut want = unsorted.clone();
                want.sort_by_key(|(number, _)| *number);
                let mut by_key = unsorted.clone();
                by_key.compact_sort_by_key(|(number, _)| *number);
                assert_eq!(by_key, want);
                let mut by_cached_key = unsorted.clone();
                by_cached_key.compact_sort_by_cached_key(|(number, _)| *number);
                assert_eq!(by_cached_key, want);
                let mut by = unsorted.clone();
                by.compact_sort_by(|(a, _), (b, _)| b.cmp(a));
                want = unsorted.clone();
                want.sort_by(|(a, _), (b, _)| b.cmp(a));
                assert_eq!(by, want);
                let mut all = unsorted.clone();
                all.compact_sort();
                want = unsorted;
                want.sort();
                assert_eq!(all, want);
            }
        }
    }

    #[test]
    fn of_equal_keys_the_last_value_counts() {
        let pairs = [("b", 1), ("a", 2), ("b", 3)];
        assert_eq!(pairs.into_iter().collect_map(), BTreeMap::from(pairs));
        assert_eq!(pairs.iter().map(|(key, _)| *key).collect_set(), BTreeSet::from(["a", "b"]));
    }
}
