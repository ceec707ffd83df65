//! HPACK (RFC 7541): a decoder of header blocks with its dynamic table, and a minimal encoder.

use std::collections::VecDeque;

use bytes::Bytes;

mod huffman;

/// Default size of the dynamic table (`SETTINGS_HEADER_TABLE_SIZE`).
const TABLE_MAX: usize = 4096;
/// Maximum size of a header list: hyper's `SETTINGS_MAX_HEADER_LIST_SIZE`; it answers a longer list
/// with status 431.
pub(crate) const LIST_MAX: usize = 16 * 1024;
/// Overhead of an entry besides its name and value (section 4.1).
const ENTRY_OVERHEAD: usize = 32;

/// The static table (appendix A); its first entry has index 1.
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// A name and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: Bytes,
    pub(crate) value: Bytes,
}

impl Field {
    fn size(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_OVERHEAD
    }
}

/// The dynamic table, newest field first.
#[derive(Debug)]
struct DynamicTable {
    entries: VecDeque<Field>,
    size: usize,
    /// The client's limit, at most [`TABLE_MAX`].
    limit: usize,
}

impl DynamicTable {
    fn shrink_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size();
        }
    }

    /// Adds a field; one larger than the table empties it (section 4.4).
    fn insert(&mut self, field: &Field) {
        let size = field.size();
        self.shrink_to(self.limit.saturating_sub(size));
        if size <= self.limit {
            self.size += size;
            self.entries.push_front(field.clone());
        }
    }

    /// The field at an index of both tables.
    fn get(&self, index: usize) -> Option<Field> {
        let index = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(index) {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            return Some(Field {
                name: Bytes::from_static(name),
                value: Bytes::from_static(value),
            });
        }
        self.entries.get(index - STATIC.len()).cloned()
    }
}

/// Decodes the header blocks of one direction of a connection, in order.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: DynamicTable,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        let table = DynamicTable { entries: VecDeque::new(), size: 0, limit: TABLE_MAX };
        Self { table }
    }

    /// Decodes a whole block. `None` if the block is invalid or its list exceeds [`LIST_MAX`]; the
    /// table is unusable then.
    pub(crate) fn decode(&mut self, block: &[u8]) -> Option<Vec<Field>> {
        let mut reader = Reader { block, at: 0 };
        let mut fields: Vec<Field> = Vec::with_capacity(12);
        let mut list = 0usize;
        while let Some(first) = block.get(reader.at) {
            let field = match first {
                0x80.. => self.table.get(reader.integer(7)?)?,
                0x40.. => {
                    let field = self.literal(&mut reader, 6)?;
                    self.table.insert(&field);
                    field
                }
                0x20.. => {
                    // Allowed before the first field only (section 4.2).
                    let limit = reader.integer(5)?;
                    if limit > TABLE_MAX || !fields.is_empty() {
                        return None;
                    }
                    self.table.limit = limit;
                    self.table.shrink_to(limit);
                    continue;
                }
                // Without indexing, or never indexed.
                _ => self.literal(&mut reader, 4)?,
            };
            list += field.size();
            if list > LIST_MAX {
                return None;
            }
            fields.push(field);
        }
        Some(fields)
    }

    fn literal(&self, reader: &mut Reader<'_>, bits: u32) -> Option<Field> {
        let name = match reader.integer(bits)? {
            0 => reader.string()?,
            index => self.table.get(index)?.name,
        };
        Some(Field { name, value: reader.string()? })
    }
}

