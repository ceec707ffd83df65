//! Messages between servers about a rotation of CAs, over the connections of peers, on which both
//! ends have presented certificates of the cluster.

use std::path::Path;
use std::time::Duration;

use cluster::rotation::{self, Files};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store::Member;

use crate::control_socket::Reply;
use crate::peer_servers::{CallError, PeerServers};

/// Timeout of a request to another server.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Distinguishes these requests from those about keys of encryption at rest.
#[derive(Serialize, Deserialize)]
struct Envelope {
    cas: PeerRequest,
}

/// A request to another server.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PeerRequest {
    /// Returns its [`State`].
    State,
    /// Stages files for the next start, if the hash is that of the files in use.
    Put(String, Files),
}

/// The CAs and keys of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// A hash of the files in use.
    pub(crate) in_use: String,
    /// The files that take effect at its next start.
    pub(crate) waiting: Option<Files>,
}

/// Why a rotation cannot be staged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    /// A file of this server cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The server that answers has other CAs than the one that asks.
    #[error("it has other CAs in use")]
    OtherCasInUse,
    /// Another server has other CAs than this one.
    #[error(
        "{server} has other CAs in use than this one: a rotation is in progress; restart kube-lite \
         on each server that has not restarted since"
    )]
    RotationInProgress { server: String },
    /// A request to another server failed.
    #[error("{server}: {source}")]
    Server { server: String, source: CallError },
}

/// The answer to another server; `None` if the message is not about CAs.
pub(crate) async fn handle_message(data_dir: &Path, message: &[u8]) -> Option<Vec<u8>> {
    let Envelope { cas } = serde_json::from_slice(message).ok()?;
    let data_dir = data_dir.to_owned();
    let done = base::tasks::blocking(move || match cas {
        PeerRequest::State => serde_json::to_vec(&Reply::from_outcome(state(&data_dir))),
        PeerRequest::Put(in_use, files) => {
            serde_json::to_vec(&Reply::from_outcome(stage(&data_dir, &in_use, &files)))
        }
    });
    Some(done.await.ok().and_then(Result::ok).unwrap_or_default())
}

/// The CAs and keys of this server.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn state(data_dir: &Path) -> Result<State, PeerError> {
    let in_use = Files::read(&data_dir.join("server/tls"))?;
    Ok(State { in_use: in_use.hash(), waiting: rotation::pending(data_dir)? })
}

fn stage(data_dir: &Path, in_use: &str, files: &Files) -> Result<(), PeerError> {
    if state(data_dir)?.in_use != in_use {
        return Err(PeerError::OtherCasInUse);
    }
    rotation::store_pending(data_dir, files)?;
    tracing::info!("certificates: staged CAs of another server for the next start");
    Ok(())
}

async fn request<T: DeserializeOwned>(
    servers: &PeerServers,
    member: &Member,
    cas: PeerRequest,
) -> Result<T, PeerError> {
    let answer = servers.call(member, &Envelope { cas }, Some(TIMEOUT)).await;
    answer.map_err(|source| PeerError::Server { server: servers.name(member), source })
}

/// A rotation that is already staged on one of the other servers, if all have the same CAs in use.
///
/// # Errors
/// A server does not answer or has other CAs.
pub(crate) async fn staged(servers: &PeerServers, own: &State) -> Result<Option<Files>, PeerError> {
    let mut staged = own.waiting.clone();
    for member in servers.others() {
        let state: State = request(servers, &member, PeerRequest::State).await?;
        if state.in_use != own.in_use {
            return Err(PeerError::RotationInProgress { server: servers.name(&member) });
        }
        staged = staged.or(state.waiting);
    }
    Ok(staged)
}

/// Stages a rotation on all other servers.
///
/// # Errors
/// A server does not accept it; the servers before it have.
pub(crate) async fn stage_on_others(
    servers: &PeerServers,
    in_use: &str,
    files: &Files,
) -> Result<(), PeerError> {
    for member in servers.others() {
        let put = PeerRequest::Put(in_use.to_owned(), files.clone());
        request::<()>(servers, &member, put).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::certs::{self, Names};
    use cluster::rotation::{RotationSource, plan};

    #[tokio::test]
    async fn a_rotation_is_staged_only_where_the_same_cas_are_in_use() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        certs::ensure(one.path(), &Names::default()).unwrap();
        certs::ensure(two.path(), &Names::default()).unwrap();
        let in_use = Files::read(&one.path().join("server/tls")).unwrap();
        let files = plan(&in_use, &RotationSource::Made, false, base::pki::now()).unwrap();
        let reply = async |dir: &Path, cas: PeerRequest| {
            let message = serde_json::to_vec(&Envelope { cas }).unwrap();
            String::from_utf8(handle_message(dir, &message).await.unwrap()).unwrap()
        };
        let put = || PeerRequest::Put(in_use.hash(), files.clone());
        assert_eq!(reply(two.path(), put()).await, r#"{"Err":"it has other CAs in use"}"#);
        assert!(!rotation::is_pending(two.path()));
        assert_eq!(reply(one.path(), put()).await, r#"{"Ok":null}"#);
        let state = reply(one.path(), PeerRequest::State).await;
        let state: Reply<State> = serde_json::from_str(&state).unwrap();
        let expected = State { in_use: in_use.hash(), waiting: Some(files.clone()) };
        assert_eq!(state, Reply::Ok(expected));
        // Requests about keys of encryption at rest are handled elsewhere.
        assert_eq!(handle_message(one.path(), br#""hash""#).await, None);
        assert_eq!(handle_message(one.path(), br#"{"adopt":"x"}"#).await, None);
    }
}
