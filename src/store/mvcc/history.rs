//! All kept versions of one key.

use bytes::Bytes;

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
    older: Vec<Version>,
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
        self.older.push(std::mem::replace(&mut self.latest, version));
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
    pub(crate) fn at(&self, revision: i64) -> Option<&Version> {
        if self.latest.modified <= revision {
            return self.live();
        }
        let behind = self.older.partition_point(|v| v.modified <= revision);
        self.older.get(behind.checked_sub(1)?).filter(|v| !v.is_tombstone())
    }

    /// The version that is the change `sub` of `revision`, and the one that was valid before the revision.
    pub(crate) fn written_at(
        &self,
        revision: i64,
        sub: u32,
    ) -> Option<(&Version, Option<&Version>)> {
        let first = self.older.partition_point(|v| v.modified < revision);
        let written = |index: usize| self.older.get(index).unwrap_or(&self.latest);
        // Nearly always it is the only one of its revision.
        let found = (first..=self.older.len())
            .take_while(|index| written(*index).modified == revision)
            .fold(None, |found, index| match found {
                Some(_) if written(index).sub != sub => found,
                _ => Some(index),
            });
        let version = written(found?);
        let before = first.checked_sub(1).map(written).filter(|v| !v.is_tombstone());
        // What was made anew has nothing before it, even where it was deleted in the same revision.
        Some((version, before.filter(|_| version.created != revision)))
    }

    /// All versions, oldest first.
    pub(crate) fn versions(&self) -> impl Iterator<Item = &Version> {
        self.older.iter().chain(std::iter::once(&self.latest))
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
