//! Metrics of the calls to the container runtime, as in the kubelet.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use parking_lot::Mutex;

/// Upper bounds in seconds: `ExponentialBuckets(.005, 2.5, 14)` of `pkg/kubelet/metrics`, as Go
/// formats them.
const BUCKETS: [(f64, &str); 14] = [
    (0.005, "0.005"),
    (0.0125, "0.0125"),
    (0.03125, "0.03125"),
    (0.078125, "0.078125"),
    (0.1953125, "0.1953125"),
    (0.48828125, "0.48828125"),
    (1.220703125, "1.220703125"),
    (3.0517578125, "3.0517578125"),
    (7.62939453125, "7.62939453125"),
    (19.073486328125, "19.073486328125"),
    (47.6837158203125, "47.6837158203125"),
    (119.20928955078125, "119.20928955078125"),
    (298.0232238769531, "298.0232238769531"),
    (745.0580596923828, "745.0580596923828"),
];

#[derive(Debug, Default, Clone)]
struct Operation {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    seconds: f64,
    failed: u64,
}

/// Counts by operation of the CRI, of which there are about twenty.
#[derive(Debug, Default)]
pub(crate) struct OperationMetrics(Mutex<BTreeMap<&'static str, Operation>>);

/// Returns the kubelet's name of a call, which writes "podsandbox" as one word.
fn name(call: &str) -> String {
    match call {
        "update_container_resources" => "update_container".to_owned(),
        "reopen_container_log" | "port_forward" => call.to_owned(),
        call => call.replace("pod_sandbox", "podsandbox"),
    }
}

impl OperationMetrics {
    /// Records a completed call.
    pub(crate) fn record(&self, call: &'static str, took: Duration, failed: bool) {
        let seconds = took.as_secs_f64();
        let mut all = self.0.lock();
        let operation = all.entry(call).or_default();
        operation.count += 1;
        operation.seconds += seconds;
        operation.failed += u64::from(failed);
        for (bucket, (bound, _)) in operation.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
    }

    /// Renders the metrics in the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        let all = self.0.lock().clone();
        let mut out = String::new();
        let head = |out: &mut String, metric: &str, kind: &str, help: &str| {
            let _ = write!(out, "# HELP {metric} [ALPHA] {help}\n# TYPE {metric} {kind}\n");
        };
        let metric = "kubelet_runtime_operations_duration_seconds";
        let help = "Duration in seconds of runtime operations. Broken down by operation type.";
        head(&mut out, metric, "histogram", help);
        for (call, operation) in &all {
            let label = format!("operation_type=\"{}\"", name(call));
            for (count, (_, bound)) in operation.buckets.iter().zip(BUCKETS) {
                let _ = writeln!(out, "{metric}_bucket{{{label},le=\"{bound}\"}} {count}");
            }
            let _ = writeln!(out, "{metric}_bucket{{{label},le=\"+Inf\"}} {}", operation.count);
            let _ = writeln!(out, "{metric}_sum{{{label}}} {}", operation.seconds);
            let _ = writeln!(out, "{metric}_count{{{label}}} {}", operation.count);
        }
        let metric = "kubelet_runtime_operations_errors_total";
        let help = "Cumulative number of runtime operation errors by operation type.";
        head(&mut out, metric, "counter", help);
        for (call, operation) in all.iter().filter(|(_, o)| o.failed > 0) {
            let _ =
                writeln!(out, "{metric}{{operation_type=\"{}\"}} {}", name(call), operation.failed);
        }
        let metric = "kubelet_runtime_operations_total";
        let help = "Cumulative number of runtime operations by operation type.";
        head(&mut out, metric, "counter", help);
        for (call, operation) in &all {
            let _ =
                writeln!(out, "{metric}{{operation_type=\"{}\"}} {}", name(call), operation.count);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_with_the_names_of_the_kubelet() {
        let operations = OperationMetrics::default();
        operations.record("run_pod_sandbox", Duration::from_millis(50), false);
        operations.record("run_pod_sandbox", Duration::from_secs(2), true);
        let text = operations.render();
        for line in [
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",\
             le=\"0.03125\"} 0",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",\
             le=\"0.078125\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",\
             le=\"+Inf\"} 2",
            "kubelet_runtime_operations_duration_seconds_sum{operation_type=\"run_podsandbox\"} \
             2.05",
            "kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}
