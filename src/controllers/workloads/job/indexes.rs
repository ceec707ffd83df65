//! Sets of completion indexes as a Job's status writes them: `1,3-5`.

use std::fmt;

use sorting::CompactSort as _;

/// Ordered, separate intervals, both ends included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<(i32, i32)>);

impl Indexes {
    /// Reads the text of a status; what is no number and what is not below `completions` is left
    /// out.
    pub(super) fn parse(text: &str, completions: i32) -> Self {
        let intervals = text.split(',').filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (i32, i32) = (first.parse().ok()?, last.parse().ok()?);
            let last = last.min(completions - 1);
            (first >= 0 && first <= last).then_some((first, last))
        });
        Self(intervals.collect()).normal()
    }

    fn normal(mut self) -> Self {
        self.0.compact_sort();
        let mut merged: Vec<(i32, i32)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0 {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// This set and more indexes.
    pub(super) fn with(&self, more: impl IntoIterator<Item = i32>) -> Self {
        let mut all = self.clone();
        all.0.extend(more.into_iter().map(|i| (i, i)));
        all.normal()
    }

    /// This set and another.
    pub(super) fn union(&self, other: &Self) -> Self {
        Self(self.0.iter().chain(&other.0).copied().collect()).normal()
    }

    /// How many indexes there are.
    pub(super) fn total(&self) -> i32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub(super) fn has(&self, index: i32) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&index))
    }

    /// How many indexes both sets have.
    pub(super) fn overlap(&self, other: &Self) -> i32 {
        let pairs = self.0.iter().flat_map(|a| other.0.iter().map(move |b| (a, b)));
        pairs.map(|(a, b)| (a.1.min(b.1) - a.0.max(b.0) + 1).max(0)).sum()
    }

    /// The first `count` indexes below `completions` that are not in the set.
    pub(super) fn first_free(&self, count: usize, completions: i32) -> Vec<i32> {
        let mut free = Vec::new();
        let mut next = 0;
        for (first, last) in self.0.iter().copied().chain([(completions, completions)]) {
            while next < first.min(completions) && free.len() < count {
                free.push(next);
                next += 1;
            }
            next = next.max(last.saturating_add(1));
        }
        free
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (first, last)) in self.0.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_that_of_the_status() {
        for (text, completions, want) in [
            ("", 5, ""),
            ("0,2,3", 5, "0,2,3"),
            ("1,3-5,7", 8, "1,3-5,7"),
            ("0-9", 3, "0-2"),
            ("3,1,2", 5, "1-3"),
            ("a,1,5-2", 9, "1"),
        ] {
            assert_eq!(Indexes::parse(text, completions).to_string(), want, "{text}");
        }
    }

    #[test]
    fn sets_grow_and_tell_what_is_missing() {
        let set = Indexes::parse("1,3-4", 8).with([0, 6]);
        assert_eq!((set.to_string().as_str(), set.total()), ("0,1,3,4,6", 5));
        assert_eq!(set.first_free(2, 8), [2, 5]);
        assert_eq!(set.first_free(9, 8), [2, 5, 7]);
        assert!(set.has(4) && !set.has(5));
        assert_eq!(set.overlap(&Indexes::parse("1-3", 8)), 2);
        assert_eq!(set.union(&Indexes::parse("2", 8)).to_string(), "0-4,6");
    }
}
