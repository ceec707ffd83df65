//! Encryption at rest in operation: keys of several servers changed as one, and what `kube-lite secrets-encrypt` asks for.

mod change;
mod peers;
pub(crate) mod socket;

use std::sync::{Arc, OnceLock};

use apiserver::encryption::{Keys, rewrite};
use base::Problems;
use cluster::peers::PeerClient;
use serde::{Deserialize, Serialize};
use store::{Backend, Members};

pub(crate) use peers::{Place, catch_up};
pub(crate) use socket::serve;

/// Changes the keys of all servers, one change at a time.
pub(crate) struct Sealing {
    place: Arc<Place>,
    store: Arc<dyn Backend>,
    members: Arc<Members>,
    calls: Arc<PeerClient>,
    /// The file that says what is sealed instead of the server's own keys.
    file: Option<std::path::PathBuf>,
    one: tokio::sync::Mutex<()>,
    problems: Problems,
}

/// What `status` tells; k3s's names, and how much there is under which key.
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
    /// Those that would be sealed otherwise now.
    pub(crate) stale: usize,
    /// The file of `encryption-provider-config`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) file: Option<String>,
}

impl Sealing {
    /// Of this server among its members.
    pub(crate) fn new(
        place: &Arc<Place>,
        store: &Arc<dyn Backend>,
        members: &Arc<Members>,
        calls: &Arc<PeerClient>,
        file: Option<std::path::PathBuf>,
        problems: &Problems,
    ) -> Arc<Self> {
        let sealing = Arc::new(Self {
            place: Arc::clone(place),
            store: Arc::clone(store),
            members: Arc::clone(members),
            calls: Arc::clone(calls),
            file,
            one: tokio::sync::Mutex::default(),
            problems: problems.clone(),
        });
        sealing.note();
        // There is one of a process.
        let _ = place.sealing.set(Arc::clone(&sealing));
        sealing
    }

    fn keys(&self) -> &Keys {
        &self.place.keys
    }

    /// Says on the board whether a change waits to be finished.
    fn note(&self) {
        let ring = self.keys().ring();
        let stage = ring.stage().name();
        let fix = match ring.active() {
            Some(_) => "run `kube-lite secrets-encrypt rotate-keys`, which goes on where it was",
            None => "run `kube-lite secrets-encrypt disable`, which goes on where it was",
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

    /// How things are.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn status(&self) -> Result<Status, String> {
        let ring = self.keys().ring();
        let count = rewrite::count(&self.store, self.keys()).await.map_err(|e| e.to_string())?;
        let mut differing = Vec::new();
        for (name, answer) in self.hashes().await {
            match answer {
                Ok(hash) if hash == ring.hash() => {}
                Ok(_) => differing.push(format!("{name} has other keys or another stage")),
                Err(why) => differing.push(format!("{name} does not answer: {why}")),
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

impl Place {
    /// With these keys; changes begin once a [`Sealing`] is made.
    pub(crate) fn new(keys: Arc<Keys>) -> Arc<Self> {
        Arc::new(Self { keys, sealing: OnceLock::new() })
    }
}
