//! The framing of records, and the distinction between a torn tail and damaged data.
//!
//! ```text
//! file header, 64 bytes:  magic 8 | format u32 | checksum u32 | cluster id 16 | sequence u64
//!                         | zeros 24
//! record, 8-byte aligned: length u32 | previous u32 | synced u32 | kind u8, zeros 3
//!                         | head checksum u32 | checksum u32 | payload
//! ```
//! Numbers are little-endian, checksums CRC32C. `checksum` covers head and payload; `previous` is
//! the checksum of the previous record (of the file header for the first), which chains the log.
//! `synced` is the offset up to which the file was known to be durable when the record was written:
//! a later record with `synced` beyond a damaged position proves that the position had been
//! acknowledged.

use super::{FORMAT, OpenError};
use crate::contract::ClusterId;

/// Length of a file header.
pub(crate) const FILE_HEADER: usize = 64;
/// Length of a record's head.
pub(crate) const HEAD: usize = 24;
/// Size that a device writes atomically.
const SECTOR: usize = 512;

/// Magic of log segments.
pub(crate) const LOG_MAGIC: [u8; 8] = *b"KLSTLOG\n";
/// Magic of checkpoints.
pub(crate) const CHECKPOINT_MAGIC: [u8; 8] = *b"KLSTCKP\n";

/// Kind of a record; the numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An entry with commands.
    Commands = 1,
    /// An entry without effect.
    Blank = 2,
    /// An entry with a membership.
    Members = 3,
    /// Truncates the log from an index on.
    Truncate = 4,
    /// Vote, committed entries and ceiling of revisions; the newest record counts.
    Meta = 16,
    /// The log was closed in order.
    CleanStop = 17,
    /// First record of a checkpoint.
    Head = 32,
    /// Keys with their versions.
    Keys = 33,
    /// Last record of a checkpoint.
    End = 34,
}

