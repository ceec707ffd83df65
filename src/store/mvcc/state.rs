//! The state, and how commands change it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::Command;
use super::cluster_data::ClusterData;
use super::file_values::Source;
use super::history::{History, Version};
use super::key::Key;
use crate::contract::{Event, KeyStats, KeyValue, Revision, StoreError, StoreSize, TxnResponse};

/// A gap of revisions that were handed out and lost in an unclean stop; they are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Newest revision that survived.
    pub(crate) from: i64,
    /// Revision that the store continued with.
    pub(crate) to: i64,
}

/// A granted lease and its attached keys.
#[derive(Debug, Clone, Default)]
pub(super) struct LeaseKeys {
    pub(super) ttl: i64,
    pub(super) keys: BTreeSet<Key>,
}

/// A key written or deleted at a revision; in order, the changes are the history that watches
/// replay.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) revision: i64,
    pub(super) key: Key,
}

/// Result of a command.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// Response to a transaction.
    Txn(TxnResponse),
    /// The revision after any other command.
    Done(Revision),
}

/// A key to write.
pub(super) struct Put<'a> {
    pub(super) key: &'a Bytes,
    pub(super) value: &'a Bytes,
    pub(super) lease: i64,
}

/// Index of the next change within its revision, whose events start at `first`.
fn sub(first: usize, events: &[Event]) -> u32 {
    u32::try_from(events.len().saturating_sub(first)).unwrap_or(u32::MAX)
}

/// The event of the change `sub` of `revision`.
fn event_of(key: &Bytes, history: &History, revision: i64, sub: u32) -> Option<Event> {
    let (version, before) = history.written_at(revision, sub)?;
    let prev = before.map(|v| v.to_kv(key.clone(), false));
    Some(Event { kv: version.to_kv(key.clone(), false), prev, deleted: version.is_tombstone() })
}

/// As [`event_of`], without references to mapped files, for callers that hold it for long.
pub(super) fn event_in_memory(
    key: &Bytes,
    history: &History,
    revision: i64,
    sub: u32,
) -> Option<Event> {
    let (version, before) = history.written_at(revision, sub)?;
    let kv = |version: &Version| {
        let kv = version.to_kv(key.clone(), false);
        match version.sum {
            0 => kv,
            _ => KeyValue { value: Bytes::copy_from_slice(&kv.value), ..kv },
        }
    };
    let prev = before.map(|before| kv(&before));
    Some(Event { kv: kv(&version), prev, deleted: version.is_tombstone() })
}

/// As [`event_of`] directly after the newest version of `history` replaced `before`, whose value is
/// at hand.
fn event_now(key: &Bytes, history: &History, before: &Version) -> Option<Event> {
    let version = history.latest();
    // The previous version is older than the revision's own changes of the key.
    if before.modified == version.modified {
        return event_of(key, history, version.modified, version.sub);
    }
    let prev = (!before.is_tombstone()).then(|| before.to_kv(key.clone(), false));
    Some(Event { kv: version.to_kv(key.clone(), false), prev, deleted: version.is_tombstone() })
}

/// The whole key space.
#[derive(Debug)]
pub(crate) struct State {
    /// Boxed histories: a node of the tree is half empty most of the time.
    pub(super) keys: BTreeMap<Key, Box<History>>,
    pub(super) changes: VecDeque<Change>,
    pub(super) leases: BTreeMap<i64, LeaseKeys>,
    pub(super) gaps: Vec<Gap>,
    pub(super) cluster_data: ClusterData,
    pub(super) revision: i64,
    pub(super) compacted: i64,
    pub(super) counts: KeyStats,
    trimmed: i64,
    pins: usize,
    live: usize,
    bytes: usize,
    /// The part of the log that is being replayed: its values stay in the file.
    source: Option<Source>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            keys: BTreeMap::new(),
            changes: VecDeque::new(),
            leases: BTreeMap::new(),
            gaps: Vec::new(),
            cluster_data: ClusterData::default(),
            // An empty etcd has revision 1.
            revision: 1,
            compacted: 0,
            counts: KeyStats::default(),
            trimmed: 0,
            pins: 0,
            live: 0,
            bytes: 0,
            source: None,
        }
    }
}

impl State {
    /// A state without keys, already trimmed to its compaction.
    pub(super) fn at(revision: i64, compacted: i64) -> Self {
        Self { revision, compacted, trimmed: compacted, ..Self::default() }
    }

    /// Accounts for an imported key.
    pub(super) fn count_imported(&mut self, live: usize, bytes: usize) {
        self.live += live;
        self.bytes += bytes;
    }