/// Reads a header block.
#[derive(Debug)]
struct Reader<'a> {
    block: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// An integer whose first octet holds `bits` of it (section 5.1).
    fn integer(&mut self, bits: u32) -> Option<usize> {
        let mask = (1usize << bits) - 1;
        let first = usize::from(*self.block.get(self.at)?) & mask;
        self.at += 1;
        if first < mask {
            return Some(first);
        }
        let mut value = first;
        for shift in [0, 7, 14, 21] {
            let octet = usize::from(*self.block.get(self.at)?);
            self.at += 1;
            value = value.checked_add((octet & 0x7f) << shift)?;
            if octet & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A string, decoded if it is Huffman coded (section 5.2).
    fn string(&mut self) -> Option<Bytes> {
        let coded = *self.block.get(self.at)? & 0x80 != 0;
        let length = self.integer(7)?;
        let end = self.at.checked_add(length)?;
        let text = self.block.get(self.at..end)?;
        self.at = end;
        if coded {
            huffman::decode(text).map(Bytes::from)
        } else {
            Some(Bytes::copy_from_slice(text))
        }
    }
}

/// Appends a field as a literal that neither uses nor changes a table.
pub(crate) fn encode(out: &mut Vec<u8>, field: &Field) {
    out.push(0);
    for text in [&field.name, &field.value] {
        encode_length(out, text.len());
        out.extend_from_slice(text);
    }
}

/// Appends the instruction that empties the decoder's dynamic table, at the start of a block.
pub(crate) fn encode_empty_table(out: &mut Vec<u8>) {
    out.push(0x20);
}

fn encode_length(out: &mut Vec<u8>, length: usize) {
    // A prefix of seven bits, whose first bit says that the string is not Huffman coded.
    let Some(mut rest) = length.checked_sub(0x7f) else {
        out.extend(u8::try_from(length));
        return;
    };
    out.push(0x7f);
    while rest >= 0x80 {
        out.extend(u8::try_from(rest & 0x7f | 0x80));
        rest >>= 7;
    }
    out.extend(u8::try_from(rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(fields: &[(&str, &str)]) -> Option<Vec<Field>> {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let field = |(name, value): &(&str, &str)| Field { name: bytes(name), value: bytes(value) };
        Some(fields.iter().map(field).collect())
    }

    /// RFC 7541, C.3 without the Huffman code and C.4 with it: three requests on a connection.
    #[test]
    fn request_examples_of_the_specification_decode() {
        let plain: [&[u8]; 3] = [
            b"\x82\x86\x84\x41\x0fwww.example.com",
            b"\x82\x86\x84\xbe\x58\x08no-cache",
            b"\x82\x87\x85\xbf\x40\x0acustom-key\x0ccustom-value",
        ];
        let coded: [&[u8]; 3] = [
            b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
            b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\
              \xe8\xb4\xbf",
        ];
        let authority = (":authority", "www.example.com");
        let first = [(":method", "GET"), (":scheme", "http"), (":path", "/"), authority];
        let second = [first.as_slice(), &[("cache-control", "no-cache")]].concat();
        let third = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            authority,
            ("custom-key", "custom-value"),
        ];
        for blocks in [plain, coded] {
            let mut decoder = Decoder::new();
            for (block, expected) in blocks.iter().zip([&first[..], &second, &third]) {
                assert_eq!(decoder.decode(block), list(expected));
            }
            assert_eq!(decoder.table.size, 164, "the size of C.3.3");
        }
    }

    /// RFC 7541, C.5: responses with a table of 256 octets, which evicts.
    #[test]
    fn a_small_table_evicts_its_oldest_entries() {
        let mut decoder = Decoder::new();
        let first = b"\x3f\xe1\x01\x48\x03302\x58\x07private\x61\x1dMon, 21 Oct 2013 20:13:21 GMT\
                      \x6e\x17https://www.example.com";
        let expected = |status| {
            list(&[
                (":status", status),
                ("cache-control", "private"),
                ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
                ("location", "https://www.example.com"),
            ])
        };
        assert_eq!(decoder.decode(first), expected("302"));
        assert_eq!(decoder.table.size, 222);
        assert_eq!(decoder.decode(b"\x48\x03307\xc1\xc0\xbf"), expected("307"));
        assert_eq!(decoder.table.size, 222);
        // Index 65 is the oldest of four; 66 is none.
        assert_eq!(decoder.decode(b"\xc1"), list(&[("cache-control", "private")]));
        assert_eq!(decoder.decode(b"\xc2"), None);
        // Size 0 empties the table, and what is larger than the table does not enter it.
        assert_eq!(decoder.decode(b"\x20\x48\x03307"), list(&[(":status", "307")]));
        assert_eq!(decoder.decode(b"\xbe"), None);
    }

    #[test]
    fn names_come_from_the_dynamic_table_too() {
        let mut decoder = Decoder::new();
        assert_eq!(decoder.decode(b"\x40\x01x\x01y"), list(&[("x", "y")]));
        assert_eq!(decoder.decode(b"\x0f\x2f\x01z\x7e\x00"), list(&[("x", "z"), ("x", "")]));
        assert_eq!(decoder.decode(b"\xbe\xbf"), list(&[("x", ""), ("x", "y")]));
    }

    #[test]
    fn invalid_blocks_are_refused() {
        let invalid: [&[u8]; 10] = [
            b"\x80",                         // index 0
            b"\xbe",                         // an empty dynamic table
            b"\x82\x20",                     // a table size after a field
            b"\x3f\xe2\x1f",                 // 4097 octets of table
            b"\x41",                         // no value
            b"\x41\x02a",                    // a value that is cut
            b"\x41\x7f\xff\xff\xff\xff\xff", // a length without an end
            b"\x41\x84\xff\xff\xff\xff",     // the end of string inside a string
            b"\x41\x81\x18",                 // padding that is not of ones
            b"\x7f",                         // an integer that is cut
        ];
        for block in invalid {
            assert_eq!(Decoder::new().decode(block), None, "{block:x?}");
        }
        assert_eq!(Decoder::new().decode(b"\x3f\xe1\x1f"), list(&[]), "4096 octets of table");
    }

    #[test]
    fn the_list_is_bounded() {
        // `:method GET` counts 42: 390 of them are 16380.
        assert_eq!(Decoder::new().decode(&[0x82; 390]).map(|fields| fields.len()), Some(390));
        assert_eq!(Decoder::new().decode(&[0x82; 391]), None);
    }

    #[test]
    fn encoded_headers_decode() {
        let long = "/".repeat(1000);
        let fields = list(&[(":path", "/"), (":authority", &long), ("x", "")]).unwrap();
        let mut block = Vec::new();
        encode_empty_table(&mut block);
        fields.iter().for_each(|field| encode(&mut block, field));
        let mut decoder = Decoder::new();
        assert_eq!(decoder.decode(&block), Some(fields));
        assert!(decoder.table.entries.is_empty());
    }
}
