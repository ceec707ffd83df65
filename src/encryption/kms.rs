//! KMS v2: a plugin encrypts a seed, from which a key per value is derived
//! (`encrypt/envelope/kmsv2`, KEP-3299). The plugin is polled once a minute for its current key; a
//! new key requires a new seed.

mod grpc;
pub(crate) mod metrics;
mod validate;
mod wire;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use base::Tasks;
use base::tasks::Kind;
use bytes::Bytes;
use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use ring::hkdf;
use tokio::time::Instant;

use super::errors::{
    CipherError, HealthError, HealthProblem, KeyIdError, KmsError, RotationError, RpcError,
};
use super::providers::Gcm;
use crate::metrics::EncryptionMetrics;
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

/// The interface of a plugin (`KeyManagementService` of `k8s.io/kms/apis/v2`).
#[async_trait]
pub(super) trait Plugin: Send + Sync + std::fmt::Debug {
    async fn status(&self) -> Result<Status, RpcError>;
    async fn encrypt(&self, uid: &str, plain: &[u8]) -> Result<SealedKey, RpcError>;
    async fn decrypt(
        &self,
        uid: &str,
        ciphertext: &[u8],
        key_id: &str,
        annotations: &Annotations,
    ) -> Result<Vec<u8>, RpcError>;
}

/// The source of keys for values.
enum Source {
    Key(Gcm),
    Seed(hkdf::Prk),
}

