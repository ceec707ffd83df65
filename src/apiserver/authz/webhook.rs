//! The webhook authorizer: posts a SubjectAccessReview and caches the response
//! (`plugin/pkg/authorizer/webhook`).

mod cache;
pub(super) mod conditions;
mod review;

use std::sync::Arc;
use std::time::Duration;

use api::Status as Refusal;
use async_trait::async_trait;
use base::Tasks;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use parking_lot::Mutex;

use cache::{Cache, Key};
use conditions::Conditions;
use review::Status;

use super::config::Hook;
use super::{Attributes, Authorizer, Decision, Failure, Known};
use crate::authz::metrics::{Counts, Matching, Outcome};
use crate::request::user::User;
use crate::webhook::kubeconfig::Place;
use crate::webhook::post::{self, Attempts, Poster};
use crate::webhook::{CallError, answer};

/// The maximum delay that a `Retry-After` header can request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// The maximum size of a response.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The size of client-controlled attributes, and of a reason, from which on a decision is not
/// cached, in bytes.
const REMEMBERED_MAX: usize = 10_000;
/// The minimum interval between logged failures.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// A failed call.
#[derive(Debug)]
struct Fault {
    text: String,
    outcome: Outcome,
    /// The minimum delay before a retry; `None` if a retry is useless.
    again: Option<Duration>,
}

/// The webhook authorizer.
pub(super) struct Webhook {
    name: String,
    settings: Hook,
    conditions: Conditions,
    poster: Poster,
    cache: Mutex<Cache>,
    counts: Arc<Counts>,
    last_logged: Mutex<Option<tokio::time::Instant>>,
}

impl Webhook {
    /// Creates the authorizer for this endpoint; the first request opens the connection.
    pub(super) fn new(
        name: &str,
        settings: &Hook,
        place: Place,
        counts: &Arc<Counts>,
        tasks: &Tasks,
    ) -> Self {
        Self {
            name: name.to_owned(),
            conditions: Conditions::of(&settings.conditions),
            settings: settings.clone(),
            poster: Poster::new(place, post::User::AUTHORIZATION, tasks),
            cache: Mutex::default(),
            counts: Arc::clone(counts),
            last_logged: Mutex::default(),
        }
    }

    /// Checks the TLS configuration before the first request.
    ///
    /// # Errors
    /// The kubeconfig and why its certificates are unusable.
    pub(super) async fn check(&self) -> Result<(), String> {
        let file = self.settings.kubeconfig.display();
        self.poster.check().await.map_err(|why| format!("{file}: {why}"))
    }

    fn failed(&self, error: String) -> Decision {
        let denied = self.settings.denies_on_failure;
        Decision::Failed(Failure { denied, reason: String::new(), error })
    }

    /// Whether the match conditions are met.
    fn matches(&self, user: &User, attributes: &Attributes<'_>) -> Result<bool, String> {
        if self.conditions.is_empty() {
            return Ok(true);
        }
        let began = base::clock::now();
        let matched = self.conditions.match_all(&review::shown(user, attributes));
        let matching = match matched {
            Ok(true) => Matching::Matched,
            Ok(false) => Matching::Excluded,
            Err(_) => Matching::Failed,
        };
        self.counts.matched(&self.name, matching, began.elapsed());
        matched
    }

    async fn ask(&self, body: Bytes) -> Result<Status, Fault> {
        let mut attempts = Attempts::first(Attempts::DELAY);
        loop {
            let began = base::clock::now();
            let once = tokio::time::timeout(self.settings.timeout, self.once(body.clone())).await;
            let outcome = once.unwrap_or_else(|_| {
                let text = self.failed_post(
                    "context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
                );
                Err(Fault { text, outcome: Outcome::Timeout, again: None })
            });
            let took = began.elapsed();
            let counted = outcome.as_ref().map_or_else(|fault| fault.outcome, |_| Outcome::Success);
            self.counts.called(&self.name, counted, took);
            let fault = match outcome {
                Ok(status) => return Ok(status),
                Err(fault) => fault,
            };
            let Some(least) = fault.again else { return Err(fault) };
            let Some(wait) = attempts.next() else { return Err(fault) };
            base::clock::sleep(wait.max(least)).await;
        }
    }

    fn failed_post(&self, why: &str) -> String {
        let url = format!("{}?timeout={}", self.poster.url(), self.timeout());
        format!("Post {}: {why}", api::field::go_quote(&url))
    }

    fn timeout(&self) -> String {
        let nanos = i64::try_from(self.settings.timeout.as_nanos()).unwrap_or(i64::MAX);
        api::codec::time::duration_text(nanos)
    }

