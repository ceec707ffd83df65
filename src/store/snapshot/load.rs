//! Reads database files of etcd, without trusting their content.

use std::collections::BTreeMap;
use std::fs::File;

use bytes::Bytes;
use sorting::CollectOrdered as _;

use super::error::RecordError;
use super::records::{KeyValue, decode_lease, read_change_key};
use super::{BLOCK, SUM, SnapshotError, buckets, meta};
use crate::bolt::{Bucket, Database, Source};
use crate::contract::{MAX_TTL, MIN_TTL};
use crate::mvcc::Version;

/// Bytes hashed at a time.
const CHUNK: u64 = 1024 * 1024;
/// Maximum length of texts in the bucket `meta`.
const TEXT_MAX: usize = 64;

/// Description of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Size of the file in bytes.
    pub size: u64,
    /// Whether a trailing sha256 exists; files of a data directory have none.
    pub has_checksum: bool,
    /// Newest revision.
    pub revision: i64,
    /// Oldest readable revision; 0 if nothing was compacted.
    pub compacted: i64,
    /// Number of key changes.
    pub changes: u64,
    /// Number of leases.
    pub leases: usize,
    /// etcd storage version; written from 3.6 on.
    pub storage_version: Option<String>,
    /// Whether users and roles were enabled.
    pub auth: bool,
}

/// The newest state of a snapshot, without history.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) info: SnapshotInfo,
    /// Keys that exist.
    pub(crate) keys: BTreeMap<Bytes, Version>,
    /// Leases: id and granted seconds.
    pub(crate) leases: Vec<(i64, i64)>,
}

/// Verifies all of a snapshot.
///
/// # Errors
/// [`SnapshotError`] if any part is invalid.
pub fn inspect(file: &File) -> Result<SnapshotInfo, SnapshotError> {
    read(file, file.metadata()?.len(), &mut |_| {})
}

/// As [`inspect`], for the bytes of a file.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_bytes(bytes: &[u8]) -> Result<SnapshotInfo, SnapshotError> {
    read(bytes, bytes.len() as u64, &mut |_| {})
}

/// Reads the newest state of a snapshot.
///
/// # Errors
/// As [`inspect`].
pub(crate) fn load(file: &File) -> Result<Loaded, SnapshotError> {
    let mut keys = BTreeMap::new();
    let mut leases = BTreeMap::new();
    let info = read(file, file.metadata()?.len(), &mut |item| match item {
        Item::Put(kv, sub) => {
            let version = Version {
                value: Bytes::copy_from_slice(kv.value),
                created: kv.created,
                modified: kv.modified,
                version: kv.version,
                lease: kv.lease,
                sub,
                sum: 0,
            };
            keys.insert(Bytes::copy_from_slice(kv.key), version);
        }
        Item::Delete(key) => {
            keys.remove(key);
        }
        Item::Lease(id, ttl) => {
            leases.insert(id, ttl);
        }
    })?;
    Ok(Loaded { info, keys, leases: leases.into_iter().collect() })
}

/// Items of a snapshot, in order.
enum Item<'a> {
    /// Index of the change within its revision.
    Put(KeyValue<'a>, u32),
    Delete(&'a [u8]),
    Lease(i64, i64),
}

/// sha256 of the first `length` bytes.
pub(super) fn digest<S: Source + ?Sized>(
    source: &S,
    length: u64,
) -> Result<ring::digest::Digest, SnapshotError> {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let mut buffer = vec![0; usize::try_from(CHUNK.min(length)).unwrap_or(0)];
    let mut at = 0;
    while at < length {
        let take = usize::try_from(CHUNK.min(length - at)).unwrap_or(0);
        let chunk = buffer.get_mut(..take).unwrap_or_default();
        source.read_at(at, chunk)?;
        context.update(chunk);
        at += take as u64;
    }
    Ok(context.finish())
}

fn read<S: Source + ?Sized>(
    source: &S,
    size: u64,
    tell: &mut dyn FnMut(Item<'_>),
) -> Result<SnapshotInfo, SnapshotError> {
    let has_checksum = size % BLOCK == SUM;
    let length = if has_checksum { size - SUM } else { size };
    let mut database = Database::open(source, length)?;
    if has_checksum {
        let mut stored = [0; SUM as usize];
        source.read_at(length, &mut stored)?;
        if digest(source, length)?.as_ref() != stored {
            return Err(SnapshotError::Checksum);
        }
    }
    let mut found: BTreeMap<Vec<u8>, Bucket> = database.buckets()?.into_iter().collect_map();
    let mut take = |name: &[u8]| found.remove(name);
    let missing = |name: &str| {
        SnapshotError::Foreign(format!(
            "it is a database, but not of etcd: bucket {name:?} is missing"
        ))
    };
    let keys = take(buckets::KEY).ok_or_else(|| missing("key"))?;
    let about = take(buckets::META).ok_or_else(|| missing("meta"))?;
    let (leases, auth) = (take(buckets::LEASE), take(buckets::AUTH));
    let mut info = SnapshotInfo { size, has_checksum, revision: 1, ..SnapshotInfo::default() };
    database.each(about, &mut |key, value| read_meta(&mut info, key, value))?;
    if let Some(leases) = leases {
        database.each(leases, &mut |key, value| {
            let (id, ttl) = decode_lease(value).map_err(RecordError::Lease)?;
            if id == 0 || key != id.to_be_bytes() || !(0..=MAX_TTL).contains(&ttl) {
                return Err(RecordError::LeaseKey);
            }
            info.leases += 1;
            tell(Item::Lease(id, ttl.max(MIN_TTL)));
            Ok(())
        })?;
    }
    if let Some(auth) = auth {
        database.each(auth, &mut |key, value| {
            info.auth |= key == b"authEnabled" && value == [1];
            Ok::<(), RecordError>(())
        })?;
    }
    database.each(keys, &mut |key, value| read_change(&mut info, key, value, tell))?;
    Ok(info)
}

fn read_meta(info: &mut SnapshotInfo, key: &[u8], value: &[u8]) -> Result<(), RecordError> {
    if key == meta::STORAGE_VERSION {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= TEXT_MAX);
        info.storage_version = Some(text.ok_or(RecordError::StorageVersion)?.to_owned());
    }
    if key == meta::SCHEDULED || key == meta::FINISHED {
        let (revision, ..) = read_change_key(value).ok_or(RecordError::CompactedRevision)?;
        info.compacted = info.compacted.max(revision);
        info.revision = info.revision.max(revision);
    }
    Ok(())
}

fn read_change(
    info: &mut SnapshotInfo,
    key: &[u8],
    value: &[u8],
    tell: &mut dyn FnMut(Item<'_>),
) -> Result<(), RecordError> {
    let (revision, sub, deletion) = read_change_key(key).ok_or(RecordError::ChangeKey)?;
    info.revision = info.revision.max(revision);
    info.changes += 1;
    let kv = KeyValue::decode(value).map_err(RecordError::Change)?;
    if kv.key.is_empty() {
        // Only the revision counts: `etcdutl snapshot restore --bump-revision` adds such a record
        // after all others.
        return match value {
            [] => Ok(()),
            _ => Err(RecordError::NoKey),
        };
    }
    if deletion {
        tell(Item::Delete(kv.key));
        return Ok(());
    }
    if kv.modified != revision || !(1..=revision).contains(&kv.created) || kv.version < 1 {
        return Err(RecordError::Revision);
    }
    tell(Item::Put(kv, sub));
    Ok(())
}
