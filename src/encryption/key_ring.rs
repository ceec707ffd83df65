//! The server's own keys: AES-256-GCM with named keys, the storage key is authenticated with the
//! value. The first key encrypts, all keys decrypt, and a key rotation proceeds in stages that all
//! servers take together.

use std::fmt::Write as _;
use std::sync::Arc;

use base::{SecretValue, pki};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::is_encrypted;

/// The prefix of an encrypted value, followed by the key ID and a colon; upstream's format.
const PREFIX: &[u8] = b"k8s:enc:aesgcm:v1:";

/// The maximum length of a key ID.
const MAX_ID: usize = 64;

/// The maximum number of keys: each rotation adds one and drops the others.
const KEYS_MAX: usize = 64;

/// The error of reading or writing a value or the keys file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The keys file cannot be read or written.
    #[error("cannot read the encryption keys: {0}")]
    File(#[from] pki::Error),
    /// The keys file has invalid content.
    #[error(
        "{path}: line {line}: {why}; restore the file from a backup: without its keys no Secret can be read"
    )]
    Content {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The error in the line.
        why: KeyError,
    },
    /// A value is encrypted with an unknown key.
    #[error(
        "{key}: encrypted with key {id:?}, which is not in the keys file; add that key again (as a line that is not the first)"
    )]
    UnknownKey {
        /// The storage key.
        key: String,
        /// The ID of the missing key.
        id: String,
    },
    /// A value is damaged, or was moved from another storage key.
    #[error("{key}: the encrypted value is damaged or belongs to another key")]
    Damaged {
        /// The storage key.
        key: String,
    },
    /// Encryption failed, which happens only for values beyond 64 GiB.
    #[error("{key}: cannot be encrypted")]
    Seal {
        /// The storage key.
        key: String,
    },
}

/// A line of the keys file, or a new key, is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The ID is empty, too long, or contains other characters than letters, digits and `-_.`.
    #[error("the key's id is not a short word")]
    Id,
    /// The key does not have 32 bytes.
    #[error("the key has not 32 bytes")]
    Length,
    /// The line does not consist of an ID and a key.
    #[error("no id and key")]
    Form,
    /// Two keys have the same ID.
    #[error("the key's id occurs twice")]
    DuplicateId,
    /// There are too many keys.
    #[error("there are more than 64 keys")]
    TooMany,
    /// The key is not base64.
    #[error("the key is not base64")]
    Base64,
    /// The file contains no key.
    #[error("the file holds no key")]
    NoKey,
}

/// The requested change is not possible now. The messages name the fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NextError {
    /// Another change is not complete.
    #[error("a change of keys is unfinished: run `kube-lite secrets-encrypt rotate-keys` first")]
    Unfinished,
    /// Values are being decrypted.
    #[error(
        "encryption is being disabled: run `kube-lite secrets-encrypt disable` first, which \
         finishes that"
    )]
    Disabling,
    /// There are no keys to rotate.
    #[error("secrets are not encrypted: run `kube-lite secrets-encrypt enable` first")]
    NotEnabled,
    /// The new key is invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The stage of a key rotation, with k3s's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No rotation has happened.
    Start,
    /// A new key is known and not used yet.
    Prepare,
    /// Stale values are being rewritten with the first provider.
    Active,
    /// The last rotation is complete.
    Finished,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Start, Self::Prepare, Self::Active, Self::Finished];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Prepare => "prepare",
            Self::Active => "reencrypt_active",
            Self::Finished => "reencrypt_finished",
        }
    }
}

/// A requested change of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wish {
    /// Replace all keys with a new one.
    Rotate,
    /// Encrypt Secrets.
    Enable,
    /// Store Secrets unencrypted.
    Disable,
}

