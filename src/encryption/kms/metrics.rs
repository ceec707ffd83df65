//! Metrics of KMS plugins (`pkg/storage/value/encrypt/envelope/metrics`).

use std::time::Duration;

use base::metrics::{Family, exponential};
use tokio::time::Instant;

static CALLS: Family = Family::histogram(
    "apiserver_envelope_encryption_kms_operations_latency_seconds",
    "[ALPHA] KMS operation duration with gRPC error code status total.",
    &["grpc_status_code", "method_name", "provider_name"],
    &exponential::<20>(0.0001, 2.0),
);
static KEYS: Family = Family::counter(
    "apiserver_envelope_encryption_key_id_hash_total",
    "[ALPHA] Number of times a keyID is used split by transformation type, provider, and \
     apiserver identity.",
    &["apiserver_id_hash", "key_id_hash", "provider_name", "transformation_type"],
);
static KEY_TIMES: Family = Family::gauge(
    "apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds",
    "[ALPHA] The last time in seconds when a keyID was used.",
    &["apiserver_id_hash", "key_id_hash", "provider_name", "transformation_type"],
);
static TOLD_KEYS: Family = Family::gauge(
    "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds",
    "[ALPHA] The last time in seconds when a keyID was returned by the Status RPC call.",
    &["apiserver_id_hash", "key_id_hash", "provider_name"],
);
static BAD_KEYS: Family = Family::counter(
    "apiserver_envelope_encryption_invalid_key_id_from_status_total",
    "[ALPHA] Number of times an invalid keyID is returned by the Status RPC call split by \
     error.",
    &["error", "provider_name"],
);
static SEEDS: Family = Family::gauge(
    "apiserver_envelope_encryption_dek_source_cache_size",
    "[ALPHA] Number of records in data encryption key (DEK) source cache. On a restart, this \
     value is an approximation of the number of decrypt RPC calls the server will make to \
     the KMS plugin.",
    &["provider_name"],
);
static KEYS_MADE: Family = Family::histogram(
    "apiserver_storage_data_key_generation_duration_seconds",
    "[ALPHA] Latencies in seconds of data encryption key(DEK) generation operations.",
    &[],
    &exponential::<14>(5e-6, 2.0),
);

/// The families of this crate, in the order of `/metrics`.
pub static ALL: [&Family; 7] =
    [&KEYS_MADE, &CALLS, &KEYS, &KEY_TIMES, &TOLD_KEYS, &BAD_KEYS, &SEEDS];

/// Counts a call of a KMS plugin: a method of `/v2.KeyManagementService/` and the gRPC status code.
pub(crate) fn called(provider: &str, method: &str, code: &str, took: Duration) {
    CALLS.took(&[code, method, provider], took);
}

/// Counts the generation of a data encryption key.
pub(crate) fn key_made(since: Instant) {
    KEYS_MADE.took(&[], since.elapsed());
}

fn now() -> f64 {
    base::clock::unix_time().as_secs_f64()
}

/// Counts the use of a plugin's key, by its hash: `from_storage` or `to_storage`.
pub(crate) fn key_used(server: &str, key: &str, provider: &str, direction: &str) {
    let labels = [server, key, provider, direction];
    KEYS.inc(&labels);
    KEY_TIMES.set(&labels, now());
}

/// Counts a key id that a plugin has returned, or the reason why it is invalid.
pub(crate) fn key_told(server: &str, provider: &str, key: Result<&str, &str>) {
    match key {
        Ok(key) => TOLD_KEYS.set(&[server, key, provider], now()),
        Err(why) => BAD_KEYS.inc(&[why, provider]),
    }
}

/// Sets the number of cached data encryption key sources.
pub(crate) fn seeds(provider: &str, count: usize) {
    SEEDS.set(&[provider], count as f64);
}
