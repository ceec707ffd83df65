//! Replaces values in memory by the same values in files.

use bytes::Bytes;
use parking_lot::RwLock;

use super::file_values::MappedValue;
use super::state::State;

/// A value that was found in a file.
#[derive(Debug)]
pub(crate) struct FileValue {
    pub(crate) key: Bytes,
    /// As it was read.
    pub(crate) read: Bytes,
    pub(crate) stored: MappedValue,
}

/// Versions of a key looked at for the one that a record of the log wrote: what lies in files already is passed by, and some
/// that do not fit, for of a record that had no effect there is none.
const LOOKED_AT_MAX: usize = 1024;
const UNFIT_MAX: usize = 4;

/// Values of the state and what takes their places; where they are in their histories, for one key can have many.
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
    // What was exchanged goes now, behind the lock: with it may go the last slice of a map.
    drop(exchanges);
}

/// Exchanges values in memory for the same ones in a part of the log, whose records are in the order of revisions: none of
/// them was written before the revision `floor`, which is moved on.
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
            // They are in memory, so comparing them is quick.
            let found = kept.take(UNFIT_MAX).find(|kept| *kept.value == finding.read);
            if let Some(kept) = found {
                *floor = kept.modified;
                exchanges.push((finding, (kept.modified, kept.sub), kept.value.clone()));
            }
        }
    }
    exchange(state, exchanges);
}

/// Exchanges values, also those in other files, for the same ones in a checkpoint; each is the one of the change that stands
/// beside it.
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
    // Some may have to be read from the device: nobody waits for that.
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

    /// Whoever writes one key for hours without compaction has no store that stands still at each full segment.
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
