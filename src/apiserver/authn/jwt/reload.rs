//! Reloads the configuration file when it changes. An invalid configuration is logged and the
//! former one remains in effect.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::field::{Error, Path as Field};
use parking_lot::Mutex;

use super::remote::NotReadyError;
use super::{Algorithm, Issuers, build};
use crate::authn::configuration::{self, Anonymous, ContentError, InvalidConfiguration};
use component_config::FileWatcher;
use webhook::Callout;

/// The time for the issuers of a new configuration to become ready before it is rejected
/// (upstream's `UpdateAuthenticationConfigTimeout`), and the delay before an unreadable file is
/// read again.
const READY_MAX: Duration = Duration::from_secs(60);

const PROBLEM: &str = "authentication/configuration";

/// The metrics of reloads.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    success: Count,
    failure: Count,
    hash: Mutex<String>,
}

#[derive(Debug, Default)]
struct Count {
    total: AtomicU64,
    /// Unix time in seconds.
    last: AtomicU64,
}

impl Count {
    fn add(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
        self.last.store(base::clock::unix_time().as_secs(), Ordering::Relaxed);
    }
}

/// A hash in the format of upstream's metrics: `sha256:` and hexadecimal digits.
pub(super) fn hash(bytes: &[u8]) -> String {
    base::server_identity::hash_of(bytes)
}

impl Reloads {
    /// Records that this content is in effect.
    pub(super) fn loaded(&self, content: &[u8]) {
        *self.hash.lock() = hash(content);
    }

    fn is_loaded(&self, content: &[u8]) -> bool {
        *self.hash.lock() == hash(content)
    }

    /// Renders lines for `/metrics`.
    pub(super) fn render(&self, out: &mut String) {
        let hash = self.hash.lock().clone();
        if hash.is_empty() {
            return;
        }
        let own = base::server_identity::own_hash();
        let name = |rest: &str| format!("apiserver_authentication_config_controller_{rest}");
        let counts = [("failure", &self.failure), ("success", &self.success)];
        for (rest, kind, help) in [
            (
                "automatic_reloads_total",
                "counter",
                "[BETA] Total number of automatic reloads of authentication configuration split by status and apiserver identity.",
            ),
            (
                "automatic_reload_last_timestamp_seconds",
                "gauge",
                "[BETA] Timestamp of the last automatic reload of authentication configuration split by status and apiserver identity.",
            ),
        ] {
            let name = name(rest);
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (status, count) in counts {
                let value = if kind == "counter" { &count.total } else { &count.last };
                let value = value.load(Ordering::Relaxed);
                if value > 0 {
                    let _ = writeln!(
                        out,
                        "{name}{{apiserver_id_hash=\"{own}\",status=\"{status}\"}} {value}"
                    );
                }
            }
        }
        let name = name("last_config_info");
        let help = "[ALPHA] Information about the last applied authentication configuration with hash as label, split by apiserver identity.";
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        let _ = writeln!(out, "{name}{{apiserver_id_hash=\"{own}\",hash=\"{hash}\"}} 1");
    }
}

/// Follows one configuration file.
pub(super) struct Following {
    pub(super) issuers: Arc<Issuers>,
    pub(super) algorithms: Vec<Algorithm>,
    /// The value at the start: it must not change.
    pub(super) anonymous: Option<Anonymous>,
    pub(super) path: PathBuf,
    /// The last content that was evaluated.
    pub(super) last_content: Vec<u8>,
    pub(super) callout: Callout,
}

/// A change does not take effect.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error(transparent)]
    Panicked(#[from] tokio::task::JoinError),
    /// An issuer did not become ready in time.
    #[error(transparent)]
    NotReady(#[from] NotReadyError),
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error(transparent)]
    Invalid(#[from] InvalidConfiguration),
}

impl ReloadError {
    /// Whether a retry without a change of the file can succeed.
    fn is_transient(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Panicked(_) | Self::NotReady(_))
    }
}

impl Following {
    /// Runs until shutdown.
    ///
    /// # Errors
    /// None.
    pub(super) async fn run(mut self) -> Result<(), std::convert::Infallible> {
        let shutdown = self.callout.tasks.shutdown().clone();
        tokio::select! {
            () = self.follow() => {}
            () = shutdown.requested() => {}
        }
        Ok(())
    }

    async fn follow(&mut self) {
        let mut changes = FileWatcher::new(&self.path).await;
        // Load once first, to catch changes between the first read and the start of the watch.
        let mut again = true;
        loop {
            if !again {
                changes.next().await;
            }
            let outcome = tokio::select! {
                outcome = self.load() => outcome,
                // The file changed again while issuers were becoming ready.
                () = changes.next() => {
                    again = true;
                    continue;
                }
            };
            again = false;
            match outcome {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!(
                        file = %self.path.display(), "reloaded the authentication configuration"
                    );
                    self.issuers.reloads.success.add();
                }
                Err(error) if !error.is_transient() => self.report(&error),
                Err(error) => {
                    self.report(&error);
                    tokio::select! {
                        () = base::clock::sleep(READY_MAX) => {}
                        () = changes.next() => {}
                    }
                    again = true;
                }
            }
        }
    }

    fn report(&self, error: &ReloadError) {
        self.issuers.reloads.failure.add();
        let what =
            "the changed authentication configuration is not valid, the former one stays in effect";
        let fix = format!("correct {}", self.path.display());
        self.callout.tasks.problems().put(PROBLEM, format!("{what}: {error}"), fix);
    }

    /// Loads the file; returns whether a new configuration took effect.
    async fn load(&mut self) -> Result<bool, ReloadError> {
        let path = self.path.clone();
        let content = base::tasks::blocking(move || base::fs::read(&path)).await??;
        if content == self.last_content {
            // The file has the content that is in effect.
            if self.issuers.reloads.is_loaded(&content) {
                self.callout.tasks.problems().clear(PROBLEM);
            }
            return Ok(false);
        }
        let built = self.build(&content);
        if built.is_err() {
            self.last_content.clone_from(&content);
        }
        let authenticators = built?;
        let deadline = base::clock::now() + READY_MAX;
        for authenticator in &authenticators {
            let left = deadline.saturating_duration_since(base::clock::now());
            authenticator.keys.ready(left).await?;
        }
        self.callout.tasks.problems().clear(PROBLEM);
        self.issuers.current.store(Arc::new(authenticators));
        self.issuers.reloads.loaded(&content);
        self.last_content = content;
        Ok(true)
    }

    /// Starts the authenticators of a new configuration.
    fn build(&self, content: &[u8]) -> Result<Vec<super::Authenticator>, ReloadError> {
        let new = configuration::read(content)?;
        // The issuer of the cluster's own tokens is also their audience.
        let (mappers, mut errors) = configuration::validate(&new, &self.issuers.audiences);
        if new.anonymous != self.anonymous {
            let why = "changed from initial configuration file";
            errors.push(Error::forbidden(&Field::new("anonymous"), why));
        }
        InvalidConfiguration::check(errors)?;
        Ok(build(&new, mappers, &self.algorithms, &self.callout))
    }
}
