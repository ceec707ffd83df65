//! Replaces values in memory by the same values in files.

use bytes::Bytes;
use parking_lot::RwLock;

use super::file_values::MappedValue;
use super::state::State;

/// A value located in a file.
#[derive(Debug)]
pub(crate) struct FileValue {
    pub(crate) key: Bytes,
    /// The bytes as read from the file.
    pub(crate) read: Bytes,
    pub(crate) stored: MappedValue,
}

/// Limits for finding the version that a log record wrote: versions of a key that are examined
/// (those already in files are skipped), and versions that do not match (a record without effect
/// matches none).
const LOOKED_AT_MAX: usize = 1024;
const UNFIT_MAX: usize = 4;

/// Values to replace and their replacements, located by their position in the history: a key can
/// have many versions.
type Exchanges<'a> = Vec<(&'a FileValue, (i64, u32), Bytes)>;

fn exchange(state: &RwLock<State>, exchanges: Exchanges<'_>) {
    {
        let mut state = state.write();
        for (finding, at, value) in &exchanges {
            if let Some(history) = state.keys.get_mut(finding.key.as_ref()) {
                history.exchange(value, *at, &finding.stored);
            }
        }
    }
    // Replaced values are dropped after the lock is released: the last slice of a map may go with
    // them.
    drop(exchanges);
}

/// Replaces values in memory by the same values in a part of the log. The records are in revision
/// order; none was written before the revision `floor`, which advances.
pub(crate) fn replace_written_values(
    state: &RwLock<State>,
    findings: &[FileValue],
    floor: &mut i64,
) {
    let mut exchanges = Exchanges::new();
    {
        let state = state.read();
        for finding in findings {
            let Some(history) = state.keys.get(finding.key.as_ref()) else { continue };
            let kept = history.kept_from(*floor).take(LOOKED_AT_MAX).filter(|kept| kept.sum == 0);
            // The values are in memory, so comparing them is fast.
            let found = kept.take(UNFIT_MAX).find(|kept| *kept.value == finding.read);
            if let Some(kept) = found {
                *floor = kept.modified;
                exchanges.push((finding, (kept.modified, kept.sub), kept.value.clone()));
            }
        }
    }
    exchange(state, exchanges);
}

/// Replaces values, including those in other files, by the same values in a checkpoint; each
/// belongs to the change next to it.
pub(crate) fn replace_all_values(state: &RwLock<State>, findings: &[(FileValue, (i64, u32))]) {
    let mut exchanges = Exchanges::new();
    {
        let state = state.read();
        for (finding, at) in findings {
            let history = state.keys.get(finding.key.as_ref());
            let kept = history.and_then(|history| history.kept_at(at.0, at.1));
            exchanges.extend(kept.map(|kept| (finding, *at, kept.value.clone())));
        }
    }
    // Some values may have to be read from the device; no lock is held meanwhile.
    exchanges.retain(|(finding, _, value)| finding.read == *value);
    exchange(state, exchanges);
}

#[cfg(test)]
mod tests {
    use super::super::file_values::{STORED_BYTES_MIN, Source};
    use super::*;
    use crate::contract::{Op, Txn};
    use crate::mvcc::Command;

    fn finding(key: &str, value: &str) -> FileValue {
        let read = Bytes::from(value.to_owned());
        let source = Source::new(read.clone(), Bytes::copy_from_slice(&read)).unwrap();
        let stored = source.find(&read).unwrap();
        FileValue { key: key.to_owned().into(), read, stored }
    }

    /// A key that is written for hours without compaction must not stall the store at each full
    /// segment.
    #[test]
    fn all_versions_of_one_key_are_found_in_their_order_and_what_was_refused_is_passed_by() {
        let value = |n: usize| format!("value {n}");
        let mut state = State::default();
        for n in 0..20_000 {
            let (key, value) = ("key".into(), value(n).into());
            let success = vec![Op::Put { key, value, lease: 0, prev_kv: false }];
            state.apply(&Command::Txn(Txn { success, ..Txn::default() }), &mut Vec::new()).unwrap();
        }
        let state = RwLock::new(state);
        let mut floor = 0;
        for chunk in 0..199 {
            let findings = (chunk * 100..chunk * 100 + 100).flat_map(|n| {
                let refused = (n % 3 == 0).then(|| finding("key", &format!("refused {n}")));
                refused.into_iter().chain([finding("key", &value(n)), finding("other", "none")])
            });
            replace_written_values(&state, &findings.collect::<Vec<_>>(), &mut floor);
        }
        let state = state.into_inner();
        let history = state.keys.get("key".as_bytes()).unwrap();
        for (n, kept) in history.kept_from(0).enumerate() {
            assert_eq!((kept.value, kept.sum != 0), (&Bytes::from(value(n)), n < 19_900), "{n}");
        }
        assert_eq!(history.kept_from(0).count(), 20_000);
    }

    #[test]
    fn a_value_outside_of_what_was_read_has_no_place_in_the_file() {
        let read = Bytes::from_static(b"some that were read");
        let source = Source::new(read.clone(), Bytes::copy_from_slice(&read)).unwrap();
        assert_eq!(source.find(&read.slice(5..)).unwrap().value, "that were read");
        assert!(source.find(&Bytes::copy_from_slice(b"that were read")).is_none());
        assert!(source.find(&read.slice(..STORED_BYTES_MIN - 1)).is_none());
        assert!(Source::new(read.clone(), read.slice(1..)).is_none());
    }
}
