//! What servers tell each other about a change of CAs, over the connections of peers: both ends have shown certificates of the
//! cluster.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use cluster::peers::PeerClient;
use cluster::rotation::{self, Files};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store::{Member, Members};

/// How long another server may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Tells these questions from those about keys of Secrets.
#[derive(Serialize, Deserialize)]
struct Envelope {
    cas: Ask,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ask {
    /// What it has.
    State,
    /// To put these by, if it has in use what is named by the hash.
    Put(String, Files),
}

/// What a server has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// A hash of the files in use.
    pub(crate) in_use: String,
    /// What it takes over at its next start.
    pub(crate) waiting: Option<Files>,
}

/// The answer, or why there is none.
type Told<T> = Result<T, String>;

/// What another server is answered; `None` when this is about something else.
pub(crate) async fn answer(data_dir: &Path, message: &[u8]) -> Option<Vec<u8>> {
    let Envelope { cas } = serde_json::from_slice(message).ok()?;
    let data_dir = data_dir.to_owned();
    let done = base::tasks::blocking(move || match cas {
        Ask::State => serde_json::to_vec(&state(&data_dir)),
        Ask::Put(in_use, files) => serde_json::to_vec(&put(&data_dir, &in_use, &files)),
    });
    Some(done.await.ok().and_then(Result::ok).unwrap_or_default())
}

/// What this server has.
pub(crate) fn state(data_dir: &Path) -> Told<State> {
    let in_use = Files::read(&data_dir.join("server/tls")).map_err(|e| e.to_string())?;
    let waiting = rotation::pending(data_dir).map_err(|e| e.to_string())?;
    Ok(State { in_use: in_use.hash(), waiting })
}

fn put(data_dir: &Path, in_use: &str, files: &Files) -> Told<()> {
    if state(data_dir)?.in_use != in_use {
        return Err("it has other CAs in use".to_owned());
    }
    rotation::store_pending(data_dir, files).map_err(|e| e.to_string())?;
    tracing::info!("CAs of another server wait for the next start");
    Ok(())
}

/// The other servers, and the way to them.
pub(crate) struct Others<'a> {
    pub(crate) members: &'a Members,
    pub(crate) calls: &'a PeerClient,
}

impl Others<'_> {
    /// Who they are.
    pub(crate) fn list(&self) -> Vec<Member> {
        let all = self.members.list().into_iter();
        all.filter(|member| member.id != self.members.id()).collect()
    }

    fn name(&self, member: &Member) -> String {
        match self.members.profiles().get(&member.id) {
            Some(profile) => format!("server {} ({})", profile.name, member.address),
            None => format!("server {:016x} ({})", member.id, member.address),
        }
    }

    async fn ask<T: DeserializeOwned>(&self, member: &Member, cas: Ask) -> Told<T> {
        let message = serde_json::to_vec(&Envelope { cas }).map_err(|e| e.to_string())?;
        let call = self.calls.call_control(&member.address, Bytes::from(message));
        let answer = tokio::time::timeout(ANSWER_MAX, call).await;
        let answer = answer.map_err(|_| format!("no answer within {ANSWER_MAX:?}"));
        let answer = answer.and_then(|told| told.map_err(|e| e.to_string()));
        let read = answer.and_then(|bytes| {
            let told: Told<T> = serde_json::from_slice(&bytes)
                .map_err(|_| "its answer is not understood, is it of an older version?")?;
            told
        });
        read.map_err(|why| format!("{}: {why}", self.name(member)))
    }

    /// A change that already waits on one of them, when all have in use what this server has.
    ///
    /// # Errors
    /// Who does not answer, or has other CAs.
    pub(crate) async fn waiting(&self, own: &State) -> Told<Option<Files>> {
        let mut waiting = own.waiting.clone();
        for member in self.list() {
            let state: State = self.ask(&member, Ask::State).await?;
            if state.in_use != own.in_use {
                return Err(format!(
                    "{} has other CAs in use than this one: a change is on its way; restart kube-lite on each server that has not started since",
                    self.name(&member)
                ));
            }
            waiting = waiting.or(state.waiting);
        }
        Ok(waiting)
    }

    /// Puts a change by on all of them.
    ///
    /// # Errors
    /// Who does not take it; those before have.
    pub(crate) async fn put_by(&self, in_use: &str, files: &Files) -> Told<()> {
        for member in self.list() {
            self.ask::<()>(&member, Ask::Put(in_use.to_owned(), files.clone())).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::certs::{self, Names};
    use cluster::rotation::{RotationSource, plan};

    #[tokio::test]
    async fn a_change_is_put_by_where_the_same_cas_are_in_use_alone() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        certs::ensure(one.path(), &Names::default()).unwrap();
        certs::ensure(two.path(), &Names::default()).unwrap();
        let in_use = Files::read(&one.path().join("server/tls")).unwrap();
        let files = plan(&in_use, &RotationSource::Made, false, base::pki::now()).unwrap();
        let told = async |dir: &Path, cas: Ask| {
            let message = serde_json::to_vec(&Envelope { cas }).unwrap();
            String::from_utf8(answer(dir, &message).await.unwrap()).unwrap()
        };
        let put = || Ask::Put(in_use.hash(), files.clone());
        assert_eq!(told(two.path(), put()).await, r#"{"Err":"it has other CAs in use"}"#);
        assert!(!rotation::is_pending(two.path()));
        assert_eq!(told(one.path(), put()).await, r#"{"Ok":null}"#);
        let state = told(one.path(), Ask::State).await;
        let state: Told<State> = serde_json::from_str(&state).unwrap();
        let wanted = State { in_use: in_use.hash(), waiting: Some(files.clone()) };
        assert_eq!(state, Ok(wanted));
        // Questions about keys of Secrets are not its.
        assert_eq!(answer(one.path(), br#""hash""#).await, None);
        assert_eq!(answer(one.path(), br#"{"adopt":"x"}"#).await, None);
    }
}
