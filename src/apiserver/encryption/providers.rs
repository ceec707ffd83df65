//! Providers in upstream's storage formats: identity, AES-GCM, AES-CBC, secretbox and KMS v2,
//! selected by the prefix of a value (`pkg/storage/value/transformer.go`,
//! `encrypt/{aes,secretbox,identity}`).

use std::sync::Arc;

use aes_gcm::aes::cipher::{BlockDecrypt as _, BlockEncrypt as _, KeyInit as _};
use aes_gcm::aes::{Aes128, Aes192, Aes256, Block};
use aes_gcm::{AesGcm, aead::AeadInPlace as _};
use bytes::Bytes;
use crypto_secretbox::{Nonce as BoxNonce, XSalsa20Poly1305};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::is_encrypted;
use super::kms::Kms;
use crate::encryption::metrics::Counts;
use crate::registry::storage::Opened;
use crate::response::aggregate::aggregate;

/// The size of an AES block, of the CBC initialization vector, and of tags, in bytes.
const BLOCK: usize = 16;
/// The size of a secretbox nonce in bytes; its tag has the size of a block.
const BOX: usize = 24;
/// The error of all providers for truncated values.
pub(super) const SHORT: &str = "the stored data was shorter than the required size";
/// The error of Go's GCM for a value that was changed, or moved from another key.
const FORGED: &str = "cipher: message authentication failed";

/// The error for values of several gigabytes.
const UNSEALED: &str = "the value cannot be sealed";

/// AES-GCM for all key sizes. Ring does not support keys of 24 bytes.
pub(super) enum Gcm {
    Ring(Box<LessSafeKey>),
    Middle(Box<AesGcm<Aes192, aes_gcm::aead::consts::U12>>),
}

impl Gcm {
    /// # Errors
    /// Go's message, for a size other than 16, 24 or 32 bytes.
    pub(super) fn new(key: &[u8]) -> Result<Self, String> {
        let bad = || format!("crypto/aes: invalid key size {}", key.len());
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            24 => {
                let cipher = AesGcm::new_from_slice(key).map_err(|_| bad())?;
                return Ok(Self::Middle(Box::new(cipher)));
            }
            32 => &AES_256_GCM,
            _ => return Err(bad()),
        };
        UnboundKey::new(algorithm, key)
            .map(|key| Self::Ring(Box::new(LessSafeKey::new(key))))
            .map_err(|_| bad())
    }

    /// Appends nonce, ciphertext and tag.
    pub(super) fn seal(&self, key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut nonce = [0; NONCE_LEN];
        base::clock::random_bytes(&mut nonce);
        out.extend_from_slice(&nonce);
        let begin = out.len();
        out.extend_from_slice(plain);
        let body = out.get_mut(begin..).unwrap_or_default();
        match self {
            Self::Ring(cipher) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let aad = Aad::from(key.as_bytes());
                let tag =
                    cipher.seal_in_place_separate_tag(nonce, aad, body).map_err(|_| UNSEALED)?;
                out.extend_from_slice(tag.as_ref());
            }
            Self::Middle(cipher) => {
                let tag = cipher
                    .encrypt_in_place_detached(&nonce.into(), key.as_bytes(), body)
                    .map_err(|_| UNSEALED)?;
                out.extend_from_slice(&tag);
            }
        }
        Ok(())
    }

    pub(super) fn open(&self, key: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let (nonce, body) = sealed.split_first_chunk::<NONCE_LEN>().ok_or(SHORT)?;
        let mut body = body.to_vec();
        match self {
            Self::Ring(cipher) => {
                let nonce = Nonce::assume_unique_for_key(*nonce);
                let aad = Aad::from(key.as_bytes());
                let length = cipher.open_in_place(nonce, aad, &mut body).map_err(|_| FORGED)?.len();
                body.truncate(length);
            }
            Self::Middle(cipher) => {
                let (text, tag) = body.split_last_chunk_mut::<BLOCK>().ok_or(FORGED)?;
                cipher
                    .decrypt_in_place_detached(
                        &(*nonce).into(),
                        key.as_bytes(),
                        text,
                        (&*tag).into(),
                    )
                    .map_err(|_| FORGED)?;
                body.truncate(body.len().saturating_sub(BLOCK));
            }
        }
        Ok(body)
    }
}

/// AES as a block cipher.
pub(super) enum Aes {
    Short(Aes128),
    Middle(Aes192),
    Long(Aes256),
}

impl Aes {
    fn new(key: &[u8]) -> Result<Self, String> {
        let bad = |_| format!("crypto/aes: invalid key size {}", key.len());
        match key.len() {
            16 => Aes128::new_from_slice(key).map(Self::Short).map_err(bad),
            24 => Aes192::new_from_slice(key).map(Self::Middle).map_err(bad),
            _ => Aes256::new_from_slice(key).map(Self::Long).map_err(bad),
        }
    }