    /// Newest revision.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Oldest revision that can be read; 0 when nothing was compacted.
    pub(crate) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Revisions lost to unclean stops and not compacted yet.
    pub(crate) fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Statistics since this state was created.
    pub(crate) fn counts(&self) -> KeyStats {
        self.counts
    }

    /// Alarms and profiles.
    pub(crate) fn cluster_data(&self) -> &ClusterData {
        &self.cluster_data
    }

    /// Clears alarms and profiles, for another cluster.
    pub(crate) fn clear_cluster_data(&mut self) {
        self.cluster_data = ClusterData::default();
    }

    /// Number of keys and bytes; `disk` is left 0.
    pub(crate) fn size(&self) -> StoreSize {
        StoreSize { keys: self.live, memory: self.bytes, disk: 0 }
    }

    /// Ids and granted seconds of all leases.
    pub(crate) fn leases(&self) -> impl Iterator<Item = (i64, i64)> {
        self.leases.iter().map(|(id, lease)| (*id, lease.ttl))
    }

    /// Keys attached to a lease, in key order; `None` if the lease does not exist.
    pub(crate) fn lease_keys(&self, id: i64) -> Option<impl Iterator<Item = Bytes>> {
        Some(self.leases.get(&id)?.keys.iter().map(Key::shared))
    }

    /// Keys that exist, with their values.
    pub(crate) fn existing_keys(&self) -> impl Iterator<Item = (Bytes, &Bytes)> {
        self.keys.iter().filter_map(|(key, history)| Some((key.shared(), &history.live()?.value)))
    }

    /// Granted seconds of one lease.
    pub(crate) fn lease_ttl(&self, id: i64) -> Option<i64> {
        self.leases.get(&id).map(|lease| lease.ttl)
    }

    /// From now on, a put value that is a slice of the bytes read for `source` is kept as a mapping
    /// of the file.
    pub(crate) fn replay_from(&mut self, source: Option<Source>) {
        self.source = source;
    }

    /// Applies a command; a refused one changes nothing. Changes are appended to `events`.
    ///
    /// # Errors
    /// The errors of the operation, as in the contract.
    pub(crate) fn apply(
        &mut self,
        command: &Command,
        events: &mut Vec<Event>,
    ) -> Result<Outcome, StoreError> {
        self.cluster_data.check(command)?;
        match command {
            Command::Txn(txn) => self.apply_txn(txn, events).map(Outcome::Txn),
            Command::Compact(revision) => self.compact(*revision).map(|()| self.done()),
            Command::LeaseGrant { id, ttl } => match self.leases.entry(*id) {
                Entry::Occupied(_) => Err(StoreError::LeaseExists),
                Entry::Vacant(entry) => {
                    entry.insert(LeaseKeys { ttl: *ttl, keys: BTreeSet::new() });
                    Ok(self.done())
                }
            },
            Command::LeaseRevoke { id } => {
                let lease = self.leases.remove(id).ok_or(StoreError::LeaseNotFound)?;
                if !lease.keys.is_empty() {
                    let (revision, first) = (self.revision + 1, events.len());
                    for key in &lease.keys {
                        self.delete(key, revision, first, events);
                    }
                    self.revision = revision;
                }
                Ok(self.done())
            }
            Command::Alarm { .. } | Command::SetProfile { .. } => {
                self.cluster_data.apply(command);
                Ok(self.done())
            }
            Command::Raise { revision } => {
                if *revision > self.revision {
                    self.gaps.push(Gap { from: self.revision, to: *revision });
                    self.revision = *revision;
                }
                Ok(self.done())
            }
        }
    }

    fn done(&self) -> Outcome {
        Outcome::Done(Revision(self.revision))
    }

