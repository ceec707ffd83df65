//! Revisions, keys and ranges of keys.

use bytes::Bytes;

/// A revision of the whole key space; the first write has 2, as in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub i64);

/// One version of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// Key.
    pub key: Bytes,
    /// Value; empty in a tombstone. That of a read may be a slice of a file of the store, and keeps the file's space on the
    /// device, also after the store has removed it: who keeps it for long copies it.
    pub value: Bytes,
    /// Revision that created the key.
    pub create_revision: Revision,
    /// Revision of this version.
    pub mod_revision: Revision,
    /// 1 for the creation, counted up by each change.
    pub version: i64,
    /// Lease the key hangs on; 0 is none.
    pub lease: i64,
}

/// Keys from `start` up to, not including, `end`; an empty `end` means the one key `start`, `[0]` means all keys from `start`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// First key.
    pub start: Bytes,
    /// Key behind the last one.
    pub end: Bytes,
}

impl KeyRange {
    /// Exactly one key.
    pub fn key(key: impl Into<Bytes>) -> Self {
        Self { start: key.into(), end: Bytes::new() }
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self.end.as_ref() {
            [] => key == self.start.as_ref(),
            [0] => key >= self.start.as_ref(),
            end => key >= self.start.as_ref() && key < end,
        }
    }

    /// All keys with this prefix.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let mut end = start.to_vec();
        while let Some(last) = end.pop() {
            if last < 0xff {
                end.push(last + 1);
                break;
            }
        }
        if end.is_empty() {
            end.push(0);
        }
        Self { start, end: end.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_range_ends_behind_the_last_key_with_it() {
        assert_eq!(KeyRange::prefix("/a/").end, "/a0");
        assert_eq!(KeyRange::prefix(&b"a\xff"[..]).end, "b");
        assert_eq!(KeyRange::prefix(&b"\xff\xff"[..]).end, &[0][..]);
    }
}