impl Source {
    fn of(source_type: SourceType, bytes: &[u8]) -> Result<Self, KmsError> {
        match source_type {
            SourceType::Key => Ok(Self::Key(Gcm::new(bytes)?)),
            SourceType::Seed if bytes.len() < SEED => Err(KmsError::SeedLength(bytes.len())),
            SourceType::Seed => Ok(Self::Seed(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, bytes))),
        }
    }

    /// The key that is derived from the seed.
    fn expanded(seed: &hkdf::Prk, info: &[u8]) -> Result<Gcm, KmsError> {
        let infos = [info];
        let expanded = seed.expand(&infos, &AES_256_GCM);
        let expanded = expanded.map_err(|_| KmsError::KeyDerivation)?;
        Ok(Gcm::Ring(Box::new(LessSafeKey::new(UnboundKey::from(expanded)))))
    }

    fn seal(&self, key: &str, plain: &[u8]) -> Result<Vec<u8>, KmsError> {
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

    fn open(&self, key: &str, data: &[u8]) -> Result<Vec<u8>, KmsError> {
        let opened = match self {
            Self::Key(cipher) => cipher.open(key, data),
            Self::Seed(seed) => {
                let split = data.split_at_checked(SEED);
                let (info, sealed) = split.ok_or(CipherError::TooShort)?;
                Self::expanded(seed, info)?.open(key, sealed)
            }
        };
        Ok(opened?)
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
    last: Option<(Instant, Result<(), HealthError>)>,
    version: String,
}

/// Seeds by their encrypted form; an error is retried at the next use.
type Seeds = HashMap<Vec<u8>, (Result<Arc<Source>, KmsError>, Instant)>;

/// A plugin.
pub(super) struct Kms {
    name: String,
    prefix: String,
    plugin: Arc<dyn Plugin>,
    state: ArcSwapOption<State>,
    seeds: Mutex<Seeds>,
    last_status: tokio::sync::Mutex<LastStatus>,
    /// Serializes calls: concurrent readers mostly need the same seed.
    fetching: tokio::sync::Mutex<()>,
    metrics: Arc<EncryptionMetrics>,
}

/// The SHA-256 of an ID, for logs and errors.
fn hashed(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    base::server_identity::hash_of(text.as_bytes())
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
    pub(super) fn new(
        name: &str,
        plugin: Arc<dyn Plugin>,
        metrics: &Arc<EncryptionMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            prefix: format!("k8s:enc:kms:v2:{name}:"),
            plugin,
            state: ArcSwapOption::empty(),
            seeds: Mutex::default(),
            last_status: tokio::sync::Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
            metrics: Arc::clone(metrics),
        })
    }

    /// The prefix of its values.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Records a call of the plugin, under its gRPC code.
    fn record_call(&self, method: &str, begun: Instant, error: Option<&RpcError>) {
        let code = error.map_or("OK", |error| error.code);
        let method = format!("/v2.KeyManagementService/{method}");
        metrics::called(&self.name, &method, code, begun.elapsed());
    }

    fn record_use(&self, key_id: &str, direction: &str) {
        metrics::key_used(
            base::server_identity::own_hash(),
            &hashed(key_id),
            &self.name,
            direction,
        );
    }

    fn state(&self) -> Result<Arc<State>, KmsError> {
        self.state.load_full().ok_or(KmsError::NoSeed)
    }

    /// Encrypts a value and appends it to `out`.
    pub(super) fn seal(&self, key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), KmsError> {
        let state = self.state()?;
        if base::clock::now() > state.expires.0 {
            return Err(KmsError::Expired {
                key_id_hash: hashed(&state.key.key_id),
                expired: text_of(state.expires.1),
                now: text_of(jiff::Timestamp::now()),
            });
        }
        let stored = Stored {
            data: state.source.seal(key, plain)?,
            key_id: state.key.key_id.clone(),
            source: state.key.ciphertext.clone(),
            annotations: state.key.annotations.clone(),
            source_type: SourceType::Seed,
        };
        stored.encode(out);
        self.record_use(&stored.key_id, "to_storage");
        Ok(())
    }

    /// Decrypts the value after the prefix; also returns whether it is stale because the key
    /// changed.
    pub(super) fn open(&self, key: &str, rest: &[u8]) -> Result<(Vec<u8>, bool), KmsError> {
        let stored = validate::decode(rest)?;
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
            None => Err(KmsError::NotFetched),
        };
        let plain = source?.open(key, &data)?;
        self.record_use(&sealed.key_id, "from_storage");
        let stale = sealed.key_id != state.key.key_id || source_type != SourceType::Seed;
        Ok((plain, stale))
    }

    /// Decrypts the unknown seeds of these values with the plugin.
    pub(super) async fn fetch(&self, stored: &[&Bytes]) {
        for value in stored {
            let Some(rest) = value.strip_prefix(self.prefix.as_bytes()) else { continue };
            // Damaged values are reported by `open`.
            let Ok(stored) = validate::decode(rest) else { continue };
            let sealed = SealedKey {
                ciphertext: stored.source,
                key_id: stored.key_id,
                annotations: stored.annotations,
            };
            let at = cache_key(stored.source_type, &sealed);
            let is_cached = || self.seeds.lock().get(&at).is_some_and(|(source, _)| source.is_ok());
            if is_cached() {
                continue;
            }
            let _guard = self.fetching.lock().await;
            if is_cached() {
                continue;
            }
            self.metrics.missed();
            let uid = base::clock::random_uuid();
            let SealedKey { ciphertext, key_id, annotations } = &sealed;
            let begun = base::clock::now();
            let answer = self.plugin.decrypt(&uid, ciphertext, key_id, annotations).await;
            self.record_call("Decrypt", begun, answer.as_ref().err());
            let source = answer
                .map_err(KmsError::Decrypt)
                .and_then(|bytes| Source::of(stored.source_type, &bytes));
            self.cache(at, source.map(Arc::new));
        }
    }

    fn cache(&self, at: Vec<u8>, source: Result<Arc<Source>, KmsError>) {
        let mut seeds = self.seeds.lock();
        if seeds.len() >= SEEDS_MAX {
            let oldest = seeds.iter().min_by_key(|(_, (_, used))| *used).map(|(at, _)| at.clone());
            oldest.and_then(|oldest| seeds.remove(&oldest));
        }
        seeds.insert(at, (source, base::clock::now()));
        metrics::seeds(&self.name, seeds.len());
    }

    /// Checks the health of the plugin; calls it unless its last status is recent, and follows its
    /// key.
    ///
    /// # Errors
    /// If the plugin cannot be called, or reports a problem.
    pub(super) async fn check(&self) -> Result<(), HealthError> {
        let mut last_status = self.last_status.lock().await;
        if let Some((at, health)) = &last_status.last {
            let ttl = if health.is_ok() { STATUS_TTL.0 } else { STATUS_TTL.1 };
            if base::clock::now().duration_since(*at) < ttl {
                return health.clone();
            }
        }
        let begun = base::clock::now();
        let answer = self.plugin.status().await;
        self.record_call("Status", begun, answer.as_ref().err());
        let provider = || self.name.clone();
        let health = match answer {
            Ok(status) => match self.apply_status(&status, &mut last_status.version).await {
                problems if problems.is_empty() => Ok(()),
                problems => Err(HealthError::NotHealthy { provider: provider(), problems }),
            },
            Err(source) => Err(HealthError::Status { provider: provider(), source }),
        };
        last_status.last = Some((base::clock::now(), health.clone()));
        health
    }

    /// Checks a status, and follows the plugin's key. `version` is that of the first status.
    async fn apply_status(&self, status: &Status, version: &mut String) -> Vec<HealthProblem> {
        let mut problems = Vec::new();
        if status.health != "ok" {
            problems.push(HealthProblem::Health(status.health.clone()));
        }
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            problems.push(HealthProblem::Version(status.version.clone()));
        } else if version.is_empty() {
            version.clone_from(&status.version);
        } else if *version != status.version {
            let (initial, current) = (version.clone(), status.version.clone());
            problems.push(HealthProblem::VersionChanged { initial, current });
        }
        let checked = validate::key_id(&status.key_id);
        let hash = hashed(&status.key_id);
        let label = match &checked {
            Ok(()) => Ok(hash.as_str()),
            Err(KeyIdError::Empty) => Err("empty"),
            Err(KeyIdError::TooLong { .. }) => Err("too_long"),
        };
        metrics::key_told(base::server_identity::own_hash(), &self.name, label);
        match checked {
            Err(source) => problems.push(HealthProblem::KeyId { hash, source }),
            Ok(()) => {
                let followed = self.follow_key(&status.key_id).await;
                problems.extend(followed.err().map(|error| Box::new(error).into()));
            }
        }
        problems
    }

    /// Extends the seed while the plugin's key is unchanged; generates a new seed for a new key.
    async fn follow_key(&self, key_id: &str) -> Result<(), RotationError> {
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
        let (error, encrypt_key_id) = match self.seed(&uid).await {
            Ok((source, key)) if key.key_id == key_id => {
                let at = cache_key(SourceType::Seed, &key);
                self.cache(at, Ok(Arc::clone(&source)));
                tracing::info!(
                    provider = self.name,
                    key_id = hashed(key_id),
                    "encrypting with a new seed"
                );
                self.state.store(Some(Arc::new(State { source, key, expires })));
                return Ok(());
            }
            Ok((_, key)) => (None, key.key_id),
            Err(error) => (Some(error), String::new()),
        };
        let state = state.as_ref();
        Err(RotationError {
            uid,
            has_seed: state.is_some(),
            error,
            status_key_hash: hashed(key_id),
            encrypt_key_hash: hashed(&encrypt_key_id),
            seed_key_hash: state.map(|state| hashed(&state.key.key_id)).unwrap_or_default(),
            // Go's zero time.
            expires: state.map_or_else(
                || "0001-01-01T00:00:00Z".to_owned(),
                |state| text_of(state.expires.1),
            ),
        })
    }

    /// Generates a seed and lets the plugin encrypt it.
    async fn seed(&self, uid: &str) -> Result<(Arc<Source>, SealedKey), KmsError> {
        let begun = base::clock::now();
        let mut seed = [0; SEED];
        base::clock::random_bytes(&mut seed);
        metrics::key_made(begun);
        let source = Source::of(SourceType::Seed, &seed)?;
        let begun = base::clock::now();
        let key = self.plugin.encrypt(uid, &seed).await;
        self.record_call("Encrypt", begun, key.as_ref().err());
        let key = key.map_err(KmsError::Encrypt)?;
        validate::sealed_key(&key.ciphertext, &key.key_id, &key.annotations)?;
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
                tracing::warn!(provider = one.name, %error, "the KMS plugin is not healthy");
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
