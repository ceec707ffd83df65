//! Task-local state of the current request: its trace span, and the time it spent waiting for
//! webhooks and queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::request_tracing::span::Span;

tokio::task_local! {
    static REQUEST_SCOPE: Option<Arc<RequestScope>>;
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// Mutating webhooks, which run one after the other: times add up.
    Mutating,
    /// Validating webhooks, which run concurrently: the slowest counts.
    Validating,
    /// A queue of priority and fairness.
    Queue,
}

/// Task-local state of one request.
#[derive(Debug, Default)]
pub(crate) struct RequestScope {
    /// In nanoseconds, by [`WaitReason`].
    waited: [AtomicU64; 3],
    /// The request's span, set once the user is known; `None` when the request is not sampled.
    pub(crate) span: Mutex<Option<Span>>,
}

impl RequestScope {
    /// Total time spent waiting (upstream's `LatencyTrackers`).
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.iter().map(|nanos| nanos.load(Ordering::Relaxed)).sum())
    }
}

impl RequestScope {
    /// Sets the span of the request.
    pub(crate) fn set_span(&self, span: Span) {
        *self.span.lock() = Some(span);
    }

    /// Records status code and response size on the span and returns it; dropping it ends it.
    pub(crate) fn finish(&self, code: u16, bytes: Option<u64>) -> Option<Span> {
        let mut span = self.span.lock().take()?;
        span.answered(code, bytes);
        span.as_parent().is_some().then_some(span)
    }
}

/// Adds waiting time to the current request.
pub(crate) fn add_wait(reason: WaitReason, time: Duration) {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let record = |scope: &Option<Arc<RequestScope>>| {
        let Some(scope) = scope else { return };
        let Some(sum) = scope.waited.get(reason as usize) else { return };
        match reason {
            WaitReason::Mutating => sum.fetch_add(nanos, Ordering::Relaxed),
            WaitReason::Validating | WaitReason::Queue => sum.fetch_max(nanos, Ordering::Relaxed),
        };
    };
    // Work of the server's own background tasks has no scope.
    let _ = REQUEST_SCOPE.try_with(record);
}

/// The scope of the current request, if any.
pub(crate) fn current() -> Option<Arc<RequestScope>> {
    REQUEST_SCOPE.try_with(Clone::clone).ok().flatten()
}

/// Runs a part of a request within a scope. Not an `async` function, because its future would store
/// the large future of the request twice.
pub(crate) fn scope<F: Future>(
    scope: Option<Arc<RequestScope>>,
    work: F,
) -> impl Future<Output = F::Output> {
    REQUEST_SCOPE.scope(scope, work)
}
