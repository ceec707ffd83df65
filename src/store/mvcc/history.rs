//! All kept versions of a key.

use std::borrow::Cow;
use std::io;

use bytes::Bytes;

use super::file_values::{MappedValue, checksum};
use super::packed::Value;
use crate::contract::{KeyValue, Revision};

/// A version; a tombstone has `version` 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) value: Bytes,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
    /// Index of the change within its revision, from 0.
    pub(crate) sub: u32,
    /// Checksum of the value if it is in a file; 0 if it is in memory.
    pub(crate) sum: u32,
}

impl Version {
    /// Verifies a value from a file before it gets a new checksum; values in memory need no check.
    ///
    /// # Errors
    /// `InvalidData` if the device returned other bytes.
    pub(crate) fn check(&self, key: &[u8]) -> io::Result<()> {
        if self.sum == 0 || checksum(&self.value) == self.sum {
            return Ok(());
        }
        let text = format!(
            "the device returned a different value than was written for {} at revision {}: replace \
             the device, and restore a snapshot or join the other members again",
            key.escape_ascii(),
            self.modified
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }

    /// The deletion of a key as change `sub` of `revision`.
    pub(crate) fn tombstone(revision: i64, sub: u32) -> Self {
        let value = Bytes::new();
        Self { value, created: 0, modified: revision, version: 0, lease: 0, sub, sum: 0 }
    }

    /// Whether this is a deletion.
    pub(crate) fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    /// Converts to the contract's type; shares the value.
    pub(crate) fn to_kv(&self, key: Bytes, keys_only: bool) -> KeyValue {
        KeyValue {
            key,
            value: if keys_only { Bytes::new() } else { self.value.clone() },
            create_revision: Revision(self.created),
            mod_revision: Revision(self.modified),
            version: self.version,
            lease: self.lease,
        }
    }
}

/// Versions of a key, oldest first. The newest is stored inline: most keys have no other, and need
/// no second allocation.
#[derive(Debug, Clone)]
#[expect(
    clippy::box_collection,
    reason = "most keys have no older versions, and a vector is larger than a pointer"
)]
pub(crate) struct History {
    latest: Version,
    older: Option<Box<Vec<Older>>>,
}

/// A version other than the newest; see [`Version`].
#[derive(Debug, Clone)]
struct Older {
    value: Value,
    created: i64,
    modified: i64,
    version: i64,
    lease: i64,
    sub: u32,
    sum: u32,
}

impl Older {
    fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    fn with(&self, value: Bytes) -> Version {
        let Self { created, modified, version, lease, sub, sum, .. } = *self;
        Version { value, created, modified, version, lease, sub, sum }
    }
}

/// Result of [`History::trim`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Trimmed {
    /// Number of dropped versions.
    pub(crate) versions: usize,
    /// Bytes of their values.
    pub(crate) bytes: usize,
    /// Whether no version is left.
    pub(crate) gone: bool,
}

/// A value stored uncompressed.
#[derive(Debug, Clone, Copy)]
pub(super) struct VersionRef<'a> {
    pub(super) value: &'a Bytes,
    pub(super) modified: i64,
    pub(super) sub: u32,
    /// As [`Version::sum`].
    pub(super) sum: u32,
}

impl History {
    pub(crate) fn new(first: Version) -> Self {
        Self { latest: first, older: None }
    }

    fn older(&self) -> &[Older] {
        self.older.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Appends a newer version.
    pub(crate) fn push(&mut self, version: Version) {
        let Version { value, created, modified, version: number, lease, sub, sum } =
            std::mem::replace(&mut self.latest, version);
        // A value in a file costs no memory, and need not be read now.
        let value = match sum {
            0 => Value::pack(value, number, &self.latest.value),
            _ => Value::Whole(value),
        };
        // Most keys have few older versions.
        let all = self.older.get_or_insert_default();
        if all.len() < 4 {
            all.reserve_exact(1);
        }
        all.push(Older { value, created, modified, version: number, lease, sub, sum });
    }

    /// An older version with its decompressed value.
    fn whole(&self, index: usize) -> Option<Version> {
        let behind = self.older().get(index..)?;
        let whole = behind.iter().position(|older| matches!(older.value, Value::Whole(_)));
        let mut value = self.latest.value.clone();
        for older in behind.iter().take(whole.map_or(behind.len(), |at| at + 1)).rev() {
            value = older.value.unpack(&value);
        }
        Some(behind.first()?.with(value))
    }

    /// The value at an index if it is stored uncompressed, with its revision, sub-revision and
    /// checksum.
    fn kept(&self, index: usize) -> Option<VersionRef<'_>> {
        let (value, modified, sub, sum) = match self.older().get(index) {
            Some(Older { value: Value::Whole(value), modified, sub, sum, .. }) => {
                (value, *modified, *sub, *sum)
            }
            Some(_) => return None,
            None => {
                let Version { value, modified, sub, sum, .. } = &self.latest;
                (value, *modified, *sub, *sum)
            }
        };
        Some(VersionRef { value, modified, sub, sum })
    }

