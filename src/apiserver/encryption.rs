//! Secrets encrypted at rest: AES-256-GCM under named keys, the storage key authenticated with the value.

use std::path::Path;

use base::pki;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::registry::storage::Transformer;

/// What an encrypted value begins with, before the id of its key and a colon; upstream's form.
const PREFIX: &[u8] = b"k8s:enc:aesgcm:v1:";

/// Longest key id; upstream's names are short words.
const MAX_ID: usize = 64;

/// Why a value cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The keys file is unreadable.
    #[error("cannot read the encryption keys: {0}")]
    File(#[from] pki::Error),
    /// The keys file has bad content.
    #[error(
        "{path}: line {line}: {why}; restore the file from a backup: without its keys no Secret can be read"
    )]
    Content {
        /// The file.
        path: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// A value under a key that is not there.
    #[error(
        "{key}: encrypted with key {id:?}, which is not in the keys file; add that key again (as a line that is not the first)"
    )]
    UnknownKey {
        /// Storage key.
        key: String,
        /// Id of the missing key.
        id: String,
    },
    /// A value that is damaged, or was moved from another storage key.
    #[error("{key}: the encrypted value is damaged or belongs to another key")]
    Damaged {
        /// Storage key.
        key: String,
    },
    /// Sealing failed, which only a value beyond 64 GiB causes.
    #[error("{key}: cannot be encrypted")]
    Seal {
        /// Storage key.
        key: String,
    },
}

struct Key {
    id: String,
    cipher: LessSafeKey,
}

/// The keys: the first encrypts, all decrypt.
pub struct Keys(Vec<Key>);

impl Keys {
    /// The keys in this file (mode 0600, one `id base64` a line); made with one random key when it is not there.
    ///
    /// # Errors
    /// When the file cannot be read, written or understood.
    pub fn load_or_create(path: &Path) -> Result<Self, Error> {
        let text = pki::ensure_secret(path, || {
            let mut secret = [0; 32];
            base::clock::random_bytes(&mut secret);
            Ok(format!("key1 {}\n", STANDARD.encode(secret)))
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, path: &str) -> Result<Self, Error> {
        let mut keys: Vec<Key> = Vec::new();
        for (i, line) in text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
        {
            let bad = |why| Error::Content { path: path.to_owned(), line: i + 1, why };
            let (id, secret) = line.trim().split_once(' ').ok_or_else(|| bad("no id and key"))?;
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
            if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(plain) {
                return Err(bad("the key's id is not a short word"));
            }
            if keys.iter().any(|key| key.id == id) {
                return Err(bad("the key's id occurs twice"));
            }
            let secret =
                STANDARD.decode(secret.trim()).map_err(|_| bad("the key is not base64"))?;
            let unbound = UnboundKey::new(&AES_256_GCM, &secret)
                .map_err(|_| bad("the key has not 32 bytes"))?;
            keys.push(Key { id: id.to_owned(), cipher: LessSafeKey::new(unbound) });
        }
        if keys.is_empty() {
            return Err(Error::Content {
                path: path.to_owned(),
                line: 1,
                why: "the file holds no key",
            });
        }
        Ok(Self(keys))
    }

    /// The value as it goes to the store under `key`.
    ///
    /// # Errors
    /// When sealing fails.
    pub fn encrypt(&self, key: &str, value: &[u8]) -> Result<Bytes, Error> {
        let failed = || Error::Seal { key: key.to_owned() };
        let first = self.0.first().ok_or_else(failed)?;
        // 96 random bits: one key may seal 2^32 values before two nonces are likely to meet.
        let mut nonce = [0; NONCE_LEN];
        base::clock::random_bytes(&mut nonce);
        let mut body = value.to_vec();
        let tag = first
            .cipher
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(key.as_bytes()),
                &mut body,
            )
            .map_err(|_| failed())?;
        let mut out = BytesMut::with_capacity(
            PREFIX.len() + first.id.len() + 1 + NONCE_LEN + body.len() + tag.as_ref().len(),
        );
        out.extend_from_slice(PREFIX);
        out.extend_from_slice(first.id.as_bytes());
        out.extend_from_slice(b":");
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&body);
        out.extend_from_slice(tag.as_ref());
        Ok(out.freeze())
    }