    fn encrypt(&self, block: &mut Block) {
        match self {
            Self::Short(cipher) => cipher.encrypt_block(block),
            Self::Middle(cipher) => cipher.encrypt_block(block),
            Self::Long(cipher) => cipher.encrypt_block(block),
        }
    }

    fn decrypt(&self, block: &mut Block) {
        match self {
            Self::Short(cipher) => cipher.decrypt_block(block),
            Self::Middle(cipher) => cipher.decrypt_block(block),
            Self::Long(cipher) => cipher.decrypt_block(block),
        }
    }
}

fn xor(block: &mut [u8], with: &[u8]) {
    block.iter_mut().zip(with).for_each(|(byte, other)| *byte ^= other);
}

/// CBC with PKCS #7 padding, after a random initialization vector (NIST SP 800-38A, RFC 5652 6.3).
fn cbc_seal(cipher: &Aes, plain: &[u8], out: &mut Vec<u8>) {
    let mut before = [0; BLOCK];
    base::clock::random_bytes(&mut before);
    out.extend_from_slice(&before);
    let padding = BLOCK - plain.len() % BLOCK;
    let mut body = plain.to_vec();
    // At most the size of a block.
    body.resize(plain.len() + padding, u8::try_from(padding).unwrap_or_default());
    for chunk in body.chunks_exact_mut(BLOCK) {
        xor(chunk, &before);
        let mut block = Block::clone_from_slice(chunk);
        cipher.encrypt(&mut block);
        before = block.into();
        out.extend_from_slice(&before);
    }
}

fn cbc_open(cipher: &Aes, sealed: &[u8]) -> Result<Vec<u8>, String> {
    let (first, body) = sealed.split_first_chunk::<BLOCK>().ok_or(SHORT)?;
    if body.len() % BLOCK != 0 {
        return Err("the stored data is not a multiple of the block size".to_owned());
    }
    let mut before: &[u8] = first;
    let mut out = Vec::with_capacity(body.len());
    for chunk in body.chunks_exact(BLOCK) {
        let mut block = Block::clone_from_slice(chunk);
        cipher.decrypt(&mut block);
        xor(&mut block, before);
        out.extend_from_slice(&block);
        before = chunk;
    }
    let padding = out.last().copied().map_or(0, usize::from);
    if padding == 0 || padding > out.len() {
        return Err("invalid PKCS7 data (empty or not padded)".to_owned());
    }
    let size = out.len() - padding;
    if out.iter().skip(size).any(|byte| usize::from(*byte) != padding) {
        return Err("invalid padding on input".to_owned());
    }
    out.truncate(size);
    Ok(out)
}

fn box_seal(cipher: &XSalsa20Poly1305, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let mut nonce = [0; BOX];
    base::clock::random_bytes(&mut nonce);
    out.extend_from_slice(&nonce);
    let mut body = plain.to_vec();
    let tag = cipher.encrypt_in_place_detached(&BoxNonce::from(nonce), &[], &mut body);
    // The tag precedes the ciphertext, as in NaCl.
    out.extend_from_slice(&tag.map_err(|_| UNSEALED)?);
    out.extend_from_slice(&body);
    Ok(())
}

fn box_open(cipher: &XSalsa20Poly1305, sealed: &[u8]) -> Result<Vec<u8>, String> {
    let (nonce, body) = sealed.split_first_chunk::<BOX>().ok_or(SHORT)?;
    let (tag, body) = body.split_first_chunk::<BLOCK>().ok_or(SHORT)?;
    let mut body = body.to_vec();
    let opened =
        cipher.decrypt_in_place_detached(&BoxNonce::from(*nonce), &[], &mut body, tag.into());
    // Upstream's message for a value that was changed.
    opened.map_err(|_| "output array was not large enough for encryption".to_owned())?;
    Ok(body)
}

/// The algorithm of a key.
pub(super) enum Method {
    Gcm(Gcm),
    Cbc(Box<Aes>),
    Secretbox(Box<XSalsa20Poly1305>),
}

impl Method {
    pub(super) fn gcm(key: &[u8]) -> Result<Self, String> {
        Gcm::new(key).map(Self::Gcm)
    }

    pub(super) fn cbc(key: &[u8]) -> Result<Self, String> {
        Aes::new(key).map(|aes| Self::Cbc(Box::new(aes)))
    }

    pub(super) fn secretbox(key: &[u8]) -> Result<Self, String> {
        let bad = |_| format!("expected key size 32 for secretbox provider, got {}", key.len());
        XSalsa20Poly1305::new_from_slice(key).map(|c| Self::Secretbox(Box::new(c))).map_err(bad)
    }