    /// Uncompressed values of `floor` and later revisions, oldest first.
    pub(super) fn kept_from(&self, floor: i64) -> impl Iterator<Item = VersionRef<'_>> {
        let first = self.older().partition_point(|v| v.modified < floor);
        let kept = (first..=self.older().len()).filter_map(|index| self.kept(index));
        kept.filter(move |kept| kept.modified >= floor)
    }

    fn position(&self, modified: i64, sub: u32) -> Option<usize> {
        let first = self.older().partition_point(|v| v.modified < modified);
        let mut same =
            (first..=self.older().len()).take_while(|index| self.modified(*index) == modified);
        same.find(|index| self.sub(*index) == sub)
    }

    /// Index of the change `sub` of `modified`.
    pub(super) fn kept_at(&self, modified: i64, sub: u32) -> Option<VersionRef<'_>> {
        self.kept(self.position(modified, sub)?)
    }

    /// Replaces exactly this value of the change `sub` of `modified` by `stored`.
    pub(super) fn exchange(&mut self, value: &Bytes, at: (i64, u32), stored: &MappedValue) {
        let Some(index) = self.position(at.0, at.1) else { return };
        let older = self.older.as_mut().and_then(|all| all.get_mut(index));
        let (kept, sum) = match older {
            Some(Older { value: Value::Whole(kept), sum, .. }) => (kept, sum),
            Some(_) => return,
            None => (&mut self.latest.value, &mut self.latest.sum),
        };
        if kept.as_ptr() == value.as_ptr() && kept.len() == value.len() {
            *kept = stored.value.clone();
            *sum = stored.sum;
        }
    }

    /// The newest version, tombstones included.
    pub(crate) fn latest(&self) -> &Version {
        &self.latest
    }

    /// The newest version, unless the key is deleted.
    pub(crate) fn live(&self) -> Option<&Version> {
        (!self.latest.is_tombstone()).then_some(&self.latest)
    }

    /// The version valid at `revision`.
    pub(crate) fn at(&self, revision: i64) -> Option<Cow<'_, Version>> {
        if self.latest.modified <= revision {
            return self.live().map(Cow::Borrowed);
        }
        let behind = self.older().partition_point(|v| v.modified <= revision);
        let index = behind.checked_sub(1).filter(|at| !self.is_tombstone(*at))?;
        self.whole(index).map(Cow::Owned)
    }

    /// The version at an index; the newest has the last one.
    fn get(&self, index: usize) -> Cow<'_, Version> {
        self.whole(index).map_or(Cow::Borrowed(&self.latest), Cow::Owned)
    }

    fn modified(&self, index: usize) -> i64 {
        self.older().get(index).map_or(self.latest.modified, |older| older.modified)
    }

    fn sub(&self, index: usize) -> u32 {
        self.older().get(index).map_or(self.latest.sub, |older| older.sub)
    }

    fn is_tombstone(&self, index: usize) -> bool {
        self.older().get(index).map_or(self.latest.is_tombstone(), Older::is_tombstone)
    }

    /// The version that is the change `sub` of `revision`, and the version valid before the
    /// revision.
    pub(crate) fn written_at(
        &self,
        revision: i64,
        sub: u32,
    ) -> Option<(Cow<'_, Version>, Option<Cow<'_, Version>>)> {
        let first = self.older().partition_point(|v| v.modified < revision);
        // Nearly always it is the only change of its revision.
        let found = (first..=self.older().len())
            .take_while(|index| self.modified(*index) == revision)
            .fold(None, |found, index| match found {
                Some(_) if self.sub(index) != sub => found,
                _ => Some(index),
            });
        let version = self.get(found?);
        // A key created again has no previous version, even if it was deleted in the same revision.
        let before = first.checked_sub(1).filter(|_| version.created != revision);
        let before = before.filter(|index| !self.is_tombstone(*index));
        Some((version, before.map(|index| self.get(index))))
    }

    /// All versions up to `revision`, oldest first.
    pub(crate) fn versions_to(&self, revision: i64) -> Vec<Version> {
        let mut versions = Vec::with_capacity(self.older().len() + 1);
        let mut value = self.latest.value.clone();
        if self.latest.modified <= revision {
            versions.push(self.latest.clone());
        }
        for older in self.older().iter().rev() {
            value = older.value.unpack(&value);
            if older.modified <= revision {
                versions.push(older.with(value.clone()));
            }
        }
        versions.reverse();
        versions
    }

    /// Drops all versions that no read at `compacted` or later and no event from `compacted` on
    /// needs: those before the newest version older than `compacted`, and that one too if it is a
    /// deletion.
    pub(crate) fn trim(&mut self, compacted: i64) -> Trimmed {
        let mut done = Trimmed::default();
        if self.latest.modified < compacted {
            done.gone = self.latest.is_tombstone();
            let all = self.older.take().unwrap_or_default();
            done.versions = all.len() + usize::from(done.gone);
            done.bytes = all.iter().map(|v| v.value.len()).sum();
            return done;
        }
        let Some(all) = &mut self.older else { return done };
        let mut keep = all.partition_point(|v| v.modified < compacted).saturating_sub(1);
        if all.get(keep).is_some_and(|v| v.modified < compacted && v.is_tombstone()) {
            keep += 1;
        }
        done.versions = keep;
        done.bytes = all.drain(..keep).map(|v| v.value.len()).sum();
        if all.is_empty() {
            self.older = None;
        } else if all.capacity() > 2 * all.len() + 4 {
            all.shrink_to_fit();
        }
        done
    }
}
