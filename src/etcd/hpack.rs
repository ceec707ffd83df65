//! HPACK (RFC 7541) as far as the `:authority` of a request needs it: integers, strings and the
//! Huffman code.

/// Bits of the Huffman code of each byte, and of the end of string (RFC 7541, appendix B). The code
/// is canonical: these
/// lengths define it.
const CODE_BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// Longest code, in bits.
const CODE_BITS_MAX: usize = 30;

/// How many codes there are of each length.
const CODES_OF_LENGTH: [usize; CODE_BITS_MAX + 1] = {
    let mut out = [0; CODE_BITS_MAX + 1];
    let mut symbol = 0;
    while symbol < CODE_BITS.len() {
        out[CODE_BITS[symbol] as usize] += 1;
        symbol += 1;
    }
    out
};

/// Index of `:authority` in the static table.
const AUTHORITY_INDEX: usize = 1;
const AUTHORITY_NAME: &[u8] = b":authority";

/// Reads a header block from its start.
#[derive(Debug, Clone)]
struct Reader<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
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

    /// A string as it is written, and whether it is Huffman coded (section 5.2).
    fn string(&mut self) -> Option<(bool, &'a [u8])> {
        let coded = *self.block.get(self.at)? & 0x80 != 0;
        let length = self.integer(7)?;
        let end = self.at.checked_add(length)?;
        let text = self.block.get(self.at..end)?;
        self.at = end;
        Some((coded, text))
    }
}

fn plain((coded, text): (bool, &[u8])) -> Option<Vec<u8>> {
    if coded { huffman_decode(text) } else { Some(text.to_vec()) }
}

/// Decodes a string of the canonical code: codes of a length are consecutive numbers, in the order
/// of their bytes.
fn huffman_decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() * 8 / 5);
    let (mut code, mut bits, mut first) = (0usize, 0usize, 0usize);
    for octet in text {
        for shift in (0..8).rev() {
            code = code << 1 | usize::from(octet >> shift & 1);
            bits += 1;
            first <<= 1;
            let of_length = *CODES_OF_LENGTH.get(bits)?;
            if code - first < of_length {
                let symbols = CODE_BITS.iter().enumerate();
                let mut symbols = symbols.filter(|(_, b)| usize::from(**b) == bits);
                let (symbol, _) = symbols.nth(code - first)?;
                out.push(u8::try_from(symbol).ok()?);
                (code, bits, first) = (0, 0, 0);
            } else {
                first += of_length;
            }
        }
    }
    // Less than an octet of ones is padding.
    (bits < 8 && code == (1 << bits) - 1).then_some(out)
}

fn write_length(out: &mut Vec<u8>, length: usize) {
    // Seven bits of prefix, and none for the Huffman code.
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

/// The header block with each `:authority` that is not a host and port replaced by a host name of
/// the same length, so
/// that the dynamic table, whose size counts the length of values, evicts the same entries. None
/// when nothing changes.
pub(crate) fn replace_invalid_authority(block: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Reader { block, at: 0 };
    let mut out: Option<Vec<u8>> = None;
    let mut copied = 0;
    while let Some(first) = block.get(reader.at) {
        let bits = match first {
            // Indexed: name and value are in a table.
            0x80.. => {
                if reader.integer(7).is_none() {
                    break;
                }
                continue;
            }
            // Literal that enters the dynamic table.
            0x40.. => 6,
            // Size of the dynamic table.
            0x20.. => {
                if reader.integer(5).is_none() {
                    break;
                }
                continue;
            }
            // Literal that does not enter it.
            _ => 4,
        };
        let Some(index) = reader.integer(bits) else { break };
        let is_authority = match index {
            0 => {
                let Some(name) = reader.string() else { break };
                plain(name).is_some_and(|name| name == AUTHORITY_NAME)
            }
            index => index == AUTHORITY_INDEX,
        };
        let before = reader.at;
        // A block may go on in a CONTINUATION; requests begin with their pseudo-headers.
        let Some(value) = reader.string() else { break };
        if !is_authority {
            continue;
        }
        let Some(value) = plain(value) else { break };
        if value.is_empty() || http::uri::Authority::try_from(value.as_slice()).is_ok() {
            continue;
        }
        let out = out.get_or_insert_default();
        out.extend_from_slice(block.get(copied..before)?);
        write_length(out, value.len());
        out.resize(out.len() + value.len(), b'a');
        copied = reader.at;
    }
    let mut out = out?;
    out.extend_from_slice(block.get(copied..)?);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huffman_strings_of_the_specification_decode() {
        // RFC 7541, C.4.1, C.6.1 and C.6.3.
        let www = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(huffman_decode(&www).as_deref(), Some(&b"www.example.com"[..]));
        assert_eq!(huffman_decode(&[0x64, 0x02]).as_deref(), Some(&b"302"[..]));
        assert_eq!(huffman_decode(&[0x9b, 0xd9, 0xab]).as_deref(), Some(&b"gzip"[..]));
        assert_eq!(huffman_decode(&[0xff, 0xff, 0xff, 0xff]), None, "the end of string is no text");
        assert_eq!(huffman_decode(&[0x18]), None, "padding is of ones");
    }

    /// `:method POST`, an authority in a literal of this kind, and `:path /`.
    fn block(kind: &[u8], authority: &str) -> Vec<u8> {
        let mut out = [&[0x83][..], kind].concat();
        write_length(&mut out, authority.len());
        [&out, authority.as_bytes(), &[0x84]].concat()
    }

    #[test]
    fn invalid_authority_becomes_a_host_name_of_the_same_length() {
        let named = [&[0x40, 10][..], AUTHORITY_NAME].concat();
        for kind in [&[0x41][..], &[0x01], &[0x11], &named] {
            for authority in
                ["http://127.0.0.1:2379", "#initially=[127.0.0.1:2379]", "/run/etcd.sock", "a b"]
            {
                let expected = block(kind, &"a".repeat(authority.len()));
                let replaced = replace_invalid_authority(&block(kind, authority));
                assert_eq!(replaced, Some(expected), "{kind:x?} {authority}");
            }
            for authority in ["127.0.0.1:2379", "[::1]:2379", "etcd.example.com", ""] {
                assert_eq!(replace_invalid_authority(&block(kind, authority)), None, "{authority}");
            }
        }
        // "/index.html" as Huffman code (RFC 7541 has it as a path): 11 bytes in 8.
        let coded = [0x41, 0x88, 0x60, 0xd5, 0x48, 0x5f, 0x2b, 0xce, 0x9a, 0x68];
        let expected = [&[0x41, 11][..], &[b'a'; 11]].concat();
        assert_eq!(replace_invalid_authority(&coded), Some(expected));
        let long = "/".repeat(1000);
        let expected = Some(block(&[0x41], &"a".repeat(1000)));
        assert_eq!(replace_invalid_authority(&block(&[0x41], &long)), expected);
    }

    #[test]
    fn other_fields_and_damaged_blocks_stay() {
        // `:path` in a literal, a table size, an index beyond one octet, and every truncation.
        assert_eq!(
            replace_invalid_authority(&[0x44, 2, b'/', b'/', 0x3f, 0xe1, 0x1f, 0xff, 0x0]),
            None
        );
        let whole = block(&[0x41], "http://a");
        for end in 0..whole.len() - 1 {
            assert_eq!(replace_invalid_authority(&whole[..end]), None, "{end}");
        }
        assert_eq!(replace_invalid_authority(&[0x41, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
