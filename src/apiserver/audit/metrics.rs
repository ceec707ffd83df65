//! What audit counts, under upstream's names (`pkg/audit/metrics.go`).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::policy::Level;

/// Faults of one plugin are told once in this time, with how many there were.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The counters.
#[derive(Debug, Default)]
pub(super) struct Counts {
    events: AtomicU64,
    levels: [AtomicU64; 4],
    rejected: AtomicU64,
    errors: Mutex<BTreeMap<&'static str, Faults>>,
}

#[derive(Debug, Default)]
struct Faults {
    all: u64,
    untold: u64,
    told: Option<tokio::time::Instant>,
}

impl Counts {
    /// An event was made.
    pub(super) fn event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    /// A request has this level.
    pub(super) fn level(&self, level: Level) {
        if let Some(count) = self.levels.get(level as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request was refused because it could not be recorded.
    pub(super) fn rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// So many events were lost at a plugin.
    pub(super) fn error(&self, plugin: &'static str, events: usize, why: &str) {
        let mut errors = self.errors.lock();
        let faults = errors.entry(plugin).or_default();
        faults.all += events as u64;
        faults.untold += events as u64;
        let now = base::clock::now();
        if faults.told.is_none_or(|told| now.duration_since(told) >= TELL_EVERY) {
            tracing::error!(plugin, events = faults.untold, error = why, "audit events are lost");
            faults.untold = 0;
            faults.told = Some(now);
        }
    }

    /// Lines for `/metrics`.
    pub(super) fn render(&self, out: &mut String) {
        let mut single = |name: &str, help: &str, value: &AtomicU64| {
            let value = value.load(Ordering::Relaxed);
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        };
        let made = "[ALPHA] Audit events made and handed to the backends.";
        single("apiserver_audit_event_total", made, &self.events);
        let refused = "[ALPHA] Requests refused because they could not be recorded.";
        single("apiserver_audit_requests_rejected_total", refused, &self.rejected);
        let name = "apiserver_audit_level_total";
        let help = "[ALPHA] Levels of requests by the audit policy.";
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
        for (level, count) in Level::ALL.iter().zip(&self.levels) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let _ = writeln!(out, "{name}{{level=\"{}\"}} {count}", level.name());
            }
        }
        let name = "apiserver_audit_error_total";
        let _ = writeln!(
            out,
            "# HELP {name} [ALPHA] Audit events lost, by plugin.\n# TYPE {name} counter"
        );
        for (plugin, faults) in &*self.errors.lock() {
            let _ = writeln!(out, "{name}{{plugin=\"{plugin}\"}} {}", faults.all);
        }
    }
}
