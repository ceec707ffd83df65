//! Renders `/metrics` and `/metrics/slis` with the metrics of all parts of the server.

use std::fmt::Write;
use std::time::Duration;

use api::Gvr;
use base::metrics::head;

use crate::registry::watch_cache::{CacheStats, Filter};
use crate::state::ServerState;

/// The text of `/metrics/slis`.
pub(crate) fn render_indicators(inner: &ServerState) -> String {
    let mut out = crate::discovery::health::indicators();
    start_time(&mut out, "[ALPHA] ", inner.metrics.started);
    out
}

/// The text of `/metrics`.
pub(crate) fn render(inner: &ServerState) -> String {
    let mut out = String::with_capacity(64 * 1024);
    inner.metrics.render_requests(&mut out);
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
    crate::metrics::render(&mut out);
    build(&mut out, &inner.config.product_version);
    process(&mut out);
    out
}

/// Version and platform of the program.
fn build(out: &mut String, product: &str) {
    let version = format!("v1.37.1+kubelite.{product}");
    let platform = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };
    head(
        out,
        "kubernetes_build_info",
        "gauge",
        "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, \
     git tree state, build date, Go version, and compiler from which Kubernetes was built, and \
     platform on which it is running.",
    );
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

fn inflight(out: &mut String, inner: &ServerState) {
    let mut gauge = |name: &str, help: &str, (reads, writes): (i64, i64)| {
        head(out, name, "gauge", help);
        let _ = writeln!(out, "{name}{{request_kind=\"mutating\"}} {writes}");
        let _ = writeln!(out, "{name}{{request_kind=\"readOnly\"}} {reads}");
    };
    let (name, help) = (
        "apiserver_current_inflight_requests",
        "[STABLE] Maximal number of currently used inflight request limit of this apiserver per \
     request kind in last second.",
    );
    match &inner.flow {
        Some(flow) => {
            let [executing, waiting] = flow.maxima();
            gauge(name, help, executing);
            let help = "[ALPHA] Maximal number of queued requests in this apiserver per request kind in last second.";
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

fn caches(out: &mut String, inner: &ServerState) {
    let counts = inner.objects.caches().stats();
    let mut family = |name: &str, help: &str, of: fn(&CacheStats) -> i64| {
        head(out, name, "gauge", help);
        for (row, figures) in &counts {
            let gvr = &row.spec.gvr;
            let (group, resource) = (&gvr.group, &gvr.resource);
            let value = of(figures);
            let _ = writeln!(out, "{name}{{group=\"{group}\",resource=\"{resource}\"}} {value}");
        }
    };
    family(
        "apiserver_resource_objects",
        "[ALPHA] Number of stored objects at the time of last check split by kind. In case of a \
     fetching error, the value will be -1.",
        |f| i64::try_from(f.objects).unwrap_or(i64::MAX),
    );
    let help = "[ALPHA] Estimated size of stored objects in database. Estimate is based on sum of last observed \
     sizes of serialized objects. In case of a fetching error, the value will be -1.";
    family("apiserver_resource_size_estimate_bytes", help, |f| {
        i64::try_from(f.bytes).unwrap_or(i64::MAX)
    });
    let help = "[ALPHA] Revision that each watch cache has reached.";
    family("apiserver_watch_cache_resource_version", help, |f| f.revision);
    let help = "[ALPHA] Changes that each watch cache can keep.";
    family("watch_cache_capacity", help, |f| i64::try_from(f.capacity).unwrap_or(i64::MAX));
}

/// The unavailable APIServices; those that this server serves are always available.
fn apiservices(out: &mut String, inner: &ServerState) {
    let Ok(row) = inner.objects.row(&Gvr::new("apiregistration.k8s.io", "v1", "apiservices"))
    else {
        return;
    };
    let Some(cache) = inner.objects.caches().running(&row) else { return };
    let remotes = inner.aggregator.remotes();
    let name = "aggregator_unavailable_apiservice";
    head(
        out,
        name,
        "gauge",
        "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.",
    );
    for service in cache.list(&Filter::default(), None, 0).items {
        let service = &service.key.name;
        let away = remotes.values().any(|remote| remote.is_away(service));
        let _ = writeln!(out, "{name}{{name=\"{service}\"}} {}", u8::from(away));
    }
}

/// The metrics of the process.
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
