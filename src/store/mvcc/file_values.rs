//! Values that lie in files: read where they are, instead of being kept in memory.
//!
//! A value is let go of only after the very bytes that replace it were compared with it, or were read in its stead. So neither
//! the place of a record nor what became of its entry can bring a wrong value: what is not found in a file stays in memory.

use bytes::Bytes;

/// Values below stay in memory: to find them in a file costs more than they need.
#[cfg(not(test))]
pub(crate) const STORED_BYTES_MIN: usize = 512;
/// Tests have small values.
#[cfg(test)]
pub(crate) const STORED_BYTES_MIN: usize = 4;

/// A value where it lies in a file.
#[derive(Debug, Clone)]
pub(crate) struct MappedValue {
    pub(crate) value: Bytes,
    /// Its checksum, which is never 0: what comes from a device is looked at again before it is written anew.
    pub(crate) sum: u32,
}

pub(super) fn checksum(value: &[u8]) -> u32 {
    crc32c::crc32c(value).max(1)
}

/// A part of a file as it was read, and the same part of the file's map.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    read: Bytes,
    map: Bytes,
}

impl Source {
    /// `None` where the two are not the same part.
    pub(crate) fn new(read: Bytes, map: Bytes) -> Option<Self> {
        (read.len() == map.len()).then_some(Self { read, map })
    }

    /// Where a value that is a slice of what was read lies in the file; `None` for any other, and for a small one. No page of
    /// the map is touched.
    pub(crate) fn find(&self, value: &Bytes) -> Option<MappedValue> {
        if value.len() < STORED_BYTES_MIN {
            return None;
        }
        let at = value.as_ptr().addr().checked_sub(self.read.as_ptr().addr())?;
        let end = at.checked_add(value.len()).filter(|end| *end <= self.map.len())?;
        let stored = MappedValue { value: self.map.slice(at..end), sum: checksum(value) };
        #[cfg(test)]
        assert_eq!(stored.value, value, "a map does not show what was read");
        Some(stored)
    }
}