impl Kind {
    /// The kind with that number.
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        let all = [
            Self::Commands,
            Self::Blank,
            Self::Members,
            Self::Truncate,
            Self::Meta,
            Self::CleanStop,
            Self::Head,
            Self::Keys,
            Self::End,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A file header.
pub(crate) fn file_header(magic: [u8; 8], cluster: ClusterId, sequence: u64) -> [u8; FILE_HEADER] {
    let mut header = [0; FILE_HEADER];
    header[..8].copy_from_slice(&magic);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[16..32].copy_from_slice(&cluster.0);
    header[32..40].copy_from_slice(&sequence.to_le_bytes());
    let checksum = crc32c::crc32c(&header);
    header[12..16].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Checksum of a written file header, to which the first record is chained.
pub(crate) fn header_chain(header: &[u8; FILE_HEADER]) -> u32 {
    u32::from_le_bytes([header[12], header[13], header[14], header[15]])
}

/// Cluster and sequence of a file header.
///
/// # Errors
/// [`OpenError::Corrupt`], [`OpenError::NewerFormat`].
pub(crate) fn read_file_header(
    file: &str,
    magic: [u8; 8],
    content: &[u8],
) -> Result<(ClusterId, u64, u32), OpenError> {
    let corrupt = |offset, what: &str| OpenError::Corrupt {
        file: file.to_owned(),
        offset,
        what: what.to_owned(),
    };
    let header: [u8; FILE_HEADER] = content
        .get(..FILE_HEADER)
        .and_then(|h| h.try_into().ok())
        .ok_or_else(|| corrupt(0, "the file header is truncated"))?;
    if header[..8] != magic {
        return Err(corrupt(0, "the file does not belong to the store: its magic number is wrong"));
    }
    // Checked before the checksum: a newer format may have another one.
    let format = u32_at(&header, 8).unwrap_or(0);
    let stored = header_chain(&header);
    let mut blank = header;
    blank[12..16].fill(0);
    let intact = crc32c::crc32c(&blank) == stored;
    // Formats are numbered consecutively; a far larger number is damage.
    if format > FORMAT && (intact || format < FORMAT + 1000) {
        // A flipped bit can look like a newer format: it is one only if the rest does not verify as
        // the current one.
        let mut ours = blank;
        ours[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        if crc32c::crc32c(&ours) != stored {
            return Err(OpenError::NewerFormat {
                file: file.to_owned(),
                found: format,
                known: FORMAT,
            });
        }
    }
    if !intact || format != FORMAT {
        return Err(corrupt(0, "the checksum of the file header does not match"));
    }
    let mut id = [0; 16];
    id.copy_from_slice(&header[16..32]);
    let sequence = header[32..40].try_into().map(u64::from_le_bytes).unwrap_or_default();
    Ok((ClusterId(id), sequence, stored))
}

/// Appends a record without its chain; [`seal`] completes it before it is written.
pub(crate) fn append(out: &mut Vec<u8>, kind: Kind, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    payload(out);
    let length = u32::try_from(out.len() - start - HEAD).unwrap_or(u32::MAX);
    out.resize(out.len().next_multiple_of(8), 0);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 12] = kind as u8;
}

/// Chains the records of a buffer to `chain` and fills in their checksums; returns the final
/// checksum.
pub(crate) fn seal(buffer: &mut [u8], mut chain: u32, synced: u64) -> u32 {
    let mut rest = buffer;
    while rest.len() >= HEAD {
        let length = u32_at(rest, 0).unwrap_or(0) as usize;
        let (record, next) = rest.split_at_mut((HEAD + length).next_multiple_of(8));
        let (head, payload) = record.split_at_mut(HEAD);
        head[4..8].copy_from_slice(&chain.to_le_bytes());
        head[8..12].copy_from_slice(&u32::try_from(synced).unwrap_or(u32::MAX).to_le_bytes());
        let head_checksum = crc32c::crc32c(&head[..16]);
        head[16..20].copy_from_slice(&head_checksum.to_le_bytes());
        chain = crc32c::crc32c_append(head_checksum, &payload[..length]);
        head[20..24].copy_from_slice(&chain.to_le_bytes());
        rest = next;
    }
    chain
}

/// The head of a record, verified by its own checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) length: usize,
    pub(crate) previous: u32,
    pub(crate) synced: u64,
    pub(crate) kind: Kind,
    head_checksum: u32,
    pub(crate) checksum: u32,
}

impl Head {
    /// Parses a head; `None` if it is damaged.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..HEAD)?;
        let head_checksum = u32_at(head, 16)?;
        if crc32c::crc32c(&head[..16]) != head_checksum || head[13..16] != [0; 3] {
            return None;
        }
        Some(Self {
            length: u32_at(head, 0)? as usize,
            previous: u32_at(head, 4)?,
            synced: u64::from(u32_at(head, 8)?),
            kind: Kind::from_byte(head[12])?,
            head_checksum,
            checksum: u32_at(head, 20)?,
        })
    }

    /// Whether this is the payload of the record.
    pub(crate) fn matches(&self, payload: &[u8]) -> bool {
        crc32c::crc32c_append(self.head_checksum, payload) == self.checksum
    }
}

/// A valid record of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) offset: usize,
    pub(crate) kind: Kind,
    pub(crate) payload: &'a [u8],
}

/// Content of a segment.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    pub(crate) records: Vec<Record<'a>>,
    /// Offset after the last valid record.
    pub(crate) end: usize,
    /// Checksum of the last valid record.
    pub(crate) chain: u32,
    /// Bytes after `end` that were never acknowledged; empty after a clean end.
    pub(crate) torn: usize,
}

fn record_at(content: &[u8], at: usize) -> Option<(Head, &[u8])> {
    let head = Head::parse(content.get(at..)?)?;
    let payload = content.get(at + HEAD..(at + HEAD).checked_add(head.length)?)?;
    head.matches(payload).then_some((head, payload))
}

