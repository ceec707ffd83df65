//! Checksums of the key space at a revision, equal to etcd's `HashKV`.
//!
//! etcd hashes the records of its database: key and value of each version in the order of the
//! changes. Of versions that the compaction left, only those still valid at the revision count. For
//! exactly the revision of a compaction, this equals what etcd computes after a restart; the
//! checksum that etcd computes during the compaction must be kept by the caller that compacts.

use bytes::Bytes;
use sorting::CompactSort as _;

use super::history::Version;
use super::state::State;
use crate::contract::{KvHash, Revision, StoreError};

/// Bucket of etcd's database that holds the versions.
const TABLE: &[u8] = b"key";

/// Suffix of the key of a deletion's record.
const TOMBSTONE: u8 = b't';

struct HashedKey {
    key: Bytes,
    version: Version,
    /// Counts only if no key is valid at the revision.
    spare: bool,
}

/// Collects the versions that count.
pub(crate) struct Hashing {
    revision: i64,
    compacted: i64,
    newest: i64,
    leases: Vec<(i64, i64)>,
    entries: Vec<HashedKey>,
    kept: KeptVersions,
}

/// Whether a compaction at the revision would keep anything; otherwise all remaining records count.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct KeptVersions {
    /// As `HashKV`: a key deleted in exactly that revision is not found, even if it was created
    /// again in it.
    asked: bool,
    /// As a compaction: that deletion is found.
    compacting: bool,
}

impl State {
    /// Starts checksums at `revision` (0 is the newest); the state must stay pinned until the last
    /// key is added.
    ///
    /// # Errors
    /// [`StoreError::Compacted`], [`StoreError::Future`].
    pub(crate) fn hashing(&self, revision: Revision) -> Result<Hashing, StoreError> {
        self.check_revision(Some(revision), self.revision)?;
        Ok(Hashing {
            revision: if revision.0 == 0 { self.revision } else { revision.0 },
            compacted: self.compacted,
            newest: self.revision,
            leases: self.leases().collect(),
            entries: Vec::new(),
            kept: KeptVersions::default(),
        })
    }
}

impl Hashing {
    /// The revision.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Adds the versions of a key up to the revision, oldest first.
    pub(crate) fn add(&mut self, key: &Bytes, versions: Vec<Version>) {
        let behind = versions.partition_point(|version| version.modified <= self.compacted);
        let last = versions.len();
        let at = self.revision;
        let exists = versions.last().is_some_and(|version| !version.is_tombstone());
        let is_deletion = |version: &Version| version.modified == at && version.is_tombstone();
        let deleted = versions.iter().rev().take_while(|v| v.modified == at).any(is_deletion);
        self.kept.asked |= exists && !deleted;
        self.kept.compacting |= exists || deleted;
        for (index, version) in versions.into_iter().enumerate() {
            let valid = index + 1 == last && !version.is_tombstone();
            let spare = index + 1 == behind && !version.is_tombstone();
            if index >= behind || valid || spare {
                let spare = index < behind && !valid;
                self.entries.push(HashedKey { key: key.clone(), version, spare });
            }
        }
    }

    /// The checksums.
    pub(crate) fn finish(mut self) -> KvHash {
        self.entries.compact_sort_by_key(|entry| (entry.version.modified, entry.version.sub));
        let keys = self.sum(self.kept.asked);
        let compacting = match self.kept {
            KeptVersions { asked, compacting } if asked == compacting => keys,
            KeptVersions { compacting, .. } => self.sum(compacting),
        };
        let all = self.leases.iter().fold(keys, |sum, (id, ttl)| {
            let sum = crc32c::crc32c_append(sum, &id.to_be_bytes());
            crc32c::crc32c_append(sum, &ttl.to_be_bytes())
        });
        let (revision, compacted) = (Revision(self.revision), Revision(self.compacted));
        KvHash { keys, compacting, all, revision, compacted, newest: Revision(self.newest) }
    }

    /// Checksum of the keys; their optional versions do not count if anything is kept.
    fn sum(&self, kept: bool) -> u32 {
        let counted = self.entries.iter().filter(|entry| !(entry.spare && kept));
        let mut record = Vec::new();
        counted.fold(crc32c::crc32c(TABLE), |sum, entry| {
            record.clear();
            write_record(&entry.key, &entry.version, &mut record);
            crc32c::crc32c_append(sum, &record)
        })
    }
}

/// The key of a version's record in etcd's database and its value, a `mvccpb.KeyValue`.
fn write_record(key: &[u8], version: &Version, out: &mut Vec<u8>) {
    out.extend_from_slice(&version.modified.to_be_bytes());
    out.push(b'_');
    out.extend_from_slice(&i64::from(version.sub).to_be_bytes());
    if version.is_tombstone() {
        out.push(TOMBSTONE);
        return write_field(1, key, out);
    }
    write_field(1, key, out);
    write_number(2, version.created, out);
    write_number(3, version.modified, out);
    write_number(4, version.version, out);
    write_field(5, &version.value, out);
    write_number(6, version.lease, out);
}

fn write_field(number: u8, value: &[u8], out: &mut Vec<u8>) {
    use crate::encoding::Put;
    if !value.is_empty() {
        out.push(number << 3 | 2);
        out.put_bytes(value);
    }
}

