//! The Huffman code of HPACK's strings (RFC 7541, appendix B).

/// Length in bits of the code of each byte, and of the symbol for the end of the string (EOS), the
/// last. The code is canonical: the lengths define it, see [`decode`].
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

/// Number of codes of each length.
const CODES_OF_LENGTH: [usize; CODE_BITS_MAX + 1] = {
    let mut out = [0; CODE_BITS_MAX + 1];
    let mut symbol = 0;
    while symbol < CODE_BITS.len() {
        out[CODE_BITS[symbol] as usize] += 1;
        symbol += 1;
    }
    out
};

/// The symbols in the order of their codes: by length, then by value.
const SYMBOLS: [usize; 257] = {
    let mut out = [0; 257];
    let (mut length, mut at) = (0, 0);
    while length <= CODE_BITS_MAX {
        let mut symbol = 0;
        while symbol < CODE_BITS.len() {
            if CODE_BITS[symbol] as usize == length {
                out[at] = symbol;
                at += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    out
};

/// Decodes a string; `None` if it is invalid. In a canonical code, the codes of one length are
/// consecutive numbers in the order of their symbols, and the first code of a length follows from
/// the number of shorter codes.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    // The shortest code has five bits.
    let mut out = Vec::with_capacity(text.len() * 8 / 5);
    // `code` has the `bits` bits that were read since the last symbol. `first` is the lowest code
    // of that length, and `shorter` the number of shorter codes.
    let (mut code, mut bits, mut first, mut shorter) = (0usize, 0usize, 0usize, 0usize);
    for octet in text {
        for shift in (0..8).rev() {
            code = code << 1 | usize::from(octet >> shift & 1);
            bits += 1;
            first <<= 1;
            let of_length = *CODES_OF_LENGTH.get(bits)?;
            if code - first < of_length {
                let symbol = SYMBOLS.get(shorter + code - first)?;
                // RFC 7541 forbids EOS in a string; it does not fit into a byte.
                out.push(u8::try_from(*symbol).ok()?);
                (code, bits, first, shorter) = (0, 0, 0, 0);
            } else {
                first += of_length;
                shorter += of_length;
            }
        }
    }
    // The last octet is padded with up to seven one bits.
    (bits < 8 && code == (1 << bits) - 1).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_rfc_7541_decode_and_eos_or_zero_padding_is_rejected() {
        // RFC 7541, C.4.1, C.6.1 and C.6.3.
        let www = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decode(&www).as_deref(), Some(&b"www.example.com"[..]));
        assert_eq!(decode(&[0x64, 0x02]).as_deref(), Some(&b"302"[..]));
        assert_eq!(decode(&[0x9b, 0xd9, 0xab]).as_deref(), Some(&b"gzip"[..]));
        assert_eq!(decode(&[]).as_deref(), Some(&b""[..]));
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff]), None, "a string must not contain EOS");
        assert_eq!(decode(&[0x18]), None, "padding must have one bits only");
    }
}
