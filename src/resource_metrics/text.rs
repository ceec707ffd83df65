//! Reads the Prometheus text of a kubelet's `/metrics/resource`.

use std::collections::BTreeMap;

use crate::sample::{PodKey, Point, Sample};

const NODE_CPU: &str = "node_cpu_usage_seconds_total";
const NODE_MEMORY: &str = "node_memory_working_set_bytes";
const CONTAINER_CPU: &str = "container_cpu_usage_seconds_total";
const CONTAINER_MEMORY: &str = "container_memory_working_set_bytes";
const CONTAINER_START: &str = "container_start_time_seconds";

/// A line that is not a series of the Prometheus text format.
#[derive(Debug, thiserror::Error)]
#[error("line {line} is not a series in the Prometheus text format")]
pub struct InvalidSeries {
    /// Its number, from 1.
    pub line: usize,
}

/// One series: name, labels without the braces, value, and time in milliseconds since the epoch.
struct Series<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
    at_ms: Option<i64>,
}

/// Parses the text. `now`, in nanoseconds since the epoch, is the time of a series without its own.
///
/// # Errors
/// A line that is not a series.
pub fn parse(text: &str, now: i64) -> Result<Sample, InvalidSeries> {
    let mut node = Point::default();
    let mut containers: BTreeMap<(PodKey, String), Point> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let invalid = || InvalidSeries { line: number + 1 };
        let series = series(line).ok_or_else(invalid)?;
        let at = series.at_ms.map_or(now, |ms| ms.saturating_mul(1_000_000));
        let nanoseconds = || nanoseconds(series.value);
        let key = || {
            let of = |name: &str| label(series.labels, name).ok_or_else(invalid);
            let pod = PodKey { namespace: of("namespace")?, name: of("pod")? };
            Ok((pod, of("container")?))
        };
        match series.name {
            NODE_CPU => (node.cpu_ns, node.at) = (nanoseconds(), at),
            NODE_MEMORY => (node.memory, node.at) = (whole(series.value), at),
            CONTAINER_CPU => {
                let point = containers.entry(key()?).or_default();
                (point.cpu_ns, point.at) = (nanoseconds(), at);
            }
            CONTAINER_MEMORY => {
                let point = containers.entry(key()?).or_default();
                (point.memory, point.at) = (whole(series.value), at);
            }
            CONTAINER_START => {
                let point = containers.entry(key()?).or_default();
                point.started = i64::try_from(nanoseconds()).unwrap_or(i64::MAX);
            }
            _ => {}
        }
    }
    let containers = containers.into_iter().map(|((pod, name), point)| (pod, name, point));
    Ok(Sample::new(node, containers))
}

/// Splits `name{labels} value time`; labels and time are optional. The value of a label may contain
/// braces and escaped quotes.
fn series(line: &str) -> Option<Series<'_>> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at_checked(end)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => {
            let close = closing_brace(rest)?;
            (rest.get(..close)?, rest.get(close + 1..)?)
        }
        None => ("", rest),
    };
    let mut fields = rest.split_whitespace();
    let value = fields.next()?.parse().ok()?;
    let at_ms = match fields.next() {
        Some(text) => Some(text.parse().ok()?),
        None => None,
    };
    Some(Series { name, labels, value, at_ms })
}

/// Index of the brace that ends the labels.
fn closing_brace(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(index),
            _ => {}
        }
    }
    None
}

/// The value of a label. Names of pods, namespaces and containers contain no quotes and commas.
fn label(labels: &str, name: &str) -> Option<String> {
    labels.split(',').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let value = value.trim().strip_prefix('"')?.strip_suffix('"')?;
        (key.trim() == name).then(|| value.to_owned())
    })
}

/// Seconds as nanoseconds; zero for what is no duration. The counters of a kubelet are far below
/// the range of `u64`, to which the conversion is bounded.
fn nanoseconds(seconds: f64) -> u64 {
    whole(seconds * 1e9)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from float to integer saturates, and NaN is zero"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// metrics-server's test data (`decode_test.go`) in the kubelet's form.
    #[test]
    fn the_counters_of_nodes_and_containers_are_read() {
        let text = "\
# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 357.35491 1633253809720
node_memory_working_set_bytes 1.616273408e+09 1633253809720
container_cpu_usage_seconds_total{container=\"coredns\",namespace=\"kube-system\",pod=\"c-1\"} 4.7 1633253812125
container_memory_working_set_bytes{container=\"coredns\",namespace=\"kube-system\",pod=\"c-1\"} 1.253376e+07 1633253812125
container_start_time_seconds{container=\"coredns\",namespace=\"kube-system\",pod=\"c-1\"} 1.63325306812e+09
pod_cpu_usage_seconds_total{namespace=\"kube-system\",pod=\"c-1\"} 5 1633253812125
other{text=\"a } brace and \\\" quote\"} 1
resource_scrape_error 0
";
        let sample = parse(text, 7).unwrap();
        let node = sample.node.unwrap();
        assert_eq!(node.at, 1_633_253_809_720_000_000);
        assert_eq!((node.cpu_ns, node.memory), (357_354_910_000, 1_616_273_408));
        let (key, containers) = sample.pods.first_key_value().unwrap();
        assert_eq!((key.namespace.as_str(), key.name.as_str()), ("kube-system", "c-1"));
        let point = containers["coredns"];
        assert_eq!((point.cpu_ns, point.memory), (4_700_000_000, 12_533_760));
        assert_eq!(point.started / 1_000_000, 1_633_253_068_120);
    }

    #[test]
    fn a_series_without_a_time_was_measured_now() {
        let sample = parse("node_cpu_usage_seconds_total 1\nnode_memory_working_set_bytes 2", 7);
        assert_eq!(
            sample.unwrap().node,
            Some(Point { started: 0, at: 7, cpu_ns: 1_000_000_000, memory: 2 })
        );
    }

    #[test]
    fn what_is_no_series_is_refused_with_its_line() {
        for (text, line) in [
            ("node_cpu_usage_seconds_total", 1),
            ("a 1\nnode_cpu_usage_seconds_total x", 2),
            ("container_cpu_usage_seconds_total{container=\"a\" 1", 1),
            ("container_cpu_usage_seconds_total{container=\"a\"} 1", 1),
            ("a 1 x", 1),
        ] {
            assert_eq!(parse(text, 0).unwrap_err().line, line, "{text}");
        }
        assert_eq!(whole(f64::NAN), 0);
        assert_eq!(whole(-5.0), 0);
    }
}
