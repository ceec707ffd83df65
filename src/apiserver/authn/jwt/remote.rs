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

use super::fetch::{FETCH_MAX, Fetcher};
use super::keys::{self, Key, Token};
use crate::authn::configuration::Issuer;
use crate::webhook::Callout;

/// The backoff between attempts to read the discovery document (upstream tries every 10 s).
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// The minimum interval between fetches of keys, regardless of the number of tokens with unknown
/// keys.
const PACE: Duration = Duration::from_secs(1);

/// The state of the key set.
#[derive(Debug, Clone)]
struct State {
    /// The reason why the discovery document cannot be read; `None` once it was read.
    unready: Option<String>,
    keys: Arc<Vec<Key>>,
    /// The number of key fetches so far.
    round: u64,
    /// The error of the last fetch.
    failure: Option<String>,
}

/// The handle of the task; dropping it ends the task.
pub(super) struct KeySet {
    asks: mpsc::Sender<()>,
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
        let (asks, asked) = mpsc::channel(1);
        let unready =
            format!("oidc: authenticator for issuer {} is not initialized", go_quote(&issuer.url));
        let (state_sender, state) = watch::channel(State {
            unready: Some(unready),
            keys: Arc::default(),
            round: 0,
            failure: None,
        });
        let fetches = Arc::new(Fetches::default());
        let remote = Remote {
            issuer: issuer.clone(),
            fetcher: Fetcher::new(Arc::clone(&callout.reach), &issuer.certificate_authority),
            asked,
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
        Self { asks, state, fetches }
    }

    /// Whether the discovery document was read.
    pub(super) fn is_ready(&self) -> bool {
        self.state.borrow().unready.is_none()
    }

    /// Waits until the discovery document was read.
    ///
    /// # Errors
    /// The last error, if the time elapses.
    pub(super) async fn ready(&self, time: Duration) -> Result<(), String> {
        let mut state = self.state.clone();
        let waited = tokio::time::timeout(time, state.wait_for(|s| s.unready.is_none())).await;
        if waited.is_ok_and(|found| found.is_ok()) {
            return Ok(());
        }
        let why = self.state.borrow().unready.clone();
        why.map_or(Ok(()), Err)
    }

    /// Waits for the first failed attempt and returns its error.
    #[cfg(test)]
    pub(super) async fn fault(&self) -> String {
        let is_told = |state: &State| {
            state.unready.as_ref().is_some_and(|why| why.contains("is not healthy"))
        };
        let mut state = self.state.clone();
        let found = state.wait_for(is_told).await.unwrap();
        found.unready.clone().unwrap_or_default()
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
    pub(super) async fn verify(&self, token: &Token) -> Result<(), String> {
        let known = self.state.borrow().clone();
        if token.is_signed_by(&known.keys) {
            return Ok(());
        }
        // If the queue is full, a fetch is already pending.
        let _ = self.asks.try_send(());
        let mut state = self.state.clone();
        let newer = state.wait_for(|state| state.round != known.round);
        let late = || "fetching keys context deadline exceeded".to_owned();
        let newer = tokio::time::timeout(FETCH_MAX + PACE, newer).await.map_err(|_| late())?;
        let newer = newer.map_err(|_| late())?.clone();
        if let Some(why) = newer.failure {
            return Err(format!("fetching keys {why}"));
        }
        if token.is_signed_by(&newer.keys) {
            return Ok(());
        }
        Err("failed to verify id token signature".to_owned())
    }
}

struct Remote {
    issuer: Issuer,
    fetcher: Fetcher,
    asked: mpsc::Receiver<()>,
    state_sender: watch::Sender<State>,
    fetches: Arc<Fetches>,
    problems: Problems,
}

impl Remote {
    /// Runs until all handles are dropped.
    async fn run(mut self, shutdown: &Shutdown) {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let problem = format!("authentication/issuer/{}", self.issuer.url);
        let place = loop {
            match self.discover().await {
                Ok(place) => break Some(place),
                Err(why) => self.unready(&problem, &why),
            }
            tokio::select! {
                going_on = backoff.wait(shutdown) => if !going_on { break None },
                () = self.state_sender.closed() => break None,
            }
        };
        self.problems.clear(&problem);
        let Some(place) = place else { return };
        self.state_sender.send_modify(|state| state.unready = None);
        let mut earliest = base::clock::now();
        while self.asked.recv().await.is_some() {
            base::clock::sleep(earliest.saturating_duration_since(base::clock::now())).await;
            let fetched = self.keys(&place).await;
            let now = base::clock::unix_time().as_secs();
            let last = if fetched.is_ok() { &self.fetches.success } else { &self.fetches.failure };
            last.store(now, Ordering::Relaxed);
            earliest = base::clock::now() + PACE;
            // This fetch also serves requests that arrived meanwhile.
            while self.asked.try_recv().is_ok() {}
            self.state_sender.send_modify(|state| {
                state.round = state.round.wrapping_add(1);
                match fetched {
                    Ok(keys) => (state.keys, state.failure) = (Arc::new(keys), None),
                    Err(why) => state.failure = Some(why),
                }
            });
        }
    }

    fn unready(&self, problem: &str, why: &str) {
        let issuer = go_quote(&self.issuer.url);
        self.problems.put(
            problem,
            format!("tokens of the issuer {issuer} are refused: {why}"),
            "correct the issuer or its configuration; it is tried again every 10 s",
        );
        let text = format!("oidc: authenticator for issuer {issuer} is not healthy: {why}");
        self.state_sender.send_modify(|state| state.unready = Some(text));
    }

    /// The URL of the key set.
    async fn discover(&self) -> Result<String, String> {
        let issuer = &self.issuer.url;
        let place = match self.issuer.discovery_url.as_str() {
            "" => {
                let base = issuer.strip_suffix('/').unwrap_or(issuer);
                format!("{base}/.well-known/openid-configuration")
            }
            place => place.to_owned(),
        };
        let document = self.fetcher.get(&place).await?;
        let document: Json = serde_json::from_slice(&document)
            .map_err(|e| format!("oidc: failed to decode provider discovery object: {e}"))?;
        let text = |name: &str| document.get(name).and_then(Json::as_str).unwrap_or_default();
        if text("issuer") != issuer {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {} got {}",
                go_quote(issuer),
                go_quote(text("issuer"))
            ));
        }
        match text("jwks_uri") {
            "" => Err("provider did not return JWKS URL".to_owned()),
            place => Ok(place.to_owned()),
        }
    }

    async fn keys(&self, place: &str) -> Result<Vec<Key>, String> {
        let document = self.fetcher.get(place).await;
        let document = document.map_err(|why| format!("oidc: get keys failed: {why}"))?;
        let keys = keys::set(&document);
        if keys.is_ok() {
            *self.fetches.set.lock() = super::reload::hash(&document);
        }
        keys.map_err(|why| format!("oidc: failed to decode keys: {why}"))
    }
}
