//! Histograms of the scheduler's metrics, and the processor time of processes.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

/// The metric of which quantiles are reported.
pub(crate) const ATTEMPTS: &str = "scheduler_scheduling_attempt_duration_seconds";
/// Clock ticks per second in `/proc`, on every architecture of Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A histogram: how many observations are not above each bound, by the bits of the bound, which
/// order positive numbers as the numbers themselves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram(BTreeMap<u64, f64>);

impl Histogram {
    /// Reads the histogram `name` from metrics in Prometheus' text format, and adds up its series
    /// with the label `result="scheduled"`.
    pub(crate) fn parse(text: &str, name: &str) -> Self {
        let mut buckets = BTreeMap::new();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix(name) else { continue };
            let Some(rest) = rest.strip_prefix("_bucket{") else { continue };
            let Some((labels, value)) = rest.rsplit_once("} ") else { continue };
            if !labels.split(',').any(|label| label == "result=\"scheduled\"") {
                continue;
            }
            let bound = labels.split(',').find_map(|label| {
                let text = label.strip_prefix("le=\"")?.strip_suffix('"')?;
                if text == "+Inf" { Some(f64::INFINITY) } else { text.parse().ok() }
            });
            let value = value.split(' ').next().and_then(|value| value.parse::<f64>().ok());
            if let (Some(bound), Some(value)) = (bound, value) {
                *buckets.entry(bound.to_bits()).or_insert(0.0) += value;
            }
        }
        Self(buckets)
    }

    /// The observations since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let less = |bits: &u64| before.0.get(bits).copied().unwrap_or_default();
        Self(self.0.iter().map(|(bits, value)| (*bits, value - less(bits))).collect())
    }

    /// The number of observations.
    pub(crate) fn count(&self) -> f64 {
        self.0.last_key_value().map_or(0.0, |(_, count)| *count)
    }

    /// The quantile, interpolated within its bucket as Prometheus does; `None` without
    /// observations.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = self.count();
        if total <= 0.0 {
            return None;
        }
        let rank = quantile * total;
        let (mut low, mut below) = (0.0, 0.0);
        for (bits, count) in &self.0 {
            let high = f64::from_bits(*bits);
            if *count >= rank {
                if high.is_infinite() || *count <= below {
                    return Some(low);
                }
                return Some(low + (high - low) * (rank - below) / (count - below));
            }
            (low, below) = (high, *count);
        }
        None
    }
}

/// The processor time that processes have used, in seconds.
///
/// # Errors
///
/// A process has ended.
pub(crate) fn processor_seconds(pids: &[u32]) -> anyhow::Result<f64> {
    let mut ticks = 0_u64;
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        ticks += stat_ticks(&text).with_context(|| format!("{path} has another format"))?;
    }
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

/// The sum of `utime` and `stime`, the fields 14 and 15 of `/proc/PID/stat`.
fn stat_ticks(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// Splits `https://host:port/path` into `host:port` and the path.
///
/// # Errors
///
/// The text has another form.
pub(crate) fn split_url(url: &str) -> anyhow::Result<(&str, &str)> {
    let Some(rest) = url.strip_prefix("https://") else {
        bail!("--metrics {url}: must begin with https://");
    };
    let at = rest.find('/').with_context(|| format!("--metrics {url}: has no path"))?;
    Ok(rest.split_at(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# TYPE scheduler_scheduling_attempt_duration_seconds histogram
scheduler_scheduling_attempt_duration_seconds_bucket{profile="default-scheduler",result="scheduled",le="0.001"} 10
scheduler_scheduling_attempt_duration_seconds_bucket{profile="default-scheduler",result="scheduled",le="0.002"} 90
scheduler_scheduling_attempt_duration_seconds_bucket{profile="default-scheduler",result="scheduled",le="+Inf"} 100
scheduler_scheduling_attempt_duration_seconds_bucket{profile="default-scheduler",result="unschedulable",le="+Inf"} 7
scheduler_scheduling_attempt_duration_seconds_sum{profile="default-scheduler",result="scheduled"} 1
scheduler_scheduling_attempt_duration_seconds_count{profile="default-scheduler",result="scheduled"} 100
"#;

    #[test]
    fn quantiles_are_interpolated_within_their_bucket() {
        let histogram = Histogram::parse(TEXT, ATTEMPTS);
        assert_eq!(histogram.count(), 100.0);
        let p50 = histogram.quantile(0.5).unwrap();
        assert!((p50 - 0.0015).abs() < 1e-9, "{p50}");
        let p05 = histogram.quantile(0.05).unwrap();
        assert!((p05 - 0.0005).abs() < 1e-9, "{p05}");
        // Above the last bound, Prometheus reports that bound.
        assert_eq!(histogram.quantile(0.99), Some(0.002));
    }

    #[test]
    fn observations_of_before_are_subtracted() {
        let histogram = Histogram::parse(TEXT, ATTEMPTS);
        assert_eq!(histogram.since(&Histogram::default()), histogram);
        let none = histogram.since(&histogram);
        assert_eq!((none.count(), none.quantile(0.5)), (0.0, None));
    }

    #[test]
    fn processor_time_is_found_behind_any_name_of_a_process() {
        let text = "42 (a) b (c) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 9 0 1 2 3";
        assert_eq!(stat_ticks(text), Some(200));
        assert_eq!(stat_ticks("42 x"), None);
    }

    #[test]
    fn urls_have_a_host_and_a_path() {
        assert_eq!(split_url("https://127.0.0.1:1/metrics").unwrap(), ("127.0.0.1:1", "/metrics"));
        assert!(split_url("http://127.0.0.1:1/metrics").is_err());
        assert!(split_url("https://127.0.0.1:1").is_err());
    }
}
