//! All kept versions of one key.

use std::borrow::Cow;

use bytes::Bytes;

use super::packed::Value;
use crate::kv::{KeyValue, Revision};

/// One version; a tombstone has `version` 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) value: Bytes,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
    /// Which change of its revision it is, from 0.
    pub(crate) sub: u32,
}

impl Version {
    /// The deletion of a key as the change `sub` of `revision`.
    pub(crate) fn tombstone(revision: i64, sub: u32) -> Self {
        Self { value: Bytes::new(), created: 0, modified: revision, version: 0, lease: 0, sub }
    }

    /// Whether this is a deletion.
    pub(crate) fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    /// As the contract's type; shares key and value.
    pub(crate) fn to_kv(&self, key: &Bytes, keys_only: bool) -> KeyValue {
        KeyValue {
            key: key.clone(),
            value: if keys_only { Bytes::new() } else { self.value.clone() },
            create_revision: Revision(self.created),
            mod_revision: Revision(self.modified),
            version: self.version,
            lease: self.lease,
        }
    }
}

/// Versions of one key, oldest first. The newest sits inline: most keys have only that one, and no second allocation.
#[derive(Debug, Clone)]
pub(crate) struct History {
    latest: Version,
    older: Vec<Older>,
}

/// A version that is not the newest; see [`Version`].
#[derive(Debug, Clone)]
struct Older {
    value: Value,
    created: i64,
    modified: i64,
    version: i64,
    lease: i64,
    sub: u32,
}

impl Older {
    fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    fn with(&self, value: Bytes) -> Version {
        let Self { created, modified, version, lease, sub, .. } = *self;
        Version { value, created, modified, version, lease, sub }
    }
}

/// What [`History::trim`] did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Trimmed {
    /// Versions dropped.
    pub(crate) versions: usize,
    /// Bytes of their values.
    pub(crate) bytes: usize,
    /// Nothing is left of the key.
    pub(crate) gone: bool,
}

impl History {
    pub(crate) fn new(first: Version) -> Self {
        Self { latest: first, older: Vec::new() }
    }

    /// Appends a newer version.
    pub(crate) fn push(&mut self, version: Version) {
        let Version { value, created, modified, version: number, lease, sub } =
            std::mem::replace(&mut self.latest, version);
        let value = Value::keep(value, number, &self.latest.value);
        // Most keys have few older versions for most of the time.
        if self.older.len() < 4 {
            self.older.reserve_exact(1);
        }
        self.older.push(Older { value, created, modified, version: number, lease, sub });
    }

    /// An older version with its value.
    fn whole(&self, index: usize) -> Option<Version> {
        let behind = self.older.get(index..)?;
        let whole = behind.iter().position(|older| matches!(older.value, Value::Whole(_)));
        let mut value = self.latest.value.clone();
        for older in behind.iter().take(whole.map_or(behind.len(), |at| at + 1)).rev() {
            value = older.value.unpack(&value);
        }
        Some(behind.first()?.with(value))
    }

    /// The newest version, tombstones included.
    pub(crate) fn latest(&self) -> &Version {
        &self.latest
    }

    /// The newest version, unless the key is deleted.
    pub(crate) fn live(&self) -> Option<&Version> {
        (!self.latest.is_tombstone()).then_some(&self.latest)
    }

    /// The version that was valid at `revision`.
    pub(crate) fn at(&self, revision: i64) -> Option<Cow<'_, Version>> {
        if self.latest.modified <= revision {
            return self.live().map(Cow::Borrowed);
        }
        let behind = self.older.partition_point(|v| v.modified <= revision);
        let index = behind.checked_sub(1).filter(|at| !self.is_tombstone(*at))?;
        self.whole(index).map(Cow::Owned)
    }

    /// The version at this place, the newest behind all others.
    fn get(&self, index: usize) -> Cow<'_, Version> {
        self.whole(index).map_or(Cow::Borrowed(&self.latest), Cow::Owned)
    }

    fn modified(&self, index: usize) -> i64 {
        self.older.get(index).map_or(self.latest.modified, |older| older.modified)
    }

    fn sub(&self, index: usize) -> u32 {
        self.older.get(index).map_or(self.latest.sub, |older| older.sub)
    }

    fn is_tombstone(&self, index: usize) -> bool {
        self.older.get(index).map_or(self.latest.is_tombstone(), Older::is_tombstone)
    }

    /// The version that is the change `sub` of `revision`, and the one that was valid before the revision.
    pub(crate) fn written_at(
        &self,
        revision: i64,
        sub: u32,
    ) -> Option<(Cow<'_, Version>, Option<Cow<'_, Version>>)> {
        let first = self.older.partition_point(|v| v.modified < revision);
        // Nearly always it is the only one of its revision.
        let found = (first..=self.older.len())
            .take_while(|index| self.modified(*index) == revision)
            .fold(None, |found, index| match found {
                Some(_) if self.sub(index) != sub => found,
                _ => Some(index),
            });
        let version = self.get(found?);
        // What was made anew has nothing before it, even where it was deleted in the same revision.
        let before = first.checked_sub(1).filter(|_| version.created != revision);
        let before = before.filter(|index| !self.is_tombstone(*index));
        Some((version, before.map(|index| self.get(index))))
    }

    /// All versions up to `revision`, oldest first.
    pub(crate) fn versions_to(&self, revision: i64) -> Vec<Version> {
        let mut versions = Vec::with_capacity(self.older.len() + 1);
        let mut value = self.latest.value.clone();
        if self.latest.modified <= revision {
            versions.push(self.latest.clone());
        }
        for older in self.older.iter().rev() {
            value = older.value.unpack(&value);
            if older.modified <= revision {
                versions.push(older.with(value.clone()));
            }
        }
        versions.reverse();
        versions
    }

    /// Drops what no read at `compacted` or later and no event from `compacted` on needs: all versions before the newest
    /// one older than `compacted`, and that one too when it is a deletion.
    pub(crate) fn trim(&mut self, compacted: i64) -> Trimmed {
        let mut done = Trimmed::default();
        if self.latest.modified < compacted {
            done.gone = self.latest.is_tombstone();
            done.versions = self.older.len() + usize::from(done.gone);
            done.bytes = self.older.iter().map(|v| v.value.len()).sum();
            self.older = Vec::new();
            return done;
        }
        let mut keep = self.older.partition_point(|v| v.modified < compacted).saturating_sub(1);
        if self.older.get(keep).is_some_and(|v| v.modified < compacted && v.is_tombstone()) {
            keep += 1;
        }
        done.versions = keep;
        done.bytes = self.older.drain(..keep).map(|v| v.value.len()).sum();
        if self.older.capacity() > 2 * self.older.len() + 4 {
            self.older.shrink_to_fit();
        }
        done
    }
}
