//! The file with the configuration is read again when it changes. What is wrong then is told and the former goes on.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::field::{Error, Path as Field};
use parking_lot::Mutex;

use super::{Algorithm, Issuers, build};
use crate::authn::configuration::{self, Anonymous};
use crate::file_watcher::Changes;
use crate::webhook::Callout;

/// How long the issuers of a new configuration have to answer before the former one is kept (upstream's
/// `UpdateAuthenticationConfigTimeout`), and after which a file that could not be read is tried again.
const READY_MAX: Duration = Duration::from_secs(60);

const PROBLEM: &str = "authentication/configuration";

/// What became of changes.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    success: Count,
    failure: Count,
    hash: Mutex<String>,
}

#[derive(Debug, Default)]
struct Count {
    total: AtomicU64,
    /// Seconds since 1970.
    last: AtomicU64,
}

impl Count {
    fn add(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
        self.last.store(base::clock::unix_time().as_secs(), Ordering::Relaxed);
    }
}

/// As upstream's metrics name a secret: `sha256:` and hex.
pub(super) fn hash(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().fold("sha256:".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Reloads {
    /// This content holds.
    pub(super) fn loaded(&self, content: &[u8]) {
        *self.hash.lock() = hash(content);
    }

    fn is_loaded(&self, content: &[u8]) -> bool {
        *self.hash.lock() == hash(content)
    }

    /// Lines for `/metrics`.
    pub(super) fn render(&self, out: &mut String) {
        let hash = self.hash.lock().clone();
        if hash.is_empty() {
            return;
        }
        let own = crate::server_identity::own_hash();
        let name = |rest: &str| format!("apiserver_authentication_config_controller_{rest}");
        let counts = [("failure", &self.failure), ("success", &self.success)];
        for (rest, kind, help) in [
            (
                "automatic_reloads_total",
                "counter",
                "[BETA] Changes of the authentication configuration, by outcome.",
            ),
            (
                "automatic_reload_last_timestamp_seconds",
                "gauge",
                "[BETA] Time of the last change of the authentication configuration, by outcome.",
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
        let help = "[ALPHA] The authentication configuration that holds, by its hash.";
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        let _ = writeln!(out, "{name}{{apiserver_id_hash=\"{own}\",hash=\"{hash}\"}} 1");
    }
}

/// Follows one file.
pub(super) struct Following {
    pub(super) issuers: Arc<Issuers>,
    pub(super) algorithms: Vec<Algorithm>,
    /// As the file had it at the start: this may not change.
    pub(super) anonymous: Option<Anonymous>,
    pub(super) path: PathBuf,
    /// The last content that was looked at.
    pub(super) known: Vec<u8>,
    pub(super) callout: Callout,
}

/// Why a change is not taken.
enum Refused {
    /// It never will.
    Content(String),
    /// It may be, later.
    Yet(String),
}

impl Following {
    /// Until shutdown.
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
        let mut changes = Changes::of(&self.path).await;
        // What changed between the first reading and here is seen, too.
        let mut again = true;
        loop {
            if !again {
                changes.next().await;
            }
            let outcome = tokio::select! {
                outcome = self.load() => outcome,
                // Another change came while issuers were waited for.
                () = changes.next() => {
                    again = true;
                    continue;
                }
            };
            again = false;
            match outcome {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!(file = %self.path.display(), "the authentication configuration was read again");
                    self.issuers.reloads.success.add();
                }
                Err(Refused::Content(why)) => self.refused(&why),
                Err(Refused::Yet(why)) => {
                    self.refused(&why);
                    tokio::select! {
                        () = base::clock::sleep(READY_MAX) => {}
                        () = changes.next() => {}
                    }
                    again = true;
                }
            }
        }
    }

    fn refused(&self, why: &str) {
        self.issuers.reloads.failure.add();
        let what = "the changed authentication configuration is not taken and the former goes on";
        let fix = format!("correct {}", self.path.display());
        self.callout.tasks.problems().put(PROBLEM, format!("{what}: {why}"), fix);
    }

    /// Whether there was something new that holds now.
    async fn load(&mut self) -> Result<bool, Refused> {
        let path = self.path.clone();
        let read = base::tasks::blocking(move || base::fs::read(&path)).await;
        let content = read
            .map_err(|e| Refused::Yet(e.to_string()))?
            .map_err(|e| Refused::Yet(e.to_string()))?;
        if content == self.known {
            // The one that holds stands there again.
            if self.issuers.reloads.is_loaded(&content) {
                self.callout.tasks.problems().clear(PROBLEM);
            }
            return Ok(false);
        }
        let made = self.made(&content);
        if made.is_err() {
            self.known.clone_from(&content);
        }
        let made = made.map_err(Refused::Content)?;
        let deadline = base::clock::now() + READY_MAX;
        for one in &made {
            let left = deadline.saturating_duration_since(base::clock::now());
            one.keys.ready(left).await.map_err(Refused::Yet)?;
        }
        self.callout.tasks.problems().clear(PROBLEM);
        self.issuers.current.store(Arc::new(made));
        self.issuers.reloads.loaded(&content);
        self.known = content;
        Ok(true)
    }

    fn made(&self, content: &[u8]) -> Result<Vec<super::Authenticator>, String> {
        let new = configuration::read(content)?;
        // The issuer of the cluster's own tokens is their audience, too.
        let (mappers, mut errors) = configuration::validate(&new, &self.issuers.audiences);
        if new.anonymous != self.anonymous {
            let why = "changed from initial configuration file";
            errors.push(Error::forbidden(&Field::new("anonymous"), why));
        }
        match configuration::text_of(&errors) {
            Some(why) => Err(why),
            None => Ok(build(&new, mappers, &self.algorithms, &self.callout)),
        }
    }
}
