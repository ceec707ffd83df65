//! Counts requests with upstream's metric names. Label values come from closed sets, so that
//! clients cannot exhaust memory.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use api::Gvr;
use base::metrics::head;
use http::Request;
use parking_lot::Mutex;

use crate::metrics::requests::{LATENCIES, Words};
use crate::registry::Registry;
use crate::request::body::Body;
use crate::request::{Query, RequestInfo};

/// Upper bounds of `apiserver_request_duration_seconds`, in seconds
/// (`k8s.io/apiserver/pkg/endpoints/metrics`).
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Upper bounds of `apiserver_response_sizes`, in bytes.
const SIZES: [f64; 7] = base::metrics::exponential(1000.0, 10.0);

/// The labels of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Labels {
    verb: &'static str,
    served: Option<Served>,
    scope: &'static str,
    dry_run: &'static str,
    /// Whether the response size is counted.
    reads: bool,
}

/// The served resource that a request names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Served {
    gvr: Gvr,
    subresource: Option<Arc<str>>,
}

impl Served {
    /// `None` if the resource is not served: labels with arbitrary names would let any client
    /// exhaust memory (CVE-2020-8552).
    pub(crate) fn of(registry: &Registry, info: &RequestInfo) -> Option<Self> {
        if !info.is_resource {
            return None;
        }
        let row = registry.row(&Gvr::new(&info.group, &info.version, &info.resource))?;
        let subresource = match info.subresource.as_str() {
            "" => None,
            name => Some(Arc::clone(&row.subresource(name)?.name)),
        };
        Some(Self { gvr: row.spec.gvr.clone(), subresource })
    }
}

impl Labels {
    /// Sets the labels of a parsed request; verbs are those of upstream's `CleanVerb`.
    pub(crate) fn fill(
        &mut self,
        request: &Request<Body>,
        info: &RequestInfo,
        query: &Query,
        served: Option<Served>,
    ) {
        let applies = || {
            let kind = request.headers().get(http::header::CONTENT_TYPE);
            kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/apply-patch+"))
        };
        let connects = info.is_resource
            && matches!(
                info.subresource.as_str(),
                "log" | "exec" | "portforward" | "attach" | "proxy"
            );
        self.verb = match info.verb {
            _ if connects => "CONNECT",
            "get" | "head" => "GET",
            "list" => "LIST",
            "watch" => "WATCH",
            "create" | "post" => "POST",
            "update" | "put" => "PUT",
            "patch" if applies() => "APPLY",
            "patch" => "PATCH",
            "delete" | "deletecollection" => "DELETE",
            _ => "other",
        };
        self.served = served;
        self.scope = info.scope();
        self.reads = matches!(info.verb, "get" | "list") && !connects;
        self.dry_run = match query.get("dryRun") {
            None => "",
            Some("All") => "All",
            Some(_) => "invalid",
        };
    }

    /// The common labels of request metrics.
    pub(crate) fn words(&self) -> Words<'_> {
        let served = self.served.as_ref();
        let [group, version, resource] = served
            .map(|Served { gvr, .. }| [&*gvr.group, &*gvr.version, &*gvr.resource])
            .unwrap_or_default();
        let subresource =
            served.and_then(|served| served.subresource.as_deref()).unwrap_or_default();
        Words { verb: self.verb, group, version, resource, subresource, scope: self.scope }
    }

    fn text(&self, dry_run: bool) -> String {
        let Words { verb, group, version, resource, subresource, scope } = self.words();
        let dry_run =
            if dry_run { format!("dry_run=\"{}\",", self.dry_run) } else { String::new() };
        format!(
            "component=\"apiserver\",{dry_run}group=\"{group}\",resource=\"{resource}\",scope=\"{scope}\",subresource=\"{subresource}\",verb=\"{verb}\",version=\"{version}\""
        )
    }
}

#[derive(Debug)]
struct Histogram<const N: usize> {
    buckets: [u64; N],
    sum: f64,
    count: u64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { buckets: [0; N], sum: 0.0, count: 0 }
    }
}

