//! Encodes the response to a read during the read, without collecting the pairs first.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encoded_len_varint};
use proto::etcdserverpb as pb;
use store::{KeyValueRef, RangeSummary, RangeVisitor, Revision};
use tonic::Status;

use crate::grpc_frame::{PREFIX, prefix_length};
use crate::service::Etcd;

/// Size of the first piece, a multiple of HTTP/2 frames.
const PIECE: usize = 64 * 1024;

/// Each further piece is twice as large, up to this. With many small pieces the allocator would
/// release and grow the heap for each response.
const PIECE_MAX: usize = 1024 * 1024;

/// Initial capacity of the first piece, sufficient for most responses.
const FIRST: usize = 512;

/// Larger values may be mapped from a file and have to be read from the device: they are copied
/// after the store is unlocked.
const COPIED_MAX: usize = 511;

/// Writes a `RangeResponse`.
pub(crate) struct RangeResponseWriter<'a> {
    etcd: &'a Etcd,
    /// The first piece once it is full; the total length is written into it at the end.
    first: Option<BytesMut>,
    full: Vec<Bytes>,
    open: BytesMut,
    /// Bytes of the earlier pieces.
    before: usize,
    /// Larger values, and the number of written bytes before each.
    larger: Vec<(usize, Bytes)>,
    /// Bytes of the larger values.
    larger_bytes: usize,
    fields: Fields,
}

impl<'a> RangeResponseWriter<'a> {
    /// A response of this member.
    pub(crate) fn new(etcd: &'a Etcd) -> Self {
        Self {
            etcd,
            first: None,
            full: Vec::new(),
            open: BytesMut::new(),
            before: 0,
            larger: Vec::new(),
            larger_bytes: 0,
            fields: Fields { bytes: [0; 64], length: 0 },
        }
    }

    /// Ensures room for this many bytes, with a further piece if necessary.
    fn room(&mut self, bytes: usize) {
        let length = self.open.len();
        if self.open.capacity() - length >= bytes {
            return;
        }
        if length + bytes <= PIECE {
            self.open.reserve(bytes.max(length));
            return;
        }
        let twice = (2 * self.open.capacity()).clamp(PIECE, PIECE_MAX);
        let next = BytesMut::with_capacity(twice.max(bytes));
        let full = std::mem::replace(&mut self.open, next);
        self.before += full.len();
        match self.first {
            None => self.first = Some(full),
            Some(_) => self.full.push(full.freeze()),
        }
    }

    /// Finishes the response; returns its non-empty pieces.
    ///
    /// # Errors
    /// The response exceeds the maximum length of gRPC.
    pub(crate) fn end(mut self, found: &RangeSummary) -> Result<Pieces, Status> {
        let tail = pb::RangeResponse {
            more: found.more,
            count: i64::try_from(found.count).unwrap_or(i64::MAX),
            ..Default::default()
        };
        self.room(tail.encoded_len());
        tail.encode_raw(&mut self.open);
        let written = self.before + self.open.len();
        let prefix = prefix_length(written + self.larger_bytes - PREFIX)?;
        let first = self.first.as_mut().unwrap_or(&mut self.open);
        if let Some(place) = first.get_mut(1..PREFIX) {
            place.copy_from_slice(&prefix.to_be_bytes());
        }
        let mut pieces = match self.first.take() {
            None => self.open.freeze().into(),
            Some(first) => {
                self.full.push(self.open.freeze());
                Pieces { next: Some(first.freeze()), rest: self.full.into_iter() }
            }
        };
        if !self.larger.is_empty() {
            pieces = merged(pieces, &self.larger, written + self.larger_bytes).into();
        }
        Ok(pieces)
    }
}

/// Inserts the larger values into the written bytes.
fn merged(pieces: Pieces, larger: &[(usize, Bytes)], bytes: usize) -> Bytes {
    let mut out = BytesMut::with_capacity(bytes);
    let (mut larger, mut at) = (larger.iter().peekable(), 0);
    for mut piece in pieces {
        while let Some((place, value)) = larger.next_if(|(place, _)| *place <= at + piece.len()) {
            let part = piece.split_to(place - at);
            out.put_slice(&part);
            out.put_slice(value);
            at = *place;
        }
        out.put_slice(&piece);
        at += piece.len();
    }
    out.freeze()
}

impl RangeVisitor for RangeResponseWriter<'_> {
    fn begin(&mut self, revision: Revision) {
        let head = pb::RangeResponse { header: self.etcd.header(revision), ..Default::default() };
        self.open.reserve(FIRST);
        self.open.put_bytes(0, PREFIX);
        head.encode_raw(&mut self.open);
    }

    fn visit(&mut self, pair: KeyValueRef<'_>) {
        let length = pair_length(&pair);
        let copied = pair.value.len() <= COPIED_MAX;
        let within = if copied { length } else { length - pair.value.len() };
        self.room(1 + encoded_len_varint(length as u64) + within);
        let (fields, out) = (&mut self.fields, &mut self.open);
        fields.begin_bytes(2, length);
        if !pair.key.is_empty() {
            fields.begin_bytes(1, pair.key.len());
        }
        fields.end_with(pair.key, out);
        for (field, number) in pair_numbers(&pair) {
            fields.number(field, number);
        }
        if !pair.value.is_empty() {
            fields.begin_bytes(5, pair.value.len());
        }
        if copied {
            fields.end_with(pair.value, out);
        } else {
            fields.end_with(&[], out);
            self.larger.push((self.before + out.len(), pair.value.clone()));
            self.larger_bytes += pair.value.len();
        }
        if pair.lease != 0 {
            fields.number(6, pair.lease);
            fields.end_with(&[], out);
        }
    }
}

