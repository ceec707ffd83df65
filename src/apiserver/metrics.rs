//! `/metrics` under upstream's names; labels come from closed sets, so that nobody can fill memory with them.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::Gvr;
use base::metrics::head;
use http::Request;
use parking_lot::Mutex;

use crate::body::Body;
use crate::meters::requests::{LATENCIES, Words};
use crate::request::{Query, RequestInfo};
use crate::server::Inner;
use crate::watch_cache::Figures;

/// Upper bounds of `apiserver_request_duration_seconds`, in seconds (`k8s.io/apiserver/pkg/endpoints/metrics`).
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Upper bounds of `apiserver_response_sizes`, in bytes.
const SIZES: [f64; 7] = base::metrics::exponential(1000.0, 10.0);

/// What a request is counted under.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Labels {
    verb: &'static str,
    served: Option<Served>,
    scope: &'static str,
    dry_run: &'static str,
    /// Its answer is as large as what it reads.
    reads: bool,
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

/// The scope of a request, as upstream's `CleanScope`.
pub(crate) fn scope(info: &RequestInfo) -> &'static str {
    match (info.is_resource, info.name.is_empty(), info.namespace.is_empty()) {
        (false, ..) => "",
        (true, false, _) => "resource",
        (true, true, _) if info.verb == "create" => "resource",
        (true, true, false) => "namespace",
        (true, true, true) => "cluster",
    }
}

impl Labels {
    /// From a parsed request, and what it names; verbs as upstream's `CleanVerb` has them.
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
        self.scope = scope(info);
        self.reads = matches!(info.verb, "get" | "list") && !connects;
        self.dry_run = match query.get("dryRun") {
            None => "",
            Some("All") => "All",
            Some(_) => "invalid",
        };
    }

    /// What all metrics of requests say of it.
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

/// Of all requests with the same labels.
#[derive(Debug, Default)]
struct Kind {
    durations: Histogram<23>,
    /// Without what webhooks and queues took.
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
    started: Duration,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self { counts: Mutex::new(Counts::default()), started: base::clock::unix_time() }
    }

    /// Counts one answered request: its code, its size where that is known, how long it took and how much of that others took. What was
    /// refused is counted without its names, as one that may do nothing can ask for many.
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

    /// The text of `/metrics/slis`.
    pub(crate) fn indicators(&self) -> String {
        let mut out = crate::healthz::indicators();
        start_time(&mut out, "[ALPHA] ", self.started);
        out
    }

    /// The text of `/metrics`.
    pub(crate) fn render(&self, inner: &Inner) -> String {
        let mut out = String::with_capacity(64 * 1024);
        self.requests(&mut out);
        inflight(&mut out, inner);
        inner.services.render(&mut out, &inner.objects);
        apiservices(&mut out, inner);
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
        let name = "apiserver_storage_size_bytes";
        head(&mut out, name, "gauge", "[STABLE] Size of the stored data on disk.");
        let _ = writeln!(out, "{name}{{storage_cluster_id=\"etcd-0\"}} {}", size.disk);
        crate::meters::render(&mut out);
        build(&mut out, &inner.config.product_version);
        process(&mut out);
        out
    }

    fn requests(&self, out: &mut String) {
        let counts = self.counts.lock();
        let name = "apiserver_request_total";
        head(out, name, "counter", "[STABLE] Requests by verb, resource and status code.");
        for ((labels, code), count) in &counts.codes {
            let _ = writeln!(out, "{name}{{code=\"{code}\",{}}} {count}", labels.text(true));
        }
        let name = "apiserver_request_duration_seconds";
        head(out, name, "histogram", "[STABLE] Time to answer, in seconds.");
        for (labels, kind) in &counts.kinds {
            kind.durations.render(out, name, &labels.text(true), &BUCKETS);
        }
        let name = "apiserver_request_sli_duration_seconds";
        let help = "[ALPHA] Time to answer without that of webhooks and queues, in seconds.";
        head(out, name, "histogram", help);
        for (labels, kind) in counts.kinds.iter().filter(|(_, kind)| kind.own.count > 0) {
            kind.own.render(out, name, &labels.text(false), &LATENCIES);
        }
        let name = "apiserver_response_sizes";
        head(out, name, "histogram", "[STABLE] Bytes of answers to who reads.");
        for (labels, kind) in counts.kinds.iter().filter(|(_, kind)| kind.sizes.count > 0) {
            kind.sizes.render(out, name, &labels.text(false), &SIZES);
        }
        let name = "apiserver_request_panics_total";
        head(out, name, "counter", "[ALPHA] Requests that ended in a panic.");
        let _ = writeln!(out, "{name} {}", counts.panics);
    }
}

/// Which program this is.
fn build(out: &mut String, product: &str) {
    let version = format!("v1.37.1+kubelite.{product}");
    let platform = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };
    head(out, "kubernetes_build_info", "gauge", "[BETA] Which program this is.");
    let _ = writeln!(
        out,
        "kubernetes_build_info{{build_date=\"\",compiler=\"rustc\",git_commit=\"\",git_tree_state=\"clean\",git_version=\"{version}\",go_version=\"\",major=\"1\",minor=\"37\",platform=\"{platform}\"}} 1"
    );
    head(out, "version_info", "gauge", "[ALPHA] Versions that the program can be.");
    let _ = writeln!(
        out,
        "version_info{{binary=\"1.37.1\",component=\"kube\",emulation=\"1.37\",min_compat=\"1.36\"}} 1"
    );
}

