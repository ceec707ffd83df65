//! The webhook authorizer: posts a SubjectAccessReview and caches the response
//! (`plugin/pkg/authorizer/webhook`).

mod cache;
pub(super) mod conditions;
mod review;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::Tasks;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use parking_lot::Mutex;

use cache::{Cache, Key};
use conditions::{Conditions, ConditionsError};
use review::Status;

use super::config::Hook;
use super::{Attributes, Authorizer, Decision, Failure, UserRules};
use crate::authz::metrics::{AuthorizationMetrics, Matching, Outcome};
use crate::request::user::User;
use webhook::kubeconfig::WebhookEndpoint;
use webhook::post::{self, Attempts, CertificateAuthorityError, Poster};
use webhook::{CallError, answer};

/// The maximum delay that a `Retry-After` header can request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// The maximum size of a response.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The size of client-controlled attributes, and of a reason, from which on a decision is not
/// cached, in bytes.
const CACHED_BYTES_MAX: usize = 10_000;
/// The minimum interval between logged failures.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// A failed call.
#[derive(Debug)]
struct FailedCall {
    error: String,
    outcome: Outcome,
    /// The minimum delay before a retry; `None` if a retry is useless.
    retry_after: Option<Duration>,
}

/// The CA certificates of a webhook are unusable.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", .kubeconfig.display())]
pub(super) struct WebhookCheckError {
    kubeconfig: PathBuf,
    source: CertificateAuthorityError,
}

/// The webhook authorizer.
pub(super) struct Webhook {
    name: String,
    settings: Hook,
    conditions: Conditions,
    poster: Poster,
    cache: Mutex<Cache>,
    metrics: Arc<AuthorizationMetrics>,
    last_logged: Mutex<Option<tokio::time::Instant>>,
}

impl Webhook {
    /// Creates the authorizer for this endpoint; the first request opens the connection.
    pub(super) fn new(
        name: &str,
        settings: &Hook,
        endpoint: WebhookEndpoint,
        metrics: &Arc<AuthorizationMetrics>,
        tasks: &Tasks,
    ) -> Self {
        Self {
            name: name.to_owned(),
            conditions: Conditions::of(&settings.conditions),
            settings: settings.clone(),
            poster: Poster::new(endpoint, post::User::AUTHORIZATION, tasks),
            cache: Mutex::default(),
            metrics: Arc::clone(metrics),
            last_logged: Mutex::default(),
        }
    }

    /// Checks the TLS configuration before the first request.
    ///
    /// # Errors
    /// If the CA certificates of the kubeconfig are unusable.
    pub(super) async fn check(&self) -> Result<(), WebhookCheckError> {
        let kubeconfig = || self.settings.kubeconfig.clone();
        let checked = self.poster.check().await;
        checked.map_err(|source| WebhookCheckError { kubeconfig: kubeconfig(), source })
    }

    fn failed(&self, error: String) -> Decision {
        let denied = self.settings.denies_on_failure;
        Decision::Failed(Failure { denied, reason: String::new(), error })
    }

    /// Whether the match conditions are met.
    fn matches(&self, user: &User, attributes: &Attributes<'_>) -> Result<bool, ConditionsError> {
        if self.conditions.is_empty() {
            return Ok(true);
        }
        let began = base::clock::now();
        let matched = self.conditions.match_all(&review::condition_input(user, attributes));
        let matching = match matched {
            Ok(true) => Matching::Matched,
            Ok(false) => Matching::Excluded,
            Err(_) => Matching::Failed,
        };
        self.metrics.matched(&self.name, matching, began.elapsed());
        matched
    }

    async fn call(&self, body: Bytes) -> Result<Status, FailedCall> {
        let mut attempts = Attempts::first(Attempts::DELAY);
        loop {
            let began = base::clock::now();
            let once = tokio::time::timeout(self.settings.timeout, self.once(body.clone())).await;
            let outcome = once.unwrap_or_else(|_| {
                let error = self.failed_post(
                    &"context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
                );
                Err(FailedCall { error, outcome: Outcome::Timeout, retry_after: None })
            });
            let took = began.elapsed();
            let counted =
                outcome.as_ref().map_or_else(|failed| failed.outcome, |_| Outcome::Success);
            self.metrics.called(&self.name, counted, took);
            let failed = match outcome {
                Ok(status) => return Ok(status),
                Err(failed) => failed,
            };
            let Some(retry_after) = failed.retry_after else { return Err(failed) };
            let Some(delay) = attempts.next_delay() else { return Err(failed) };
            base::clock::sleep(delay.max(retry_after)).await;
        }
    }

