//! Digests, random texts and ciphers.

use aes_gcm::aes::Aes256;
use aes_gcm::aes::cipher::{BlockDecrypt as _, BlockEncrypt as _, KeyInit as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest;

use crate::error::Failure;
use crate::function::{Args, Call, Function, fixed};
use crate::random;
use crate::signature::Param::{Int, Str};
use crate::value::Value;

const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const LETTERS_AND_DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const DIGITS: &[u8] = b"0123456789";
const BLOCK: usize = 16;

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("sha1sum", &[Str], |_, args| Ok(hex(&digest::SHA1_FOR_LEGACY_USE_ONLY, args.bytes(0)))),
    fixed("sha256sum", &[Str], |_, args| Ok(hex(&digest::SHA256, args.bytes(0)))),
    fixed("sha512sum", &[Str], |_, args| Ok(hex(&digest::SHA512, args.bytes(0)))),
    fixed("adler32sum", &[Str], |_, args| Ok(Value::from(adler32(args.bytes(0)).to_string()))),
    fixed("randAlphaNum", &[Int], |call, args| random_text(call, args, LETTERS_AND_DIGITS)),
    fixed("randAlpha", &[Int], |call, args| random_text(call, args, LETTERS)),
    fixed("randNumeric", &[Int], |call, args| random_text(call, args, DIGITS)),
    fixed("randAscii", &[Int], |call, args| {
        let printable: Vec<u8> = (b' '..=b'~').collect();
        random_text(call, args, &printable)
    }),
    fixed("randBytes", &[Int], |call, args| {
        let count = count(call, args)?;
        Ok(Value::from(STANDARD.encode(random::bytes(count)?)))
    }),
    fixed("shuffle", &[Str], shuffle),
    fixed("uuidv4", &[], |_, _| uuid()),
    fixed("encryptAES", &[Str, Str], encrypt),
    fixed("decryptAES", &[Str, Str], decrypt),
];

fn hex(algorithm: &'static digest::Algorithm, bytes: &[u8]) -> Value {
    let digest = digest::digest(algorithm, bytes);
    Value::from(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    (b << 16) | a
}

fn count(call: &mut Call<'_>, args: &[Value]) -> Result<usize, Failure> {
    let count = usize::try_from(args.int(0)).unwrap_or(0);
    call.budget.bytes(count.saturating_mul(2))?;
    Ok(count)
}

fn random_text(call: &mut Call<'_>, args: &[Value], alphabet: &[u8]) -> Result<Value, Failure> {
    let count = count(call, args)?;
    Ok(Value::from(random::text(count, alphabet)?))
}

fn shuffle(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let mut chars: Vec<char> = args.text(0).chars().collect();
    let random = random::bytes(chars.len().saturating_mul(4))?;
    for (at, bytes) in random.chunks(4).enumerate().rev() {
        let number = bytes.iter().fold(0_usize, |sum, byte| (sum << 8) | usize::from(*byte));
        let other = number % (at + 1);
        if at < chars.len() {
            chars.swap(at, other);
        }
    }
    Ok(Value::from(chars.into_iter().collect::<String>()))
}

fn uuid() -> Result<Value, Failure> {
    let mut bytes = random::bytes(BLOCK)?;
    for (at, byte) in bytes.iter_mut().enumerate() {
        match at {
            6 => *byte = (*byte & 0x0f) | 0x40,
            8 => *byte = (*byte & 0x3f) | 0x80,
            _ => {}
        }
    }
    let mut out = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02x}"));
    }
    Ok(Value::from(out))
}

/// sprig takes the first 32 bytes of the password as the key.
fn cipher(password: &[u8]) -> Result<Aes256, Failure> {
    let mut key = [0; 32];
    for (slot, byte) in key.iter_mut().zip(password) {
        *slot = *byte;
    }
    Aes256::new_from_slice(&key).map_err(|_| Failure::new("crypto/aes: invalid key size"))
}

fn xor(block: &mut [u8], with: &[u8]) {
    block.iter_mut().zip(with).for_each(|(byte, other)| *byte ^= other);
}

fn encrypt(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let text = args.bytes(1);
    if text.is_empty() {
        return Ok(Value::from(""));
    }
    call.budget.bytes(text.len().saturating_mul(2))?;
    let cipher = cipher(args.bytes(0))?;
    let padding = BLOCK - text.len() % BLOCK;
    let mut content = text.to_vec();
    content.resize(text.len() + padding, u8::try_from(padding).unwrap_or(0));
    let mut out = random::bytes(BLOCK)?;
    let mut before = out.clone();
    for chunk in content.chunks_mut(BLOCK) {
        xor(chunk, &before);
        let mut block = aes_gcm::aes::Block::clone_from_slice(chunk);
        cipher.encrypt_block(&mut block);
        out.extend_from_slice(&block);
        before = block.to_vec();
    }
    Ok(Value::from(STANDARD.encode(out)))
}

fn decrypt(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let text = args.bytes(1);
    if text.is_empty() {
        return Ok(Value::from(""));
    }
    let bytes = super::encoding::decode(text)?;
    if bytes.len() < BLOCK {
        let length = bytes.len();
        let text = "runtime error: slice bounds out of range [:16] with capacity";
        return Err(Failure::new(format!("{text} {length}")));
    }
    if bytes.len() < 2 * BLOCK || !bytes.len().is_multiple_of(BLOCK) {
        return Err(Failure::new("crypto/cipher: input not full blocks"));
    }
    let cipher = cipher(args.bytes(0))?;
    let mut out = Vec::new();
    let (mut before, content) = bytes.split_at(BLOCK);
    for chunk in content.chunks(BLOCK) {
        let mut block = aes_gcm::aes::Block::clone_from_slice(chunk);
        cipher.decrypt_block(&mut block);
        xor(&mut block, before);
        out.extend_from_slice(&block);
        before = chunk;
    }
    let padding = out.last().copied().map_or(0, usize::from);
    let Some(length) = out.len().checked_sub(padding) else {
        return Err(Failure::new("runtime error: slice bounds out of range"));
    };
    out.truncate(length);
    Ok(Value::from_bytes(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_known() {
        assert_eq!(adler32(b"Hello World!"), 474_547_262);
    }
}
