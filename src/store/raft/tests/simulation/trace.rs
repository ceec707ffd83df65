//! A hash of all events of a simulated run, to check that two runs of a seed are equal.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Initial value of the 64-bit FNV-1a hash.
const FNV_OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
/// Factor of the 64-bit FNV-1a hash.
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// The state that the clones of a [`Trace`] share.
#[derive(Debug)]
struct TraceState {
    /// Start of the run, in simulated time.
    started: Instant,
    /// Whether events are also written to standard error.
    print: bool,
    /// The 64-bit FNV-1a hash of all lines, and their number.
    digest: Mutex<(u64, u64)>,
}

/// The trace of a run; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Trace(Arc<TraceState>);

impl Trace {
    /// Starts a trace; with `print`, each line is also written to standard error.
    pub(crate) fn new(print: bool) -> Self {
        let digest = Mutex::new((FNV_OFFSET_BASIS, 0));
        Self(Arc::new(TraceState { started: base::clock::now(), print, digest }))
    }

    /// Microseconds of simulated time since the start of the run.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.0.started.elapsed().as_micros()).unwrap()
    }

    /// Adds an event, with the time, to the hash.
    pub(crate) fn record(&self, event: Arguments<'_>) {
        let line = format!("{:>12} {event}\n", self.now());
        let mut digest = self.0.digest.lock();
        for byte in line.bytes() {
            digest.0 = (digest.0 ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
        digest.1 += 1;
        drop(digest);
        if self.0.print {
            // A failed write to standard error is ignored.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    /// With `print`, writes the log of the code under test on this thread to standard error until
    /// the guard is dropped.
    pub(crate) fn follow_logs(&self) -> Option<tracing::subscriber::DefaultGuard> {
        self.0.print.then(|| tracing::subscriber::set_default(LogPrinter(self.clone())))
    }

    /// The hash and the number of events.
    pub(crate) fn digest(&self) -> (u64, u64) {
        *self.0.digest.lock()
    }
}

/// Prints log events of level INFO and above with the time of the run. It ignores spans.
struct LogPrinter(Trace);

impl tracing::Subscriber for LogPrinter {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = format!("{:>12} {}:", self.0.now(), event.metadata().target());
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            use std::fmt::Write;
            // Writing to memory does not fail.
            let _ = write!(line, " {field}={value:?}");
        });
        line.push('\n');
        // A failed write to standard error is ignored.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
