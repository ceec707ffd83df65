//! `/metrics` under upstream's names; labels come from closed sets, so that nobody can fill memory with them.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use api::Gvr;
use parking_lot::Mutex;

use crate::request::RequestInfo;
use crate::server::Inner;

/// Upper bounds of `apiserver_request_duration_seconds`, in seconds (`k8s.io/apiserver/pkg/endpoints/metrics`).
const BUCKETS: [f64; 27] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0,
];

/// What a request is counted under.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Labels {
    verb: &'static str,
    served: Option<Served>,
    scope: &'static str,
}

/// What a request names, as the registry has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Served {
    gvr: Gvr,
    subresource: Option<Arc<str>>,
}

impl Served {
    /// Nothing when the registry has it not: such names are the client's invention, and would let who may do nothing at all fill
    /// memory with them (CVE-2020-8552).
    pub(crate) fn of(inner: &Inner, info: &RequestInfo) -> Option<Self> {
        if !info.is_resource {
            return None;
        }
        let registry = inner.objects.registry();
        let row = registry.row(&Gvr::new(&info.group, &info.version, &info.resource))?;
        let subresource = match info.subresource.as_str() {
            "" => None,
            name => Some(Arc::clone(&row.subresource(name)?.name)),
        };
        Some(Self { gvr: row.spec.gvr.clone(), subresource })
    }
}

impl Labels {
    /// From a parsed request, and what it names.
    pub(crate) fn fill(&mut self, info: &RequestInfo, served: Option<Served>) {
        self.verb = match info.verb {
            "get" => "GET",
            "list" => "LIST",
            "watch" => "WATCH",
            "create" | "post" => "POST",
            "update" | "put" => "PUT",
            "patch" => "PATCH",
            "delete" => "DELETE",
            "deletecollection" => "DELETECOLLECTION",
            _ => "other",
        };
        self.served = served;
        self.scope = match (info.is_resource, info.name.is_empty(), info.namespace.is_empty()) {
            (false, ..) => "",
            (true, false, _) => "resource",
            (true, true, false) => "namespace",
            (true, true, true) => "cluster",
        };
    }

    fn text(&self) -> String {
        let served = self.served.as_ref();
        let [group, version, resource] = served
            .map(|Served { gvr, .. }| [&*gvr.group, &*gvr.version, &*gvr.resource])
            .unwrap_or_default();
        let subresource =
            served.and_then(|served| served.subresource.as_deref()).unwrap_or_default();
        format!(
            "component=\"apiserver\",dry_run=\"\",group=\"{group}\",resource=\"{resource}\",scope=\"{}\",subresource=\"{subresource}\",verb=\"{}\",version=\"{version}\"",
            self.scope, self.verb
        )
    }
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    sum: f64,
    count: u64,
}

#[derive(Debug, Default)]
struct Counts {
    durations: HashMap<Labels, Histogram>,
    codes: HashMap<(Labels, u16), u64>,
    panics: u64,
}

/// Counters of requests.
#[derive(Debug)]
pub(crate) struct Metrics {
    counts: Mutex<Counts>,
    started: Duration,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self { counts: Mutex::new(Counts::default()), started: base::clock::unix_time() }
    }

    /// Counts one answered request. What was not found is counted without its names: they are the client's invention.
    pub(crate) fn observe(&self, labels: &Labels, code: u16, took: Duration) {
        let labels = if matches!(code, 404 | 401 | 403 | 405) {
            Labels { verb: labels.verb, scope: labels.scope, ..Labels::default() }
        } else {
            labels.clone()
        };
        let seconds = took.as_secs_f64();
        let mut counts = self.counts.lock();
        if labels.verb != "WATCH" {
            let histogram = counts.durations.entry(labels.clone()).or_default();
            histogram.count += 1;
            histogram.sum += seconds;
            for (bucket, bound) in histogram.buckets.iter_mut().zip(BUCKETS) {
                *bucket += u64::from(seconds <= bound);
            }
        }
        *counts.codes.entry((labels, code)).or_default() += 1;
    }

    pub(crate) fn panicked(&self) {
        self.counts.lock().panics += 1;
    }

    /// The text of `/metrics`.
    pub(crate) fn render(&self, inner: &Inner) -> String {
        let mut out = String::with_capacity(16 * 1024);
        self.requests(&mut out);
        inflight(&mut out, inner);
        caches(&mut out, inner);
        inner.parts.authorizer.render(&mut out);
        if let Some(transformer) = inner.objects.storage().transformer() {
            transformer.render(&mut out);
        }
        if let Some(audit) = inner.audit.get() {
            audit.render(&mut out);
        }
        inner.parts.authenticator.render(&mut out);
        let size = inner.objects.storage().backend().size();
        head(&mut out, "apiserver_storage_size_bytes", "gauge", "Size of the stored data on disk.");
        let _ =
            writeln!(out, "apiserver_storage_size_bytes{{storage_cluster_id=\"\"}} {}", size.disk);
        process(&mut out, self.started);
        out
    }

    fn requests(&self, out: &mut String) {
        let counts = self.counts.lock();
        head(
            out,
            "apiserver_request_total",
            "counter",
            "Requests by verb, resource and status code.",
        );
        for ((labels, code), count) in &counts.codes {
            let _ = writeln!(
                out,
                "apiserver_request_total{{code=\"{code}\",{}}} {count}",
                labels.text()
            );
        }
        head(out, "apiserver_request_duration_seconds", "histogram", "Time to answer, in seconds.");
        for (labels, histogram) in &counts.durations {
            let text = labels.text();
            for (count, bound) in histogram.buckets.iter().zip(BUCKETS) {
                let _ = writeln!(
                    out,
                    "apiserver_request_duration_seconds_bucket{{{text},le=\"{bound}\"}} {count}"
                );
            }
            let _ = writeln!(
                out,
                "apiserver_request_duration_seconds_bucket{{{text},le=\"+Inf\"}} {}",
                histogram.count
            );
            let _ =
                writeln!(out, "apiserver_request_duration_seconds_sum{{{text}}} {}", histogram.sum);
            let _ = writeln!(
                out,
                "apiserver_request_duration_seconds_count{{{text}}} {}",
                histogram.count
            );
        }
        head(out, "apiserver_request_panics_total", "counter", "Requests that ended in a panic.");
        let _ = writeln!(out, "apiserver_request_panics_total {}", counts.panics);
    }
}

