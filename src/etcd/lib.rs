//! etcd v3's gRPC interface over the store, so that etcdctl, etcd's clients and programs that keep their state in etcd work.
//!
//! One file per service. What etcd answers is the specification, down to the texts of its errors (etcd 3.7.3); what is not
//! there is refused by name in [`refuse`].

mod answer;
mod auth;
mod cluster;
mod kv;
mod lease;
mod maintenance;
mod range;
mod serve;
mod snapshot;
mod txn;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use base::Tasks;
use proto::etcdserverpb::ResponseHeader;
use store::{Backend, Revision};
use tokio::sync::Semaphore;
use tonic::Status;

pub use serve::serve;

/// The version of etcd whose interface is spoken; clients choose by it what they ask for.
pub const ETCD_VERSION: &str = "3.7.3";

/// Largest message either way: etcd's largest request with its allowance for gRPC (`MaxRequestBytesWithOverhead`).
const MESSAGE_BYTES: usize = store::MAX_REQUEST_BYTES + 512 * 1024;

/// Who answers.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Of the cluster, never 0.
    pub cluster: u64,
    /// Of this member, never 0.
    pub member: u64,
    /// Name of this member.
    pub name: String,
    /// Where clients reach this member, `https://host:port`.
    pub client_urls: Vec<String>,
}

impl Identity {
    /// The member on the machine `name` of the cluster that `cluster` stands for, such as the hash of its CA. The ids stay the
    /// same when addresses change.
    pub fn of(cluster: &str, name: &str, client_urls: Vec<String>) -> Self {
        let id = |text: &str| {
            let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
            // 0 is nobody's id.
            digest.as_ref().first_chunk().map_or(1, |bytes| u64::from_be_bytes(*bytes).max(1))
        };
        let member = id(&format!("{cluster} {name}"));
        Self { cluster: id(cluster), member, name: name.to_owned(), client_urls }
    }
}

/// The services; clones share the store.
#[derive(Debug, Clone)]
pub struct Etcd {
    backend: Arc<dyn Backend>,
    identity: Arc<Identity>,
    /// Where snapshots stand while they are sent.
    scratch: PathBuf,
    snapshots: Arc<Semaphore>,
    tasks: Tasks,
}

impl Etcd {
    /// The services of one member over `backend`. Streams run as tasks of `tasks`; snapshots are files without a name in the
    /// directory `scratch` while they are sent.
    pub fn new(
        backend: Arc<dyn Backend>,
        identity: Identity,
        scratch: impl Into<PathBuf>,
        tasks: Tasks,
    ) -> Self {
        let snapshots = Arc::new(Semaphore::new(snapshot::UNDER_WAY));
        Self { backend, identity: Arc::new(identity), scratch: scratch.into(), snapshots, tasks }
    }

    fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.identity.cluster,
            member_id: self.identity.member,
            revision: revision.0,
            raft_term: self.backend.term(),
        })
    }

    fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.backend.revision())
    }
}

#[cfg(test)]
mod tests;

/// Refuses what the store does not do.
fn refuse<T>(what: &str, instead: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!("kube-lite: {what} is not supported: {instead}")))
}
