//! What goes along with one request on its way, whoever works on it: how long it waited for others,
//! and its trace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::request_tracing::span::Span;

tokio::task_local! {
    static TRACK: Option<Arc<Track>>;
}

/// Whom a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Webhooks that change objects, one after the other.
    Mutating,
    /// Webhooks that decide, all at once: the slowest counts.
    Validating,
    /// A place in a queue.
    Queue,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Track {
    /// In nanoseconds, by [`Waits`].
    waited: [AtomicU64; 3],
    /// Of the request, once its user is known; none where it is not sampled.
    pub(crate) span: Mutex<Option<Span>>,
}

impl Track {
    /// What others took of the time of the request (`LatencyTrackers` of upstream).
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.iter().map(|nanos| nanos.load(Ordering::Relaxed)).sum())
    }
}

impl Track {
    /// The span of the request.
    pub(crate) fn begun(&self, span: Span) {
        *self.span.lock() = Some(span);
    }

    /// The request is answered with this code and so many bytes; its span, which ends when it is
    /// dropped.
    pub(crate) fn ended(&self, code: u16, bytes: Option<u64>) -> Option<Span> {
        let mut span = self.span.lock().take()?;
        span.answered(code, bytes);
        span.within().is_some().then_some(span)
    }
}

/// The request under way waited so long.
pub(crate) fn waited(whom: Waits, time: Duration) {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let note = |track: &Option<Arc<Track>>| {
        let Some(track) = track else { return };
        let Some(sum) = track.waited.get(whom as usize) else { return };
        match whom {
            Waits::Mutating => sum.fetch_add(nanos, Ordering::Relaxed),
            Waits::Validating | Waits::Queue => sum.fetch_max(nanos, Ordering::Relaxed),
        };
    };
    // Nothing goes along with what this server does by itself.
    let _ = TRACK.try_with(note);
}

/// What goes along with the request under way.
pub(crate) fn current() -> Option<Arc<Track>> {
    TRACK.try_with(Clone::clone).ok().flatten()
}

/// Runs a part of a request with what goes along. No `async` function, whose future would hold the
/// work twice: requests are large.
pub(crate) fn along<F: Future>(
    track: Option<Arc<Track>>,
    work: F,
) -> impl Future<Output = F::Output> {
    TRACK.scope(track, work)
}