/// Reads the records of a segment. `last` says that no later segment was written, so that the end
/// may be torn.
///
/// # Errors
/// Offset and description of damage to data that was, or may have been, acknowledged.
pub(crate) fn scan(content: &[u8], chain: u32, last: bool) -> Result<Scan<'_>, (u64, String)> {
    let mut scan = Scan { records: Vec::new(), end: FILE_HEADER, chain, torn: 0 };
    loop {
        match record_at(content, scan.end) {
            Some((head, payload)) if head.previous == scan.chain => {
                scan.records.push(Record { offset: scan.end, kind: head.kind, payload });
                scan.chain = head.checksum;
                scan.end = (scan.end + HEAD + head.length).next_multiple_of(8);
            }
            _ => break,
        }
    }
    let rest = content.get(scan.end..).unwrap_or_default();
    let Some(used) = last_used(rest) else { return Ok(scan) };
    let offset = scan.end as u64;
    if !last {
        return Err((
            offset,
            "a record in the middle of the log does not match its checksum".to_owned(),
        ));
    }
    if let Some(what) = acknowledged_damage(content, scan.end, scan.chain) {
        return Err((offset, what));
    }
    scan.torn = used + 1;
    Ok(scan)
}

/// Whether the invalid record at `at` was acknowledged, as far as the bytes can tell; returns a
/// description.
fn acknowledged_damage(content: &[u8], at: usize, chain: u32) -> Option<String> {
    let later = (at + 8..content.len().saturating_sub(HEAD)).step_by(8).find(|later| {
        // The cheap test first: most of the rest of a segment is zeros.
        content[*later..*later + 4] != [0; 4]
            && record_at(content, *later).is_some_and(|(head, _)| head.synced > at as u64)
    });
    if let Some(later) = later {
        return Some(format!(
            "the record does not match its checksum, but the record at byte {later} proves that it \
             was durable"
        ));
    }
    let head_bytes = content.get(at..at + HEAD)?;
    if let Some(head) = Head::parse(head_bytes) {
        if head.previous != chain {
            return Some("the record does not continue the previous one".to_owned());
        }
        let end = at + HEAD + head.length;
        if end > content.len() || has_zero_sector(content, at, end) {
            return None;
        }
        return Some(
            "the last record does not match its checksum and no sector of it is missing".to_owned(),
        );
    }
    // A head with one flipped bit is detected by flipping it back.
    let mut copy = [0; HEAD];
    copy.copy_from_slice(head_bytes);
    for bit in 0..20 * 8 {
        copy[bit / 8] ^= 1 << (bit % 8);
        if Head::parse(&copy).is_some_and(|head| head.previous == chain) {
            return Some("a bit of the record's head is flipped".to_owned());
        }
        copy[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

/// Whether all bytes are zero; most of a segment is, and every start checks that.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks();
    chunks.iter().fold(0, |all, chunk| all | u128::from_ne_bytes(*chunk)) == 0
        && rest.iter().all(|byte| *byte == 0)
}

/// File name of a segment.
pub(crate) fn segment_name(sequence: u64) -> String {
    format!("log-{sequence:016x}")
}

/// Offset of the last non-zero byte.
fn last_used(bytes: &[u8]) -> Option<usize> {
    let (begin, page) = bytes
        .chunks(SECTOR)
        .enumerate()
        .rev()
        .map(|(number, page)| (number * SECTOR, page))
        .find(|(_, page)| !is_zero(page))?;
    Some(begin + page.iter().rposition(|byte| *byte != 0)?)
}

/// Whether a sector within `from..to` was never written: it reads as zeros.
fn has_zero_sector(content: &[u8], from: usize, to: usize) -> bool {
    let mut at = from;
    while at < to {
        let end = (at + 1).next_multiple_of(SECTOR).min(to);
        if content.get(at..end).is_some_and(is_zero) {
            return true;
        }
        at = end;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_used_byte_is_found_wherever_it_is() {
        let mut bytes = vec![0; 2 * SECTOR + 77];
        assert_eq!(last_used(&bytes), None);
        for at in [0, 15, 16, SECTOR - 1, SECTOR, 2 * SECTOR + 15, 2 * SECTOR + 64, 2 * SECTOR + 76]
        {
            bytes[at] = 1;
            assert_eq!(last_used(&bytes), Some(at));
            assert!(!is_zero(&bytes[at..=at]) && is_zero(&bytes[at + 1..]));
        }
    }
}
