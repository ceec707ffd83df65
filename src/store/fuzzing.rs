//! What fuzzers feed: the decoders of bytes that come from disk, from other members, and from files that somebody hands over.

use crate::bolt::fuzz_mend;
use crate::log::fuzz_segment;
use crate::raft::fuzz_wire;
use crate::snapshot::inspect_bytes;

/// A segment of the log, or the payload of a record whose kind is its first byte.
pub fn records(bytes: &[u8]) {
    fuzz_segment(bytes);
}

/// A message of another member.
pub fn wire(bytes: &[u8]) {
    fuzz_wire(bytes);
}

/// A snapshot, as it is and with sums that are right.
pub fn snapshot(bytes: &[u8]) {
    // Whatever it is, an answer comes.
    drop(inspect_bytes(bytes));
    let mut mended = bytes.to_vec();
    fuzz_mend(&mut mended);
    drop(inspect_bytes(&mended));
}
