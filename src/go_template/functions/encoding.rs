//! Base 64 and base 32.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::Failure;
use crate::function::{Args, Function, fixed};
use crate::signature::Param::Str;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("b64enc", &[Str], |call, args| {
        call.budget.bytes(args.bytes(0).len().saturating_mul(2))?;
        Ok(Value::from(STANDARD.encode(args.bytes(0))))
    }),
    fixed("b64dec", &[Str], |_, args| Ok(decode64(args.bytes(0)))),
    fixed("b32enc", &[Str], |call, args| {
        call.budget.bytes(args.bytes(0).len().saturating_mul(2))?;
        Ok(Value::from(encode32(args.bytes(0))))
    }),
    fixed("b32dec", &[Str], |_, args| Ok(decode32(args.bytes(0)))),
];

const ALPHABET32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// `base64.StdEncoding.DecodeString`.
///
/// # Errors
///
/// Go's text with the offset.
pub(super) fn decode(text: &[u8]) -> Result<Vec<u8>, Failure> {
    let clean: Vec<u8> = text.iter().copied().filter(|b| !matches!(b, b'\r' | b'\n')).collect();
    // Go decodes with bits left over in the last character.
    let lax = base64::engine::GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    let lax = base64::engine::GeneralPurpose::new(&base64::alphabet::STANDARD, lax);
    lax.decode(&clean)
        .map_err(|_| Failure::new(format!("illegal base64 data at input byte {}", bad64(text))))
}

/// The text of the error where decoding fails, as in sprig.
fn decode64(text: &[u8]) -> Value {
    match decode(text) {
        Ok(bytes) => Value::from_bytes(bytes),
        Err(failure) => Value::from(failure.message),
    }
}

/// The offset that Go names in its error.
fn bad64(text: &[u8]) -> usize {
    let is_digit = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let mut in_group = 0;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'\r' | b'\n' => {}
            b'=' => {
                if in_group < 2 {
                    return at;
                }
                // After the padding of a group nothing may follow.
                let rest = text.get(at..).unwrap_or_default();
                let wanted = 4 - in_group;
                for (offset, byte) in rest.iter().enumerate() {
                    if offset < wanted && *byte != b'=' {
                        return at + offset;
                    }
                    if offset >= wanted && !matches!(byte, b'\r' | b'\n') {
                        return at + offset;
                    }
                }
                return text.len();
            }
            byte if is_digit(byte) => in_group = (in_group + 1) % 4,
            _ => return at,
        }
    }
    text.len() - in_group
}

fn encode32(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(5) {
        let mut group = [0_u8; 8];
        let value = (0..5)
            .fold(0_u64, |sum, at| (sum << 8) | u64::from(chunk.get(at).copied().unwrap_or(0)));
        for (at, slot) in group.iter_mut().enumerate() {
            let index = usize::try_from((value >> (35 - 5 * at)) & 31).unwrap_or(0);
            *slot = ALPHABET32.get(index).copied().unwrap_or(b'A');
        }
        let used = (chunk.len() * 8).div_ceil(5);
        for (at, byte) in group.iter().enumerate() {
            out.push(if at < used { char::from(*byte) } else { '=' });
        }
    }
    out
}

fn decode32(text: &[u8]) -> Value {
    let clean: Vec<u8> = text.iter().copied().filter(|b| !matches!(b, b'\r' | b'\n')).collect();
    let body = clean.iter().rposition(|b| *b != b'=').map_or(0, |at| at + 1);
    let digits = clean.get(..body).unwrap_or_default();
    let mut bits = 0_u64;
    let mut count = 0;
    let mut out = Vec::new();
    for (at, byte) in digits.iter().enumerate() {
        let Some(digit) = ALPHABET32.iter().position(|known| known == byte) else {
            return Value::from(format!("illegal base32 data at input byte {at}"));
        };
        bits = (bits << 5) | u64::try_from(digit).unwrap_or(0);
        count += 5;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from((bits >> count) & 0xff).unwrap_or(0));
        }
    }
    if !clean.len().is_multiple_of(8) || matches!(digits.len() % 8, 1 | 3 | 6) {
        return Value::from(format!("illegal base32 data at input byte {}", digits.len()));
    }
    Value::from_bytes(out)
}
