//! Entry point of the fuzzers for segments of the log.

use super::entry_codec::decode_head;
use super::record::{Kind, LOG_MAGIC, read_file_header, scan};
use super::segments::Meta;
use crate::encoding::Reader;
use crate::mvcc::Command;

/// Decodes a segment, and the payload of a record whose kind is the first byte.
pub(crate) fn fuzz_segment(bytes: &[u8]) {
    if let Ok((_, _, chain)) = read_file_header("log", LOG_MAGIC, bytes) {
        drop(scan(bytes, chain, true));
    }
    let Some((kind, payload)) = bytes.split_first() else { return };
    drop(Meta::decode(payload));
    if let (Some(kind), Ok((head, mut reader))) =
        (Kind::from_byte(*kind), decode_head(Reader::new(payload)))
    {
        drop(head.body(kind, &mut reader));
    }
    drop(Command::decode(payload));
}
