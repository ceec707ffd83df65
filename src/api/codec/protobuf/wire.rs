//! The protobuf wire format: keys, varints and length-delimited fields.

use super::super::DecodeError;

/// Writes the fields of a message.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// Creates a writer that appends to these bytes.
    pub(crate) fn behind(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    #[allow(clippy::cast_possible_truncation, reason = "the low seven bits are meant")]
    fn varint_raw(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, tag: u32, kind: u64) {
        self.varint_raw(u64::from(tag) << 3 | kind);
    }

    pub(crate) fn varint(&mut self, tag: u32, value: u64) {
        self.key(tag, 0);
        self.varint_raw(value);
    }

    pub(crate) fn double(&mut self, tag: u32, value: f64) {
        self.key(tag, 1);
        self.raw(&value.to_bits().to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, tag: u32, bytes: &[u8]) {
        self.delimited(tag, bytes.len());
        self.raw(bytes);
    }

    /// Writes the key and the length that precede a length-delimited field of `length` bytes.
    pub(crate) fn delimited(&mut self, tag: u32, length: usize) {
        self.key(tag, 2);
        self.varint_raw(length as u64);
    }

    /// Writes a message whose length is not known in advance. The writer reserves room for a short
    /// length and widens it if necessary.
    pub(crate) fn nested<E>(
        &mut self,
        tag: u32,
        write: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.key(tag, 2);
        let start = self.0.len();
        self.0.push(0);
        write(self)?;
        let mut length = self.0.len() - start - 1;
        let mut prefix = [0_u8; 10];
        let mut used = 0;
        for slot in &mut prefix {
            #[allow(clippy::cast_possible_truncation, reason = "the low seven bits are meant")]
            let low = (length & 0x7f) as u8;
            length >>= 7;
            used += 1;
            *slot = if length > 0 { low | 0x80 } else { low };
            if length == 0 {
                break;
            }
        }
        self.0.splice(start..=start, prefix.into_iter().take(used));
        Ok(())
    }
}

/// Reads the fields of one message and checks every length against the remaining bytes.
pub(super) struct Reader<'a> {
    data: &'a [u8],
}

/// The wire types of protobuf.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const DELIMITED: u8 = 2;
const FIXED32: u8 = 5;

fn short() -> DecodeError {
    DecodeError::Syntax("unexpected EOF".into())
}

fn wrong(kind: u8) -> DecodeError {
    DecodeError::Syntax(format!("proto: wrong wireType = {kind}"))
}

impl<'a> Reader<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.data.split_at_checked(count).ok_or_else(short)?;
        self.data = rest;
        Ok(head)
    }

    fn varint_raw(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = *self.take(1)?.first().ok_or_else(short)?;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
            }
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Syntax("proto: integer overflow".into()))
    }

    /// Reads the field number and the wire type of the next field; returns `None` at the end.
    pub(super) fn key(&mut self) -> Result<Option<(u32, u8)>, DecodeError> {
        if self.data.is_empty() {
            return Ok(None);
        }
        let key = self.varint_raw()?;
        let tag = u32::try_from(key >> 3).ok().filter(|t| *t > 0);
        let tag = tag.ok_or_else(|| {
            DecodeError::Syntax(format!("proto: illegal tag {} (wire type {})", key >> 3, key & 7))
        })?;
        Ok(Some((tag, u8::try_from(key & 7).unwrap_or(7))))
    }

    pub(super) fn varint(&mut self, kind: u8) -> Result<u64, DecodeError> {
        if kind == VARINT { self.varint_raw() } else { Err(wrong(kind)) }
    }

    pub(super) fn double(&mut self, kind: u8) -> Result<f64, DecodeError> {
        if kind != FIXED64 {
            return Err(wrong(kind));
        }
        let bytes: [u8; 8] = self.take(8)?.try_into().map_err(|_| short())?;
        Ok(f64::from_bits(u64::from_le_bytes(bytes)))
    }

    pub(super) fn bytes(&mut self, kind: u8) -> Result<&'a [u8], DecodeError> {
        if kind != DELIMITED {
            return Err(wrong(kind));
        }
        let length = usize::try_from(self.varint_raw()?).map_err(|_| short())?;
        self.take(length)
    }

    pub(super) fn text(&mut self, kind: u8) -> Result<String, DecodeError> {
        Ok(String::from_utf8_lossy(self.bytes(kind)?).into_owned())
    }

    pub(super) fn skip(&mut self, kind: u8) -> Result<(), DecodeError> {
        match kind {
            VARINT => self.varint_raw().map(drop),
            FIXED64 => self.take(8).map(drop),
            DELIMITED => self.bytes(kind).map(drop),
            FIXED32 => self.take(4).map(drop),
            other => Err(DecodeError::Syntax(format!("proto: illegal wireType {other}"))),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty()
    }
}
