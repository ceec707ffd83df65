//! Renders the metrics `apiserver_flowcontrol_*` with upstream's names, labels and help
//! (`flowcontrol/metrics/metrics.go`).

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use sorting::CompactSort as _;

use super::control::Control;
use super::digest::LevelState;
use super::timing::{Timing, Timings};
use crate::priority_and_fairness::level_counters::{Flow, Histogram, Reason};

/// Reads a value; `None` if it was never set.
type Read<'a> = &'a dyn Fn(&Flow) -> Option<i64>;

/// Writes metrics in the Prometheus text format.
struct Writer<'a>(&'a mut String);

impl Writer<'_> {
    /// Writes HELP and TYPE; `name` is without the prefix `apiserver_flowcontrol_`.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let name = format!("apiserver_flowcontrol_{name}");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "apiserver_flowcontrol_{name}{{{labels}}} {value}");
    }

    /// Writes a gauge with one sample per level.
    fn levels<V: std::fmt::Display>(
        &mut self,
        (name, help): (&str, &str),
        held: &[LevelState],
        of: impl Fn(&LevelState) -> V,
    ) {
        self.head(name, "gauge", help);
        for held in held {
            self.sample(name, &format!("priority_level=\"{}\"", held.level.name), of(held));
        }
    }

    /// Writes a metric with one sample per flow schema and level.
    fn flows(&mut self, (name, kind, help): (&str, &str, &str), flows: &[Arc<Flow>], of: Read<'_>) {
        self.head(name, kind, help);
        for flow in flows {
            if let Some(value) = of(flow) {
                self.sample(name, &labels(flow, ""), value);
            }
        }
    }

    fn histogram<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        rows: &[(String, &Histogram<N>)],
    ) {
        self.head(name, "histogram", help);
        for (labels, histogram) in rows {
            let Some((buckets, sum, count)) = histogram.read() else { continue };
            for (bound, count) in buckets {
                self.sample(&format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), count);
            }
            self.sample(&format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), count);
            self.sample(&format!("{name}_sum"), labels, sum);
            self.sample(&format!("{name}_count"), labels, count);
        }
    }
}

/// The labels of a flow and `further` ones, ordered by name.
fn labels(flow: &Flow, further: &str) -> String {
    let (name, level) = (&flow.name, &flow.level);
    match further.strip_prefix("execute") {
        Some(_) => format!("{further},flow_schema=\"{name}\",priority_level=\"{level}\""),
        None if further.is_empty() => format!("flow_schema=\"{name}\",priority_level=\"{level}\""),
        None => format!("flow_schema=\"{name}\",priority_level=\"{level}\",{further}"),
    }
}

impl Control {
    /// Appends all metrics to `out`.
    pub(crate) fn render(&self, out: &mut String) {
        self.tick(self.now());
        let mut writer = Writer(out);
        let state = self.state.lock();
        let mut flows: Vec<Arc<Flow>> = state.flows.values().cloned().collect();
        flows.compact_sort_by(|a, b| (&a.level, &a.name).cmp(&(&b.level, &b.name)));
        counters(&mut writer, &flows);
        histograms(&mut writer, &flows);
        levels(&mut writer, &state.levels);
        progress(&mut writer, &state.levels);
        timings(&mut writer, &state.levels, self.now());
        let name = "read_vs_write_current_requests";
        let help = "Observations, at the end of every nanosecond, of requests that wait or execute as a share of those that may";
        writer.head(name, "histogram", &alpha(help));
        let name = format!("apiserver_flowcontrol_{name}");
        self.executing.render(writer.0, &name, "executing", self.now());
        self.waiting.render(writer.0, &name, "waiting", self.now());
        let help = "Fair fraction of server's concurrency to allocate to each priority level that can use it";
        writer.head("seat_fair_frac", "gauge", &alpha(help));
        let _ = writeln!(writer.0, "apiserver_flowcontrol_seat_fair_frac {}", state.fair);
    }
}

fn alpha(help: &str) -> String {
    format!("[ALPHA] {help}")
}

