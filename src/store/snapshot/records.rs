//! Records of etcd's buckets: keys of changes, and `mvccpb.KeyValue` and `leasepb.Lease` in
//! protobuf.

use crate::encoding::{Malformed, Put, Reader};
use crate::mvcc::Version;

/// Key of a change: revision, `_`, sub-revision, and a trailing `t` for a deletion.
pub(super) fn change_key(revision: i64, place: u32, deletion: bool) -> Vec<u8> {
    let mut key = Vec::with_capacity(18);
    key.extend_from_slice(&revision.to_be_bytes());
    key.push(b'_');
    key.extend_from_slice(&u64::from(place).to_be_bytes());
    if deletion {
        key.push(b't');
    }
    key
}

/// Revision and sub-revision of a change, and whether it is a deletion.
pub(super) fn read_change_key(key: &[u8]) -> Option<(i64, u32, bool)> {
    let deletion = match key.get(17..)? {
        [] => false,
        [b't'] => true,
        _ => return None,
    };
    let revision = i64::from_be_bytes(key.get(..8)?.try_into().ok()?);
    let place = u64::from_be_bytes(key.get(9..17)?.try_into().ok()?);
    let place = u32::try_from(place).ok()?;
    (key.get(8) == Some(&b'_') && revision > 0).then_some((revision, place, deletion))
}

/// A protobuf field.
enum Field<'a> {
    Number(i64),
    Bytes(&'a [u8]),
    Other,
}

fn field<'a>(reader: &mut Reader<'a>) -> Result<(u64, Field<'a>), Malformed> {
    let tag = reader.u64()?;
    let value = match tag & 7 {
        0 => Field::Number(reader.u64()?.cast_signed()),
        2 => Field::Bytes(reader.slice()?),
        kind @ (1 | 5) => {
            for _ in 0..if kind == 1 { 8 } else { 4 } {
                reader.byte()?;
            }
            Field::Other
        }
        _ => return reader.malformed(),
    };
    Ok((tag >> 3, value))
}

fn put_number(number: u64, value: i64, out: &mut Vec<u8>) {
    if value != 0 {
        out.put_u64(number << 3);
        out.put_u64(value.cast_unsigned());
    }
}

fn put_bytes(number: u64, value: &[u8], out: &mut Vec<u8>) {
    if !value.is_empty() {
        out.put_u64(number << 3 | 2);
        out.put_bytes(value);
    }
}

/// `mvccpb.KeyValue`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeyValue<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) version: i64,
    pub(super) lease: i64,
}

impl<'a> KeyValue<'a> {
    /// The record of a version; for a deletion etcd stores the key alone.
    pub(super) fn encode(key: &[u8], version: &Version, out: &mut Vec<u8>) {
        put_bytes(1, key, out);
        if version.is_tombstone() {
            return;
        }
        put_number(2, version.created, out);
        put_number(3, version.modified, out);
        put_number(4, version.version, out);
        put_bytes(5, &version.value, out);
        put_number(6, version.lease, out);
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let mut this = Self::default();
        while reader.end().is_err() {
            match field(&mut reader)? {
                (1, Field::Bytes(bytes)) => this.key = bytes,
                (2, Field::Number(number)) => this.created = number,
                (3, Field::Number(number)) => this.modified = number,
                (4, Field::Number(number)) => this.version = number,
                (5, Field::Bytes(bytes)) => this.value = bytes,
                (6, Field::Number(number)) => this.lease = number,
                (1..=6, _) => return reader.malformed(),
                _ => {}
            }
        }
        Ok(this)
    }
}

/// Encodes `leasepb.Lease` with id and granted seconds.
pub(super) fn encode_lease(id: i64, ttl: i64, out: &mut Vec<u8>) {
    put_number(1, id, out);
    put_number(2, ttl, out);
}

/// Id and granted seconds; the remaining time starts again after a start.
pub(super) fn decode_lease(bytes: &[u8]) -> Result<(i64, i64), Malformed> {
    let mut reader = Reader::new(bytes);
    let (mut id, mut ttl) = (0, 0);
    while reader.end().is_err() {
        match field(&mut reader)? {
            (1, Field::Number(number)) => id = number,
            (2, Field::Number(number)) => ttl = number,
            (1 | 2, _) => return reader.malformed(),
            _ => {}
        }
    }
    Ok((id, ttl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_is_etcds() {
        // As printed by Go's `proto.Marshal` and `mvcc.BucketKeyToBytes`.
        assert_eq!(change_key(2, 1, false), *b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\x01");
        assert_eq!(change_key(3, 0, true), *b"\0\0\0\0\0\0\0\x03_\0\0\0\0\0\0\0\0t");
        let version = Version {
            value: "bar".into(),
            created: 2,
            modified: 300,
            version: 4,
            lease: -1,
            sub: 1,
            sum: 0,
        };
        let mut bytes = Vec::new();
        KeyValue::encode(b"foo", &version, &mut bytes);
        let expected = b"\x0a\x03foo\x10\x02\x18\xac\x02\x20\x04\x2a\x03bar\x30\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(bytes, expected);
        let kv = KeyValue {
            key: b"foo",
            value: b"bar",
            created: 2,
            modified: 300,
            version: 4,
            lease: -1,
        };
        assert_eq!(KeyValue::decode(&bytes), Ok(kv));
        let mut bytes = Vec::new();
        KeyValue::encode(b"foo", &Version::tombstone(9, 0), &mut bytes);
        assert_eq!(bytes, b"\x0a\x03foo");
        let mut bytes = Vec::new();
        encode_lease(0x1234, 60, &mut bytes);
        assert_eq!(bytes, b"\x08\xb4\x24\x10\x3c");
        // With a trailing remaining time.
        assert_eq!(decode_lease(b"\x08\xb4\x24\x10\x3c\x18\x05"), Ok((0x1234, 60)));
    }

    #[test]
    fn invalid_records_are_refused() {
        for key in [
            &b""[..],
            b"\0\0\0\0\0\0\0\x02",
            b"\0\0\0\0\0\0\0\x02-\0\0\0\0\0\0\0\x01",
            b"\0\0\0\0\0\0\0\0_\0\0\0\0\0\0\0\x01",
            b"\xff\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\x01",
            b"\0\0\0\0\0\0\0\x02_\0\0\0\x01\0\0\0\0",
            b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\x01x",
            b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\x01tt",
        ] {
            assert_eq!(read_change_key(key), None, "{key:?}");
        }
        assert_eq!(read_change_key(&change_key(7, 3, true)), Some((7, 3, true)));
        for bytes in [&b"\x0a\x09foo"[..], b"\x0f", b"\x08\x01", b"\x28\x01", b"\x0a"] {
            assert!(KeyValue::decode(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(
            KeyValue::decode(b"\x0a\x01k\x3a\x01x\x41\x01\x02\x03\x04\x05\x06\x07\x08")
                .unwrap()
                .key,
            b"k"
        );
    }
}
