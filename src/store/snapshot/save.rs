//! Writes the state as a database file of etcd, verifies it, and appends its sha256.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use parking_lot::RwLock;
use sorting::CompactSort as _;

use super::records::{KeyValue, change_key, encode_lease};
use super::{SUM, buckets, load, meta};
use crate::bolt::{Sink, Writer};
use crate::contract::SavedSnapshot;
use crate::mvcc::{State, Version};

/// Maximum number of changes that are sorted at a time; bounds the memory whatever the size of the
/// state.
#[cfg(not(test))]
const ORDERED_MAX: usize = 128 * 1024;
/// Small, so that tests cross the boundaries.
#[cfg(test)]
const ORDERED_MAX: usize = 16;
/// Bytes of keys and values exported from the state per lock.
const BYTES_PER_LOCK: usize = 128 * 1024;
/// The etcd storage version of these buckets. 3.7 changed none of them, and 3.6 does not accept a
/// newer version.
pub(super) const STORAGE_VERSION: &str = "3.6.0";

/// Metadata of a snapshot besides the changes.
#[derive(Debug, Clone)]
pub(crate) struct Header {
    /// Revision of the state, which must stay pinned.
    pub(crate) revision: i64,
    /// Compacted revision.
    pub(crate) compacted: i64,
    /// Leases: id and granted seconds.
    pub(crate) leases: Vec<(i64, i64)>,
    /// Index and term of the consensus, never 0.
    pub(crate) index: u64,
    /// See `index`.
    pub(crate) term: u64,
}

impl Sink for &File {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }
}

/// Writes a pinned state to an empty file, synced and verified.
///
/// # Errors
/// Errors of the file system; a file that does not read back as it was written.
pub(crate) fn save(
    mut file: &File,
    state: &RwLock<State>,
    header: &Header,
) -> io::Result<SavedSnapshot> {
    let (changes, bytes) = write(&mut file, state, header)?;
    let sum = load::digest(file, bytes).map_err(io::Error::other)?;
    file.write_all_at(sum.as_ref(), bytes)?;
    file.sync_all()?;
    let info = load::inspect(file)
        .map_err(|error| io::Error::other(format!("the written snapshot {error}")))?;
    if (info.revision, info.changes, info.leases) != (header.revision, changes, header.leases.len())
    {
        return Err(io::Error::other("the written snapshot does not read back correctly"));
    }
    Ok(SavedSnapshot {
        revision: header.revision,
        size: bytes + SUM,
        changes,
        storage_version: STORAGE_VERSION.to_owned(),
    })
}

fn write(sink: &mut dyn Sink, state: &RwLock<State>, header: &Header) -> io::Result<(u64, u64)> {
    let mut writer = Writer::new(sink);
    let changes = write_changes(&mut writer, state, header)?;
    let mut bucket = writer.bucket(buckets::LEASE);
    let mut leases = header.leases.clone();
    leases.compact_sort_by_key(|(id, _)| id.to_be_bytes());
    for (id, ttl) in leases {
        let mut lease = Vec::new();
        encode_lease(id, ttl, &mut lease);
        bucket.put(&id.to_be_bytes(), &lease)?;
    }
    bucket.finish()?;
    let mut bucket = writer.bucket(buckets::META);
    bucket.put(meta::INDEX, &header.index.to_be_bytes())?;
    if header.compacted > 0 {
        bucket.put(meta::FINISHED, &change_key(header.compacted, 0, false))?;
        bucket.put(meta::SCHEDULED, &change_key(header.compacted, 0, false))?;
    }
    bucket.put(meta::STORAGE_VERSION, STORAGE_VERSION.as_bytes())?;
    bucket.put(meta::TERM, &header.term.to_be_bytes())?;
    bucket.finish()?;
    let mut bucket = writer.bucket(buckets::AUTH);
    bucket.put(b"authEnabled", &[0])?;
    bucket.finish()?;
    for name in buckets::EMPTY {
        writer.bucket(name).finish()?;
    }
    Ok((changes, writer.finish()?))
}

/// A change, ordered by revision and sub-revision; the other fields order changes whose
/// sub-revision an older store did not keep.
#[derive(Debug, Clone)]
struct Change {
    key: Bytes,
    place: usize,
    version: Version,
}

impl Change {
    fn order(&self) -> (i64, u32, &[u8], usize) {
        (self.version.modified, self.version.sub, &self.key, self.place)
    }
}

impl PartialEq for Change {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Change {}

impl PartialOrd for Change {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Change {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// Versions that etcd keeps after a compaction: all later ones, and the one that is valid at it, or
/// was deleted exactly then.
fn kept(versions: &[Version], compacted: i64) -> impl Iterator<Item = &Version> {
    let behind = versions.partition_point(|version| version.modified <= compacted);
    let at = behind.checked_sub(1).and_then(|at| versions.get(at));
    let at = at.filter(|version| !version.is_tombstone() || version.modified == compacted);
    at.into_iter().chain(versions.get(behind..).unwrap_or_default())
}

/// The next changes after `after` in order, a limited number.
fn ordered(state: &RwLock<State>, header: &Header, after: Option<&Change>) -> Vec<Change> {
    let mut first = BinaryHeap::new();
    let mut key: Option<Bytes> = None;
    loop {
        let keys = state.read().export(key.as_ref(), header.revision, BYTES_PER_LOCK);
        let Some((last, _)) = keys.last() else { break };
        key = Some(last.clone());
        for (key, versions) in &keys {
            for (place, version) in kept(versions, header.compacted).enumerate() {
                let change = Change { key: key.clone(), place, version: version.clone() };
                let due = after.is_none_or(|after| change > *after);
                if !due
                    || first.len() == ORDERED_MAX && first.peek().is_some_and(|last| change > *last)
                {
                    continue;
                }
                first.push(change);
                if first.len() > ORDERED_MAX {
                    first.pop();
                }
            }
        }
    }
    first.into_sorted_vec()
}

/// Writes the bucket of all changes and returns their number. etcd takes its revision from the last
/// one.
fn write_changes(
    writer: &mut Writer<'_>,
    state: &RwLock<State>,
    header: &Header,
) -> io::Result<u64> {
    let mut bucket = writer.bucket(buckets::KEY);
    let (mut count, mut revision, mut next) = (0, 0, 0);
    let mut after: Option<Change> = None;
    let mut value = Vec::new();
    loop {
        let changes = ordered(state, header, after.as_ref());
        for change in &changes {
            let version = &change.version;
            version.check(&change.key)?;
            let taken = if version.modified == revision { next } else { 0 };
            let place = version.sub.max(taken);
            (revision, next) = (version.modified, place.saturating_add(1));
            value.clear();
            KeyValue::encode(&change.key, version, &mut value);
            bucket.put(&change_key(revision, place, version.is_tombstone()), &value)?;
            count += 1;
        }
        if changes.len() < ORDERED_MAX {
            break;
        }
        after = changes.into_iter().next_back();
    }
    if revision < header.revision && header.revision > 1 {
        // The revision advanced without a kept change: a deletion of no key records it.
        bucket.put(&change_key(header.revision, 0, true), &[])?;
        count += 1;
    }
    bucket.finish()?;
    Ok(count)
}