fn counters(writer: &mut Writer<'_>, flows: &[Arc<Flow>]) {
    let name = "rejected_requests_total";
    let help = "[BETA] Number of requests rejected by API Priority and Fairness subsystem";
    writer.head(name, "counter", help);
    for flow in flows {
        for (reason, text) in Reason::ALL {
            let count = flow.rejected(reason).get();
            if count > 0 {
                writer.sample(name, &labels(flow, &format!("reason=\"{text}\"")), count);
            }
        }
    }
    let counted = |count: u64| (count > 0).then(|| i64::try_from(count).unwrap_or(i64::MAX));
    let used = |flow: &Flow| flow.dispatched.get() > 0;
    let queued = |flow: &Flow| flow.queue_length.read().is_some();
    let rows: [(&str, &str, &str, Read<'_>); 6] = [
        (
            "dispatched_requests_total",
            "counter",
            "[BETA] Number of requests executed by API Priority and Fairness subsystem",
            &|flow| counted(flow.dispatched.get()),
        ),
        (
            "current_inqueue_requests",
            "gauge",
            "[BETA] Number of requests currently pending in queues of the API Priority and Fairness subsystem",
            &|flow| queued(flow).then(|| flow.waiting.get()),
        ),
        (
            "current_inqueue_seats",
            "gauge",
            "[ALPHA] Number of seats currently pending in queues of the API Priority and Fairness subsystem",
            &|flow| queued(flow).then(|| flow.waiting_seats.get()),
        ),
        (
            "current_executing_requests",
            "gauge",
            "[BETA] Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem",
            &|flow| used(flow).then(|| flow.executing.get()),
        ),
        (
            "current_executing_seats",
            "gauge",
            "[BETA] Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem",
            &|flow| used(flow).then(|| flow.executing_seats.get()),
        ),
        (
            "request_dispatch_no_accommodation_total",
            "counter",
            "[ALPHA] Number of times a dispatch attempt resulted in a non accommodation due to lack of available seats",
            &|flow| counted(flow.no_accommodation.get()),
        ),
    ];
    for (name, kind, help, of) in rows {
        writer.flows((name, kind, help), flows, of);
    }
}

fn histograms(writer: &mut Writer<'_>, flows: &[Arc<Flow>]) {
    let plain: Vec<String> = flows.iter().map(|flow| labels(flow, "")).collect();
    let queue: Vec<_> = plain.iter().cloned().zip(flows.iter().map(|f| &f.queue_length)).collect();
    writer.histogram(
        "request_queue_length_after_enqueue",
        "[ALPHA] Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued",
        &queue,
    );
    let waits: Vec<_> = flows
        .iter()
        .flat_map(|flow| {
            [
                (labels(flow, "execute=\"false\""), &flow.rejected_wait),
                (labels(flow, "execute=\"true\""), &flow.waited),
            ]
        })
        .collect();
    writer.histogram(
        "request_wait_duration_seconds",
        "[BETA] Length of time a request spent waiting in its queue",
        &waits,
    );
    let executions: Vec<_> = flows
        .iter()
        .flat_map(|flow| {
            [
                (labels(flow, "type=\"regular\""), &flow.regular),
                (labels(flow, "type=\"watch\""), &flow.watches),
            ]
        })
        .collect();
    writer.histogram(
        "request_execution_seconds",
        "[ALPHA] Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem",
        &executions,
    );
    let watchers: Vec<_> = plain.iter().cloned().zip(flows.iter().map(|f| &f.watchers)).collect();
    writer.histogram(
        "watch_count_samples",
        "[ALPHA] count of watchers for mutating requests in API Priority and Fairness",
        &watchers,
    );
    let seats: Vec<_> = plain.into_iter().zip(flows.iter().map(|f| &f.seats)).collect();
    writer.histogram(
        "work_estimated_seats",
        "[ALPHA] Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority and Fairness",
        &seats,
    );
}

fn levels(writer: &mut Writer<'_>, held: &[LevelState]) {
    let gauge = |name, help| (name, help);
    writer.levels(
        gauge(
            "nominal_limit_seats",
            "[BETA] Nominal number of execution seats configured for each priority level",
        ),
        held,
        |held| held.limits.nominal,
    );
    writer.levels(
        gauge("lower_limit_seats", "[ALPHA] Configured lower bound on number of execution seats available to each priority level"),
        held,
        |held| held.limits.min,
    );
    writer.levels(
        gauge("upper_limit_seats", "[ALPHA] Configured upper bound on number of execution seats available to each priority level"),
        held,
        |held| held.limits.max,
    );
    writer.levels(
        gauge(
            "current_limit_seats",
            "[ALPHA] current derived number of execution seats available to each priority level",
        ),
        held,
        |held| held.current,
    );
    writer.levels(
        gauge(
            "demand_seats_high_watermark",
            "[ALPHA] High watermark, over last adjustment period, of demand_seats",
        ),
        held,
        |held| held.demand.high,
    );
    writer.levels(
        gauge(
            "demand_seats_average",
            "[ALPHA] Time-weighted average, over last adjustment period, of demand_seats",
        ),
        held,
        |held| held.demand.average,
    );
    writer.levels(
        gauge("demand_seats_stdev", "[ALPHA] Time-weighted standard deviation, over last adjustment period, of demand_seats"),
        held,
        |held| held.demand.deviation,
    );
    writer.levels(gauge("demand_seats_smoothed", "[ALPHA] Smoothed seat demands"), held, |held| {
        held.demand.smoothed
    });
    writer
        .levels(gauge("target_seats", "[ALPHA] Seat allocation targets"), held, |held| held.target);
}

/// The utilization histograms of all levels.
fn timings(writer: &mut Writer<'_>, held: &[LevelState], now: Duration) {
    type Rows = &'static [(&'static str, fn(&Timings) -> &Timing)];
    let families: [(&str, &str, Rows); 3] = [
        (
            "priority_level_request_utilization",
            "Observations, at the end of every nanosecond, of requests that wait or execute as a share of those that may",
            &[("phase=\"executing\",", |t| &t.executing), ("phase=\"waiting\",", |t| &t.waiting)],
        ),
        (
            "priority_level_seat_utilization",
            "Observations, at the end of every nanosecond, of seats in use as a share of those of the level",
            &[("phase=\"executing\",", |t| &t.seats)],
        ),
        (
            "demand_seats",
            "Observations, at the end of every nanosecond, of seats that could be used as a share of those of the level",
            &[("", |t| &t.demand)],
        ),
    ];
    for (name, help, rows) in families {
        writer.head(name, "histogram", &alpha(help));
        for held in held {
            let mut queues = held.level.queues.lock();
            let timings = queues.timings(now);
            for (labels, of) in rows {
                let labels = format!("{labels}priority_level=\"{}\"", held.level.name);
                of(timings).render(writer.0, &format!("apiserver_flowcontrol_{name}"), &labels);
            }
        }
    }
}