    fn failed_post(&self, why: &dyn std::fmt::Display) -> String {
        let url = format!("{}?timeout={}", self.poster.url(), self.timeout());
        format!("Post {}: {why}", api::field::go_quote(&url))
    }

    fn timeout(&self) -> String {
        let nanos = i64::try_from(self.settings.timeout.as_nanos()).unwrap_or(i64::MAX);
        api::codec::time::duration_text(nanos)
    }

    async fn once(&self, body: Bytes) -> Result<Status, FailedCall> {
        let posted = self.poster.post(body, &self.timeout(), ANSWER_BYTES_MAX).await;
        let (parts, body) = posted.map_err(|error| FailedCall {
            retry_after: error.is_transient().then_some(Duration::ZERO),
            error: self.failed_post(&error),
            outcome: Outcome::Error,
        })?;
        let unusable =
            |error: String| FailedCall { error, outcome: Outcome::Error, retry_after: None };
        let body = body.ok_or_else(|| {
            unusable(format!("the answer breaks off or has more than {ANSWER_BYTES_MAX} bytes"))
        })?;
        match answer(&parts, &body) {
            Ok(review) => review::status(&review, self.settings.version)
                .map_err(|error| unusable(error.to_string())),
            Err(CallError::Refused(status)) => {
                let seconds = parts.headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok());
                Err(error_response(&status, seconds.and_then(|seconds| seconds.parse().ok())))
            }
            Err(other) => Err(unusable(other.to_string())),
        }
    }

    fn log_failure(&self, error: &str) {
        let now = base::clock::now();
        let mut last_logged = self.last_logged.lock();
        if last_logged.is_none_or(|last_logged| now.duration_since(last_logged) >= LOG_INTERVAL) {
            *last_logged = Some(now);
            tracing::error!(webhook = self.name, error, "the authorization webhook failed");
        }
    }
}

/// Classifies an error response: whether a retry can succeed (upstream's `DefaultShouldRetry`).
fn error_response(status: &api::Status, after: Option<u64>) -> FailedCall {
    let seconds =
        status.details.as_ref().and_then(|details| u64::try_from(details.retry_after_seconds).ok());
    let after = after.filter(|_| status.code == 429 || status.code >= 500);
    let after = after.or(seconds.filter(|seconds| *seconds > 0));
    let transient =
        matches!(status.reason.as_str(), "InternalError" | "Timeout" | "TooManyRequests");
    let retry_after = match after {
        Some(seconds) => Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX)),
        None => transient.then_some(Duration::ZERO),
    };
    let timed_out = status.reason == "Timeout" || status.code == 504;
    let outcome = if timed_out { Outcome::Timeout } else { Outcome::Error };
    FailedCall { error: status.message.clone(), outcome, retry_after }
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
fn controlled_bytes(a: &Attributes<'_>) -> usize {
    let all = [a.namespace, a.verb, a.group, a.version, a.resource, a.subresource, a.name, a.path];
    all.iter().map(|text| text.len()).sum()
}

#[async_trait]
impl Authorizer for Webhook {
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        match self.matches(user, attributes) {
            Ok(true) => {}
            Ok(false) => return Decision::NoOpinion(String::new()),
            Err(error) => return self.failed(error.to_string()),
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
        match self.call(body).await {
            Ok(status) => {
                if controlled_bytes(attributes) < CACHED_BYTES_MAX
                    && status.reason.len() < CACHED_BYTES_MAX
                {
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
            Err(failed) => {
                self.log_failure(&failed.error);
                if !self.settings.denies_on_failure {
                    self.metrics.failed_open(&self.name, failed.outcome);
                }
                self.failed(failed.error)
            }
        }
    }

    fn rules(&self, _: &User, _: &str) -> UserRules {
        let error = "webhook authorizer does not support user rule resolution";
        UserRules { incomplete: true, errors: vec![error.to_owned()], ..UserRules::default() }
    }
}

#[cfg(test)]
mod tests;
