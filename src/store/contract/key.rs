//! Revisions, keys and ranges of keys.

use bytes::Bytes;

/// A revision of the key space; the first write has revision 2, as in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub i64);

/// A version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// Key.
    pub key: Bytes,
    /// Value; empty in a tombstone. The value of a read may be a slice of a mapped file and then
    /// keeps the space of that file allocated; a caller that holds it for long must copy it.
    pub value: Bytes,
    /// Revision that created the key.
    pub create_revision: Revision,
    /// Revision of this version.
    pub mod_revision: Revision,
    /// 1 for the creation, incremented by each change.
    pub version: i64,
    /// Lease attached to the key; 0 is none.
    pub lease: i64,
}

/// Keys from `start` up to, not including, `end`. An empty `end` selects the single key `start`;
/// `[0]` selects all keys from `start`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// First key.
    pub start: Bytes,
    /// First key after the range.
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
