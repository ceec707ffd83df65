//! The metrics of authorization, with upstream's names (`pkg/authorization/{metrics,cel}`,
//! `plugin/pkg/authorizer/webhook/metrics`, `pkg/server/options/authorizationconfig/metrics`).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// The upper bounds of call durations, in seconds (Prometheus' default buckets).
const CALL_BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// The upper bounds of match condition evaluation, in seconds.
const MATCH_BOUNDS: [f64; 7] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];

/// The decisions of one authorizer.
#[derive(Debug, Default)]
pub(super) struct Tally {
    allowed: AtomicU64,
    denied: AtomicU64,
}

impl Tally {
    /// Counts one decision.
    pub(super) fn count(&self, allowed: bool) {
        let counter = if allowed { &self.allowed } else { &self.denied };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The outcome of a webhook call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Success,
    Timeout,
    Error,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Timeout => "timeout",
            Self::Error => "error",
        }
    }
}

/// The outcome of a webhook's match conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matching {
    Matched,
    Excluded,
    Failed,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    fn observe(&mut self, bounds: &[f64], took: Duration) {
        let seconds = took.as_secs_f64();
        self.buckets.resize(bounds.len(), 0);
        for (bucket, bound) in self.buckets.iter_mut().zip(bounds) {
            *bucket += u64::from(seconds <= *bound);
        }
        self.count += 1;
        self.sum += seconds;
    }

    fn render(&self, out: &mut String, name: &str, labels: &str, bounds: &[f64]) {
        for (count, bound) in self.buckets.iter().zip(bounds) {
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", self.sum);
        let _ = writeln!(out, "{name}_count{{{labels}}} {}", self.count);
    }
}

/// The metrics of one webhook.
#[derive(Debug, Default)]
struct Hook {
    calls: BTreeMap<Outcome, Histogram>,
    failed_open: BTreeMap<Outcome, u64>,
    matching: Histogram,
    excluded: u64,
    match_errors: u64,
}

/// The metrics of configuration reloads.
#[derive(Debug, Default)]
struct Reloads {
    count: u64,
    last: f64,
}

/// The counters. They persist over reloads of the configuration.
#[derive(Debug, Default)]
pub(super) struct AuthorizationMetrics {
    decisions: Mutex<BTreeMap<(&'static str, String), Arc<Tally>>>,
    hooks: Mutex<BTreeMap<String, Hook>>,
    /// By `failure` and `success`.
    reloads: Mutex<BTreeMap<&'static str, Reloads>>,
    /// The hash of the active configuration file; empty without one.
    holds: Mutex<String>,
}

impl AuthorizationMetrics {
    /// The counter of one authorizer.
    pub(super) fn tally(&self, kind: &'static str, name: &str) -> Arc<Tally> {
        Arc::clone(self.decisions.lock().entry((kind, name.to_owned())).or_default())
    }

    /// Records a webhook call.
    pub(super) fn called(&self, name: &str, outcome: Outcome, took: Duration) {
        let mut hooks = self.hooks.lock();
        let calls = &mut hooks.entry(name.to_owned()).or_default().calls;
        calls.entry(outcome).or_default().observe(&CALL_BOUNDS, took);
    }

    /// Records a failed webhook call after which the next authorizer decides.
    pub(super) fn failed_open(&self, name: &str, outcome: Outcome) {
        let mut hooks = self.hooks.lock();
        *hooks.entry(name.to_owned()).or_default().failed_open.entry(outcome).or_default() += 1;
    }

    /// Records the evaluation of a webhook's match conditions.
    pub(super) fn matched(&self, name: &str, matching: Matching, took: Duration) {
        let mut hooks = self.hooks.lock();
        let hook = hooks.entry(name.to_owned()).or_default();
        hook.matching.observe(&MATCH_BOUNDS, took);
        hook.excluded += u64::from(matching == Matching::Excluded);
        hook.match_errors += u64::from(matching == Matching::Failed);
    }

    /// Records a reload of the configuration.
    pub(super) fn reloaded(&self, good: bool) {
        let status = if good { "success" } else { "failure" };
        let mut reloads = self.reloads.lock();
        let of = reloads.entry(status).or_default();
        of.count += 1;
        of.last = base::clock::unix_time().as_secs_f64();
    }

    /// Records that this content of the file is active.
    pub(super) fn record_active(&self, text: &[u8]) {
        *self.holds.lock() = base::server_identity::hash_of(text);
    }

