//! Metrics of the process in Prometheus' text format. Families are defined once, in tables, and
//! recorded from anywhere.
//!
//! Names, labels, buckets and stability are those of Kubernetes' components. A family without
//! labels is exported from the start, others once a value was recorded, as in Prometheus' Go
//! library.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::BuildHasherDefault;
use std::time::Duration;

use parking_lot::Mutex;
use sorting::CompactSort as _;

/// Maximum number of series of a family; further label sets are dropped, so that client-chosen
/// names cannot fill memory.
const SERIES_MAX: usize = 10_000;

/// Type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Monotonically increasing.
    Counter,
    /// Any value.
    Gauge,
    /// Has buckets.
    Histogram,
    /// Sum and count only.
    Summary,
}

/// Prometheus' default buckets, in seconds.
pub const DEFAULT_BOUNDS: [f64; 11] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Bounds that start with `first` and grow by `factor`.
pub const fn exponential<const N: usize>(first: f64, factor: f64) -> [f64; N] {
    let mut bounds = [first; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * factor;
        at += 1;
    }
    bounds
}

/// Bounds that start with `first` and grow by `step`.
pub const fn linear<const N: usize>(first: f64, step: f64) -> [f64; N] {
    let mut bounds = [first; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] + step;
        at += 1;
    }
    bounds
}

/// One metric with all its series.
pub struct Family {
    name: &'static str,
    /// HELP text with the stability in front, as upstream: `[ALPHA] …`.
    help: &'static str,
    kind: Kind,
    /// Label names, sorted as in the output.
    labels: &'static [&'static str],
    bounds: &'static [f64],
    series: Mutex<Series>,
}

type Series = Option<HashMap<u64, Cell, BuildHasherDefault<PrecomputedHasher>>>;

/// The values of one set of labels.
struct Cell {
    labels: Box<[Box<str>]>,
    /// Value of a counter or gauge; otherwise the sum.
    value: f64,
    count: u64,
    /// Counts per bucket, not cumulative; empty without bounds.
    buckets: Box<[u64]>,
}

impl Cell {
    fn is(&self, labels: &[&str]) -> bool {
        self.labels.iter().map(AsRef::as_ref).eq(labels.iter().copied())
    }
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct PrecomputedHasher(u64);

impl std::hash::Hasher for PrecomputedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

impl Family {
    const fn new(
        name: &'static str,
        help: &'static str,
        kind: Kind,
        labels: &'static [&'static str],
        bounds: &'static [f64],
    ) -> Self {
        Self { name, help, kind, labels, bounds, series: Mutex::new(None) }
    }

    /// Creates a counter.
    pub const fn counter(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self::new(name, help, Kind::Counter, labels, &[])
    }

    /// Creates a gauge.
    pub const fn gauge(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self::new(name, help, Kind::Gauge, labels, &[])
    }

    /// Creates a summary without quantiles.
    pub const fn summary(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self::new(name, help, Kind::Summary, labels, &[])
    }

    /// Creates a histogram with these upper bounds.
    pub const fn histogram(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        bounds: &'static [f64],
    ) -> Self {
        Self::new(name, help, Kind::Histogram, labels, bounds)
    }

    fn with(&self, labels: &[&str], change: impl FnOnce(&mut Cell)) {
        debug_assert_eq!(labels.len(), self.labels.len(), "labels of {}", self.name);
        let mut hash = PrecomputedHasher(0xcbf2_9ce4_8422_2325);
        for label in labels {
            std::hash::Hasher::write(&mut hash, label.as_bytes());
            std::hash::Hasher::write(&mut hash, &[0xff]);
        }
        let mut key = hash.0;
        let mut series = self.series.lock();
        let series = series.get_or_insert_default();
        // On a hash collision of two label sets another key is used.
        while series.get(&key).is_some_and(|cell| !cell.is(labels)) {
            key = key.wrapping_add(1);
        }
        if series.len() >= SERIES_MAX && !series.contains_key(&key) {
            return;
        }
        change(series.entry(key).or_insert_with(|| Cell {
            labels: labels.iter().map(|label| Box::from(*label)).collect(),
            value: 0.0,
            count: 0,
            buckets: vec![0; self.bounds.len()].into(),
        }));
    }

    /// Increments a counter or gauge; label values are in the order of the label names.
    pub fn inc(&self, labels: &[&str]) {
        self.add(labels, 1.0);
    }

    /// Adds to a counter or gauge.
    pub fn add(&self, labels: &[&str], by: f64) {
        self.with(labels, |cell| cell.value += by);
    }