/// The metrics of virtual time.
fn progress(writer: &mut Writer<'_>, held: &[LevelState]) {
    let progress: Vec<_> = held.iter().map(|held| held.level.queues.lock().progress()).collect();
    let rows = || held.iter().zip(&progress).map(|(held, progress)| (&held.level.name, progress));
    writer.head("current_r", "gauge", "[ALPHA] R(time of last change)");
    for (name, (r, _)) in rows() {
        writer.sample("current_r", &format!("priority_level=\"{name}\""), r.to_f64());
    }
    for (name, help, of) in [
        ("dispatch_r", "[ALPHA] R(time of last dispatch)", 0),
        ("latest_s", "[ALPHA] S(most recently dispatched request)", 1),
    ] {
        writer.head(name, "gauge", help);
        for (level, (_, last)) in rows() {
            let value = if of == 0 { last.r } else { last.s };
            writer.sample(name, &format!("priority_level=\"{level}\""), value.to_f64());
        }
    }
    for (name, help, discounted) in [
        (
            "next_s_bounds",
            "[ALPHA] min and max, over queues, of S(oldest waiting request in queue)",
            false,
        ),
        (
            "next_discounted_s_bounds",
            "[ALPHA] min and max, over queues, of S(oldest waiting request in queue) - estimated work in progress",
            true,
        ),
    ] {
        writer.head(name, "gauge", help);
        for (level, (_, last)) in rows() {
            let (min, max) = if discounted { last.discounted } else { last.bounds };
            for (bound, value) in [("max", max), ("min", min)] {
                let labels = format!("bound=\"{bound}\",priority_level=\"{level}\"");
                writer.sample(name, &labels, value.to_f64());
            }
        }
    }
    let epochs: Vec<_> = held.iter().map(|held| held.level.queues.lock().totals().epochs).collect();
    writer.head(
        "epoch_advance_total",
        "counter",
        "[ALPHA] Number of times the queueset's progress meter jumped backward",
    );
    for (held, epochs) in held.iter().zip(epochs).filter(|(_, epochs)| *epochs > 0) {
        let labels = format!("priority_level=\"{}\",success=\"true\"", held.level.name);
        writer.sample("epoch_advance_total", &labels, epochs);
    }
}
