//! `/metrics/probes`: results and durations of the probes of running pods, as in the kubelet
//! (`pkg/kubelet/prober`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use base::metrics::{head, histogram};
use parking_lot::Mutex;

/// Upper bounds in seconds: the default of Prometheus' library.
const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Limit on the probes that are counted; a node with 110 pods has a few hundred.
const PROBES_MAX: usize = 4096;

/// A probe of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProbeKey {
    pub(crate) pod_uid: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    /// `Liveness`, `Readiness` or `Startup`.
    pub(crate) kind: &'static str,
}

#[derive(Debug, Default, Clone)]
struct ProbeCounts {
    successful: u64,
    failed: u64,
    /// Counts per bucket of the successful probes, not cumulative.
    buckets: [u64; BOUNDS.len()],
    seconds: f64,
}

/// The counts of all probes of this node.
#[derive(Debug, Default)]
pub(crate) struct ProbeMetrics(Mutex<BTreeMap<ProbeKey, ProbeCounts>>);

impl ProbeMetrics {
    /// Records a result. A probe that could not be run has none.
    pub(crate) fn record(&self, probe: ProbeKey, is_success: bool, took: Duration) {
        let mut all = self.0.lock();
        if all.len() >= PROBES_MAX && !all.contains_key(&probe) {
            return;
        }
        let counts = all.entry(probe).or_default();
        if !is_success {
            counts.failed += 1;
            return;
        }
        let seconds = took.as_secs_f64();
        counts.successful += 1;
        counts.seconds += seconds;
        let at = BOUNDS.iter().position(|bound| seconds <= *bound);
        if let Some(bucket) = at.and_then(|at| counts.buckets.get_mut(at)) {
            *bucket += 1;
        }
    }

    /// Removes the probes of a pod.
    pub(crate) fn remove(&self, pod_uid: &str) {
        self.0.lock().retain(|probe, _| probe.pod_uid != pod_uid);
    }

    /// Renders the metrics in the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        let all = self.0.lock().clone();
        let mut out = String::new();
        if all.is_empty() {
            return out;
        }
        let labels = |p: &ProbeKey| {
            let ProbeKey { container, namespace, pod, .. } = p;
            format!("container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\"")
        };
        let name = "prober_probe_duration_seconds";
        let help = "[ALPHA] Duration in seconds for a probe response.";
        if all.values().any(|counts| counts.successful > 0) {
            head(&mut out, name, "histogram", help);
        }
        for (probe, counts) in all.iter().filter(|(_, counts)| counts.successful > 0) {
            let labels = format!("{},probe_type=\"{}\"", labels(probe), probe.kind);
            let rows = BOUNDS.into_iter().zip(counts.buckets);
            histogram(&mut out, name, &labels, rows, counts.seconds, counts.successful);
        }
        let name = "prober_probe_total";
        let help = "[BETA] Cumulative number of a liveness, readiness or startup probe for a \
                    container by result.";
        head(&mut out, name, "counter", help);
        for (probe, counts) in &all {
            for (result, count) in [("failed", counts.failed), ("successful", counts.successful)] {
                if count > 0 {
                    let (labels, uid, kind) = (labels(probe), &probe.pod_uid, probe.kind);
                    let _ = writeln!(
                        out,
                        "{name}{{{labels},pod_uid=\"{uid}\",probe_type=\"{kind}\",\
                         result=\"{result}\"}} {count}"
                    );
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_counted_with_the_names_of_the_kubelet() {
        let metrics = ProbeMetrics::default();
        assert_eq!(metrics.render(), "");
        let probe = |uid: &str| ProbeKey {
            pod_uid: uid.into(),
            namespace: "d".into(),
            pod: "p".into(),
            container: "c".into(),
            kind: "Liveness",
        };
        metrics.record(probe("u"), true, Duration::from_millis(30));
        metrics.record(probe("u"), true, Duration::from_secs(20));
        metrics.record(probe("u"), false, Duration::from_secs(1));
        metrics.record(probe("gone"), false, Duration::from_secs(1));
        metrics.remove("gone");
        let text = metrics.render();
        let labels = "container=\"c\",namespace=\"d\",pod=\"p\"";
        for line in [
            format!(
                "prober_probe_total{{{labels},pod_uid=\"u\",probe_type=\"Liveness\",result=\"successful\"}} 2"
            ),
            format!(
                "prober_probe_total{{{labels},pod_uid=\"u\",probe_type=\"Liveness\",result=\"failed\"}} 1"
            ),
            format!(
                "prober_probe_duration_seconds_bucket{{{labels},probe_type=\"Liveness\",le=\"0.025\"}} 0"
            ),
            format!(
                "prober_probe_duration_seconds_bucket{{{labels},probe_type=\"Liveness\",le=\"0.05\"}} 1"
            ),
            format!("prober_probe_duration_seconds_count{{{labels},probe_type=\"Liveness\"}} 2"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("gone"));
    }
}
