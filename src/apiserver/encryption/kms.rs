//! KMS v2: a plugin encrypts a seed, from which a key per value is derived
//! (`encrypt/envelope/kmsv2`, KEP-3299). The plugin is polled once a minute for its current key; a
//! new key requires a new seed.

mod grpc;
mod wire;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use api::validation::names::name_is_subdomain;
use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use base::Tasks;
use base::tasks::Kind;
use bytes::Bytes;
use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use ring::{digest, hkdf};
use tokio::time::Instant;

use super::providers::{Gcm, SHORT};
use crate::encryption::metrics::Counts;
use crate::metrics::storage as meters;
use crate::response::aggregate::aggregate;
pub(super) use grpc::Grpc;
pub(super) use wire::Annotations;
use wire::{SourceType, Stored};

/// The poll intervals of a healthy and of an unhealthy plugin (`kmsv2PluginHealthz…Interval`).
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(10));
/// How long a health check reuses the last status of a healthy and of an unhealthy plugin.
const STATUS_TTL: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(3));
/// How long a seed can encrypt after the plugin was last healthy
/// (`kmsv2PluginWriteDEKSourceMaxTTL`).
const WRITES_MAX: Duration = Duration::from_secs(180);
/// The length of a seed, and of the info from which the key of a value is derived, in bytes.
const SEED: usize = 32;
/// The maximum length of a key ID and of an encrypted seed, then that of annotations, in bytes.
const TEXT_MAX: usize = 1024;
const ANNOTATIONS_MAX: usize = 32 * 1024;
/// The number of decrypted seeds in the cache: one per start of each server, until values are
/// rewritten.
const SEEDS_MAX: usize = 4096;

/// The status of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// The version of the protocol.
    pub(super) version: String,
    /// `ok`, or the problem.
    pub(super) health: String,
    /// The ID of the current key.
    pub(super) key_id: String,
}

/// A seed encrypted by a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SealedKey {
    pub(super) ciphertext: Vec<u8>,
    pub(super) key_id: String,
    pub(super) annotations: Annotations,
}

/// The interface of a plugin; errors are messages.
#[async_trait]
pub(super) trait Plugin: Send + Sync + std::fmt::Debug {
    async fn status(&self) -> Result<Status, String>;
    async fn encrypt(&self, uid: &str, plain: &[u8]) -> Result<SealedKey, String>;
    async fn decrypt(
        &self,
        uid: &str,
        ciphertext: &[u8],
        key_id: &str,
        annotations: &Annotations,
    ) -> Result<Vec<u8>, String>;
}

/// The source of keys for values.
enum Source {
    Key(Gcm),
    Seed(hkdf::Prk),
}

impl Source {
    fn of(source_type: SourceType, bytes: &[u8]) -> Result<Self, String> {
        match source_type {
            SourceType::Key => Gcm::new(bytes).map(Self::Key),
            SourceType::Seed if bytes.len() < SEED => {
                Err(format!("invalid seed length {} used for key generation", bytes.len()))
            }
            SourceType::Seed => Ok(Self::Seed(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, bytes))),
        }
    }

    fn expanded(seed: &hkdf::Prk, info: &[u8]) -> Result<Gcm, String> {
        let infos = [info];
        let expanded = seed.expand(&infos, &AES_256_GCM);
        let expanded = expanded.map_err(|_| "failed to derive a key")?;
        Ok(Gcm::Ring(Box::new(LessSafeKey::new(UnboundKey::from(expanded)))))
    }

    fn seal(&self, key: &str, plain: &[u8]) -> Result<Vec<u8>, String> {
        let mut out = Vec::with_capacity(plain.len() + 64);
        match self {
            Self::Key(cipher) => cipher.seal(key, plain, &mut out)?,
            Self::Seed(seed) => {
                let mut info = [0; SEED];
                base::clock::random_bytes(&mut info);
                out.extend_from_slice(&info);
                Self::expanded(seed, &info)?.seal(key, plain, &mut out)?;
            }
        }
        Ok(out)
    }

    fn open(&self, key: &str, data: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::Key(cipher) => cipher.open(key, data),
            Self::Seed(seed) => {
                let (info, sealed) = data.split_at_checked(SEED).ok_or(SHORT)?;
                Self::expanded(seed, info)?.open(key, sealed)
            }
        }
    }
}

/// The seed that encrypts now.
struct State {
    source: Arc<Source>,
    key: SealedKey,
    /// When it expires unless the plugin is healthy again.
    expires: (Instant, jiff::Timestamp),
}

/// The last status of the plugin.
#[derive(Default)]
struct LastStatus {
    last: Option<(Instant, Result<(), String>)>,
    version: String,
}

