//! The file format of bbolt, version 2, which etcd uses: a streaming writer and a reader that
//! trusts nothing.
//!
//! ```text
//! page:            id u64 | kind u16 | count u16 | overflow u32 (further pages) | content
//! meta:            magic u32 | version u32 | page size u32 | flags u32 | root page u64
//!                  | sequence u64 | free list u64 | pages u64 | transaction u64
//!                  | FNV-1a of the bytes before
//! branch element:  position u32 | key length u32 | page u64; positions are relative to the element
//! leaf element:    flags u32, 1 for a bucket | position u32 | key length u32 | value length u32
//! bucket:          root page u64, 0 if that page is inline | sequence u64
//! ```
//! Numbers are little-endian. Pages 0 and 1 are meta pages; the one with the higher transaction id
//! is valid.

mod read;
mod write;

pub(crate) use read::{Bucket, Database, Fault, Source};
pub(crate) use write::{Sink, Writer};

/// Magic number of a meta page.
const MAGIC: u32 = 0xED0C_DAED;
/// Version of the format.
const VERSION: u32 = 2;
/// Size of a page header.
const HEAD: usize = 16;
/// Size of an element of either kind.
const ELEMENT: usize = 16;
/// Size of a meta page before its checksum.
const META: usize = 56;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META_PAGE: u16 = 0x04;
const FREE_LIST: u16 = 0x10;
/// Flag of a leaf element that is a bucket.
const IS_BUCKET: u32 = 0x01;

/// Checksum of a meta page: 64-bit FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Repairs both meta pages of a file with the smallest page size, except for the root, and its
/// length: a fuzzer then reaches the pages instead of failing at the checksum.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_repair(bytes: &mut Vec<u8>) {
    const PAGE: usize = 1024;
    bytes.resize(bytes.len().next_multiple_of(PAGE).max(4 * PAGE), 0);
    let pages = (bytes.len() / PAGE) as u64;
    for page in bytes.chunks_exact_mut(PAGE).take(2) {
        page[8..10].copy_from_slice(&META_PAGE.to_le_bytes());
        let (meta, sum) = page[HEAD..HEAD + META + 8].split_at_mut(META);
        for (at, number) in [(0, MAGIC), (4, VERSION), (8, PAGE as u32)] {
            meta[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        meta[40..48].copy_from_slice(&pages.to_le_bytes());
        sum.copy_from_slice(&checksum(meta).to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