/// The steps of a change; all servers take a step before the next one begins.
#[derive(Debug, Clone)]
pub enum Next {
    /// Nothing to do.
    Nothing,
    /// Rings to adopt, in order.
    Steps {
        /// All servers learn the new key. `None` if that is done or there is no new key.
        prepared: Option<Ring>,
        /// All servers encrypt with it, and stale values are rewritten.
        active: Ring,
        /// Keys without values are dropped.
        finished: Ring,
    },
}

struct Key {
    id: String,
    secret: SecretValue<[u8; 32]>,
    cipher: LessSafeKey,
}

#[derive(Clone)]
enum RingEntry {
    /// Unencrypted values.
    Plain,
    Key(Arc<Key>),
}

impl RingEntry {
    fn id(&self) -> Option<&str> {
        match self {
            Self::Plain => None,
            Self::Key(key) => Some(&key.id),
        }
    }
}

/// Keys in order: the first one encrypts, all decrypt.
#[derive(Clone)]
pub struct Ring {
    generation: u64,
    stage: Stage,
    entries: Vec<RingEntry>,
}

fn key(id: &str, secret: &[u8]) -> Result<RingEntry, KeyError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
    if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(plain) {
        return Err(KeyError::Id);
    }
    let secret: [u8; 32] = secret.try_into().map_err(|_| KeyError::Length)?;
    let secret = SecretValue::from(secret);
    let unbound = UnboundKey::new(&AES_256_GCM, secret.as_slice()).map_err(|_| KeyError::Length)?;
    let cipher = LessSafeKey::new(unbound);
    Ok(RingEntry::Key(Arc::new(Key { id: id.to_owned(), secret, cipher })))
}

impl Ring {
    /// A ring with one new key.
    pub(super) fn new() -> Result<Self, KeyError> {
        Ok(Self { generation: 0, stage: Stage::Start, entries: vec![fresh("key1".to_owned())?] })
    }

    /// Parses the output of [`Ring::render`], or lines `id base64` only.
    ///
    /// # Errors
    /// [`Error::Content`] with the line.
    pub fn parse(text: &str, path: &str) -> Result<Self, Error> {
        let mut ring = Self { generation: 0, stage: Stage::Start, entries: Vec::new() };
        let lines = text.lines().enumerate();
        for (i, line) in lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
        {
            let bad = |why| Error::Content { path: path.to_owned(), line: i + 1, why };
            ring.parse_line(line.trim()).map_err(bad)?;
        }
        if ring.keys().next().is_none() {
            let why = KeyError::NoKey;
            return Err(Error::Content { path: path.to_owned(), line: 1, why });
        }
        Ok(ring)
    }

    fn parse_line(&mut self, line: &str) -> Result<(), KeyError> {
        if line == "identity" {
            self.entries.push(RingEntry::Plain);
            return Ok(());
        }
        let (id, rest) = line.split_once(' ').ok_or(KeyError::Form)?;
        let rest = rest.trim();
        if let ("generation", Ok(generation)) = (id, rest.parse()) {
            self.generation = generation;
            return Ok(());
        }
        let stage = Stage::ALL.into_iter().find(|stage| stage.name() == rest);
        if let ("stage", Some(stage)) = (id, stage) {
            self.stage = stage;
            return Ok(());
        }
        if self.keys().any(|known| known.id == id) {
            return Err(KeyError::DuplicateId);
        }
        if self.entries.len() >= KEYS_MAX {
            return Err(KeyError::TooMany);
        }
        let secret = STANDARD.decode(rest).map_err(|_| KeyError::Base64)?;
        let secret = SecretValue::from(secret);
        self.entries.push(key(id, &secret)?);
        Ok(())
    }

