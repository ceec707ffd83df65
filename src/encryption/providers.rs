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

use super::errors::{CipherError, ProviderError};
use super::is_encrypted;
use super::kms::Kms;
use crate::metrics::EncryptionMetrics;
use crate::transformer::Opened;

/// The size of an AES block, of the CBC initialization vector, and of tags, in bytes.
const BLOCK: usize = 16;
/// The size of a secretbox nonce in bytes; its tag has the size of a block.
const BOX: usize = 24;

/// AES-GCM for all key sizes. Ring does not support keys of 24 bytes.
pub(super) enum Gcm {
    Ring(Box<LessSafeKey>),
    Middle(Box<AesGcm<Aes192, aes_gcm::aead::consts::U12>>),
}

impl Gcm {
    /// # Errors
    /// For a size other than 16, 24 or 32 bytes.
    pub(super) fn new(key: &[u8]) -> Result<Self, CipherError> {
        let bad = || CipherError::AesKeySize(key.len());
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
    pub(super) fn seal(
        &self,
        key: &str,
        plain: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CipherError> {
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
                let tag = cipher.seal_in_place_separate_tag(nonce, aad, body);
                let tag = tag.map_err(|_| CipherError::TooLong)?;
                out.extend_from_slice(tag.as_ref());
            }
            Self::Middle(cipher) => {
                let tag = cipher
                    .encrypt_in_place_detached(&nonce.into(), key.as_bytes(), body)
                    .map_err(|_| CipherError::TooLong)?;
                out.extend_from_slice(&tag);
            }
        }
        Ok(())
    }

