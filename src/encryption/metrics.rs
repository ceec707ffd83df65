//! The metrics of encryption, with upstream's names (`pkg/storage/value/metrics.go`,
//! `pkg/server/options/encryptionconfig/metrics`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The upper bounds of `apiserver_storage_transformation_duration_seconds`: 5 µs, doubled 24 times.
const BOUNDS: usize = 25;
const FIRST_BOUND: f64 = 5e-6;
const BUCKETS: [f64; BOUNDS] = base::metrics::exponential(FIRST_BOUND, 2.0);

#[derive(Default)]
struct Durations {
    buckets: [u64; BOUNDS],
    count: u64,
    sum: f64,
}

#[derive(Default)]
struct All {
    /// By resource, direction, prefix and status. Resources come from the registry, prefixes from
    /// the configuration.
    operations: BTreeMap<(String, &'static str, String, &'static str), u64>,
    durations: BTreeMap<(&'static str, String), Durations>,
    misses: u64,
    /// The number of successes and failures, and the Unix time of the last one in seconds.
    reloads: BTreeMap<&'static str, (u64, i64)>,
    hash: String,
}

/// The metrics.
#[derive(Default)]
pub(super) struct EncryptionMetrics(Mutex<All>);

impl EncryptionMetrics {
    /// Records the encryption or decryption of a value.
    pub(super) fn transformed(
        &self,
        resource: &str,
        direction: &'static str,
        prefix: &str,
        begun: Instant,
        good: bool,
    ) {
        let seconds = base::clock::now().duration_since(begun).as_secs_f64();
        let status = if good { "OK" } else { "unknown-non-grpc" };
        let mut all = self.0.lock();
        let key = (resource.to_owned(), direction, prefix.to_owned(), status);
        *all.operations.entry(key).or_default() += 1;
        if !good {
            return;
        }
        let durations = all.durations.entry((direction, prefix.to_owned())).or_default();
        let mut bound = FIRST_BOUND;
        for bucket in &mut durations.buckets {
            *bucket += u64::from(seconds <= bound);
            bound *= 2.0;
        }
        durations.count += 1;
        durations.sum += seconds;
    }

    /// Records that a plugin was called for a key.
    pub(super) fn missed(&self) {
        self.0.lock().misses += 1;
    }

    /// Records the configuration at the start.
    pub(super) fn loaded(&self, hash: &str) {
        self.0.lock().hash = hash.to_owned();
    }

    /// Records a reload; `hash` is that of the file if it took effect.
    pub(super) fn reloaded(&self, hash: Option<&str>) {
        let mut all = self.0.lock();
        let status = if hash.is_some() { "success" } else { "failure" };
        let reload = all.reloads.entry(status).or_default();
        *reload = (reload.0 + 1, jiff::Timestamp::now().as_second());
        if let Some(hash) = hash {
            all.hash = hash.to_owned();
        }
    }

    /// Appends the metrics in Prometheus' text format.
    pub(super) fn render(&self, out: &mut String) {
        const OPERATIONS: &str = "apiserver_storage_transformation_operations_total";
        const DURATION: &str = "apiserver_storage_transformation_duration_seconds";
        const MISSES: &str = "apiserver_storage_envelope_transformation_cache_misses_total";
        const RELOADS: &str = "apiserver_encryption_config_controller_automatic_reloads_total";
        const LAST: &str =
            "apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds";
        const INFO: &str = "apiserver_encryption_config_controller_last_config_info";
        let own = base::server_identity::own_hash();
        let all = self.0.lock();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "# HELP {OPERATIONS} [ALPHA] Total number of transformations. Successful transformation will have a status 'OK' and a varied status string when the transformation fails. The status, resource, and transformation_type fields can be used for alerting purposes. For example, you can monitor for encryption/decryption failures using the transformation_type (e.g., from_storage for decryption and to_storage for encryption). Additionally, these fields can be used to ensure that the correct transformers are applied to each resource.\n# TYPE {OPERATIONS} counter"
        );
        for ((resource, direction, prefix, status), count) in &all.operations {
            let _ = writeln!(
                out,
                "{OPERATIONS}{{resource=\"{resource}\",status=\"{status}\",transformation_type=\"{direction}\",transformer_prefix=\"{prefix}\"}} {count}"
            );
        }
        let _ = writeln!(
            out,
            "# HELP {DURATION} [ALPHA] Latencies in seconds of value transformation operations.\n# TYPE {DURATION} histogram"
        );
        for ((direction, prefix), durations) in &all.durations {
            let labels =
                format!("transformation_type=\"{direction}\",transformer_prefix=\"{prefix}\"");
            let Durations { buckets, count, sum } = durations;
            let mut below = 0;
            let rows = BUCKETS
                .into_iter()
                .zip(*buckets)
                .map(|(bound, all)| (bound, all - std::mem::replace(&mut below, all)));
            base::metrics::histogram(out, DURATION, &labels, rows, *sum, *count);
        }
        let _ = writeln!(
            out,
            "# HELP {MISSES} [ALPHA] Total number of cache misses while accessing key decryption key(KEK).\n# TYPE {MISSES} counter\n{MISSES} {}",
            all.misses
        );
        let _ = writeln!(
            out,
            "# HELP {RELOADS} [ALPHA] Total number of reload successes and failures of encryption configuration split by apiserver identity.\n# TYPE {RELOADS} counter"
        );
        for (status, (count, _)) in &all.reloads {
            let _ = writeln!(
                out,
                "{RELOADS}{{apiserver_id_hash=\"{own}\",status=\"{status}\"}} {count}"
            );
        }
        let _ = writeln!(
            out,
            "# HELP {LAST} [ALPHA] Timestamp of the last successful or failed automatic reload of encryption configuration split by apiserver identity.\n# TYPE {LAST} gauge"
        );
        for (status, (_, at)) in &all.reloads {
            let _ = writeln!(out, "{LAST}{{apiserver_id_hash=\"{own}\",status=\"{status}\"}} {at}");
        }
        let _ = writeln!(
            out,
            "# HELP {INFO} [ALPHA] Information about the last applied encryption configuration with hash as label, split by apiserver identity.\n# TYPE {INFO} gauge\n{INFO}{{apiserver_id_hash=\"{own}\",hash=\"{}\"}} 1",
            all.hash
        );
    }
}
