//! Posts lists of events to the webhook: retries after failures, and throttles batches
//! (`plugin/pkg/audit/{webhook,buffered}`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Kind, Shutdown, Tasks};
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};

use super::PLUGIN_WEBHOOK;
use super::error::{AttemptError, DeliveryError, TaskError};
use crate::audit::flags::{Batch, Webhook};
use crate::audit::metrics::AuditMetrics;
use webhook::kubeconfig::WebhookEndpoint;
use webhook::post::{self, Attempts, Poster};

/// The timeout of one attempt, also sent to the webhook (upstream's `defaultRequestTimeout`).
const ATTEMPT_MAX: Duration = Duration::from_secs(30);
/// The time for pending deliveries when the process stops.
const LAST_MAX: Duration = Duration::from_millis(500);
/// The maximum number of concurrent deliveries; further batches wait.
const SENDING_MAX: usize = 16;
/// The maximum size of a response that is read to reuse its connection.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The client of the webhook.
pub(super) struct Hook {
    poster: Poster,
    backoff: Duration,
    metrics: Arc<AuditMetrics>,
    tasks: Tasks,
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hook({:?})", self.poster)
    }
}

/// Encodes an `EventList`.
fn event_list(events: &[Bytes]) -> Bytes {
    let size: usize = events.iter().map(|event| event.len() + 1).sum();
    let mut body = Vec::with_capacity(size + 96);
    body.extend_from_slice(
        br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#,
    );
    for (at, event) in events.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        body.extend_from_slice(event);
    }
    body.extend_from_slice(b"]}");
    body.into()
}

impl Hook {
    /// Creates a client; the first delivery opens a connection.
    pub(super) fn new(
        endpoint: WebhookEndpoint,
        webhook: &Webhook,
        metrics: &Arc<AuditMetrics>,
        tasks: &Tasks,
    ) -> Self {
        Self {
            poster: Poster::new(endpoint, post::User::AUDIT, tasks),
            backoff: webhook.initial_backoff,
            metrics: Arc::clone(metrics),
            tasks: tasks.clone(),
        }
    }

    /// Delivers events and retries after failures; lost events are counted.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub(super) async fn send(&self, events: &[Bytes]) -> Result<(), DeliveryError> {
        let body = event_list(events);
        let shutdown = self.tasks.shutdown().clone();
        let mut attempts = Attempts::first(self.backoff);
        let source = loop {
            let is_stopping = shutdown.is_requested();
            let timeout = if is_stopping { LAST_MAX } else { ATTEMPT_MAX };
            let error = match tokio::time::timeout(timeout, self.post(body.clone())).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => AttemptError::Timeout,
            };
            let Some(delay) = attempts.next_delay().filter(|_| !is_stopping) else { break error };
            tracing::debug!(url = self.poster.url(), %error, "audit: retrying to send events");
            tokio::select! {
                () = base::clock::sleep(delay) => {}
                () = shutdown.requested() => {}
            }
        };
        let error = DeliveryError { url: self.poster.url(), source };
        self.metrics.events_lost(PLUGIN_WEBHOOK, events.len(), &error);
        Err(error)
    }

    async fn post(&self, body: Bytes) -> Result<(), AttemptError> {
        let posted = self.poster.post(body, "30s", ANSWER_BYTES_MAX).await;
        let (parts, _) = posted.map_err(|why| AttemptError::Post(why.to_string()))?;
        if parts.status.is_success() {
            Ok(())
        } else {
            Err(AttemptError::Status(parts.status.as_u16()))
        }
    }

    /// The HTTP client.
    pub(super) fn poster(&self) -> &Poster {
        &self.poster
    }
}

/// The queue of events that wait for a batch.
#[derive(Debug, Clone)]
pub(super) struct EventBuffer {
    sender: mpsc::Sender<Bytes>,
    pending_bytes: Arc<AtomicUsize>,
}

impl EventBuffer {
    /// Starts the task that sends batches; it ends with `tasks`, after one attempt for the pending
    /// events.
    pub(super) fn start(hook: &Arc<Hook>, batch: Batch, tasks: &Tasks) -> Self {
        let (sender, receiver) = mpsc::channel(batch.buffer_size);
        let pending_bytes = Arc::new(AtomicUsize::new(0));
        let batches = BatchSender {
            hook: Arc::clone(hook),
            receiver,
            pending_bytes: Arc::clone(&pending_bytes),
            tokens: batch.throttle.map(|(rate, burst)| TokenBucket::new(rate, burst)),
            sending: Arc::new(Semaphore::new(SENDING_MAX)),
            tasks: tasks.clone(),
            batch,
        };
        tasks.spawn(Kind::Critical, "audit webhook", batches.run(tasks.shutdown().clone()));
        Self { sender, pending_bytes }
    }

