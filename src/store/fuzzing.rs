//! Entry points of the fuzzers: decoders of bytes from disk, from other members and from foreign
//! files.

use crate::bolt::fuzz_repair;
use crate::log::fuzz_segment;
use crate::raft::fuzz_wire;
use crate::snapshot::inspect_bytes;

/// A segment of the log, or the payload of a record whose kind is its first byte.
pub fn records(bytes: &[u8]) {
    fuzz_segment(bytes);
}

/// A message from another member.
pub fn wire(bytes: &[u8]) {
    fuzz_wire(bytes);
}

/// A snapshot, as it is and with repaired checksums.
pub fn snapshot(bytes: &[u8]) {
    // Any result is fine; a panic is not.
    drop(inspect_bytes(bytes));
    let mut repaired = bytes.to_vec();
    fuzz_repair(&mut repaired);
    drop(inspect_bytes(&repaired));
}
