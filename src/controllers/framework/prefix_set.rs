//! A set of IP prefixes that answers quickly whether another one overlaps any of them.

use std::collections::BTreeMap;

use crate::framework::ip_prefix::Prefix;

/// Prefixes, each as often as it was inserted.
#[derive(Debug, Default)]
pub(crate) struct PrefixSet {
    /// Numbers of insertions, by prefix: ordered by family, first address and length.
    counts: BTreeMap<Prefix, usize>,
    /// Numbers of different prefixes, by length.
    lengths: BTreeMap<u8, usize>,
}

impl PrefixSet {
    /// Inserts the prefix once more.
    pub(crate) fn insert(&mut self, prefix: Prefix) {
        let count = self.counts.entry(prefix).or_default();
        *count += 1;
        if *count == 1 {
            *self.lengths.entry(prefix.length()).or_default() += 1;
        }
    }

    /// Takes one insertion of the prefix back.
    pub(crate) fn remove(&mut self, prefix: &Prefix) {
        let Some(count) = self.counts.get_mut(prefix) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.counts.remove(prefix);
        if let Some(count) = self.lengths.get_mut(&prefix.length()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.length());
            }
        }
    }

    /// Whether one of the prefixes and this one share an address: one of two that do covers the
    /// other.
    pub(crate) fn overlaps(&self, prefix: &Prefix) -> bool {
        let shorter = self.lengths.range(..prefix.length());
        let mut covering = shorter.map(|(length, _)| prefix.widened(*length));
        covering.any(|wider| self.counts.contains_key(&wider))
            || self.counts.range(prefix.extent()).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn covering_equal_and_covered_prefixes_overlap() {
        let mut set = PrefixSet::default();
        for text in ["10.0.0.0/8", "10.1.0.0/16", "192.0.2.128/25", "fd00::/64"] {
            set.insert(p(text));
        }
        for text in ["10.200.0.0/24", "10.0.0.0/8", "0.0.0.0/0", "192.0.2.0/24", "fd00::/112"] {
            assert!(set.overlaps(&p(text)), "{text}");
        }
        for text in ["11.0.0.0/8", "192.0.2.0/25", "fd00:0:0:1::/64", "a00::/8"] {
            assert!(!set.overlaps(&p(text)), "{text}");
        }
    }

    #[test]
    fn a_prefix_stays_until_each_insertion_is_taken_back() {
        let (mut set, prefix) = (PrefixSet::default(), p("10.0.0.0/24"));
        set.insert(prefix);
        set.insert(prefix);
        set.remove(&prefix);
        assert!(set.overlaps(&prefix));
        set.remove(&prefix);
        set.remove(&prefix);
        assert!(!set.overlaps(&prefix) && set.counts.is_empty() && set.lengths.is_empty());
    }
}
