//! Encryption at rest: changes the keys of all servers together, and serves `kube-lite
//! secrets-encrypt`.

mod change;
mod error;
mod peers;
pub(crate) mod socket;

use std::sync::{Arc, OnceLock};

use base::Problems;
use encryption::{Keys, rewrite};
use serde::{Deserialize, Serialize};
use store::Backend;

use crate::peer_servers::PeerServers;

pub(crate) use error::Error;
pub(crate) use peers::{ServerKeys, catch_up};
pub(crate) use socket::serve;

/// Changes the keys of all servers, one change at a time.
pub(crate) struct SecretsEncryption {
    server_keys: Arc<ServerKeys>,
    store: Arc<dyn Backend>,
    servers: PeerServers,
    /// The file of `encryption-provider-config`, which replaces the server's own keys.
    file: Option<std::path::PathBuf>,
    /// Held during a change.
    running: tokio::sync::Mutex<()>,
    problems: Problems,
}

/// The output of `status`, with k3s's names, and the number of Secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) enable: bool,
    pub(crate) stage: String,
    pub(crate) activekey: String,
    pub(crate) inactivekeys: Vec<String>,
    pub(crate) hashmatch: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) hasherror: Option<String>,
    pub(crate) secrets: usize,
    /// Secrets that would be stored with another key or encryption now.
    pub(crate) stale: usize,
    /// The file of `encryption-provider-config`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) file: Option<String>,
}

impl SecretsEncryption {
    /// Creates the service of this server.
    pub(crate) fn new(
        server_keys: &Arc<ServerKeys>,
        store: &Arc<dyn Backend>,
        servers: PeerServers,
        file: Option<std::path::PathBuf>,
        problems: &Problems,
    ) -> Arc<Self> {
        let encryption = Arc::new(Self {
            server_keys: Arc::clone(server_keys),
            store: Arc::clone(store),
            servers,
            file,
            running: tokio::sync::Mutex::default(),
            problems: problems.clone(),
        });
        encryption.report_unfinished_change();
        // A process creates it once.
        let _ = server_keys.encryption.set(Arc::clone(&encryption));
        encryption
    }

    fn keys(&self) -> &Keys {
        &self.server_keys.keys
    }

    /// Reports in `kube-lite status` a change that was interrupted.
    fn report_unfinished_change(&self) {
        let ring = self.keys().ring();
        let stage = ring.stage().name();
        let fix = match ring.active() {
            Some(_) => "run `kube-lite secrets-encrypt rotate-keys` to resume it",
            None => "run `kube-lite secrets-encrypt disable` to resume it",
        };
        match ring.unfinished() {
            true => {
                let what =
                    format!("a change of the keys of Secrets is unfinished, at stage {stage}");
                self.problems.put("secrets-encrypt", what, fix);
            }
            false => self.problems.clear("secrets-encrypt"),
        }
    }

    /// The state of encryption at rest on all servers.
    ///
    /// # Errors
    /// The store does not answer.
    pub(crate) async fn status(&self) -> Result<Status, Error> {
        let ring = self.keys().ring();
        let count = rewrite::count(&self.store, self.keys()).await?;
        let mut differing = Vec::new();
        for (name, answer) in self.hashes().await {
            match answer {
                Ok(hash) if hash == ring.hash() => {}
                Ok(_) => differing.push(format!("{name} has other keys or another stage")),
                Err(error) => differing.push(format!("{name} does not answer: {error}")),
            }
        }
        Ok(Status {
            enable: ring.active().is_some(),
            stage: ring.stage().name().to_owned(),
            activekey: ring.active().unwrap_or_default().to_owned(),
            inactivekeys: ring.inactive().into_iter().map(str::to_owned).collect(),
            hashmatch: differing.is_empty(),
            hasherror: (!differing.is_empty()).then(|| differing.join("; ")),
            secrets: count.total,
            stale: count.stale,
            file: self.file.as_ref().map(|file| file.display().to_string()),
        })
    }
}

impl ServerKeys {
    /// Wraps the keys; they can be changed once a [`SecretsEncryption`] is created.
    pub(crate) fn new(keys: Arc<Keys>) -> Arc<Self> {
        Arc::new(Self { keys, encryption: OnceLock::new() })
    }
}