    /// Sets a gauge.
    pub fn set(&self, labels: &[&str], to: f64) {
        self.with(labels, |cell| cell.value = to);
    }

    /// Records a value of a histogram or summary.
    pub fn observe(&self, labels: &[&str], value: f64) {
        self.with(labels, |cell| {
            cell.value += value;
            cell.count += 1;
            let at = self.bounds.iter().position(|bound| value <= *bound);
            if let Some(bucket) = at.and_then(|at| cell.buckets.get_mut(at)) {
                *bucket += 1;
            }
        });
    }

    /// Records a duration, in seconds.
    pub fn took(&self, labels: &[&str], time: Duration) {
        self.observe(labels, time.as_secs_f64());
    }

    /// The value of a counter or gauge, or the count of a histogram or summary; zero without
    /// records.
    pub fn read(&self, labels: &[&str]) -> f64 {
        let series = self.series.lock();
        let found = series.iter().flat_map(HashMap::values).find(|cell| cell.is(labels));
        found.map_or(0.0, |cell| match self.kind {
            Kind::Counter | Kind::Gauge => cell.value,
            Kind::Histogram | Kind::Summary => cell.count as f64,
        })
    }

    /// Removes all series.
    pub fn reset(&self) {
        *self.series.lock() = None;
    }

    /// A family of the same definition without series, to count objects in and then pass it to
    /// [`Family::replace`].
    pub const fn empty(&self) -> Self {
        Self::new(self.name, self.help, self.kind, self.labels, self.bounds)
    }

    /// Replaces all series by those of another family, at once, so that no page shows a part.
    pub fn replace(&self, by: Self) {
        *self.series.lock() = by.series.into_inner();
    }

    /// Whether values may decrease: those of objects and states that exist at present.
    pub const fn is_gauge(&self) -> bool {
        matches!(self.kind, Kind::Gauge)
    }

    /// Calls `of` with the labels and the value of each series, in unspecified order.
    pub fn each(&self, mut of: impl FnMut(&[Box<str>], f64)) {
        for cell in self.series.lock().iter().flat_map(HashMap::values) {
            of(&cell.labels, cell.value);
        }
    }

    /// Appends the family in text format, sorted by labels; nothing if it has no series.
    pub fn render(&self, out: &mut String) {
        if self.labels.is_empty() {
            self.with(&[], |_| ());
        }
        let series = self.series.lock();
        let Some(series) = series.as_ref() else { return };
        let mut cells: Vec<&Cell> = series.values().collect();
        cells.compact_sort_by(|a, b| a.labels.cmp(&b.labels));
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        };
        head(out, self.name, kind, self.help);
        for cell in cells {
            let mut labels = String::new();
            for (name, value) in self.labels.iter().zip(&cell.labels) {
                let comma = if labels.is_empty() { "" } else { "," };
                let _ = write!(labels, "{comma}{name}=\"{}\"", escaped(value));
            }
            match self.kind {
                Kind::Counter | Kind::Gauge => {
                    write_line(out, self.name, "", &labels, &float(cell.value))
                }
                Kind::Summary => totals(out, self.name, &labels, cell.value, cell.count),
                Kind::Histogram => {
                    let rows = self.bounds.iter().copied().zip(cell.buckets.iter().copied());
                    histogram(out, self.name, &labels, rows, cell.value, cell.count);
                }
            }
        }
    }
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Family({})", self.name)
    }
}

/// Appends the HELP and TYPE lines.
pub fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn write_line(out: &mut String, name: &str, suffix: &str, labels: &str, value: &str) {
    let _ = if labels.is_empty() {
        writeln!(out, "{name}{suffix} {value}")
    } else {
        writeln!(out, "{name}{suffix}{{{labels}}} {value}")
    };
}

fn totals(out: &mut String, name: &str, labels: &str, sum: f64, count: u64) {
    write_line(out, name, "_sum", labels, &float(sum));
    write_line(out, name, "_count", labels, &count.to_string());
}

/// Appends the lines of a histogram; rows are bounds with their own counts, not cumulative.
pub fn histogram(
    out: &mut String,
    name: &str,
    labels: &str,
    rows: impl Iterator<Item = (f64, u64)>,
    sum: f64,
    count: u64,
) {
    let comma = if labels.is_empty() { "" } else { "," };
    let mut below = 0;
    for (bound, number) in rows {
        below += number;
        let labels = format!("{labels}{comma}le=\"{}\"", float(bound));
        write_line(out, name, "_bucket", &labels, &below.to_string());
    }
    write_line(out, name, "_bucket", &format!("{labels}{comma}le=\"+Inf\""), &count.to_string());
    totals(out, name, labels, sum, count);
}

