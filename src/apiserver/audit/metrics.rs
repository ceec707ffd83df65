//! The metrics of audit, with upstream's names (`pkg/audit/metrics.go`).

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::policy::Level;

/// The minimum interval between log messages about lost events of one plugin.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// The counters.
#[derive(Debug, Default)]
pub(super) struct AuditMetrics {
    events: AtomicU64,
    levels: [AtomicU64; 4],
    rejected: AtomicU64,
    errors: Mutex<BTreeMap<&'static str, LostEvents>>,
}

/// The lost events of one plugin.
#[derive(Debug, Default)]
struct LostEvents {
    total: u64,
    /// Events since the last log message.
    unlogged: u64,
    logged: Option<tokio::time::Instant>,
}

impl AuditMetrics {
    /// Counts a created event.
    pub(super) fn event_created(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request of this level.
    pub(super) fn request_level(&self, level: Level) {
        if let Some(count) = self.levels.get(level as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a request that was rejected because it could not be recorded.
    pub(super) fn request_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts and logs events that a plugin has lost.
    pub(super) fn events_lost(&self, plugin: &'static str, events: usize, error: &dyn Display) {
        let mut errors = self.errors.lock();
        let lost = errors.entry(plugin).or_default();
        lost.total += events as u64;
        lost.unlogged += events as u64;
        let now = base::clock::now();
        if lost.logged.is_none_or(|logged| now.duration_since(logged) >= LOG_INTERVAL) {
            tracing::error!(plugin, events = lost.unlogged, %error, "audit: events are lost");
            lost.unlogged = 0;
            lost.logged = Some(now);
        }
    }

    /// Appends the metrics to `out`.
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
        for (plugin, lost) in &*self.errors.lock() {
            let _ = writeln!(out, "{name}{{plugin=\"{plugin}\"}} {}", lost.total);
        }
    }
}
