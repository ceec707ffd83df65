//! Messages between servers about keys, over the connections of peers, on which both ends have
//! presented certificates of the cluster.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Backoff, Shutdown};
use encryption::{Keys, Ring, Wish};
use serde::{Deserialize, Serialize};
use store::{Member, Role};

use super::SecretsEncryption;
use super::error::{Error, PeerError};
use crate::control_socket::Reply;
use crate::peer_servers::PeerServers;

/// Timeout of a request to another server, which may have to wait for its own writes.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long the start waits for the keys of other servers.
const CATCH_UP_MAX: Duration = Duration::from_secs(15);

/// A request to another server; the answer is a text.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PeerRequest {
    /// Returns the hash of its keys.
    Hash,
    /// Returns its keys.
    Ring,
    /// Adopts these keys.
    Adopt(String),
    /// Changes the keys of all servers, as the leader; returns the report.
    Change(Wish),
}

/// This server's keys, and the service that changes them.
pub(crate) struct ServerKeys {
    pub(crate) keys: Arc<Keys>,
    pub(crate) encryption: OnceLock<Arc<SecretsEncryption>>,
}

impl ServerKeys {
    /// The answer to a message of another server.
    pub(crate) async fn handle_message(&self, message: &[u8]) -> Vec<u8> {
        let reply = match serde_json::from_slice(message) {
            Ok(request) => Reply::from_outcome(self.handle(request).await),
            Err(error) => Reply::Err(format!("the request cannot be parsed: {error}")),
        };
        serde_json::to_vec(&reply).unwrap_or_default()
    }

    async fn handle(&self, request: PeerRequest) -> Result<String, Error> {
        match request {
            PeerRequest::Hash => Ok(self.keys.ring().hash()),
            PeerRequest::Ring if self.keys.is_unsaved() => Err(Error::MissingKeys),
            PeerRequest::Ring => Ok(self.keys.ring().render()),
            PeerRequest::Adopt(text) => {
                let ring = Ring::parse(&text, "keys").map_err(|e| Error::Keys(e.to_string()))?;
                let adopted = self.keys.adopt(ring).await;
                if let Some(encryption) = self.encryption.get() {
                    encryption.report_unfinished_change();
                }
                adopted.map(|()| String::new()).map_err(|e| Error::Keys(e.to_string()))
            }
            PeerRequest::Change(wish) => match self.encryption.get() {
                // Boxed because the future is recursive: the leader asked may ask another one.
                Some(encryption) => Box::pin(encryption.change_here(wish)).await,
                None => Err(Error::Starting),
            },
        }
    }
}

/// The keys of another server.
async fn ring_of(
    servers: &PeerServers,
    member: &Member,
    timeout: Duration,
) -> Result<Ring, PeerError> {
    let text: String = servers.call(member, &PeerRequest::Ring, Some(timeout)).await?;
    Ring::parse(&text, "keys").map_err(|e| PeerError::Keys(e.to_string()))
}

impl SecretsEncryption {
    async fn request(&self, member: &Member, request: &PeerRequest) -> Result<String, PeerError> {
        Ok(self.servers.call(member, request, Some(TIMEOUT)).await?)
    }

    /// The hashes of the keys of all other servers, by name.
    pub(crate) async fn hashes(&self) -> Vec<(String, Result<String, PeerError>)> {
        let mut all = Vec::new();
        for member in self.servers.others() {
            let hash = self.request(&member, &PeerRequest::Hash).await;
            all.push((self.servers.name(&member), hash));
        }
        all
    }

    /// The keys of all servers, those of this one first.
    ///
    /// # Errors
    /// A server does not answer.
    pub(crate) async fn rings(&self) -> Result<Vec<Ring>, Error> {
        let mut rings = vec![Ring::clone(&self.keys().ring())];
        for member in self.servers.others() {
            let ring = ring_of(&self.servers, &member, TIMEOUT).await;
            let failed = |source| Error::Server { server: self.servers.name(&member), source };
            rings.push(ring.map_err(failed)?);
        }
        Ok(rings)
    }

    /// Makes all other servers adopt `ring`, then this one; the number of servers that had another
    /// one.
    ///
    /// # Errors
    /// A server does not adopt it; the servers before it have.
    pub(crate) async fn adopt_on_all(&self, ring: &Ring) -> Result<usize, Error> {
        let mut changed = 0;
        for member in self.servers.others() {
            let failed = |source| Error::Server { server: self.servers.name(&member), source };
            let hash = self.request(&member, &PeerRequest::Hash).await;
            if hash.map_err(failed)? == ring.hash() {
                continue;
            }
            let adopted = self.request(&member, &PeerRequest::Adopt(ring.render())).await;
            adopted.map_err(failed)?;
            changed += 1;
        }
        if self.keys().ring().hash() != ring.hash() {
            let adopted = self.keys().adopt(ring.clone()).await;
            adopted.map_err(|e| Error::Keys(e.to_string()))?;
            changed += 1;
        }
        Ok(changed)
    }

    /// Makes the leader change the keys; its report, or `None` if this server is the leader.
    ///
    /// # Errors
    /// There is no leader, or it does not make the change.
    pub(crate) async fn by_leader(&self, wish: Wish) -> Result<Option<String>, Error> {
        let leadership = self.servers.members.leadership().borrow().clone();
        if leadership.leads {
            return Ok(None);
        }
        let leader = leadership.leader.ok_or(Error::NoLeader)?;
        let members = self.servers.members.list();
        let member = members.iter().find(|member| member.id == leader);
        let member = member.ok_or(Error::UnknownLeader)?;
        // Without a timeout, since the duration depends on the number of Secrets. A lost connection
        // ends the call.
        let report = self.servers.call(member, &PeerRequest::Change(wish), None).await;
        report
            .map(Some)
            .map_err(|source| Error::Leader { server: self.servers.name(member), source })
    }
}

/// Adopts newer keys of other servers before anything is read: the keys may have changed while this
/// server was down, or before it `joined`.
pub(crate) async fn catch_up(
    keys: &Keys,
    servers: &PeerServers,
    joined: bool,
    shutdown: &Shutdown,
) {
    // The only voter has made every change itself, so it does not wait for learners.
    let others = || {
        let all = servers.others().into_iter();
        all.filter(|member| joined || member.role == Role::Voter).collect::<Vec<_>>()
    };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
    let deadline = base::clock::now() + CATCH_UP_MAX;
    while !others().is_empty() {
        let mut has_answer = false;
        for member in others() {
            let ring = ring_of(servers, &member, Duration::from_secs(2)).await;
            let Ok(ring) = ring else { continue };
            has_answer = true;
            if keys.is_unsaved() || ring.generation() > keys.ring().generation() {
                if let Err(error) = keys.adopt(ring).await {
                    tracing::warn!(%error, "secrets-encrypt: cannot adopt newer keys of another server");
                }
            }
        }
        if has_answer {
            return;
        }
        if base::clock::now() >= deadline || !backoff.wait(shutdown).await {
            tracing::warn!("secrets-encrypt: no other server answers, using the keys of this one");
            return;
        }
    }
}
