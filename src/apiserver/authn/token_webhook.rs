//! The token webhook (upstream's `plugin/pkg/authenticator/token/webhook`): posts a TokenReview per
//! token and caches the response.

use std::collections::HashMap;
use std::time::Duration;

use api::field::go_quote;
use api::value::{at, bool_at, entries, get, items, str_at};
use async_trait::async_trait;
use base::{Problems, Tasks};
use bytes::Bytes;
use http::StatusCode;
use http::header::RETRY_AFTER;
use parking_lot::Mutex;
use ring::hmac;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{TokenAuthenticator, TokenError, TokenIdentity};
use crate::metrics::requests as metrics;
use crate::request::user::User;
use webhook::TransportError;
use webhook::kubeconfig::WebhookEndpoint;
use webhook::post::{self, Attempts, Poster};

/// The timeout for one token including all attempts (upstream's `sharedLookupTimeout`).
const LOOKUP_MAX: Duration = Duration::from_secs(30);
/// The maximum size of a response.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The maximum number of concurrent calls; further ones wait.
const CALLS_MAX: usize = 64;
/// The maximum number of cached responses (upstream's 32 stripes of 1024).
const ANSWERS_MAX: usize = 32 * 1024;

const PROBLEM: &str = "authentication/webhook";

/// The configuration of the webhook.
#[derive(Debug, Clone)]
pub(crate) struct Webhook {
    pub(crate) endpoint: WebhookEndpoint,
    /// `v1` or `v1beta1`.
    pub(crate) version: String,
    /// The TTL of cached responses; zero disables the cache.
    pub(crate) cache_ttl: Duration,
}

/// A response: the identity, or `None` for an unknown token.
type Answer = Option<TokenIdentity>;
type Digest = [u8; 32];

/// Authenticates tokens by the webhook or the cache.
pub(crate) struct TokenWebhook {
    webhook: Webhook,
    /// The audiences of the API server, used if a response has none.
    audiences: Vec<String>,
    poster: Poster,
    /// The cache is keyed by an HMAC of the token: tokens are not kept, and clients cannot choose
    /// the keys.
    secret: hmac::Key,
    answers: Mutex<HashMap<Digest, (Instant, Answer)>>,
    calls: Semaphore,
    problems: Problems,
}

/// The webhook rejects a token, or cannot check it.
#[derive(Debug, thiserror::Error)]
enum TokenWebhookError {
    /// The webhook rejects the token with this message.
    #[error("{0}")]
    Rejected(String),
    #[error("Post {}: {source}", go_quote(.url))]
    Post { url: String, source: PostError },
    #[error("the answer of the token webhook cannot be used: {0}")]
    Response(#[source] ReviewError),
    /// The process stops.
    #[error("the token webhook is closed")]
    Closed,
    #[error("the token webhook gives no answer: context deadline exceeded")]
    Deadline,
}

/// An attempt gives no usable response.
#[derive(Debug, thiserror::Error)]
enum PostError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("the answer breaks off or has more than {ANSWER_BYTES_MAX} bytes",
        ANSWER_BYTES_MAX = ANSWER_BYTES_MAX)]
    Body,
    #[error("the server responded with the status code {code}")]
    Status { code: u16, is_transient: bool },
}

impl PostError {
    /// Whether the next attempt may succeed.
    fn is_transient(&self) -> bool {
        match self {
            Self::Transport(error) => error.is_transient(),
            Self::Body => false,
            Self::Status { is_transient, .. } => *is_transient,
        }
    }
}

/// A response is not a TokenReview.
#[derive(Debug, thiserror::Error)]
enum ReviewError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("it is no TokenReview of {version}")]
    Kind { version: String },
}

impl TokenWebhook {
    /// Creates the authenticator; the first token opens the connection.
    pub(crate) fn new(webhook: Webhook, audiences: Vec<String>, tasks: &Tasks) -> Self {
        let mut secret = [0; 32];
        base::clock::random_bytes(&mut secret);
        Self {
            poster: Poster::new(webhook.endpoint.clone(), post::User::AUTHENTICATION, tasks),
            webhook,
            audiences,
            secret: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            answers: Mutex::default(),
            calls: Semaphore::new(CALLS_MAX),
            problems: tasks.problems().clone(),
        }
    }

