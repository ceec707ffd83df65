//! What servers tell each other about keys, over the connections of peers: both ends have shown certificates of the cluster.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apiserver::encryption::{Keys, Ring, Wish};
use base::{Backoff, Shutdown};
use bytes::Bytes;
use cluster::peers::PeerClient;
use serde::{Deserialize, Serialize};
use store::{Member, Members, Role};

use super::Sealing;

/// How long another server may take to answer; the longest thing it does is to wait for its own writes.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How long a start waits for the keys of others.
const CATCH_UP_MAX: Duration = Duration::from_secs(15);

/// What is asked.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ask {
    /// The hash of its keys.
    Hash,
    /// Its keys.
    Ring,
    /// To take these.
    Adopt(String),
    /// To change keys everywhere, as the leader.
    Change(Wish),
}

/// The answer: a text, or why there is none.
type Told = Result<String, String>;

/// This server's keys, and who changes them.
pub(crate) struct Place {
    pub(crate) keys: Arc<Keys>,
    pub(crate) sealing: OnceLock<Arc<Sealing>>,
}

impl Place {
    /// What another server is answered.
    pub(crate) async fn answer(&self, message: &[u8]) -> Vec<u8> {
        let told = match serde_json::from_slice(message) {
            Ok(ask) => self.act(ask).await,
            Err(error) => Err(format!("the question is not understood: {error}")),
        };
        serde_json::to_vec(&told).unwrap_or_default()
    }

    async fn act(&self, ask: Ask) -> Told {
        match ask {
            Ask::Hash => Ok(self.keys.ring().hash()),
            Ask::Ring if self.keys.is_unsaved() => {
                Err("its keys are missing, it takes them from another server".to_owned())
            }
            Ask::Ring => Ok(self.keys.ring().render()),
            Ask::Adopt(text) => {
                let ring = Ring::parse(&text, "keys").map_err(|e| e.to_string())?;
                let adopted = self.keys.adopt(ring).await;
                if let Some(sealing) = self.sealing.get() {
                    sealing.note();
                }
                adopted.map(|()| String::new())
            }
            Ask::Change(wish) => match self.sealing.get() {
                // On the heap: who is asked as the leader may ask another one in turn.
                Some(sealing) => Box::pin(sealing.change_here(wish)).await,
                None => Err("it is still starting".to_owned()),
            },
        }
    }
}

async fn asked(calls: &PeerClient, address: &str, ask: &Ask, within: Option<Duration>) -> Told {
    let message = serde_json::to_vec(ask).map_err(|e| e.to_string())?;
    let call = calls.call_control(address, Bytes::from(message));
    let answer = match within {
        Some(within) => tokio::time::timeout(within, call)
            .await
            .map_err(|_| format!("no answer within {within:?}"))?,
        None => call.await,
    };
    let answer = answer.map_err(|e| e.to_string())?;
    serde_json::from_slice(&answer).map_err(|e| format!("its answer is not understood: {e}"))?
}

fn others(members: &Members) -> Vec<Member> {
    members.list().into_iter().filter(|member| member.id != members.id()).collect()
}

impl Sealing {
    fn name(&self, member: &Member) -> String {
        match self.members.profiles().get(&member.id) {
            Some(profile) => format!("server {} ({})", profile.name, member.address),
            None => format!("server {:016x} ({})", member.id, member.address),
        }
    }

    /// What all others have.
    pub(crate) async fn hashes(&self) -> Vec<(String, Told)> {
        let mut all = Vec::new();
        for member in others(&self.members) {
            let told = asked(&self.calls, &member.address, &Ask::Hash, Some(ANSWER_MAX)).await;
            all.push((self.name(&member), told));
        }
        all
    }

    /// Keys of all servers, this one's first.
    ///
    /// # Errors
    /// Who does not answer.
    pub(crate) async fn rings(&self) -> Result<Vec<Ring>, String> {
        let mut rings = vec![Ring::clone(&self.keys().ring())];
        for member in others(&self.members) {
            let told = asked(&self.calls, &member.address, &Ask::Ring, Some(ANSWER_MAX)).await;
            let ring = told.and_then(|text| Ring::parse(&text, "keys").map_err(|e| e.to_string()));
            rings.push(ring.map_err(|why| format!("{}: {why}", self.name(&member)))?);
        }
        Ok(rings)
    }

    /// Puts `ring` in force on all others, then here; how many had another one.
    ///
    /// # Errors
    /// Who does not take it; those before have.
    pub(crate) async fn everywhere(&self, ring: &Ring) -> Result<usize, String> {
        let mut changed = 0;
        for member in others(&self.members) {
            let failed = |why| format!("{}: {why}", self.name(&member));
            let told = asked(&self.calls, &member.address, &Ask::Hash, Some(ANSWER_MAX)).await;
            if told.map_err(failed)? == ring.hash() {
                continue;
            }
            let adopt = Ask::Adopt(ring.render());
            let told = asked(&self.calls, &member.address, &adopt, Some(ANSWER_MAX)).await;
            told.map_err(failed)?;
            changed += 1;
        }
        if self.keys().ring().hash() != ring.hash() {
            self.keys().adopt(ring.clone()).await?;
            changed += 1;
        }
        Ok(changed)
    }

    /// Has the leader do it; `None` when that is this server.
    pub(crate) async fn by_leader(&self, wish: Wish) -> Option<Told> {
        let leadership = self.members.leadership().borrow().clone();
        if leadership.leads {
            return None;
        }
        let Some(leader) = leadership.leader else {
            return Some(Err("the servers have no leader now, try again".to_owned()));
        };
        let members = self.members.list();
        let Some(member) = members.iter().find(|member| member.id == leader) else {
            return Some(Err("the leader is not known yet, try again".to_owned()));
        };
        // It takes as long as there are Secrets; a lost connection ends it.
        let told = asked(&self.calls, &member.address, &Ask::Change(wish), None).await;
        Some(told.map_err(|why| format!("{} leads: {why}", self.name(member))))
    }
}

/// Takes newer keys of other servers before anything is read: a change may have gone on while this one was away or `joined`.
pub(crate) async fn catch_up(
    keys: &Keys,
    members: &Members,
    calls: &PeerClient,
    joined: bool,
    shutdown: &Shutdown,
) {
    // The only voter has made every change itself, and waits for nobody who follows it.
    let others = |members: &Members| {
        let all = others(members).into_iter();
        all.filter(|member| joined || member.role == Role::Voter).collect::<Vec<_>>()
    };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
    let until = base::clock::now() + CATCH_UP_MAX;
    while !others(members).is_empty() {
        let mut heard = false;
        for member in others(members) {
            let told =
                asked(calls, &member.address, &Ask::Ring, Some(Duration::from_secs(2))).await;
            let Ok(ring) = told.and_then(|t| Ring::parse(&t, "keys").map_err(|e| e.to_string()))
            else {
                continue;
            };
            heard = true;
            if keys.is_unsaved() || ring.generation() > keys.ring().generation() {
                if let Err(error) = keys.adopt(ring).await {
                    tracing::warn!(error, "newer keys of another server cannot be taken");
                }
            }
        }
        if heard {
            return;
        }
        if base::clock::now() >= until || !backoff.wait(shutdown).await {
            tracing::warn!(
                "no other server says which keys Secrets are sealed with, going on with those of this one"
            );
            return;
        }
    }
}
