//! Values in files: mapped instead of kept in memory.
//!
//! A value in memory is dropped only after its replacement was compared with it byte for byte, or
//! was read in its place. A wrong position can therefore never yield a wrong value: a value that is
//! not found in a file stays in memory.

use bytes::Bytes;

/// Smaller values stay in memory: locating them costs more than it saves.
#[cfg(not(test))]
pub(crate) const STORED_BYTES_MIN: usize = 512;
/// Tests have small values.
#[cfg(test)]
pub(crate) const STORED_BYTES_MIN: usize = 4;

/// A value mapped from a file.
#[derive(Debug, Clone)]
pub(crate) struct MappedValue {
    pub(crate) value: Bytes,
    /// Checksum of the value, never 0: bytes from a device are verified before they are written
    /// again.
    pub(crate) sum: u32,
}

pub(super) fn checksum(value: &[u8]) -> u32 {
    crc32c::crc32c(value).max(1)
}

/// A part of a file as it was read, and the mapping of the same part.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    read: Bytes,
    map: Bytes,
}

impl Source {
    /// `None` if the lengths differ.
    pub(crate) fn new(read: Bytes, map: Bytes) -> Option<Self> {
        (read.len() == map.len()).then_some(Self { read, map })
    }

    /// The mapped value for a slice of the bytes that were read; `None` for any other or a small
    /// value. Touches no page of the mapping.
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
