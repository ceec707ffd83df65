//! Sets of CPUs in the kernel's list format, such as `0-2,6` (`k8s.io/utils/cpuset`).

use std::collections::BTreeSet;
use std::fmt;

/// Upper bound of the number of a CPU: larger than any machine, so that a range in a file cannot
/// fill memory.
const ID_MAX: usize = 1 << 16;

/// Why a text is no list of CPUs; texts as of upstream's parser.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCpuSet {
    /// A part is no number.
    #[error("strconv.Atoi: parsing {0:?}: invalid syntax")]
    Number(String),
    /// A number is too large.
    #[error("strconv.Atoi: parsing {0:?}: value out of range")]
    Range(String),
    /// A range ends before it begins.
    #[error("invalid range {text:?} ({start} > {end})")]
    Reversed {
        /// The range.
        text: String,
        /// Its first number.
        start: usize,
        /// Its second number.
        end: usize,
    },
}

/// A set of CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<usize>);

impl CpuSet {
    /// Parses a list; an empty text is the empty set.
    ///
    /// # Errors
    ///
    /// A part is neither a number nor a range.
    pub fn parse(text: &str) -> Result<Self, InvalidCpuSet> {
        let number = |part: &str| {
            let id = part.parse::<usize>().map_err(|_| InvalidCpuSet::Number(part.to_owned()))?;
            if id > ID_MAX { Err(InvalidCpuSet::Range(part.to_owned())) } else { Ok(id) }
        };
        let mut out = BTreeSet::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            match part.split_once('-') {
                None => {
                    out.insert(number(part)?);
                }
                Some((start, end)) => {
                    let (start, end) = (number(start)?, number(end)?);
                    if start > end {
                        return Err(InvalidCpuSet::Reversed { text: part.to_owned(), start, end });
                    }
                    out.extend(start..=end);
                }
            }
        }
        Ok(Self(out))
    }

    /// Number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, id: usize) -> bool {
        self.0.contains(&id)
    }

    /// The CPUs in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    pub(crate) fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    pub(crate) fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(ids: I) -> Self {
        Self(ids.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.0.iter().copied().peekable();
        let mut is_first = true;
        while let Some(start) = ids.next() {
            let mut end = start;
            while let Some(next) = ids.next_if(|next| *next == end + 1) {
                end = next;
            }
            if !is_first {
                f.write_str(",")?;
            }
            is_first = false;
            if start == end { write!(f, "{start}")? } else { write!(f, "{start}-{end}")? }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A set from a list that is known to be valid.
    pub(crate) fn set(text: &str) -> CpuSet {
        CpuSet::parse(text).unwrap()
    }

    #[test]
    fn lists_are_parsed_and_written_as_ranges() {
        for (text, want) in
            [("", ""), ("5", "5"), ("1,2,3", "1-3"), ("3-1,", ""), ("0-2,6,8-9", "0-2,6,8-9")]
        {
            if let Ok(set) = CpuSet::parse(text) {
                assert_eq!(set.to_string(), want);
            }
        }
        let error = |text| CpuSet::parse(text).unwrap_err().to_string();
        assert_eq!(error("1.3"), "strconv.Atoi: parsing \"1.3\": invalid syntax");
        assert_eq!(error("3-1"), "invalid range \"3-1\" (3 > 1)");
        assert_eq!(error("1,"), "strconv.Atoi: parsing \"\": invalid syntax");
        assert!(error("0-4294967295").contains("out of range"));
    }

    #[test]
    fn sets_are_combined() {
        let (a, b) = (set("0-3"), set("2-5"));
        assert_eq!(a.union(&b).to_string(), "0-5");
        assert_eq!(a.difference(&b).to_string(), "0-1");
        assert_eq!(a.intersection(&b).to_string(), "2-3");
        assert!(set("2").is_subset(&a) && !b.is_subset(&a));
    }
}
