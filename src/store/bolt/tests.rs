//! The format byte by byte, trees of several levels, and damage of every kind.

use std::io;

use super::read::{Damage, Database, Fault};
use super::write::{Sink, Writer};

impl Sink for Vec<u8> {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap();
        self.resize(self.len().max(from + data.len()), 0);
        self[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }
}

type Keys = Vec<(Vec<u8>, Vec<u8>)>;

fn write(buckets: &[(&str, Keys)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes);
    for (name, keys) in buckets {
        let mut bucket = writer.bucket(name.as_bytes());
        keys.iter().for_each(|(key, value)| bucket.put(key, value).unwrap());
        bucket.finish().unwrap();
    }
    let size = writer.finish().unwrap();
    assert_eq!(size, bytes.len() as u64);
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<(String, Keys)>, Fault> {
    let mut database = Database::open(bytes, bytes.len() as u64)?;
    let mut found = Vec::new();
    for (name, bucket) in database.buckets()? {
        let mut keys = Vec::new();
        database.each(bucket, &mut |key, value| {
            keys.push((key.to_vec(), value.to_vec()));
            Ok::<(), std::convert::Infallible>(())
        })?;
        found.push((String::from_utf8_lossy(&name).into_owned(), keys));
    }
    Ok(found)
}

fn small() -> Vec<u8> {
    write(&[("key", vec![(b"k".to_vec(), b"value".to_vec())]), ("a", Vec::new())])
}

#[test]
fn a_small_database_byte_by_byte() {
    let bytes = small();
    assert_eq!(bytes.len(), 5 * 4096);
    let meta = [
        /* page 0, meta, nothing follows */ 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0,
        /* magic, version */ 0xed, 0xda, 0x0c, 0xed, 2, 0, 0, 0,
        /* page size, flags */ 0, 16, 0, 0, 0, 0, 0, 0, /* root, sequence */ 4, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* free list, pages, transaction */ 2, 0, 0, 0, 0,
        0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes[..72], meta);
    assert_eq!(bytes[4096], 1);
    assert_eq!(bytes[2 * 4096..2 * 4096 + 16], [2, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]);
    let leaf = [
        /* page 3, leaf, one element */ 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0,
        /* flags, position, lengths */ 0, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, b'k',
        b'v', b'a', b'l', b'u', b'e', 0,
    ];
    assert_eq!(bytes[3 * 4096..3 * 4096 + leaf.len()], leaf);
    let root = [
        /* page 4, leaf, two elements */ 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 2, 0, 0, 0, 0, 0,
        /* a bucket, its name 32 bytes on */ 1, 0, 0, 0, 32, 0, 0, 0, 1, 0, 0, 0, 32, 0, 0, 0,
        1, 0, 0, 0, 49, 0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 0,
        /* without keys: an empty leaf within */ b'a', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, b'k', b'e', b'y', 3, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes[4 * 4096..4 * 4096 + root.len()], root);
}

#[test]
fn databases_of_any_size_round_trip() {
    for count in [0_u32, 1, 2, 3, 100, 130, 20_000] {
        let keys: Keys = (0..count)
            .map(|n| {
                let value = match n % 1000 {
                    7 => vec![n as u8; 100_000],
                    other => vec![n as u8; other as usize % 90],
                };
                (n.to_be_bytes().repeat(1 + n as usize % 4), value)
            })
            .collect();
        let bytes =
            write(&[("first", keys.clone()), ("second", Vec::new()), ("third", keys.clone())]);
        let found = read(&bytes).unwrap();
        assert_eq!(found.len(), 3);
        assert!(found[0] == ("first".to_owned(), keys.clone()) && found[2].1 == keys, "{count}");
        assert_eq!(found[1], ("second".to_owned(), Vec::new()));
    }
}

#[test]
fn keys_out_of_order_are_not_written() {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes);
    let mut bucket = writer.bucket(b"b");
    bucket.put(b"b", b"").unwrap();
    assert!(bucket.put(b"b", b"").is_err() && bucket.put(b"a", b"").is_err());
}

#[test]
fn no_flipped_bit_and_no_cut_makes_it_panic_or_run_on() {
    let keys: Keys = (0..100_u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 60])).collect();
    let bytes = write(&[("key", keys), ("meta", Vec::new())]);
    let good = read(&bytes).unwrap();
    for length in (0..bytes.len()).step_by(297) {
        assert!(read(&bytes[..length]).is_err(), "{length} bytes");
    }
    for page in (0..5).chain([bytes.len() / 4096 - 2, bytes.len() / 4096 - 1]) {
        // Heads, elements and some of the content.
        for at in (0..100).chain((100..4096).step_by(397)).map(|at| page * 4096 + at) {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                if let Ok(found) = read(&flipped) {
                    // Pages have no checksum: content, and how much there is of it, is the
                    // snapshot's to check.
                    assert!(found.len() <= good.len());
                }
            }
        }
    }
}

#[test]
fn a_page_that_refers_to_itself_or_to_anothers_child_is_refused() {
    let keys: Keys = (0..1000_u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 60])).collect();
    let bytes = write(&[("key", keys)]);
    let branch = (3..bytes.len() / 4096).find(|page| bytes[page * 4096 + 8] == 1).unwrap();
    let child = branch * 4096 + 16 + 8;
    for to in [branch as u64, 3 + 1, 0, 1, 2, 1 << 40, u64::MAX] {
        let mut bytes = bytes.clone();
        bytes[child..child + 8].copy_from_slice(&to.to_le_bytes());
        let Err(Fault::Damaged(_, damage)) = read(&bytes) else { panic!("page {to} is taken") };
        assert!(!damage.to_string().is_empty());
    }
    let mut swapped = bytes.clone();
    swapped.copy_within(child..child + 8, child + 16);
    assert!(matches!(read(&swapped), Err(Fault::Damaged(_, Damage::SharedPage(_)))));
}

#[test]
fn one_meta_is_enough_and_without_any_it_is_no_database() {
    let good = small();
    let mut bytes = good.clone();
    bytes[40] ^= 1;
    assert!(read(&bytes).is_ok());
    bytes[4096 + 40] ^= 1;
    assert!(matches!(read(&bytes), Err(Fault::Damaged(0, _))));
    for foreign in [vec![], b"PK\x03\x04".to_vec(), vec![0; 1 << 20], b"text\n".repeat(9999)] {
        assert!(matches!(read(&foreign), Err(Fault::Foreign(_))));
    }
}