fn pair_numbers(pair: &KeyValueRef<'_>) -> [(u8, i64); 3] {
    [(2, pair.create_revision.0), (3, pair.mod_revision.0), (4, pair.version)]
}

/// Length of an `mvccpb.KeyValue`; default values are omitted, as by every encoder.
fn pair_length(pair: &KeyValueRef<'_>) -> usize {
    let bytes = |value: &[u8]| match value.len() {
        0 => 0,
        length => 1 + encoded_len_varint(length as u64) + length,
    };
    let number = |value: i64| match value {
        0 => 0,
        value => 1 + encoded_len_varint(value.cast_unsigned()),
    };
    let numbers: usize = pair_numbers(pair).iter().map(|(_, value)| number(*value)).sum();
    bytes(pair.key) + numbers + bytes(pair.value) + number(pair.lease)
}

/// Collects tags, lengths and numbers between byte strings and writes them together: writing single
/// bytes costs more than the pairs themselves.
struct Fields {
    /// At most four fields of a tag and ten bytes before [`Fields::end_with`].
    bytes: [u8; 64],
    length: usize,
}

impl Fields {
    fn put(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }

    fn varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.put(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.put(number.to_le_bytes()[0]);
    }

    /// Adds the tag (below 16) of a bytes field, and its length.
    fn begin_bytes(&mut self, field: u8, length: usize) {
        self.put(field << 3 | WireType::LengthDelimited as u8);
        self.varint(length as u64);
    }

    /// Adds a number field (below 16), unless it is zero.
    fn number(&mut self, field: u8, number: i64) {
        if number != 0 {
            self.put(field << 3 | WireType::Varint as u8);
            self.varint(number.cast_unsigned());
        }
    }

    /// Writes the collected bytes, and then `bytes`.
    fn end_with(&mut self, bytes: &[u8], out: &mut BytesMut) {
        out.extend_from_slice(self.bytes.get(..self.length).unwrap_or_default());
        out.extend_from_slice(bytes);
        self.length = 0;
    }
}

/// A message with its prefix, in pieces.
#[derive(Debug)]
pub(crate) struct Pieces {
    next: Option<Bytes>,
    rest: std::vec::IntoIter<Bytes>,
}

impl Pieces {
    /// Total length.
    pub(crate) fn len(&self) -> usize {
        self.next.iter().chain(self.rest.as_slice()).map(Bytes::len).sum()
    }

    /// Whether all pieces were taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_none() && self.rest.as_slice().is_empty()
    }

    /// All pieces joined.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn joined(self) -> Bytes {
        let mut all = BytesMut::new();
        self.for_each(|piece| all.put_slice(&piece));
        all.freeze()
    }
}

impl From<Bytes> for Pieces {
    fn from(whole: Bytes) -> Self {
        Self { next: Some(whole), rest: Vec::new().into_iter() }
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.next.take().or_else(|| self.rest.next())
    }
}

#[cfg(test)]
mod tests {
    use base::{Shutdown, Tasks};
    use store::KeyValue;

    use super::*;
    use crate::grpc_frame::encoded;

    fn kv(key: &str, value: usize, revision: i64, lease: i64) -> KeyValue {
        KeyValue {
            key: key.to_owned().into(),
            value: vec![b'v'; value].into(),
            create_revision: Revision(revision),
            mod_revision: Revision(revision * 1000),
            version: revision % 3,
            lease,
        }
    }

    #[tokio::test]
    async fn a_list_is_what_the_generated_encoder_writes() {
        let tasks = Tasks::new(Shutdown::new());
        let backend = store::open_memory_with(&tasks);
        let profile = store::Profile::default();
        let etcd = Etcd::new(backend, profile, std::env::temp_dir(), tasks);
        let short = (0..2000).map(|n| kv(&format!("key {n}"), n % 512, 1 << (n % 40), 0));
        let mixed = (0..300).map(|n| kv(&format!("{n}"), n * 7, 1, i64::MAX));
        let several = [
            kv("a", 0, 1, 0),
            kv("bb", 127, 128, -5),
            kv("", 128, 1 << 40, 7),
            kv("d", 70_000, 3, 1),
            kv("e", 512, 0, 0),
            kv("f", 511, 0, 0),
            kv(&"g".repeat(70_000), 1, 0, 0),
        ];
        for (pairs, more) in [
            (Vec::new(), false),
            (vec![kv("one", 256, 9, 0)], false),
            (vec![kv("one", 600, 9, 3)], true),
            (several.to_vec(), true),
            (short.collect(), false),
            (mixed.collect(), false),
        ] {
            let found = RangeSummary { count: pairs.len(), more };
            let mut listing = RangeResponseWriter::new(&etcd);
            listing.begin(Revision(300));
            for pair in &pairs {
                listing.visit(KeyValueRef::of(pair));
            }
            let pieces = listing.end(&found).unwrap();
            let (length, count) = (pieces.len(), pairs.len() as i64);
            let joined = pieces.joined();
            assert_eq!(joined.len(), length);
            let kvs = pairs.into_iter().map(crate::range_plan::key_value).collect();
            let want = pb::RangeResponse { header: etcd.header(Revision(300)), kvs, more, count };
            assert!(joined == encoded(&want).unwrap(), "{count} pairs");
        }
    }
}