fn write_number(number: u8, value: i64, out: &mut Vec<u8>) {
    use crate::encoding::Put;
    if value != 0 {
        out.push(number << 3);
        out.put_u64(value.cast_unsigned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{KeyRange, Op, Txn};
    use crate::mvcc::ClusterData;
    use crate::mvcc::Command;

    #[test]
    fn a_record_is_etcds() {
        let version = Version {
            value: "v".into(),
            created: 2,
            modified: 300,
            version: 3,
            lease: 7,
            sub: 1,
            sum: 0,
        };
        let mut record = Vec::new();
        write_record(b"k", &version, &mut record);
        let expected = b"\0\0\0\0\0\0\x01\x2c_\0\0\0\0\0\0\0\x01\x0a\x01k\x10\x02\x18\xac\x02\x20\x03\x2a\x01v\x30\x07";
        assert_eq!(record, expected);
        record.clear();
        write_record(b"k", &Version::tombstone(3, 0), &mut record);
        assert_eq!(record, b"\0\0\0\0\0\0\0\x03_\0\0\0\0\0\0\0\0t\x0a\x01k");
    }

    /// A state driven through the same requests as etcd 3.7.3.
    #[derive(Default)]
    struct World(State);

    impl World {
        fn done(&mut self, command: Command) {
            self.0.apply(&command, &mut Vec::new()).unwrap();
        }

        fn write(&mut self, steps: Vec<Op>) {
            self.done(Command::Txn(Txn { success: steps, ..Txn::default() }));
        }

        fn hash(&self, revision: i64) -> (u32, i64, i64) {
            let hash = self.both(revision);
            (hash.keys, hash.compacted.0, hash.revision.0)
        }

        fn both(&self, revision: i64) -> KvHash {
            let mut hashing = self.0.hashing(Revision(revision)).unwrap();
            for (key, versions) in self.0.export(None, hashing.revision(), usize::MAX) {
                hashing.add(&key, versions);
            }
            hashing.finish()
        }
    }

    fn put(key: &str, value: &str, lease: i64) -> Op {
        Op::Put {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            lease,
            prev_kv: false,
        }
    }

    fn delete(key: &str) -> Op {
        Op::Delete { range: KeyRange::key(key.to_owned()), prev_kv: false }
    }

    /// The numbers are those of etcd 3.7.3's `endpoint hashkv` after the same writes.
    #[test]
    fn checksums_are_etcds() {
        let mut world = World::default();
        for step in [put("a", "1", 0), put("b", "2", 0), put("a", "3", 0), delete("b")] {
            world.write(vec![step]);
        }
        assert_eq!(world.hash(0), (1_125_682_900, 0, 5));
        assert_eq!(world.hash(4), (2_069_675_932, 0, 4));
        world.done(Command::Compact(5));
        assert_eq!(world.hash(0), (3_184_071_396, 5, 5));
        world.write(vec![put("c", "4", 0), put("d", "5", 0), delete("a")]);
        let lease = 1_418_812_014_941_420_568;
        world.done(Command::LeaseGrant { id: lease, ttl: 700 });
        world.write(vec![put("l", "1", lease)]);
        assert_eq!(world.hash(0), (4_127_277_636, 5, 7));
        world.done(Command::Compact(6));
        world.write(vec![put("e", "1", 0)]);
        assert_eq!(world.hash(0), (3_425_853_654, 6, 8));
        assert_eq!(world.hash(7), (4_034_566_599, 6, 7));
        // A state restored from a checkpoint has the same checksums.
        let keys = world.0.export(None, i64::MAX, usize::MAX).into_iter();
        let leases = world.0.leases().collect::<Vec<_>>().into_iter();
        let back = State::import(8, 6, Vec::new(), ClusterData::default(), leases, keys);
        assert_eq!(World(back).hash(7), (4_034_566_599, 6, 7));
    }

    /// As above, with etcd 3.7.3: `del a --from-key` and `put a 3` in one transaction, and
    /// compactions of deletions alone.
    #[test]
    fn hashes_include_tombstones_of_the_compacted_revision_as_in_etcd() {
        let mut world = World::default();
        world.write(vec![put("a", "1", 0)]);
        world.write(vec![put("a", "2", 0)]);
        world.done(Command::Compact(3));
        let range = KeyRange { start: "a".into(), end: vec![0].into() };
        world.write(vec![Op::Delete { range, prev_kv: false }, put("a", "3", 0)]);
        assert_eq!(world.hash(4), (4_190_683_044, 3, 4));
        world.write(vec![put("b", "4", 0)]);
        assert_eq!(world.hash(0), (4_249_722_575, 3, 5));
        assert_eq!(world.hash(4), (4_190_683_044, 3, 4));
        assert_eq!(world.both(5).compacting, 4_249_722_575);
        world.done(Command::Compact(5));
        world.write(vec![delete("a")]);
        world.write(vec![delete("b")]);
        assert_eq!(world.hash(0), (3_583_749_105, 5, 7));
        assert_eq!(world.both(7).compacting, 3_047_929_052);
        world.done(Command::Compact(7));
        assert_eq!(world.hash(0), (1_084_519_789, 7, 7));
        world.write(vec![put("c", "5", 0)]);
        assert_eq!(world.hash(0), (4_134_959_121, 7, 8));
    }

    #[test]
    fn compacted_and_future_revisions_have_no_hash() {
        let mut world = World::default();
        world.write(vec![put("a", "1", 0)]);
        world.write(vec![put("a", "2", 0)]);
        world.done(Command::Compact(3));
        assert!(matches!(world.0.hashing(Revision(2)), Err(StoreError::Compacted { .. })));
        assert!(matches!(world.0.hashing(Revision(4)), Err(StoreError::Future { .. })));
    }
}