    async fn once(&self, body: Bytes) -> Result<Status, Fault> {
        let posted = self.poster.post(body, &self.timeout(), ANSWER_BYTES_MAX).await;
        let (parts, body) = posted.map_err(|why| Fault {
            again: post::is_passing(&why).then_some(Duration::ZERO),
            text: self.failed_post(&why),
            outcome: Outcome::Error,
        })?;
        let broken = |text: String| Fault { text, outcome: Outcome::Error, again: None };
        let body = body.ok_or_else(|| {
            broken(format!("the answer breaks off or has more than {ANSWER_BYTES_MAX} bytes"))
        })?;
        match answer(&parts, &body) {
            Ok(said) => review::status(&said, self.settings.version).map_err(broken),
            Err(CallError::Refused(status)) => {
                let asked = parts.headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok());
                Err(refused(&status, asked.and_then(|seconds| seconds.parse().ok())))
            }
            Err(other) => Err(broken(other.to_string())),
        }
    }

    fn log_failure(&self, error: &str) {
        let now = base::clock::now();
        let mut last_logged = self.last_logged.lock();
        if last_logged.is_none_or(|last_logged| now.duration_since(last_logged) >= LOG_INTERVAL) {
            *last_logged = Some(now);
            tracing::error!(webhook = self.name, error, "an authorization webhook does not answer");
        }
    }
}

/// Classifies an error response: whether a retry can succeed (upstream's `DefaultShouldRetry`).
fn refused(status: &Refusal, after: Option<u64>) -> Fault {
    let seconds =
        status.details.as_ref().and_then(|details| u64::try_from(details.retry_after_seconds).ok());
    let after = after.filter(|_| status.code == 429 || status.code >= 500);
    let after = after.or(seconds.filter(|seconds| *seconds > 0));
    let transient =
        matches!(status.reason.as_str(), "InternalError" | "Timeout" | "TooManyRequests");
    let again = match after {
        Some(seconds) => Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX)),
        None => transient.then_some(Duration::ZERO),
    };
    let timed_out = status.reason == "Timeout" || status.code == 504;
    let outcome = if timed_out { Outcome::Timeout } else { Outcome::Error };
    Fault { text: status.message.clone(), outcome, again }
}

/// The decision of a response.
fn decision(status: Status) -> Decision {
    let Status { allowed, denied, reason } = status;
    match (denied, allowed) {
        (true, true) => {
            let error = "webhook subject access review returned both allow and deny response";
            Decision::Failed(Failure { denied: true, reason, error: error.to_owned() })
        }
        (true, false) => Decision::Deny(reason),
        (false, true) => Decision::Allow(reason),
        (false, false) => Decision::NoOpinion(reason),
    }
}

/// The size of the attributes that the client controls, in bytes.
fn controlled(a: &Attributes<'_>) -> usize {
    let all = [a.namespace, a.verb, a.group, a.version, a.resource, a.subresource, a.name, a.path];
    all.iter().map(|text| text.len()).sum()
}

#[async_trait]
impl Authorizer for Webhook {
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        match self.matches(user, attributes) {
            Ok(true) => {}
            Ok(false) => return Decision::NoOpinion(String::new()),
            Err(error) => return self.failed(error),
        }
        let spec = review::spec(user, attributes);
        let body = Bytes::from(review::body(spec, self.settings.version));
        let mut key: Key = [0; 32];
        for (byte, of) in
            key.iter_mut().zip(ring::digest::digest(&ring::digest::SHA256, &body).as_ref())
        {
            *byte = *of;
        }
        if let Some(status) = self.cache.lock().get(&key, base::clock::now()) {
            return decision(status);
        }
        match self.ask(body).await {
            Ok(status) => {
                if controlled(attributes) < REMEMBERED_MAX && status.reason.len() < REMEMBERED_MAX {
                    let settings = &self.settings;
                    let ttl = if status.allowed {
                        settings.authorized_ttl
                    } else {
                        settings.unauthorized_ttl
                    };
                    self.cache.lock().put(key, status.clone(), base::clock::now(), ttl);
                }
                decision(status)
            }
            Err(fault) => {
                self.log_failure(&fault.text);
                if !self.settings.denies_on_failure {
                    self.counts.failed_open(&self.name, fault.outcome);
                }
                self.failed(fault.text)
            }
        }
    }

    fn rules(&self, _: &User, _: &str) -> Known {
        let error = "webhook authorizer does not support user rule resolution";
        Known { incomplete: true, errors: vec![error.to_owned()], ..Known::default() }
    }
}

#[cfg(test)]
mod tests;
