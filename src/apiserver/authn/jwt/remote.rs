//! The keys of one issuer: located by its discovery document, fetched when a token needs them, and
//! again when a token is signed by an unknown key (go-oidc's `NewProvider` and `RemoteKeySet`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::field::go_quote;
use base::{Backoff, Kind, Problems, Shutdown};
use parking_lot::Mutex;
use serde_json::Value as Json;
use tokio::sync::{mpsc, watch};

use super::fetch::{FETCH_MAX, FetchError, Fetcher};
use super::keys::{self, Key, KeySetError, Token};
use crate::authn::configuration::Issuer;
use webhook::Callout;

/// The backoff between attempts to read the discovery document (upstream tries every 10 s).
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// The minimum interval between fetches of keys, regardless of the number of tokens with unknown
/// keys.
const PACE: Duration = Duration::from_secs(1);

/// The discovery document of an issuer was not read yet.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum NotReadyError {
    #[error("oidc: authenticator for issuer {} is not initialized", go_quote(.issuer))]
    NotInitialized { issuer: String },
    #[error("oidc: authenticator for issuer {} is not healthy: {source}", go_quote(.issuer))]
    NotHealthy { issuer: String, source: Arc<DiscoveryError> },
}

/// The discovery document cannot be read, or is not usable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiscoveryError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("oidc: failed to decode provider discovery object: {0}")]
    Decode(#[source] serde_json::Error),
    #[error(
        "oidc: issuer did not match the issuer returned by provider, expected {} got {}",
        go_quote(.expected),
        go_quote(.actual)
    )]
    Issuer { expected: String, actual: String },
    #[error("provider did not return JWKS URL")]
    NoKeySetUrl,
}

/// The keys of an issuer cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchKeysError {
    #[error("oidc: get keys failed: {0}")]
    Fetch(#[source] FetchError),
    #[error("oidc: failed to decode keys: {0}")]
    Decode(#[source] KeySetError),
}

/// No key of the issuer verifies a token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VerificationError {
    #[error("fetching keys {0}")]
    FetchKeys(Arc<FetchKeysError>),
    #[error("fetching keys context deadline exceeded")]
    Deadline,
    #[error("failed to verify id token signature")]
    Signature,
}

/// The state of the key set.
#[derive(Debug, Clone)]
struct State {
    /// The reason why the discovery document cannot be read; `None` once it was read.
    not_ready: Option<NotReadyError>,
    keys: Arc<Vec<Key>>,
    /// The number of key fetches so far.
    round: u64,
    /// The error of the last fetch.
    error: Option<Arc<FetchKeysError>>,
}

/// The handle of the task; dropping it ends the task.
pub(super) struct KeySet {
    fetch_requests: mpsc::Sender<()>,
    state: watch::Receiver<State>,
    fetches: Arc<Fetches>,
}

/// The Unix times, in seconds, of the last fetches.
#[derive(Debug, Default)]
struct Fetches {
    success: AtomicU64,
    failure: AtomicU64,
    /// The hash of the last key set; empty before the first one.
    set: Mutex<String>,
}