fn inflight(out: &mut String, inner: &Inner) {
    let mut gauge = |name: &str, help: &str, (reads, writes): (i64, i64)| {
        head(out, name, "gauge", help);
        let _ = writeln!(out, "{name}{{request_kind=\"mutating\"}} {writes}");
        let _ = writeln!(out, "{name}{{request_kind=\"readOnly\"}} {reads}");
    };
    let (name, help) = ("apiserver_current_inflight_requests", "Requests served now.");
    match &inner.flow {
        Some(flow) => {
            gauge(name, help, flow.in_flight());
            let help = "Requests that wait in queues now.";
            gauge("apiserver_current_inqueue_requests", help, flow.in_queue());
            flow.render(out);
        }
        None => {
            let (reads, writes) = inner.limits.in_flight();
            let number = |of: usize| i64::try_from(of).unwrap_or(i64::MAX);
            gauge(name, help, (number(reads), number(writes)));
        }
    }
}

fn caches(out: &mut String, inner: &Inner) {
    let counts = inner.objects.caches().counts();
    head(out, "apiserver_resource_objects", "gauge", "Stored objects per resource.");
    for (row, objects, _) in &counts {
        let gvr = &row.spec.gvr;
        let _ = writeln!(
            out,
            "apiserver_resource_objects{{group=\"{}\",resource=\"{}\"}} {objects}",
            gvr.group, gvr.resource
        );
    }
    head(
        out,
        "apiserver_watch_cache_resource_version",
        "gauge",
        "Revision that each watch cache has reached.",
    );
    for (row, _, revision) in &counts {
        let gvr = &row.spec.gvr;
        let _ = writeln!(
            out,
            "apiserver_watch_cache_resource_version{{group=\"{}\",resource=\"{}\"}} {revision}",
            gvr.group, gvr.resource
        );
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Figures of the process itself, from `/proc`.
fn process(out: &mut String, started: Duration) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let kib = |key: &str| -> u64 {
        let line = status.lines().find_map(|l| l.strip_prefix(key));
        line.and_then(|l| l.trim_start_matches(':').trim().split(' ').next()?.parse().ok())
            .unwrap_or(0)
    };
    let stat = read("/proc/self/stat");
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    // utime and stime are fields 14 and 15 of proc_pid_stat(5), in ticks of 1/100 s on every Linux architecture we run on.
    let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
    head(out, "process_cpu_seconds_total", "counter", "CPU time used, in seconds.");
    let _ = writeln!(out, "process_cpu_seconds_total {}.{:02}", ticks / 100, ticks % 100);
    head(out, "process_resident_memory_bytes", "gauge", "Resident memory.");
    let _ = writeln!(out, "process_resident_memory_bytes {}", kib("VmRSS") * 1024);
    head(out, "process_virtual_memory_bytes", "gauge", "Virtual memory.");
    let _ = writeln!(out, "process_virtual_memory_bytes {}", kib("VmSize") * 1024);
    head(out, "process_open_fds", "gauge", "Open file descriptors.");
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let _ = writeln!(out, "process_open_fds {open}");
    head(
        out,
        "process_start_time_seconds",
        "gauge",
        "Start of the process, in seconds since the epoch.",
    );
    let _ = writeln!(out, "process_start_time_seconds {}", started.as_secs());
}
