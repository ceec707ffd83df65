//! The messages of `k8s.io/kms/apis/v2` and the stored object of KMS v2, in protobuf: strings,
//! bytes, one enum and one map, fewer lines than generated code.

use std::collections::BTreeMap;

use crate::errors::WireError;

/// Data that a plugin stores with a key.
pub(crate) type Annotations = BTreeMap<String, Vec<u8>>;

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        // Masked to seven bits.
        let byte = u8::try_from(value & 0x7f).unwrap_or_default();
        value >>= 7;
        if value == 0 {
            out.push(byte);
            return;
        }
        out.push(byte | 0x80);
    }
}

/// Appends a field of bytes or text, unless it is empty.
pub(super) fn put(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        varint(out, field << 3 | BYTES);
        // A slice is never longer than 2^63.
        varint(out, u64::try_from(bytes.len()).unwrap_or_default());
        out.extend_from_slice(bytes);
    }
}

/// Appends the entries of a map, sorted by key.
pub(super) fn put_map(out: &mut Vec<u8>, field: u64, map: &Annotations) {
    for (key, value) in map {
        let mut entry = Vec::with_capacity(key.len() + value.len() + 16);
        put(&mut entry, 1, key.as_bytes());
        put(&mut entry, 2, value);
        varint(out, field << 3 | BYTES);
        varint(out, u64::try_from(entry.len()).unwrap_or_default());
        out.extend_from_slice(&entry);
    }
}

/// Appends an enum, unless it is zero.
pub(super) fn put_number(out: &mut Vec<u8>, field: u64, value: u64) {
    if value != 0 {
        varint(out, field << 3 | VARINT);
        varint(out, value);
    }
}

/// The value of a field.
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A type that none of the messages uses.
    Other,
}

impl<'a> Value<'a> {
    pub(super) fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) | Self::Other => None,
        }
    }

    pub(super) fn text(&self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    /// Parses an entry of a map.
    pub(super) fn entry(&self) -> Option<(String, Vec<u8>)> {
        let (mut key, mut value) = (String::new(), Vec::new());
        for field in Fields(self.bytes()?) {
            match field? {
                (1, text) => key = text.text()?,
                (2, bytes) => value = bytes.bytes()?.to_vec(),
                _ => {}
            }
        }
        Some((key, value))
    }
}

/// The fields of a message; yields `None` if it is damaged.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            VARINT => Value::Number(self.varint()?),
            BYTES => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            FIXED64 => self.take(8).map(|_| Value::Other)?,
            FIXED32 => self.take(4).map(|_| Value::Other)?,
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// How the key of a value is obtained from the decrypted bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceType {
    /// The bytes are the key.
    Key,
    /// The bytes are a seed; each value has its own derived key.
    Seed,
}

/// The stored form of a value (`encrypt/envelope/kmsv2/v2/api.proto`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) data: Vec<u8>,
    pub(super) key_id: String,
    pub(super) source: Vec<u8>,
    pub(super) annotations: Annotations,
    pub(super) source_type: SourceType,
}

impl Stored {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put(out, 1, &self.data);
        put(out, 2, self.key_id.as_bytes());
        put(out, 3, &self.source);
        put_map(out, 4, &self.annotations);
        put_number(out, 5, u64::from(self.source_type == SourceType::Seed));
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        const DAMAGED: WireError = WireError::Damaged;
        let mut stored = Self {
            data: Vec::new(),
            key_id: String::new(),
            source: Vec::new(),
            annotations: Annotations::new(),
            source_type: SourceType::Key,
        };
        for field in Fields(bytes) {
            let (number, value) = field.ok_or(DAMAGED)?;
            match number {
                1 => stored.data = value.bytes().ok_or(DAMAGED)?.to_vec(),
                2 => stored.key_id = value.text().ok_or(DAMAGED)?,
                3 => stored.source = value.bytes().ok_or(DAMAGED)?.to_vec(),
                4 => {
                    let (key, value) = value.entry().ok_or(DAMAGED)?;
                    stored.annotations.insert(key, value);
                }
                5 => {
                    stored.source_type = match value {
                        Value::Number(0) => SourceType::Key,
                        Value::Number(1) => SourceType::Seed,
                        Value::Number(other) => {
                            return Err(WireError::SourceType(other));
                        }
                        Value::Bytes(_) | Value::Other => return Err(DAMAGED),
                    }
                }
                _ => {}
            }
        }
        Ok(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_upstreams_encoding_and_damaged_ones_are_errors() {
        let stored = Stored {
            data: b"data".to_vec(),
            key_id: "k".into(),
            source: vec![7; 200],
            annotations: [("a.b".to_owned(), vec![1])].into(),
            source_type: SourceType::Seed,
        };
        let mut bytes = Vec::new();
        stored.encode(&mut bytes);
        let mut want = b"\x0a\x04data\x12\x01k\x1a\xc8\x01".to_vec();
        want.extend([7; 200]);
        want.extend(b"\x22\x08\x0a\x03a.b\x12\x01\x01\x28\x01");
        assert_eq!(bytes, want);
        assert_eq!(Stored::decode(&bytes).unwrap(), stored);
        for cut in [1, 3, 12, bytes.len() - 1] {
            assert!(Stored::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        let error = Stored::decode(b"\x28\x07").unwrap_err();
        assert_eq!(error.to_string(), "unknown encryptedDEKSourceType: 7");
        assert!(Stored::decode(&[0xff; 12]).is_err());
    }
}