    /// The value that stands under `key`; one that is not encrypted is returned as it is (it was written before).
    ///
    /// # Errors
    /// When its key is unknown or it is damaged.
    pub fn decrypt(&self, key: &str, stored: &Bytes) -> Result<Bytes, Error> {
        if !is_encrypted(stored) {
            return Ok(stored.clone());
        }
        let damaged = || Error::Damaged { key: key.to_owned() };
        let rest = stored.strip_prefix(PREFIX).ok_or_else(damaged)?;
        let end = rest.iter().take(MAX_ID + 1).position(|b| *b == b':').ok_or_else(damaged)?;
        let (id, sealed) = rest.split_at_checked(end).ok_or_else(damaged)?;
        let id = std::str::from_utf8(id).map_err(|_| damaged())?;
        let found = self.0.iter().find(|k| k.id == id);
        let found =
            found.ok_or_else(|| Error::UnknownKey { key: key.to_owned(), id: id.to_owned() })?;
        let sealed = sealed.get(1..).ok_or_else(damaged)?;
        let (nonce, body) = sealed.split_first_chunk::<NONCE_LEN>().ok_or_else(damaged)?;
        let mut body = body.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = found
            .cipher
            .open_in_place(nonce, Aad::from(key.as_bytes()), &mut body)
            .map_err(|_| damaged())?
            .len();
        body.truncate(length);
        Ok(body.into())
    }

    /// The value is under a key that is not the first, or not encrypted: it should be written anew.
    pub fn stale(&self, stored: &[u8]) -> bool {
        let current = self.0.first().map(|key| key.id.as_bytes());
        let rest = stored.strip_prefix(PREFIX);
        !matches!((rest, current), (Some(rest), Some(id)) if rest.strip_prefix(id).is_some_and(|r| r.first() == Some(&b':')))
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

impl Transformer for Keys {
    fn seal(&self, resource: &str, key: &str, plain: &[u8]) -> Result<Option<Vec<u8>>, String> {
        if resource != "secrets" {
            return Ok(None);
        }
        self.encrypt(key, plain).map(|sealed| Some(sealed.to_vec())).map_err(|e| e.to_string())
    }

    fn open(&self, key: &str, stored: &[u8]) -> Result<Vec<u8>, String> {
        self.decrypt(key, &Bytes::copy_from_slice(stored))
            .map(|plain| plain.to_vec())
            .map_err(|e| e.to_string())
    }
}

/// The value begins as encrypted ones do, by whatever provider.
pub fn is_encrypted(stored: &[u8]) -> bool {
    stored.starts_with(b"k8s:enc:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const KEY: &str = "/registry/secrets/a/s";

    fn keys(lines: &[(&str, u8)]) -> Keys {
        let text: Vec<String> = lines
            .iter()
            .map(|(id, byte)| format!("{id} {}", STANDARD.encode([*byte; 32])))
            .collect();
        Keys::parse(&text.join("\n"), "f").unwrap()
    }

    #[test]
    fn what_is_stored_shows_nothing_and_is_read_back_under_its_key_only() {
        let keys = keys(&[("key1", 1)]);
        let stored = keys.encrypt(KEY, b"hunter2").unwrap();
        assert!(stored.starts_with(b"k8s:enc:aesgcm:v1:key1:"));
        assert!(!stored.windows(7).any(|w| w == b"hunter2"));
        assert_ne!(stored, keys.encrypt(KEY, b"hunter2").unwrap());
        assert_eq!(keys.decrypt(KEY, &stored).unwrap(), "hunter2");
        assert!(matches!(
            keys.decrypt("/registry/secrets/a/other", &stored),
            Err(Error::Damaged { .. })
        ));
        let mut flipped = stored.to_vec();
        *flipped.last_mut().unwrap() ^= 1;
        assert!(matches!(keys.decrypt(KEY, &flipped.into()), Err(Error::Damaged { .. })));
        assert!(matches!(keys.decrypt(KEY, &stored.slice(..25)), Err(Error::Damaged { .. })));
    }

    #[test]
    fn old_keys_still_read_and_the_first_one_writes() {
        let old = keys(&[("key1", 1)]).encrypt(KEY, b"x").unwrap();
        let both = keys(&[("key2", 2), ("key1", 1)]);
        assert_eq!(both.decrypt(KEY, &old).unwrap(), "x");
        assert!(both.stale(&old) && both.stale(b"{}"));
        assert!(!both.stale(&both.encrypt(KEY, b"x").unwrap()));
        let error = keys(&[("key2", 2)]).decrypt(KEY, &old).unwrap_err().to_string();
        assert!(error.contains("\"key1\"") && error.contains("keys file"), "{error}");
        assert_eq!(both.decrypt(KEY, &Bytes::from_static(b"{\"a\":1}")).unwrap(), "{\"a\":1}");
    }

    #[test]
    fn the_file_is_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let stored = Keys::load_or_create(&path).unwrap().encrypt(KEY, b"x").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Keys::load_or_create(&path).unwrap().decrypt(KEY, &stored).unwrap(), "x");
        assert!(Keys::parse("key1 abc", "f").is_err() && Keys::parse("", "f").is_err());
    }
}