    /// Writes a key at `revision`, whose events start at `first`; the lease was checked. Returns
    /// the previous version.
    pub(super) fn put(
        &mut self,
        put: Put<'_>,
        revision: i64,
        first: usize,
        events: &mut Vec<Event>,
    ) -> Option<KeyValue> {
        let Put { key, value, lease } = put;
        let (value, sum) = match self.source.as_ref().and_then(|source| source.find(value)) {
            Some(stored) => (stored.value, stored.sum),
            // A copy of exact size: the caller's buffer may be a slice that keeps a whole request
            // alive.
            None => (Bytes::copy_from_slice(value), 0),
        };
        let sub = sub(first, events);
        self.bytes += value.len();
        // The copy of the key is for a new one; making it costs less than a second lookup.
        let (key, shared, prev, event) = match self.keys.entry(Key::new(key)) {
            Entry::Occupied(mut entry) => {
                let (key, shared) = (entry.key().clone(), entry.key().shared());
                let before = entry.get().latest().clone();
                let (created, version) = if before.is_tombstone() {
                    (revision, 1)
                } else {
                    (before.created, before.version.saturating_add(1))
                };
                let modified = revision;
                let version = Version { value, created, modified, version, lease, sub, sum };
                entry.get_mut().push(version);
                let event = event_now(&shared, entry.get(), &before);
                (key, shared, (!before.is_tombstone()).then_some(before), event)
            }
            Entry::Vacant(entry) => {
                let (key, shared) = (entry.key().clone(), entry.key().shared());
                self.bytes += key.len();
                let (created, modified) = (revision, revision);
                let version = Version { value, created, modified, version: 1, lease, sub, sum };
                let history = entry.insert(Box::new(History::new(version)));
                let event = event_of(&shared, history, revision, sub);
                (key, shared, None, event)
            }
        };
        let old_lease = prev.as_ref().map_or(0, |v| v.lease);
        if old_lease != lease {
            self.detach(old_lease, &key);
        }
        if lease != 0
            && let Some(entry) = self.leases.get_mut(&lease)
        {
            entry.keys.insert(key.clone());
        }
        if prev.is_none() {
            self.live += 1;
        }
        let prev = prev.map(|v| v.to_kv(shared, false));
        events.extend(event);
        self.changes.push_back(Change { revision, key });
        prev
    }

    /// Deletes a key at `revision`, whose events start at `first`; returns the previous version, or
    /// `None` if the key does not exist.
    pub(super) fn delete(
        &mut self,
        key: &Key,
        revision: i64,
        first: usize,
        events: &mut Vec<Event>,
    ) -> Option<KeyValue> {
        let (sub, shared) = (sub(first, events), key.shared());
        let history = self.keys.get_mut(key)?;
        let before = history.live()?.clone();
        history.push(Version::tombstone(revision, sub));
        events.extend(event_now(&shared, history, &before));
        self.live -= 1;
        self.detach(before.lease, key);
        let prev = before.to_kv(shared, false);
        self.changes.push_back(Change { revision, key: key.clone() });
        Some(prev)
    }

    fn detach(&mut self, lease: i64, key: &Key) {
        if lease != 0
            && let Some(entry) = self.leases.get_mut(&lease)
        {
            entry.keys.remove(key);
        }
    }

    fn compact(&mut self, revision: i64) -> Result<(), StoreError> {
        if revision <= self.compacted {
            return Err(StoreError::Compacted { requested: revision, oldest: self.compacted });
        }
        if revision > self.revision {
            return Err(StoreError::Future { requested: revision, newest: self.revision });
        }
        self.compacted = revision;
        self.gaps.retain(|gap| gap.to > revision);
        if self.pins == 0 {
            self.trim();
        }
        Ok(())
    }

    /// Keeps versions that compaction would drop until [`State::unpin`], so that a slow reader sees
    /// one state.
    pub(crate) fn pin(&mut self) {
        self.pins += 1;
    }

    /// Ends a [`State::pin`] and drops the versions it kept.
    pub(crate) fn unpin(&mut self) {
        self.pins = self.pins.saturating_sub(1);
        if self.pins == 0 && self.trimmed < self.compacted {
            self.trim();
        }
    }

    /// Drops versions that compaction made unreachable; the cost depends on the number of changes,
    /// not of keys.
    fn trim(&mut self) {
        let compacted = self.compacted;
        let behind = self.changes.partition_point(|change| change.revision < compacted);
        for change in self.changes.drain(..behind) {
            let Some(history) = self.keys.get_mut(&change.key) else { continue };
            let done = history.trim(compacted);
            self.bytes -= done.bytes;
            self.counts.compacted += done.versions as u64;
            if done.gone {
                self.bytes -= change.key.len();
                self.keys.remove(&change.key);
            }
        }
        if self.changes.capacity() > 4 * self.changes.len() + 64 {
            self.changes.shrink_to_fit();
        }
        self.trimmed = compacted;
    }

    /// Keys after `after` with their versions up to `revision`: about `bytes` bytes, at least one
    /// key. Used by checkpoints; the state must be pinned.
    pub(crate) fn export(
        &self,
        after: Option<&Bytes>,
        revision: i64,
        bytes: usize,
    ) -> Vec<(Bytes, Vec<Version>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, |key| Excluded(key.as_ref()));
        let (mut taken, mut keys) = (0, Vec::new());
        for (key, history) in self.keys.range::<[u8], _>((from, Unbounded)) {
            let versions = history.versions_to(revision);
            taken += key.len() + versions.iter().map(|v| v.value.len()).sum::<usize>();
            keys.push((key.shared(), versions));
            if taken >= bytes {
                break;
            }
        }
        keys
    }
}