    /// The content of the keys file.
    pub fn render(&self) -> String {
        let mut text = String::new();
        if self.generation > 0 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "generation {}\nstage {}", self.generation, self.stage.name());
        }
        for entry in &self.entries {
            let _ = match entry {
                RingEntry::Plain => writeln!(text, "identity"),
                RingEntry::Key(key) => {
                    writeln!(text, "{} {}", key.id, STANDARD.encode(key.secret.as_slice()))
                }
            };
        }
        text
    }

    /// The SHA-256 of the ring; equal if keys, their order and the stage are.
    pub fn hash(&self) -> String {
        base::server_identity::hash_of(self.render().as_bytes())
    }

    /// The generation, which every change increments.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The stage of the rotation.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether a change has begun and is not complete.
    pub fn unfinished(&self) -> bool {
        matches!(self.stage, Stage::Prepare | Stage::Active)
    }

    fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.entries.iter().filter_map(|entry| match entry {
            RingEntry::Plain => None,
            RingEntry::Key(key) => Some(key),
        })
    }

    /// The name of the key that encrypts; `None` if values are stored unencrypted.
    pub fn active(&self) -> Option<&str> {
        self.entries.first().and_then(RingEntry::id)
    }

    /// The names of the other keys.
    pub fn inactive(&self) -> Vec<&str> {
        self.entries.iter().skip(1).filter_map(RingEntry::id).collect()
    }

    fn step(&self, stage: Stage, entries: Vec<RingEntry>) -> Self {
        Self { generation: self.generation.saturating_add(1), stage, entries }
    }

    /// The steps for the requested change, or for the rest of an interrupted one.
    ///
    /// # Errors
    /// If it is not possible now.
    pub fn next(&self, wish: Wish) -> Result<Next, NextError> {
        let entries = self.entries.clone();
        let (prepared, active) = match (self.stage, self.active().is_some(), wish) {
            (Stage::Prepare, _, Wish::Rotate) => (None, self.promoted()),
            (Stage::Active, true, Wish::Rotate | Wish::Enable)
            | (Stage::Active, false, Wish::Disable) => (None, self.clone()),
            (Stage::Prepare, ..) | (Stage::Active, true, _) => {
                return Err(NextError::Unfinished);
            }
            (Stage::Active, false, _) => {
                return Err(NextError::Disabling);
            }
            (_, true, Wish::Enable) | (_, false, Wish::Disable) => return Ok(Next::Nothing),
            (_, false, Wish::Rotate) => {
                return Err(NextError::NotEnabled);
            }
            (_, true, Wish::Rotate) => {
                let mut entries = entries;
                entries.push(fresh(self.free_id())?);
                let prepared = self.step(Stage::Prepare, entries);
                let active = prepared.promoted();
                (Some(prepared), active)
            }
            (_, true, Wish::Disable) => {
                let entries = std::iter::once(RingEntry::Plain).chain(entries).collect();
                (None, self.step(Stage::Active, entries))
            }
            (_, false, Wish::Enable) => {
                let mut entries = entries;
                entries.retain(|entry| entry.id().is_some());
                (None, self.step(Stage::Active, entries))
            }
        };
        let finished = active.finished();
        Ok(Next::Steps { prepared, active, finished })
    }

    /// The ring with its newest key first.
    fn promoted(&self) -> Self {
        let mut entries = self.entries.clone();
        entries.rotate_right(1);
        self.step(Stage::Active, entries)
    }

    /// The ring without keys that encrypt no values. If values are stored unencrypted, the keys are
    /// kept, so that encryption can be enabled again.
    fn finished(&self) -> Self {
        let mut entries = self.entries.clone();
        if self.active().is_some() {
            entries.truncate(1);
        }
        self.step(Stage::Finished, entries)
    }

    fn free_id(&self) -> String {
        let number = |key: &Arc<Key>| key.id.strip_prefix("key")?.parse::<u64>().ok();
        let last = self.keys().filter_map(number).max().unwrap_or(0);
        format!("key{}", last.saturating_add(1))
    }

    /// The ring with the keys of `former` that it lacks appended: they decrypt the values of an old
    /// snapshot.
    #[must_use]
    pub fn with_keys_of(&self, former: &Self) -> Self {
        let mut both = self.clone();
        let unknown = former.keys().filter(|key| self.keys().all(|own| own.id != key.id));
        both.entries.extend(unknown.map(|key| RingEntry::Key(Arc::clone(key))));
        both.entries.truncate(KEYS_MAX);
        if both.entries.len() > self.entries.len() {
            both.generation = both.generation.saturating_add(1);
        }
        both
    }

    /// The keys that `next` lacks, as lines; empty if there are none.
    pub(super) fn dropped(&self, next: &Self) -> String {
        let gone = self.keys().filter(|key| next.keys().all(|kept| kept.secret != key.secret));
        gone.map(|key| format!("{} {}\n", key.id, STANDARD.encode(key.secret.as_slice()))).collect()
    }

    /// Merges the rings of several servers: the newest one, and keys that only another one has, so
    /// that no key is lost.
    pub fn merged(rings: Vec<Self>) -> Option<Self> {
        let mut newest = rings.iter().max_by_key(|ring| ring.generation)?.clone();
        let mut added = false;
        for key in rings.iter().flat_map(Self::keys) {
            // A dropped key may still be in the ring of a server that missed the end of the
            // rotation.
            let behind = newest.stage == Stage::Finished;
            let known = newest.keys().any(|known| known.secret == key.secret);
            let room = newest.entries.len() < KEYS_MAX;
            if !behind && !known && room && newest.keys().all(|known| known.id != key.id) {
                newest.entries.push(RingEntry::Key(Arc::clone(key)));
                added = true;
            }
        }
        if added {
            newest.generation = newest.generation.saturating_add(1);
        }
        Some(newest)
    }

    /// Encrypts the value of the storage key `key`; `None` if values are stored unencrypted.
    ///
    /// # Errors
    /// If encryption fails.
    pub fn encrypt(&self, key: &str, value: &[u8]) -> Result<Option<Bytes>, Error> {
        let failed = || Error::Seal { key: key.to_owned() };
        let first = match self.entries.first().ok_or_else(failed)? {
            RingEntry::Plain => return Ok(None),
            RingEntry::Key(first) => first,
        };
        // 96 random bits: a key can encrypt 2^32 values before a nonce collision becomes likely.
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
        Ok(Some(out.freeze()))
    }

    /// Decrypts the value of the storage key `key`; an unencrypted value is returned unchanged.
    ///
    /// # Errors
    /// If its key is unknown or it is damaged.
    pub fn decrypt(&self, key: &str, stored: &Bytes) -> Result<Bytes, Error> {
        if !is_encrypted(stored) {
            return Ok(stored.clone());
        }
        let damaged = || Error::Damaged { key: key.to_owned() };
        let rest = stored.strip_prefix(PREFIX).ok_or_else(damaged)?;
        let end = rest.iter().take(MAX_ID + 1).position(|b| *b == b':').ok_or_else(damaged)?;
        let (id, sealed) = rest.split_at_checked(end).ok_or_else(damaged)?;
        let id = std::str::from_utf8(id).map_err(|_| damaged())?;
        let found = self.keys().find(|k| k.id == id);
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

    /// Whether the value differs from how it would be written now: with another key than the first
    /// one, or unencrypted (or not).
    pub fn stale(&self, stored: &[u8]) -> bool {
        let Some(active) = self.active() else { return is_encrypted(stored) };
        let rest =
            stored.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(active.as_bytes()));
        rest.is_none_or(|rest| rest.first() != Some(&b':'))
    }
}

/// A new random key.
fn fresh(id: String) -> Result<RingEntry, KeyError> {
    let mut secret = vec![0; 32];
    base::clock::random_bytes(&mut secret);
    key(&id, &SecretValue::from(secret))
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("generation", &self.generation)
            .field("stage", &self.stage)
            .field("active", &self.active())
            .field("inactive", &self.inactive())
            .finish()
    }
}

#[cfg(test)]
mod tests;