/// Seeds by their encrypted form; an error is retried at the next use.
type Seeds = HashMap<Vec<u8>, (Result<Arc<Source>, String>, Instant)>;

/// A plugin.
pub(super) struct Kms {
    name: String,
    prefix: String,
    plugin: Arc<dyn Plugin>,
    state: ArcSwapOption<State>,
    seeds: Mutex<Seeds>,
    heard: tokio::sync::Mutex<LastStatus>,
    /// Serializes calls: concurrent readers mostly need the same seed.
    fetching: tokio::sync::Mutex<()>,
    counts: Arc<Counts>,
}

/// The SHA-256 of an ID, for logs and errors.
fn hashed(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn valid_key_id(id: &str) -> Result<(), String> {
    match id.len() {
        0 => Err("keyID is empty".to_owned()),
        1..=TEXT_MAX => Ok(()),
        length => Err(format!("keyID is {length} bytes, which exceeds the max size of {TEXT_MAX}")),
    }
}

fn valid_annotations(annotations: &Annotations) -> Result<(), String> {
    let mut errors = Vec::new();
    for name in annotations.keys() {
        let invalid = |why: &str| {
            format!("annotations: Invalid value: {}: {why}", api::field::go_quote(name))
        };
        let plain = name.strip_suffix('.').unwrap_or(name);
        let wrong = name_is_subdomain(plain, false);
        if name.is_empty() {
            errors.push("annotations: Required value".to_owned());
        } else if !wrong.is_empty() {
            let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
            errors.push(invalid(&wrong.join(",")));
        } else if !plain.contains('.') {
            errors.push(invalid("should be a domain with at least two segments separated by dots"));
        }
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > ANNOTATIONS_MAX {
        errors.push(format!(
            "total size of annotations is {size}, which exceeds the max size of {ANNOTATIONS_MAX}"
        ));
    }
    if errors.is_empty() { Ok(()) } else { Err(aggregate(errors)) }
}

/// Validates all fields but the data, like upstream's `ValidateEncryptedObject`.
fn valid(source: &[u8], key_id: &str, annotations: &Annotations) -> Result<(), String> {
    let source = match source.len() {
        0 => Err("encrypted DEK source is empty".to_owned()),
        1..=TEXT_MAX => Ok(()),
        length => Err(format!(
            "encrypted DEK source is {length} bytes, which exceeds the max size of {TEXT_MAX}"
        )),
    };
    source.map_err(|why| format!("failed to validate encrypted DEK source: {why}"))?;
    valid_key_id(key_id).map_err(|why| format!("failed to validate key id: {why}"))?;
    valid_annotations(annotations).map_err(|why| format!("failed to validate annotations: {why}"))
}

fn decoded(rest: &[u8]) -> Result<Stored, String> {
    let stored = Stored::decode(rest)?;
    if stored.data.is_empty() {
        return Err("encrypted data is empty".to_owned());
    }
    valid(&stored.source, &stored.key_id, &stored.annotations)?;
    Ok(stored)
}

/// The encoding of all fields but the data.
fn cache_key(source_type: SourceType, key: &SealedKey) -> Vec<u8> {
    let head = Stored {
        data: Vec::new(),
        key_id: key.key_id.clone(),
        source: key.ciphertext.clone(),
        annotations: key.annotations.clone(),
        source_type,
    };
    let mut out = Vec::new();
    head.encode(&mut out);
    out
}

impl Kms {
    pub(super) fn new(name: &str, plugin: Arc<dyn Plugin>, counts: &Arc<Counts>) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            prefix: format!("k8s:enc:kms:v2:{name}:"),
            plugin,
            state: ArcSwapOption::empty(),
            seeds: Mutex::default(),
            heard: tokio::sync::Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
            counts: Arc::clone(counts),
        })
    }

    /// The prefix of its values.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Records a call of the plugin, under the gRPC code at the start of its error.
    fn called(&self, method: &str, begun: Instant, error: Option<&String>) {
        let code = error.map_or("OK", |why| {
            let of = why.strip_prefix("rpc error: code = ").and_then(|rest| rest.split(' ').next());
            of.unwrap_or("unknown-non-grpc")
        });
        let method = format!("/v2.KeyManagementService/{method}");
        meters::called(&self.name, &method, code, begun.elapsed());
    }

    fn used(&self, key_id: &str, direction: &str) {
        meters::key_used(
            crate::server_identity::own_hash(),
            &hashed(key_id),
            &self.name,
            direction,
        );
    }

    fn state(&self) -> Result<Arc<State>, String> {
        self.state.load_full().ok_or_else(|| "got unexpected nil transformer".to_owned())
    }

    /// Encrypts a value and appends it to `out`.
    pub(super) fn seal(&self, key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let state = self.state()?;
        if base::clock::now() > state.expires.0 {
            return Err(format!(
                "encryptedDEKSource with keyID hash {} expired at {} (current time is {})",
                api::field::go_quote(&hashed(&state.key.key_id)),
                text_of(state.expires.1),
                text_of(jiff::Timestamp::now())
            ));
        }
        let stored = Stored {
            data: state.source.seal(key, plain)?,
            key_id: state.key.key_id.clone(),
            source: state.key.ciphertext.clone(),
            annotations: state.key.annotations.clone(),
            source_type: SourceType::Seed,
        };
        stored.encode(out);
        self.used(&stored.key_id, "to_storage");
        Ok(())
    }

    /// Decrypts the value after the prefix; also returns whether it is stale because the key
    /// changed.
    pub(super) fn open(&self, key: &str, rest: &[u8]) -> Result<(Vec<u8>, bool), String> {
        let stored = decoded(rest)?;
        let state = self.state()?;
        let (data, source_type) = (stored.data, stored.source_type);
        let sealed = SealedKey {
            ciphertext: stored.source,
            key_id: stored.key_id,
            annotations: stored.annotations,
        };
        let source = match self.seeds.lock().get_mut(&cache_key(source_type, &sealed)) {
            Some((source, used)) => {
                *used = base::clock::now();
                source.clone()
            }
            None => Err("failed to decrypt DEK, error: the plugin was not asked".to_owned()),
        };
        let plain = source?.open(key, &data)?;
        self.used(&sealed.key_id, "from_storage");
        let stale = sealed.key_id != state.key.key_id || source_type != SourceType::Seed;
        Ok((plain, stale))
    }

    /// Decrypts the unknown seeds of these values with the plugin.
    pub(super) async fn fetch(&self, stored: &[&Bytes]) {
        for value in stored {
            let Some(rest) = value.strip_prefix(self.prefix.as_bytes()) else { continue };
            // Damaged values are reported by `open`.
            let Ok(stored) = decoded(rest) else { continue };
            let sealed = SealedKey {
                ciphertext: stored.source,
                key_id: stored.key_id,
                annotations: stored.annotations,
            };
            let at = cache_key(stored.source_type, &sealed);
            let known = || self.seeds.lock().get(&at).is_some_and(|(source, _)| source.is_ok());
            if known() {
                continue;
            }
            let _one = self.fetching.lock().await;
            if known() {
                continue;
            }
            self.counts.missed();
            let uid = base::clock::random_uuid();
            let SealedKey { ciphertext, key_id, annotations } = &sealed;
            let begun = base::clock::now();
            let answer = self.plugin.decrypt(&uid, ciphertext, key_id, annotations).await;
            self.called("Decrypt", begun, answer.as_ref().err());
            let source = answer
                .map_err(|why| format!("failed to decrypt DEK, error: {why}"))
                .and_then(|bytes| Source::of(stored.source_type, &bytes));
            self.keep(at, source.map(Arc::new));
        }
    }

    fn keep(&self, at: Vec<u8>, source: Result<Arc<Source>, String>) {
        let mut seeds = self.seeds.lock();
        if seeds.len() >= SEEDS_MAX {
            let oldest = seeds.iter().min_by_key(|(_, (_, used))| *used).map(|(at, _)| at.clone());
            oldest.and_then(|oldest| seeds.remove(&oldest));
        }
        seeds.insert(at, (source, base::clock::now()));
        meters::seeds(&self.name, seeds.len());
    }

    /// Checks the health of the plugin; calls it unless its last status is recent, and follows its
    /// key.
    ///
    /// # Errors
    /// Upstream's messages.
    pub(super) async fn check(&self) -> Result<(), String> {
        let mut heard = self.heard.lock().await;
        if let Some((at, told)) = &heard.last {
            let lasts = if told.is_ok() { STATUS_TTL.0 } else { STATUS_TTL.1 };
            if base::clock::now().duration_since(*at) < lasts {
                return told.clone();
            }
        }
        let begun = base::clock::now();
        let answer = self.plugin.status().await;
        self.called("Status", begun, answer.as_ref().err());
        let told = match answer {
            Ok(status) => self.follow(&status, &mut heard.version).await,
            Err(why) => Err(format!(
                "failed to perform status section of the healthz check for KMS Provider {}, error: {why}",
                self.name
            )),
        };
        heard.last = Some((base::clock::now(), told.clone()));
        told
    }

    async fn follow(&self, status: &Status, version: &mut String) -> Result<(), String> {
        let mut errors = Vec::new();
        if status.health != "ok" {
            errors.push(format!("got unexpected healthz status: {}", status.health));
        }
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            errors.push(format!("expected KMSv2 API version v2, got {}", status.version));
        } else if version.is_empty() {
            version.clone_from(&status.version);
        } else if *version != status.version {
            errors.push(format!(
                "KMSv2 API version should not change after the initial status response version {version}, got {}",
                status.version
            ));
        }
        let told = valid_key_id(&status.key_id);
        let server = crate::server_identity::own_hash();
        let told_as = match (&told, status.key_id.is_empty()) {
            (Ok(()), _) => Ok(hashed(&status.key_id)),
            (Err(_), true) => Err("empty"),
            (Err(_), false) => Err("too_long"),
        };
        meters::key_told(server, &self.name, told_as.as_deref().map_err(|why| *why));
        match told {
            Err(why) => errors.push(format!(
                "got invalid KMSv2 KeyID hash {}: {why}",
                api::field::go_quote(&hashed(&status.key_id))
            )),
            Ok(()) => errors.extend(self.follow_key(&status.key_id).await.err()),
        }
        match errors.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "kmsv2 Provider {} is not healthy, error: {}",
                self.name,
                aggregate(errors)
            )),
        }
    }

    /// Extends the seed while the plugin's key is unchanged; generates a new seed for a new key.
    async fn follow_key(&self, key_id: &str) -> Result<(), String> {
        let now = jiff::Timestamp::now();
        let later = jiff::SignedDuration::try_from(WRITES_MAX).unwrap_or_default();
        // Counts from before the call of the plugin.
        let expires = (base::clock::now() + WRITES_MAX, now.saturating_add(later).unwrap_or(now));
        let state = self.state.load_full();
        if let Some(state) = state.as_ref().filter(|state| state.key.key_id == key_id) {
            let (source, key) = (Arc::clone(&state.source), state.key.clone());
            self.state.store(Some(Arc::new(State { source, key, expires })));
            return Ok(());
        }
        let uid = base::clock::random_uuid();
        let made = self.seed(&uid).await;
        if let Ok((source, key)) = &made {
            if key.key_id == key_id {
                let at = cache_key(SourceType::Seed, key);
                self.keep(at, Ok(Arc::clone(source)));
                tracing::info!(
                    provider = self.name,
                    key_id = hashed(key_id),
                    "a new seed seals values"
                );
                let (source, key) = (Arc::clone(source), key.clone());
                self.state.store(Some(Arc::new(State { source, key, expires })));
                return Ok(());
            }
        }
        let (error, encrypted) = match made {
            Ok((_, key)) => ("<nil>".to_owned(), key.key_id),
            Err(why) => (why, String::new()),
        };
        let quoted = |text: &str| api::field::go_quote(&hashed(text));
        Err(format!(
            "failed to rotate DEK uid={}, useSeed=true, errState={}, errGen={error}, statusKeyIDHash={}, encryptKeyIDHash={}, stateKeyIDHash={}, expirationTimestamp={}",
            api::field::go_quote(&uid),
            if state.is_some() { "<nil>" } else { "got unexpected nil transformer" },
            quoted(key_id),
            quoted(&encrypted),
            quoted(state.as_ref().map_or("", |state| state.key.key_id.as_str())),
            state
                .as_ref()
                .map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), |s| text_of(s.expires.1)),
        ))
    }

    async fn seed(&self, uid: &str) -> Result<(Arc<Source>, SealedKey), String> {
        let begun = base::clock::now();
        let mut seed = [0; SEED];
        base::clock::random_bytes(&mut seed);
        meters::key_made(begun);
        let source = Source::of(SourceType::Seed, &seed)?;
        let begun = base::clock::now();
        let key = self.plugin.encrypt(uid, &seed).await;
        self.called("Encrypt", begun, key.as_ref().err());
        let key = key.map_err(|why| format!("failed to encrypt DEK, error: {why}"))?;
        valid(&key.ciphertext, &key.key_id, &key.annotations)?;
        Ok((Arc::new(source), key))
    }

    /// Polls the plugin until it is dropped or the process stops. The protocol has no events.
    pub(super) fn follow_plugin(self: &Arc<Self>, tasks: &Tasks) {
        let (kms, shutdown) = (Arc::downgrade(self), tasks.shutdown().clone());
        tasks.spawn(Kind::Request, "kms plugin", async move {
            tokio::select! {
                () = watch(kms) => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }
}

async fn watch(kms: Weak<Kms>) {
    loop {
        let Some(one) = kms.upgrade() else { return };
        let wait = match one.check().await {
            Ok(()) => POLL_INTERVALS.0,
            Err(error) => {
                tracing::warn!(provider = one.name, error, "the KMS plugin is not well");
                POLL_INTERVALS.1
            }
        };
        drop(one);
        base::clock::sleep(wait).await;
    }
}

/// `2006-01-02T15:04:05Z`.
fn text_of(at: jiff::Timestamp) -> String {
    jiff::Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

#[cfg(test)]
mod tests;