impl<const N: usize> Histogram<N> {
    fn add(&mut self, bounds: &[f64; N], value: f64) {
        self.count += 1;
        self.sum += value;
        let at = bounds.iter().position(|bound| value <= *bound);
        if let Some(bucket) = at.and_then(|at| self.buckets.get_mut(at)) {
            *bucket += 1;
        }
    }

    fn render(&self, out: &mut String, name: &str, labels: &str, bounds: &[f64; N]) {
        let rows = bounds.iter().copied().zip(self.buckets);
        base::metrics::histogram(out, name, labels, rows, self.sum, self.count);
    }
}

/// The histograms of all requests with the same labels.
#[derive(Debug, Default)]
struct Kind {
    durations: Histogram<23>,
    /// The durations without the time in webhooks and queues.
    own: Histogram<21>,
    sizes: Histogram<7>,
}

#[derive(Debug, Default)]
struct Counts {
    kinds: HashMap<Labels, Kind>,
    codes: HashMap<(Labels, u16), u64>,
    panics: u64,
}

/// Counters of requests.
#[derive(Debug)]
pub(crate) struct Metrics {
    counts: Mutex<Counts>,
    pub(crate) started: Duration,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self { counts: Mutex::new(Counts::default()), started: base::clock::unix_time() }
    }

    /// Counts one request: status code, response size if known, duration, and the part of it in
    /// webhooks and queues. Rejected requests are counted without resource labels, because clients
    /// without permissions can send requests for any resource.
    pub(crate) fn observe(
        &self,
        labels: &Labels,
        (code, bytes): (u16, Option<u64>),
        (took, waited): (Duration, Duration),
    ) {
        let labels = if matches!(code, 401 | 403 | 405) {
            Labels { verb: labels.verb, scope: labels.scope, ..Labels::default() }
        } else {
            labels.clone()
        };
        let mut counts = self.counts.lock();
        if labels.verb != "WATCH" {
            let kind = counts.kinds.entry(labels.clone()).or_default();
            kind.durations.add(&BUCKETS, took.as_secs_f64());
            if labels.dry_run.is_empty() {
                kind.own.add(&LATENCIES, took.saturating_sub(waited).as_secs_f64());
            }
            if let Some(bytes) = bytes.filter(|_| labels.reads) {
                kind.sizes.add(&SIZES, bytes as f64);
            }
        }
        *counts.codes.entry((labels, code)).or_default() += 1;
    }

    pub(crate) fn panicked(&self) {
        self.counts.lock().panics += 1;
    }

    pub(crate) fn render_requests(&self, out: &mut String) {
        let counts = self.counts.lock();
        let name = "apiserver_request_total";
        head(
            out,
            name,
            "counter",
            "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, \
     version, resource, scope, component, and HTTP response code.",
        );
        for ((labels, code), count) in &counts.codes {
            let _ = writeln!(out, "{name}{{code=\"{code}\",{}}} {count}", labels.text(true));
        }
        let name = "apiserver_request_duration_seconds";
        head(
            out,
            name,
            "histogram",
            "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, \
     version, resource, subresource, scope and component.",
        );
        for (labels, kind) in &counts.kinds {
            kind.durations.render(out, name, &labels.text(true), &BUCKETS);
        }
        let name = "apiserver_request_sli_duration_seconds";
        let help = "[ALPHA] Response latency distribution (not counting webhook duration and priority & fairness \
     queue wait times) in seconds for each verb, group, version, resource, subresource, scope and \
     component.";
        head(out, name, "histogram", help);
        for (labels, kind) in counts.kinds.iter().filter(|(_, kind)| kind.own.count > 0) {
            kind.own.render(out, name, &labels.text(false), &LATENCIES);
        }
        let name = "apiserver_response_sizes";
        head(
            out,
            name,
            "histogram",
            "[STABLE] Response size distribution in bytes for each group, version, verb, resource, \
     subresource, scope and component.",
        );
        for (labels, kind) in counts.kinds.iter().filter(|(_, kind)| kind.sizes.count > 0) {
            kind.sizes.render(out, name, &labels.text(false), &SIZES);
        }
        let name = "apiserver_request_panics_total";
        head(out, name, "counter", "[ALPHA] Requests that ended in a panic.");
        let _ = writeln!(out, "{name} {}", counts.panics);
    }
}