    /// Queues an event without waiting; returns `false` if the queue is full.
    pub(super) fn offer(&self, event: Bytes) -> bool {
        let length = event.len();
        if !super::reserve_bytes(&self.pending_bytes, length) {
            return false;
        }
        let is_queued = self.sender.try_send(event).is_ok();
        if !is_queued {
            self.pending_bytes.fetch_sub(length, Ordering::Relaxed);
        }
        is_queued
    }
}

struct BatchSender {
    hook: Arc<Hook>,
    receiver: mpsc::Receiver<Bytes>,
    pending_bytes: Arc<AtomicUsize>,
    tokens: Option<TokenBucket>,
    /// Limits the number of concurrent deliveries.
    sending: Arc<Semaphore>,
    tasks: Tasks,
    batch: Batch,
}

impl BatchSender {
    async fn run(mut self, shutdown: Shutdown) -> Result<(), TaskError> {
        let mut started = base::clock::now();
        loop {
            let events = self.next_batch(started, &shutdown).await;
            started = base::clock::now();
            if events.is_empty() && shutdown.is_requested() {
                return Ok(());
            }
            if events.is_empty() {
                continue;
            }
            if let Some(tokens) = &mut self.tokens {
                tokens.take(&shutdown).await;
            }
            let sending = Arc::clone(&self.sending).acquire_owned();
            let permit = tokio::select! {
                permit = sending => permit?,
                // Running deliveries end within `LAST_MAX` after the shutdown request.
                () = async { shutdown.requested().await; base::clock::sleep(LAST_MAX).await } => {
                    self.hook.metrics.events_lost(PLUGIN_WEBHOOK, events.len(), &"the server stops");
                    continue;
                }
            };
            let (hook, pending_bytes) = (Arc::clone(&self.hook), Arc::clone(&self.pending_bytes));
            self.tasks.spawn(Kind::Request, "audit batch", async move {
                // `send` counts lost events.
                let _ = hook.send(&events).await;
                pending_bytes.fetch_sub(events.iter().map(Bytes::len).sum(), Ordering::Relaxed);
                drop(permit);
                Ok::<(), std::convert::Infallible>(())
            });
        }
    }

    /// The next batch: full, or the events until the next tick of `max_wait` since `started`.
    async fn next_batch(
        &mut self,
        started: tokio::time::Instant,
        shutdown: &Shutdown,
    ) -> Vec<Bytes> {
        let mut events = Vec::new();
        if shutdown.is_requested() {
            self.receiver.close();
            self.receiver.recv_many(&mut events, self.batch.max_size).await;
            return events;
        }
        let first = tokio::select! {
            first = self.receiver.recv() => first,
            () = shutdown.requested() => return events,
        };
        let Some(first) = first else {
            // All senders are dropped; a critical task must not end before the shutdown.
            shutdown.requested().await;
            return events;
        };
        events.push(first);
        // Upstream's timer also runs without events: batches are sent at its ticks.
        let interval = self.batch.max_wait;
        let passed = base::clock::now().duration_since(started);
        let ticks = passed.as_nanos().checked_div(interval.as_nanos()).unwrap_or(0);
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX).saturating_add(1);
        let end = base::clock::sleep(interval.saturating_mul(ticks).saturating_sub(passed));
        tokio::pin!(end);
        while events.len() < self.batch.max_size {
            tokio::select! {
                biased;
                next = self.receiver.recv() => match next {
                    Some(event) => events.push(event),
                    None => break,
                },
                () = &mut end => break,
                () = shutdown.requested() => break,
            }
        }
        events
    }
}

/// A token bucket like client-go's rate limiter.
pub(super) struct TokenBucket {
    /// Tokens per second.
    rate: f64,
    burst: f64,
    left: f64,
    updated: tokio::time::Instant,
}

impl TokenBucket {
    /// Creates a full bucket of `burst` tokens that is filled with `rate` tokens per second.
    pub(super) fn new(rate: f32, burst: u32) -> Self {
        let burst = f64::from(burst);
        Self { rate: f64::from(rate), burst, left: burst, updated: base::clock::now() }
    }

    /// Waits for a token, or until the process stops.
    pub(super) async fn take(&mut self, shutdown: &Shutdown) {
        let now = base::clock::now();
        let added = now.duration_since(self.updated).as_secs_f64() * self.rate;
        self.left = (self.left + added).min(self.burst) - 1.0;
        self.updated = now;
        if self.left < 0.0 {
            // With a tiny rate the wait can exceed the range of `Duration`.
            let wait = Duration::try_from_secs_f64(-self.left / self.rate).unwrap_or(Duration::MAX);
            tokio::select! {
                () = base::clock::sleep(wait) => {}
                () = shutdown.requested() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