fn escaped(value: &str) -> std::borrow::Cow<'_, str> {
    if value.contains(['\\', '"', '\n']) {
        value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
    } else {
        value.into()
    }
}

/// Formats a number in Go's shortest form (`strconv.FormatFloat(f, 'g', -1, 64)`), which
/// Prometheus' text format and the label `le` use: with an exponent below 1e-4 and from 1e6 on.
pub fn float(number: f64) -> String {
    if !number.is_finite() {
        let sign = if number > 0.0 { "+Inf" } else { "-Inf" };
        return if number.is_nan() { "NaN" } else { sign }.to_owned();
    }
    let scientific = format!("{number:e}");
    let parts = scientific.split_once('e');
    match parts.and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?))) {
        Some((_, exponent)) if (-4..6).contains(&exponent) => number.to_string(),
        Some((digits, exponent)) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        None => scientific,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected output of Prometheus' Go library for the same values.
    #[test]
    fn families_are_written_as_prometheus_does() {
        static CALLS: Family = Family::counter("calls_total", "[ALPHA] Calls.", &["code", "name"]);
        static TIME: Family =
            Family::histogram("time_seconds", "[BETA] Time.", &["name"], &[5e-5, 0.5, 1.0]);
        static SUM: Family = Family::summary("sum_seconds", "[STABLE] Sum.", &["name"]);
        static PLAIN: Family = Family::gauge("plain", "[ALPHA] Plain.", &[]);
        static NEVER: Family = Family::counter("never_total", "[ALPHA] Never.", &["name"]);
        CALLS.inc(&["500", "b"]);
        CALLS.inc(&["200", "a \"quoted\" \\ one"]);
        CALLS.inc(&["500", "b"]);
        for value in [0.000_05, 0.25, 0.75, 2.0] {
            TIME.observe(&["x"], value);
        }
        SUM.observe(&["x"], 1.5);
        let mut out = String::new();
        for family in [&CALLS, &TIME, &SUM, &PLAIN, &NEVER] {
            family.render(&mut out);
        }
        let expected = r#"# HELP calls_total [ALPHA] Calls.
# TYPE calls_total counter
calls_total{code="200",name="a \"quoted\" \\ one"} 1
calls_total{code="500",name="b"} 2
# HELP time_seconds [BETA] Time.
# TYPE time_seconds histogram
time_seconds_bucket{name="x",le="5e-05"} 1
time_seconds_bucket{name="x",le="0.5"} 2
time_seconds_bucket{name="x",le="1"} 3
time_seconds_bucket{name="x",le="+Inf"} 4
time_seconds_sum{name="x"} 3.00005
time_seconds_count{name="x"} 4
# HELP sum_seconds [STABLE] Sum.
# TYPE sum_seconds summary
sum_seconds_sum{name="x"} 1.5
sum_seconds_count{name="x"} 1
# HELP plain [ALPHA] Plain.
# TYPE plain gauge
plain 0
"#;
        assert_eq!(out, expected);
    }

    #[test]
    fn a_counted_family_replaces_all_series() {
        static OBJECTS: Family = Family::gauge("objects", "[ALPHA] Objects.", &["state"]);
        OBJECTS.set(&["gone"], 3.0);
        let counted = OBJECTS.empty();
        counted.inc(&["new"]);
        counted.inc(&["new"]);
        OBJECTS.replace(counted);
        assert_eq!((OBJECTS.read(&["gone"]), OBJECTS.read(&["new"])), (0.0, 2.0));
        let mut page = String::new();
        OBJECTS.render(&mut page);
        assert!(OBJECTS.is_gauge() && !page.contains("gone"), "{page}");
    }

    /// `strconv.FormatFloat(f, 'g', -1, 64)`.
    #[test]
    fn numbers_are_written_as_go_does() {
        for (number, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (0.000_000_5, "5e-07"),
            (100_000.0, "100000"),
            (1_000_000.0, "1e+06"),
            (1_048_576.0, "1.048576e+06"),
            (1.25, "1.25"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    /// Client-chosen names do not fill memory.
    #[test]
    fn series_are_bounded() {
        static MANY: Family = Family::counter("many_total", "[ALPHA] Many.", &["name"]);
        for at in 0..SERIES_MAX + 10 {
            MANY.inc(&[&at.to_string()]);
        }
        let mut count = 0;
        MANY.each(|_, _| count += 1);
        assert_eq!(count, SERIES_MAX);
        assert_eq!((MANY.read(&["0"]), MANY.read(&["10005"])), (1.0, 0.0));
    }
}