    fn digest(&self, token: &str, audiences: &[String]) -> Digest {
        let mut context = hmac::Context::with_key(&self.secret);
        for text in std::iter::once(token).chain(audiences.iter().map(String::as_str)) {
            context.update(&text.len().to_be_bytes());
            context.update(text.as_bytes());
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }

    fn cached(&self, digest: &Digest) -> Option<Answer> {
        let answers = self.answers.lock();
        let (until, answer) = answers.get(digest)?;
        (*until > base::clock::now()).then(|| answer.clone())
    }

    fn cache_answer(&self, digest: Digest, answer: &Answer) {
        if self.webhook.cache_ttl.is_zero() {
            return;
        }
        let now = base::clock::now();
        let mut answers = self.answers.lock();
        if answers.len() >= ANSWERS_MAX {
            answers.retain(|_, (until, _)| *until > now);
        }
        // If the cache is still full, all entries are valid and this one is not cached.
        if answers.len() < ANSWERS_MAX {
            answers.insert(digest, (now + self.webhook.cache_ttl, answer.clone()));
        }
    }

    /// Posts a review, with retries.
    async fn post_review(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Answer, TokenWebhookError> {
        let mut spec = json!({"token": token});
        if !audiences.is_empty() {
            api::value::set(&mut spec, "audiences", audiences);
        }
        let version = format!("authentication.k8s.io/{}", self.webhook.version);
        let review = json!({"kind": "TokenReview", "apiVersion": version, "metadata": {"creationTimestamp": null}, "spec": spec, "status": {"user": {}}});
        let body = Bytes::from(review.to_string());
        let mut attempts = Attempts::first(Attempts::DELAY);
        let error = loop {
            match self.post(body.clone()).await {
                Ok(response) => {
                    self.problems.clear(PROBLEM);
                    return self.read(&response, &version, audiences);
                }
                Err(error) if error.is_transient() => {
                    let Some(delay) = attempts.next_delay() else { break error };
                    tracing::debug!(%error, "retrying the token webhook");
                    base::clock::sleep(delay).await;
                }
                Err(error) => break error,
            }
        };
        let url = self.webhook.endpoint.url();
        let error = TokenWebhookError::Post { url, source: error };
        let what = format!("the token webhook gives no answer: {error}");
        self.problems.put(PROBLEM, what, "start it, or correct its kubeconfig");
        Err(error)
    }

    fn read(
        &self,
        response: &[u8],
        version: &str,
        audiences: &[String],
    ) -> Result<Answer, TokenWebhookError> {
        let review: Value =
            serde_json::from_slice(response).map_err(|e| TokenWebhookError::Response(e.into()))?;
        if str_at(&review, "kind") != "TokenReview" || str_at(&review, "apiVersion") != version {
            let error = ReviewError::Kind { version: version.to_owned() };
            return Err(TokenWebhookError::Response(error));
        }
        let status = get(&review, "status");
        let mut shared = Vec::new();
        if !audiences.is_empty() {
            let named: Vec<&str> =
                items(status, "audiences").iter().filter_map(Value::as_str).collect();
            let is_for = |audience: &&String| {
                if named.is_empty() {
                    self.audiences.contains(audience)
                } else {
                    named.contains(&audience.as_str())
                }
            };
            shared = audiences.iter().filter(is_for).cloned().collect();
            if shared.is_empty() {
                return Ok(None);
            }
        }
        if !bool_at(status, "authenticated") {
            return match str_at(status, "error") {
                "" => Ok(None),
                error => Err(TokenWebhookError::Rejected(error.to_owned())),
            };
        }
        let user = get(status, "user");
        let texts = |value: &Value| -> Vec<String> {
            let all = value.as_array().into_iter().flatten();
            all.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let user = User {
            name: str_at(user, "username").to_owned(),
            uid: str_at(user, "uid").to_owned(),
            groups: texts(at(user, &["groups"])),
            extra: entries(user, "extra").map(|(key, value)| (key.clone(), texts(value))).collect(),
        };
        Ok(Some(TokenIdentity { user, audiences: shared }))
    }

    async fn post(&self, body: Bytes) -> Result<Bytes, PostError> {
        let (parts, body) = self.poster.post(body, "30s", ANSWER_BYTES_MAX).await?;
        if parts.status.is_success() {
            return body.ok_or(PostError::Body);
        }
        let is_transient = matches!(
            parts.status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::INTERNAL_SERVER_ERROR
                | StatusCode::GATEWAY_TIMEOUT
        );
        let is_transient = is_transient || parts.headers.contains_key(RETRY_AFTER);
        Err(PostError::Status { code: parts.status.as_u16(), is_transient })
    }
}

#[async_trait]
impl TokenAuthenticator for TokenWebhook {
    async fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, TokenError> {
        let digest = self.digest(token, audiences);
        let begun = base::clock::now();
        if let Some(answer) = self.cached(&digest) {
            metrics::token(true, true, begun);
            return Ok(answer);
        }
        metrics::fetching(1.0);
        let call = async {
            let permit = self.calls.acquire().await;
            let _permit = permit.map_err(|_| TokenWebhookError::Closed)?;
            // A concurrent request may have resolved the same token meanwhile.
            if let Some(answer) = self.cached(&digest) {
                return Ok(answer);
            }
            let answer = self.post_review(token, audiences).await?;
            self.cache_answer(digest, &answer);
            Ok(answer)
        };
        let answer = tokio::time::timeout(LOOKUP_MAX, call).await;
        let answer = answer.map_err(|_| TokenWebhookError::Deadline);
        metrics::fetching(-1.0);
        let answer = answer.and_then(|answer| answer);
        metrics::token(false, answer.is_ok(), begun);
        answer.map_err(TokenError::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook() -> TokenWebhook {
        let config = b"{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}]}";
        let folder = std::path::Path::new("/");
        let endpoint = WebhookEndpoint::of(config, folder, "the token webhook").unwrap();
        let webhook =
            Webhook { endpoint, version: "v1".into(), cache_ttl: Duration::from_secs(120) };
        TokenWebhook::new(webhook, vec!["api".into()], &Tasks::new(base::Shutdown::new()))
    }

    fn read(status: &Value, audiences: &[&str]) -> Result<Answer, TokenWebhookError> {
        let version = "authentication.k8s.io/v1";
        let review = json!({"kind": "TokenReview", "apiVersion": version, "status": status});
        let audiences: Vec<String> = audiences.iter().map(|a| (*a).to_owned()).collect();
        webhook().read(review.to_string().as_bytes(), version, &audiences)
    }

    #[test]
    fn responses_give_identity_rejection_or_unknown_token() {
        let user = json!({"username": "jane", "uid": "1", "groups": ["a"], "extra": {"k": ["v"]}});
        let jane = |audiences: &[&str]| json!({"authenticated": true, "user": user, "audiences": audiences});
        let found = read(&jane(&[]), &[]).unwrap().unwrap();
        assert_eq!((found.user.name.as_str(), found.user.uid.as_str()), ("jane", "1"));
        assert_eq!(
            (found.user.groups.join(","), found.user.extra["k"].join(",")),
            ("a".into(), "v".into())
        );
        // A response without audiences is valid for the API server's own.
        assert_eq!(read(&jane(&[]), &["api", "x"]).unwrap().unwrap().audiences, ["api"]);
        assert!(read(&jane(&[]), &["x"]).unwrap().is_none());
        assert_eq!(read(&jane(&["x", "y"]), &["x", "api"]).unwrap().unwrap().audiences, ["x"]);
        assert!(read(&json!({"authenticated": false}), &[]).unwrap().is_none());
        let rejection = json!({"authenticated": false, "error": "unknown token"});
        assert_eq!(read(&rejection, &[]).unwrap_err().to_string(), "unknown token");
        let other = br#"{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1beta1"}"#;
        assert!(webhook().read(other, "authentication.k8s.io/v1", &[]).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_cache_expires_and_is_bounded() {
        let webhook = webhook();
        let one = webhook.digest("t", &[]);
        assert_ne!(one, webhook.digest("t", &["api".into()]));
        webhook.cache_answer(one, &None);
        assert_eq!(webhook.cached(&one), Some(None));
        tokio::time::advance(Duration::from_secs(121)).await;
        assert_eq!(webhook.cached(&one), None);
        for number in 0..=ANSWERS_MAX {
            webhook.cache_answer(webhook.digest(&number.to_string(), &[]), &None);
        }
        assert_eq!(webhook.answers.lock().len(), ANSWERS_MAX);
    }
}