    /// Renders lines for `/metrics`; metrics without a value are omitted.
    pub(super) fn render(&self, out: &mut String) {
        let decisions = self.decisions.lock();
        let name = "apiserver_authorization_decisions_total";
        head(
            out,
            name,
            "counter",
            "[ALPHA] Total number of terminal decisions made by an authorizer split by authorizer type, name, and decision.",
        );
        for ((kind, of), tally) in &*decisions {
            for (word, count) in [("allowed", &tally.allowed), ("denied", &tally.denied)] {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let _ = writeln!(
                        out,
                        "{name}{{decision=\"{word}\",name=\"{of}\",type=\"{kind}\"}} {count}"
                    );
                }
            }
        }
        drop(decisions);
        self.render_hooks(out);
        let reloads = self.reloads.lock();
        let own = base::server_identity::own_hash();
        if !reloads.is_empty() {
            let name = "apiserver_authorization_config_controller_automatic_reloads_total";
            head(
                out,
                name,
                "counter",
                "[BETA] Total number of automatic reloads of authorization configuration split by status and apiserver identity.",
            );
            for (status, of) in &*reloads {
                let _ = writeln!(
                    out,
                    "{name}{{apiserver_id_hash=\"{own}\",status=\"{status}\"}} {}",
                    of.count
                );
            }
            let name =
                "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds";
            head(
                out,
                name,
                "gauge",
                "[BETA] Timestamp of the last automatic reload of authorization configuration split by status and apiserver identity.",
            );
            for (status, of) in &*reloads {
                let _ = writeln!(
                    out,
                    "{name}{{apiserver_id_hash=\"{own}\",status=\"{status}\"}} {}",
                    of.last
                );
            }
        }
        let holds = self.holds.lock();
        if !holds.is_empty() {
            let name = "apiserver_authorization_config_controller_last_config_info";
            head(
                out,
                name,
                "gauge",
                "[ALPHA] Information about the last applied authorization configuration with hash as label, split by apiserver identity.",
            );
            let _ = writeln!(out, "{name}{{apiserver_id_hash=\"{own}\",hash=\"{holds}\"}} 1");
        }
    }

    fn render_hooks(&self, out: &mut String) {
        let hooks = self.hooks.lock();
        if hooks.is_empty() {
            return;
        }
        let name = "apiserver_authorization_webhook_evaluations_total";
        head(out, name, "counter", "[ALPHA] Round-trips to authorization webhooks.");
        each(&hooks, |of, hook| {
            for (outcome, calls) in &hook.calls {
                let _ = writeln!(out, "{name}{{{}}} {}", labels(of, *outcome), calls.count);
            }
        });
        let name = "apiserver_authorization_webhook_duration_seconds";
        head(out, name, "histogram", "[ALPHA] Request latency in seconds.");
        each(&hooks, |of, hook| {
            for (outcome, calls) in &hook.calls {
                calls.render(out, name, &labels(of, *outcome), &CALL_BOUNDS);
            }
        });
        let name = "apiserver_authorization_webhook_evaluations_fail_open_total";
        head(out, name, "counter", "[ALPHA] NoOpinion results due to webhook timeout or error.");
        each(&hooks, |of, hook| {
            for (outcome, count) in &hook.failed_open {
                let _ = writeln!(out, "{name}{{{}}} {count}", labels(of, *outcome));
            }
        });
        let conditions = |of: &str| format!("name=\"{of}\",type=\"Webhook\"");
        let name = "apiserver_authorization_match_condition_evaluation_seconds";
        head(
            out,
            name,
            "histogram",
            "[ALPHA] Authorization match condition evaluation time in seconds, split by authorizer type and name.",
        );
        each(&hooks, |of, hook| {
            if hook.matching.count > 0 {
                hook.matching.render(out, name, &conditions(of), &MATCH_BOUNDS);
            }
        });
        let rows: [(_, _, Count); 2] = [
            (
                "evaluation_errors",
                "[ALPHA] Total number of errors when an authorization webhook encounters a match condition error split by authorizer type and name.",
                |hook| hook.match_errors,
            ),
            (
                "exclusions",
                "[ALPHA] Total number of exclusions when an authorization webhook is skipped because match conditions exclude it.",
                |hook| hook.excluded,
            ),
        ];
        for (what, help, count) in rows {
            let name = format!("apiserver_authorization_match_condition_{what}_total");
            head(out, &name, "counter", help);
            each(&hooks, |of, hook| {
                if count(hook) > 0 {
                    let _ = writeln!(out, "{name}{{{}}} {}", conditions(of), count(hook));
                }
            });
        }
    }
}

type Count = fn(&Hook) -> u64;

fn each(hooks: &BTreeMap<String, Hook>, mut line: impl FnMut(&str, &Hook)) {
    for (name, hook) in hooks {
        line(name, hook);
    }
}

fn labels(name: &str, outcome: Outcome) -> String {
    format!("name=\"{name}\",result=\"{}\"", outcome.name())
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