/// The hash of this server's identity, which upstream makes of the name of the machine (`apiserver_id_hash`).
pub(crate) fn own_hash() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| hash_of(own_identity().as_bytes()))
}

/// This server's identity, which upstream makes of the name of the machine.
pub(crate) fn own_identity() -> &'static str {
    static IDENTITY: OnceLock<String> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        identity(host.trim())
    })
}

/// `sha256:` and the digest in hexadecimal.
pub(crate) fn hash_of(text: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text);
    digest.as_ref().iter().fold("sha256:".to_owned(), |mut all, byte| {
        let _ = write!(all, "{byte:02x}");
        all
    })
}

/// `apiserver-` and the first half of the host's digest in base 32, in small letters.
fn identity(host: &str) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let digest = ring::digest::digest(&ring::digest::SHA256, host.as_bytes());
    let half = digest.as_ref().first_chunk::<16>().copied().unwrap_or_default();
    let mut number = u128::from_be_bytes(half);
    // 26 letters of five bits are two more than there are.
    let mut letters = [0; 26];
    for (at, letter) in letters.iter_mut().rev().enumerate() {
        let bits = if at == 0 { (number << 2) & 31 } else { number & 31 };
        number >>= if at == 0 { 3 } else { 5 };
        *letter = usize::try_from(bits)
            .ok()
            .and_then(|bits| LETTERS.get(bits))
            .copied()
            .unwrap_or_default();
    }
    format!("apiserver-{}", String::from_utf8_lossy(&letters))
}

fn inflight(out: &mut String, inner: &Inner) {
    let mut gauge = |name: &str, help: &str, (reads, writes): (i64, i64)| {
        head(out, name, "gauge", help);
        let _ = writeln!(out, "{name}{{request_kind=\"mutating\"}} {writes}");
        let _ = writeln!(out, "{name}{{request_kind=\"readOnly\"}} {reads}");
    };
    let (name, help) = (
        "apiserver_current_inflight_requests",
        "[STABLE] The most requests that were served at once in the last second.",
    );
    match &inner.flow {
        Some(flow) => {
            let [executing, waiting] = flow.most();
            gauge(name, help, executing);
            let help = "[ALPHA] The most requests that waited at once in the last second.";
            gauge("apiserver_current_inqueue_requests", help, waiting);
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
    let mut family = |name: &str, help: &str, of: fn(&Figures) -> i64| {
        head(out, name, "gauge", help);
        for (row, figures) in &counts {
            let gvr = &row.spec.gvr;
            let (group, resource) = (&gvr.group, &gvr.resource);
            let value = of(figures);
            let _ = writeln!(out, "{name}{{group=\"{group}\",resource=\"{resource}\"}} {value}");
        }
    };
    family("apiserver_resource_objects", "[ALPHA] Stored objects per resource.", |f| {
        i64::try_from(f.objects).unwrap_or(i64::MAX)
    });
    let help =
        "[ALPHA] Bytes of the stored objects of each resource, as they are in the watch cache.";
    family("apiserver_resource_size_estimate_bytes", help, |f| {
        i64::try_from(f.bytes).unwrap_or(i64::MAX)
    });
    let help = "[ALPHA] Revision that each watch cache has reached.";
    family("apiserver_watch_cache_resource_version", help, |f| f.revision);
    let help = "[ALPHA] Changes that each watch cache can keep.";
    family("watch_cache_capacity", help, |f| i64::try_from(f.capacity).unwrap_or(i64::MAX));
}

/// Which APIServices cannot be asked; those that are served here always can.
fn apiservices(out: &mut String, inner: &Inner) {
    let Ok(row) = inner.objects.row(&Gvr::new("apiregistration.k8s.io", "v1", "apiservices"))
    else {
        return;
    };
    let Some(cache) = inner.objects.caches().running(&row) else { return };
    let remotes = inner.aggregator.remotes();
    let name = "aggregator_unavailable_apiservice";
    head(out, name, "gauge", "[ALPHA] Whether an APIService cannot be asked.");
    for service in cache.list(&crate::watch_cache::Filter::default(), None, 0).items {
        let service = &service.key.name;
        let away = remotes.values().any(|remote| remote.is_away(service));
        let _ = writeln!(out, "{name}{{name=\"{service}\"}} {}", u8::from(away));
    }
}

/// Figures of the process itself.
fn process(out: &mut String) {
    for figure in base::process::figures() {
        head(out, figure.name, figure.kind, figure.help);
        let _ = writeln!(out, "{} {}", figure.name, figure.value);
    }
}

fn start_time(out: &mut String, stability: &str, started: Duration) {
    let help = format!("{stability}Start of the process, in seconds since the epoch.");
    head(out, "process_start_time_seconds", "gauge", &help);
    let _ = writeln!(out, "process_start_time_seconds {}", started.as_secs());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Go's `"apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sha256(host)[:16]))`,
    /// whose digest of `localhost` begins with `49960de5880e8c687434170f6476605b` (`printf localhost | sha256sum`).
    #[test]
    fn a_server_is_named_as_upstream_names_it() {
        assert_eq!(identity("localhost"), "apiserver-jgla3zmib2ggq5buc4hwi5talm");
        assert_eq!(
            hash_of(b"localhost"),
            "sha256:49960de5880e8c687434170f6476605b8fe4aeb9a28632c7995cf3ba831d9763"
        );
    }
}
