//! What the agents' requests took, phase by phase.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

/// Requests whose time is kept per phase; more are counted only.
const TIMES_MAX: usize = 4 << 20;

#[derive(Default)]
pub(crate) struct Measures {
    /// Microseconds of each request since the last line.
    times: Mutex<Vec<u32>>,
    pub(crate) events: AtomicU64,
    pub(crate) event_bytes: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Requests that the server put off.
    pub(crate) refused: AtomicU64,
    /// The last failure's text.
    pub(crate) fault: Mutex<String>,
}

impl Measures {
    pub(crate) fn took(&self, span: Duration) {
        let mut times = self.times.lock();
        if times.len() < TIMES_MAX {
            times.push(u32::try_from(span.as_micros()).unwrap_or(u32::MAX));
        }
    }

    pub(crate) fn failed(&self, error: &anyhow::Error) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        *self.fault.lock() = format!("{error:#}");
    }

    /// Prints the phase and begins the next.
    pub(crate) fn print(&self, phase: &str, took: Duration, more: Value) {
        let mut times = std::mem::take(&mut *self.times.lock());
        times.sort_unstable();
        let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied();
        let mut line = json!({
            "phase": phase, "ms": took.as_millis() as u64, "requests": times.len(), "p50_us": at(0.5), "p99_us": at(0.99),
            "max_us": times.last(), "events": self.events.swap(0, Ordering::Relaxed),
            "event_kb": self.event_bytes.swap(0, Ordering::Relaxed) / 1000,
            "failures": self.failures.swap(0, Ordering::Relaxed),
            "refused": self.refused.swap(0, Ordering::Relaxed), "fault": std::mem::take(&mut *self.fault.lock()),
        });
        if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
            line.extend(more);
        }
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}");
        let _ = out.flush();
    }
}
