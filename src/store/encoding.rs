//! Numbers and byte strings as they are encoded in files and messages.
//!
//! Numbers are LEB128 (zigzag where negative ones occur), byte strings have their length in front.

use bytes::Bytes;

/// Bytes that do not decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed at byte {at}")]
pub(crate) struct Malformed {
    /// Offset of the first invalid byte.
    pub(crate) at: usize,
}

/// Appends numbers and bytes.
pub(crate) trait Put {
    /// An unsigned number.
    fn put_u64(&mut self, value: u64);
    /// A signed number, zigzag encoded.
    fn put_i64(&mut self, value: i64) {
        self.put_u64(((value << 1) ^ (value >> 63)).cast_unsigned());
    }
    /// Bytes, prefixed with their length.
    fn put_bytes(&mut self, value: &[u8]);
}

impl Put for Vec<u8> {
    fn put_u64(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.push((value & 0x7f) as u8);
    }

    fn put_bytes(&mut self, value: &[u8]) {
        self.put_u64(value.len() as u64);
        self.extend_from_slice(value);
    }
}

/// Decodes what [`Put`] encoded; never reads past the end.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The buffer that contains the bytes; byte strings share it instead of being copied.
    whole: Option<&'a Bytes>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, whole: None }
    }

    /// A reader of `part` of `whole`. Its byte strings keep all of `whole` alive.
    pub(crate) fn sharing(whole: &'a Bytes, part: &'a [u8]) -> Self {
        let (outer, inner) = (whole.as_ptr_range(), part.as_ptr_range());
        let within = outer.start <= inner.start && inner.end <= outer.end;
        Self { bytes: part, at: 0, whole: Some(whole).filter(|_| within) }
    }

    /// A reader of a slice that [`Reader::slice`] returned.
    pub(crate) fn inner(&self, slice: &'a [u8]) -> Self {
        Self { bytes: slice, at: 0, whole: self.whole }
    }

    fn own(&self, slice: &'a [u8]) -> Bytes {
        self.whole.map_or_else(|| Bytes::copy_from_slice(slice), |whole| whole.slice_ref(slice))
    }

    pub(crate) fn malformed<T>(&self) -> Result<T, Malformed> {
        Err(Malformed { at: self.at })
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let Some(byte) = self.bytes.get(self.at) else { return self.malformed() };
        self.at += 1;
        Ok(*byte)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        self.malformed()
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        let value = self.u64()?;
        Ok((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    pub(crate) fn usize(&mut self) -> Result<usize, Malformed> {
        let value = self.u64()?;
        usize::try_from(value).or_else(|_| self.malformed())
    }

    pub(crate) fn slice(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.usize()?;
        let end = self.at.saturating_add(length);
        let Some(slice) = self.bytes.get(self.at..end) else { return self.malformed() };
        self.at = end;
        Ok(slice)
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let slice = self.slice()?;
        Ok(self.own(slice))
    }

    /// The unread rest.
    pub(crate) fn rest(&self) -> Bytes {
        self.own(self.bytes.get(self.at..).unwrap_or_default())
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.at == self.bytes.len() { Ok(()) } else { self.malformed() }
    }
}