    pub(super) fn open(&self, key: &str, sealed: &[u8]) -> Result<Vec<u8>, CipherError> {
        let split = sealed.split_first_chunk::<NONCE_LEN>();
        let (nonce, body) = split.ok_or(CipherError::TooShort)?;
        let mut body = body.to_vec();
        match self {
            Self::Ring(cipher) => {
                let nonce = Nonce::assume_unique_for_key(*nonce);
                let aad = Aad::from(key.as_bytes());
                let opened = cipher.open_in_place(nonce, aad, &mut body);
                let length = opened.map_err(|_| CipherError::Authentication)?.len();
                body.truncate(length);
            }
            Self::Middle(cipher) => {
                let split = body.split_last_chunk_mut::<BLOCK>();
                let (text, tag) = split.ok_or(CipherError::Authentication)?;
                cipher
                    .decrypt_in_place_detached(
                        &(*nonce).into(),
                        key.as_bytes(),
                        text,
                        (&*tag).into(),
                    )
                    .map_err(|_| CipherError::Authentication)?;
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
    fn new(key: &[u8]) -> Result<Self, CipherError> {
        let bad = |_| CipherError::AesKeySize(key.len());
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

fn cbc_open(cipher: &Aes, sealed: &[u8]) -> Result<Vec<u8>, CipherError> {
    let (first, body) = sealed.split_first_chunk::<BLOCK>().ok_or(CipherError::TooShort)?;
    if body.len() % BLOCK != 0 {
        return Err(CipherError::BlockSize);
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
        return Err(CipherError::NotPadded);
    }
    let size = out.len() - padding;
    if out.iter().skip(size).any(|byte| usize::from(*byte) != padding) {
        return Err(CipherError::Padding);
    }
    out.truncate(size);
    Ok(out)
}

fn box_seal(cipher: &XSalsa20Poly1305, plain: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
    let mut nonce = [0; BOX];
    base::clock::random_bytes(&mut nonce);
    out.extend_from_slice(&nonce);
    let mut body = plain.to_vec();
    let tag = cipher.encrypt_in_place_detached(&BoxNonce::from(nonce), &[], &mut body);
    // The tag precedes the ciphertext, as in NaCl.
    out.extend_from_slice(&tag.map_err(|_| CipherError::TooLong)?);
    out.extend_from_slice(&body);
    Ok(())
}

fn box_open(cipher: &XSalsa20Poly1305, sealed: &[u8]) -> Result<Vec<u8>, CipherError> {
    let (nonce, body) = sealed.split_first_chunk::<BOX>().ok_or(CipherError::TooShort)?;
    let (tag, body) = body.split_first_chunk::<BLOCK>().ok_or(CipherError::TooShort)?;
    let mut body = body.to_vec();
    let opened =
        cipher.decrypt_in_place_detached(&BoxNonce::from(*nonce), &[], &mut body, tag.into());
    opened.map_err(|_| CipherError::SecretboxAuthentication)?;
    Ok(body)
}

/// The algorithm of a key.
pub(super) enum Method {
    Gcm(Gcm),
    Cbc(Box<Aes>),
    Secretbox(Box<XSalsa20Poly1305>),
}

impl Method {
    pub(super) fn gcm(key: &[u8]) -> Result<Self, CipherError> {
        Gcm::new(key).map(Self::Gcm)
    }

    pub(super) fn cbc(key: &[u8]) -> Result<Self, CipherError> {
        Aes::new(key).map(|aes| Self::Cbc(Box::new(aes)))
    }

    pub(super) fn secretbox(key: &[u8]) -> Result<Self, CipherError> {
        let bad = |_| CipherError::SecretboxKeySize(key.len());
        XSalsa20Poly1305::new_from_slice(key).map(|c| Self::Secretbox(Box::new(c))).map_err(bad)
    }

    fn seal(&self, key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        match self {
            Self::Gcm(cipher) => cipher.seal(key, plain, out),
            Self::Cbc(cipher) => {
                cbc_seal(cipher, plain, out);
                Ok(())
            }
            Self::Secretbox(cipher) => box_seal(cipher, plain, out),
        }
    }

    fn open(&self, key: &str, sealed: &[u8]) -> Result<Vec<u8>, CipherError> {
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
    /// The name of the algorithm in errors.
    pub(super) algorithm: &'static str,
}

impl Keyed {
    fn unknown_key(&self) -> ProviderError {
        ProviderError::UnknownKey { algorithm: self.algorithm }
    }

    /// Decrypts the value after the prefix with the key that it names.
    fn open(&self, key: &str, rest: &[u8]) -> Result<Opened, ProviderError> {
        let mut errors = Vec::new();
        for (position, (name, method)) in self.keys.iter().enumerate() {
            let Some(sealed) = rest.strip_prefix(name.as_bytes()) else { continue };
            match method.open(key, sealed) {
                Ok(plain) => return Ok(Opened { plain: plain.into(), stale: position != 0 }),
                Err(error) => errors.push(error.into()),
            }
        }
        if errors.is_empty() {
            Err(self.unknown_key())
        } else {
            Err(ProviderError::Several(errors))
        }
    }
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

    fn seal(&self, key: &str, plain: &Bytes) -> Result<Bytes, ProviderError> {
        let mut out = Vec::with_capacity(plain.len() + 256);
        out.extend_from_slice(self.prefix().as_bytes());
        match self {
            Self::Identity => return Ok(plain.clone()),
            Self::Keyed(keyed) => {
                let (name, method) = keyed.keys.first().ok_or_else(|| keyed.unknown_key())?;
                out.extend_from_slice(name.as_bytes());
                method.seal(key, plain, &mut out)?;
            }
            Self::Kms(kms) => kms.seal(key, plain, &mut out)?,
        }
        Ok(out.into())
    }

    /// Decrypts the value after the prefix.
    fn open(&self, key: &str, stored: &Bytes) -> Result<Opened, ProviderError> {
        let rest = stored.get(self.prefix().len()..).unwrap_or_default();
        match self {
            Self::Identity if is_encrypted(stored) => Err(ProviderError::IdentityReadsEncrypted),
            Self::Identity => Ok(Opened { plain: stored.clone(), stale: false }),
            Self::Keyed(keyed) => keyed.open(key, rest),
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
    metrics: &EncryptionMetrics,
) -> Result<Bytes, ProviderError> {
    let Some(first) = providers.first() else { return Ok(plain.clone()) };
    let begun = base::clock::now();
    let sealed = first.seal(key, plain);
    metrics.transformed(resource, "to_storage", first.prefix(), begun, sealed.is_ok());
    sealed
}

/// Decrypts with the first provider that has the prefix and succeeds.
pub(super) fn open(
    providers: &[Provider],
    resource: &str,
    key: &str,
    stored: &Bytes,
    metrics: &EncryptionMetrics,
) -> Result<Opened, ProviderError> {
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
        metrics.transformed(resource, DIRECTION, name, begun, opened.is_ok());
        match opened {
            Ok(opened) => {
                return Ok(Opened { stale: opened.stale || at != 0, ..opened });
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() {
        metrics.transformed(resource, DIRECTION, "unknown", begun, false);
        return Err(ProviderError::NoMatchingPrefix);
    }
    Err(ProviderError::Several(errors))
}

#[cfg(test)]
mod tests;
