//! The webhook: lists of events are posted, tried again after failures, and throttled in batches
//! (`plugin/pkg/audit/{webhook,buffered}`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Kind, Shutdown, Tasks};
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};

use super::PLUGIN_WEBHOOK;
use crate::audit::flags::{Batch, Webhook};
use crate::audit::metrics::Counts;
use crate::webhook::kubeconfig::WebhookEndpoint;
use crate::webhook::post::{self, Attempts, Poster};

/// Upstream's `defaultRequestTimeout`: for one attempt, and told to the webhook.
const ATTEMPT_MAX: Duration = Duration::from_secs(30);
/// The time that is left for what waits when the process stops.
const LAST_MAX: Duration = Duration::from_millis(500);
/// Batches under way; more wait, and with them the buffer.
const SENDING_MAX: usize = 16;
/// Bytes of an answer that are read, so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The way to the webhook.
pub(super) struct Hook {
    poster: Poster,
    backoff: Duration,
    counts: Arc<Counts>,
    tasks: Tasks,
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hook({:?})", self.poster)
    }
}

/// The list that is posted.
fn list(events: &[Bytes]) -> Bytes {
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
    /// To this place; nothing is dialled before there are events.
    pub(super) fn new(
        place: WebhookEndpoint,
        settings: &Webhook,
        counts: &Arc<Counts>,
        tasks: &Tasks,
    ) -> Self {
        Self {
            poster: Poster::new(place, post::User::AUDIT, tasks),
            backoff: settings.initial_backoff,
            counts: Arc::clone(counts),
            tasks: tasks.clone(),
        }
    }

    /// Delivers events, with further attempts after failures; those that are lost are counted.
    ///
    /// # Errors
    /// What the last attempt came to.
    pub(super) async fn send(&self, events: &[Bytes]) -> Result<(), String> {
        let body = list(events);
        let shutdown = self.tasks.shutdown().clone();
        let mut attempts = Attempts::first(self.backoff);
        let why = loop {
            let stopping = shutdown.is_requested();
            let time = if stopping { LAST_MAX } else { ATTEMPT_MAX };
            let why = match tokio::time::timeout(time, self.post(body.clone())).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) => why,
                Err(_) => "context deadline exceeded".to_owned(),
            };
            let Some(wait) = attempts.next().filter(|_| !stopping) else { break why };
            tracing::debug!(url = self.poster.url(), error = why, "audit events are sent again");
            tokio::select! {
                () = base::clock::sleep(wait) => {}
                () = shutdown.requested() => {}
            }
        };
        let why = format!("Post {}: {why}", api::field::go_quote(&self.poster.url()));
        self.counts.error(PLUGIN_WEBHOOK, events.len(), &why);
        Err(why)
    }

    async fn post(&self, body: Bytes) -> Result<(), String> {
        let (parts, _) =
            self.poster.post(body, "30s", ANSWER_BYTES_MAX).await.map_err(|e| e.to_string())?;
        if parts.status.is_success() {
            Ok(())
        } else {
            Err(format!("the server responded with the status code {}", parts.status.as_u16()))
        }
    }

    /// Checks what TLS needs, before there are events.
    ///
    /// # Errors
    /// Why certificates cannot be used.
    pub(super) async fn check(&self) -> Result<(), String> {
        self.poster.check().await.map_err(|e| e.to_string())
    }
}

/// Events that wait for their batch.
#[derive(Debug, Clone)]
pub(super) struct Buffer {
    sender: mpsc::Sender<Bytes>,
    held: Arc<AtomicUsize>,
}

impl Buffer {
    /// Starts what makes the batches; it ends with `tasks`, after one more attempt for what waits.
    pub(super) fn start(hook: &Arc<Hook>, batch: Batch, tasks: &Tasks) -> Self {
        let (sender, receiver) = mpsc::channel(batch.buffer_size);
        let held = Arc::new(AtomicUsize::new(0));
        let batches = Batches {
            hook: Arc::clone(hook),
            receiver,
            held: Arc::clone(&held),
            tokens: batch.throttle.map(|(rate, burst)| Tokens::new(rate, burst)),
            sending: Arc::new(Semaphore::new(SENDING_MAX)),
            tasks: tasks.clone(),
            batch,
        };
        tasks.spawn(Kind::Critical, "audit webhook", batches.run(tasks.shutdown().clone()));
        Self { sender, held }
    }

    /// Hands an event over without waiting; `false` when too much waits already.
    pub(super) fn offer(&self, event: Bytes) -> bool {
        let length = event.len();
        if !super::hold(&self.held, length) {
            return false;
        }
        let taken = self.sender.try_send(event).is_ok();
        if !taken {
            self.held.fetch_sub(length, Ordering::Relaxed);
        }
        taken
    }
}

struct Batches {
    hook: Arc<Hook>,
    receiver: mpsc::Receiver<Bytes>,
    held: Arc<AtomicUsize>,
    tokens: Option<Tokens>,
    sending: Arc<Semaphore>,
    tasks: Tasks,
    batch: Batch,
}

impl Batches {
    async fn run(mut self, shutdown: Shutdown) -> Result<(), String> {
        let mut began = base::clock::now();
        loop {
            let events = self.collect(began, &shutdown).await;
            began = base::clock::now();
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
            let place = tokio::select! {
                place = sending => place.map_err(|e| e.to_string())?,
                // Those under way have a bound of their own now.
                () = async { shutdown.requested().await; base::clock::sleep(LAST_MAX).await } => {
                    let why = "the server stops";
                    self.hook.counts.error(PLUGIN_WEBHOOK, events.len(), why);
                    continue;
                }
            };
            let (hook, held) = (Arc::clone(&self.hook), Arc::clone(&self.held));
            self.tasks.spawn(Kind::Request, "audit batch", async move {
                // What is lost was counted.
                let _ = hook.send(&events).await;
                held.fetch_sub(events.iter().map(Bytes::len).sum(), Ordering::Relaxed);
                drop(place);
                Ok::<(), std::convert::Infallible>(())
            });
        }
    }

    /// The next batch: a full one, or what came until the time between two is over.
    async fn collect(&mut self, began: tokio::time::Instant, shutdown: &Shutdown) -> Vec<Bytes> {
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
            // The server whose events these are ends before this does.
            shutdown.requested().await;
            return events;
        };
        events.push(first);
        // Upstream's timer runs whether there are events or not: batches leave on its beat.
        let wait = self.batch.max_wait;
        let passed = base::clock::now().duration_since(began);
        let beats = passed.as_nanos().checked_div(wait.as_nanos()).unwrap_or(0);
        let beats = u32::try_from(beats).unwrap_or(u32::MAX).saturating_add(1);
        let left = wait.saturating_mul(beats).saturating_sub(passed);
        let end = base::clock::sleep(left);
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

/// A bucket that fills at a rate, as client-go's limiter.
pub(super) struct Tokens {
    rate: f64,
    burst: f64,
    left: f64,
    since: tokio::time::Instant,
}

impl Tokens {
    /// Full at first; `rate` a second, `burst` at most.
    pub(super) fn new(rate: f32, burst: u32) -> Self {
        let burst = f64::from(burst);
        Self { rate: f64::from(rate), burst, left: burst, since: base::clock::now() }
    }

    /// Waits for one; not when the process stops.
    pub(super) async fn take(&mut self, shutdown: &Shutdown) {
        let now = base::clock::now();
        let come = now.duration_since(self.since).as_secs_f64() * self.rate;
        self.left = (self.left + come).min(self.burst) - 1.0;
        self.since = now;
        if self.left < 0.0 {
            // A rate near nothing may ask for longer than a duration can say.
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