    fn seal(&self, key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Gcm(cipher) => cipher.seal(key, plain, out),
            Self::Cbc(cipher) => {
                cbc_seal(cipher, plain, out);
                Ok(())
            }
            Self::Secretbox(cipher) => box_seal(cipher, plain, out),
        }
    }

    fn open(&self, key: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::Gcm(cipher) => cipher.open(key, sealed),
            Self::Cbc(cipher) => cbc_open(cipher, sealed),
            Self::Secretbox(cipher) => box_open(cipher, sealed),
        }
    }
}

/// Named keys of one algorithm.
pub(super) struct Keyed {
    /// The prefix, such as `k8s:enc:aescbc:v1:`.
    pub(super) prefix: &'static str,
    /// The name followed by a colon, and the key; the first one encrypts.
    pub(super) keys: Vec<(String, Method)>,
    /// The error for an unknown key name.
    pub(super) unknown: &'static str,
}

/// A provider.
#[derive(Clone)]
pub(super) enum Provider {
    /// Unencrypted.
    Identity,
    Keyed(Arc<Keyed>),
    Kms(Arc<Kms>),
}

impl Provider {
    /// The prefix of its values.
    pub(super) fn prefix(&self) -> &str {
        match self {
            Self::Identity => "",
            Self::Keyed(keyed) => keyed.prefix,
            Self::Kms(kms) => kms.prefix(),
        }
    }

    fn seal(&self, key: &str, plain: &Bytes) -> Result<Bytes, String> {
        let mut out = Vec::with_capacity(plain.len() + 256);
        out.extend_from_slice(self.prefix().as_bytes());
        match self {
            Self::Identity => return Ok(plain.clone()),
            Self::Keyed(keyed) => {
                let (name, method) = keyed.keys.first().ok_or(keyed.unknown)?;
                out.extend_from_slice(name.as_bytes());
                method.seal(key, plain, &mut out)?;
            }
            Self::Kms(kms) => kms.seal(key, plain, &mut out)?,
        }
        Ok(out.into())
    }

    /// Decrypts the value after the prefix.
    fn open(&self, key: &str, stored: &Bytes) -> Result<Opened, String> {
        let rest = stored.get(self.prefix().len()..).unwrap_or_default();
        match self {
            Self::Identity if is_encrypted(stored) => {
                Err("identity transformer tried to read encrypted data".to_owned())
            }
            Self::Identity => Ok(Opened { plain: stored.clone(), stale: false }),
            Self::Keyed(keyed) => {
                let mut errors = Vec::new();
                for (at, (name, method)) in keyed.keys.iter().enumerate() {
                    let Some(sealed) = rest.strip_prefix(name.as_bytes()) else { continue };
                    match method.open(key, sealed) {
                        Ok(plain) => return Ok(Opened { plain: plain.into(), stale: at != 0 }),
                        Err(why) => errors.push(why),
                    }
                }
                if errors.is_empty() {
                    Err(keyed.unknown.to_owned())
                } else {
                    Err(aggregate(errors))
                }
            }
            Self::Kms(kms) => {
                let (plain, stale) = kms.open(key, rest)?;
                Ok(Opened { plain: plain.into(), stale })
            }
        }
    }
}

/// Encrypts with the first provider.
pub(super) fn seal(
    providers: &[Provider],
    resource: &str,
    key: &str,
    plain: &Bytes,
    counts: &Counts,
) -> Result<Bytes, String> {
    let Some(first) = providers.first() else { return Ok(plain.clone()) };
    let begun = base::clock::now();
    let sealed = first.seal(key, plain);
    counts.transformed(resource, "to_storage", first.prefix(), begun, sealed.is_ok());
    sealed
}

/// Decrypts with the first provider that has the prefix and succeeds.
pub(super) fn open(
    providers: &[Provider],
    resource: &str,
    key: &str,
    stored: &Bytes,
    counts: &Counts,
) -> Result<Opened, String> {
    const DIRECTION: &str = "from_storage";
    let begun = base::clock::now();
    let mut errors = Vec::new();
    for (at, provider) in providers.iter().enumerate() {
        if !stored.starts_with(provider.prefix().as_bytes()) {
            continue;
        }
        let opened = provider.open(key, stored);
        // An encrypted value may belong to the next provider.
        if let (Provider::Identity, Err(_)) = (provider, &opened) {
            continue;
        }
        let name = if provider.prefix().is_empty() { "identity" } else { provider.prefix() };
        counts.transformed(resource, DIRECTION, name, begun, opened.is_ok());
        match opened {
            Ok(opened) => {
                return Ok(Opened { stale: opened.stale || at != 0, ..opened });
            }
            Err(why) => errors.push(why),
        }
    }
    if errors.is_empty() {
        counts.transformed(resource, DIRECTION, "unknown", begun, false);
        return Err("no matching prefix found".to_owned());
    }
    Err(aggregate(errors))
}

#[cfg(test)]
mod tests;