impl KeySet {
    /// Starts the task of an issuer.
    pub(super) fn start(issuer: &Issuer, callout: &Callout) -> Self {
        // One pending request is enough for all waiters.
        let (fetch_requests, requests) = mpsc::channel(1);
        let (state_sender, state) = watch::channel(State {
            not_ready: Some(NotReadyError::NotInitialized { issuer: issuer.url.clone() }),
            keys: Arc::default(),
            round: 0,
            error: None,
        });
        let fetches = Arc::new(Fetches::default());
        let remote = Remote {
            issuer: issuer.clone(),
            fetcher: Fetcher::new(Arc::clone(&callout.reach), &issuer.certificate_authority),
            requests,
            state_sender,
            fetches: Arc::clone(&fetches),
            problems: callout.tasks.problems().clone(),
        };
        let shutdown = callout.tasks.shutdown().clone();
        callout.tasks.spawn(Kind::Request, "oidc-issuer", async move {
            tokio::select! {
                () = remote.run(&shutdown) => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
        Self { fetch_requests, state, fetches }
    }

    /// Whether the discovery document was read.
    pub(super) fn is_ready(&self) -> bool {
        self.state.borrow().not_ready.is_none()
    }

    /// Waits until the discovery document was read.
    ///
    /// # Errors
    /// The last error, if the time elapses.
    pub(super) async fn ready(&self, time: Duration) -> Result<(), NotReadyError> {
        let mut state = self.state.clone();
        let waited = tokio::time::timeout(time, state.wait_for(|s| s.not_ready.is_none())).await;
        if waited.is_ok_and(|found| found.is_ok()) {
            return Ok(());
        }
        let error = self.state.borrow().not_ready.clone();
        error.map_or(Ok(()), Err)
    }

    /// Waits for the first failed attempt and returns its error.
    #[cfg(test)]
    pub(super) async fn first_error(&self) -> String {
        let has_failed =
            |state: &State| matches!(state.not_ready, Some(NotReadyError::NotHealthy { .. }));
        let mut state = self.state.clone();
        let failed = state.wait_for(has_failed).await.unwrap();
        failed.not_ready.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// The times of the last fetches by result; 0 means never.
    pub(super) fn fetches(&self) -> [(&'static str, &AtomicU64); 2] {
        [("failure", &self.fetches.failure), ("success", &self.fetches.success)]
    }

    /// The hash of the last key set; empty before the first one.
    pub(super) fn hash(&self) -> String {
        self.fetches.set.lock().clone()
    }

    /// Verifies that the issuer signed the token; fetches the keys again if none matches.
    ///
    /// # Errors
    /// If no key matches, or the keys cannot be fetched.
    pub(super) async fn verify(&self, token: &Token) -> Result<(), VerificationError> {
        let known = self.state.borrow().clone();
        if token.is_signed_by(&known.keys) {
            return Ok(());
        }
        // If the queue is full, a fetch is already pending.
        let _ = self.fetch_requests.try_send(());
        let mut state = self.state.clone();
        let newer = state.wait_for(|state| state.round != known.round);
        let newer = tokio::time::timeout(FETCH_MAX + PACE, newer).await;
        let newer = newer.map_err(|_| VerificationError::Deadline)?;
        let newer = newer.map_err(|_| VerificationError::Deadline)?.clone();
        if let Some(error) = newer.error {
            return Err(VerificationError::FetchKeys(error));
        }
        if token.is_signed_by(&newer.keys) {
            return Ok(());
        }
        Err(VerificationError::Signature)
    }
}

/// The task of an issuer.
struct Remote {
    issuer: Issuer,
    fetcher: Fetcher,
    requests: mpsc::Receiver<()>,
    state_sender: watch::Sender<State>,
    fetches: Arc<Fetches>,
    problems: Problems,
}

impl Remote {
    /// Runs until all handles are dropped.
    async fn run(mut self, shutdown: &Shutdown) {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let problem = format!("authentication/issuer/{}", self.issuer.url);
        let key_set_url = loop {
            match self.discover().await {
                Ok(url) => break Some(url),
                Err(error) => self.report_not_healthy(&problem, error),
            }
            tokio::select! {
                is_running = backoff.wait(shutdown) => if !is_running { break None },
                () = self.state_sender.closed() => break None,
            }
        };
        self.problems.clear(&problem);
        let Some(key_set_url) = key_set_url else { return };
        self.state_sender.send_modify(|state| state.not_ready = None);
        let mut earliest = base::clock::now();
        while self.requests.recv().await.is_some() {
            base::clock::sleep(earliest.saturating_duration_since(base::clock::now())).await;
            let fetched = self.keys(&key_set_url).await;
            let now = base::clock::unix_time().as_secs();
            let last = if fetched.is_ok() { &self.fetches.success } else { &self.fetches.failure };
            last.store(now, Ordering::Relaxed);
            earliest = base::clock::now() + PACE;
            // This fetch also serves requests that arrived meanwhile.
            while self.requests.try_recv().is_ok() {}
            self.state_sender.send_modify(|state| {
                state.round = state.round.wrapping_add(1);
                match fetched {
                    Ok(keys) => (state.keys, state.error) = (Arc::new(keys), None),
                    Err(error) => state.error = Some(Arc::new(error)),
                }
            });
        }
    }

    fn report_not_healthy(&self, problem: &str, error: DiscoveryError) {
        self.problems.put(
            problem,
            format!("tokens of the issuer {} are refused: {error}", go_quote(&self.issuer.url)),
            "correct the issuer or its configuration; it is tried again every 10 s",
        );
        let (issuer, source) = (self.issuer.url.clone(), Arc::new(error));
        let error = NotReadyError::NotHealthy { issuer, source };
        self.state_sender.send_modify(|state| state.not_ready = Some(error));
    }

    /// Reads the discovery document; returns the URL of the key set.
    async fn discover(&self) -> Result<String, DiscoveryError> {
        let issuer = &self.issuer.url;
        let url = match self.issuer.discovery_url.as_str() {
            "" => {
                let base = issuer.strip_suffix('/').unwrap_or(issuer);
                format!("{base}/.well-known/openid-configuration")
            }
            url => url.to_owned(),
        };
        let document = self.fetcher.get(&url).await?;
        let document: Json = serde_json::from_slice(&document).map_err(DiscoveryError::Decode)?;
        let text = |name: &str| document.get(name).and_then(Json::as_str).unwrap_or_default();
        if text("issuer") != issuer {
            let (expected, actual) = (issuer.clone(), text("issuer").to_owned());
            return Err(DiscoveryError::Issuer { expected, actual });
        }
        match text("jwks_uri") {
            "" => Err(DiscoveryError::NoKeySetUrl),
            url => Ok(url.to_owned()),
        }
    }

    async fn keys(&self, url: &str) -> Result<Vec<Key>, FetchKeysError> {
        let document = self.fetcher.get(url).await.map_err(FetchKeysError::Fetch)?;
        let keys = keys::set(&document);
        if keys.is_ok() {
            *self.fetches.set.lock() = super::reload::hash(&document);
        }
        keys.map_err(FetchKeysError::Decode)
    }
}
