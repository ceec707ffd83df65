//! etcd v3's gRPC interface over the store, so that etcdctl, etcd's clients and programs that keep their state in etcd work.
//!
//! One file per service. What etcd answers is the specification, down to the texts of its errors (etcd 3.7.3); what is not
//! there is refused by name in [`refuse`].

mod answer;
mod auth;
mod authority_filter;
mod cluster;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
mod hpack;
mod http;
mod kv;
mod lease;
mod listing;
mod maintenance;
mod metrics;
mod range;
mod serve;
mod snapshot;
mod sums;
mod txn;
mod unary;
mod urls;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use base::Tasks;
use proto::etcdserverpb::ResponseHeader;
use store::{Backend, ClusterMembers, Profile, Revision};
use tokio::sync::Semaphore;
use tonic::Status;

use metrics::Counters;
pub use serve::serve;
use sums::Sums;

/// The version of etcd whose interface is spoken; clients choose by it what they ask for.
pub const ETCD_VERSION: &str = "3.7.3";

/// The version of etcd's clusters and databases that goes with it.
const STORAGE_VERSION: &str = "3.7.0";

/// Largest message either way: etcd's largest request with its allowance for gRPC (`MaxRequestBytesWithOverhead`).
const MESSAGE_BYTES: usize = store::MAX_REQUEST_BYTES + 512 * 1024;

/// The services; clones share the store.
#[derive(Debug, Clone)]
pub struct Etcd {
    backend: Arc<dyn Backend>,
    identity: Arc<Identity>,
    /// Where snapshots stand while they are sent.
    scratch: PathBuf,
    snapshots: Arc<Semaphore>,
    counters: Arc<Counters>,
    sums: Arc<Sums>,
    tasks: Tasks,
}

/// Who answers.
#[derive(Debug)]
struct Identity {
    /// Of the cluster, never 0.
    cluster: u64,
    /// Of this member, never 0.
    member: u64,
    /// What this member says of itself.
    profile: Profile,
}

impl Etcd {
    /// The services of one member over `backend`, under the store's own ids. Streams run as tasks of `tasks`; snapshots are
    /// files without a name in the directory `scratch` while they are sent.
    pub fn new(
        backend: Arc<dyn Backend>,
        profile: Profile,
        scratch: impl Into<PathBuf>,
        tasks: Tasks,
    ) -> Self {
        // A store in memory is a cluster for itself.
        let (cluster, member) = backend.members().map_or((1, 1), |members| {
            let store::ClusterId(id) = members.cluster();
            let number = id.first_chunk().map_or(1, |bytes| u64::from_be_bytes(*bytes).max(1));
            (number, members.id())
        });
        Self {
            backend,
            identity: Arc::new(Identity { cluster, member, profile }),
            scratch: scratch.into(),
            snapshots: Arc::new(Semaphore::new(snapshot::UNDER_WAY)),
            counters: Arc::default(),
            sums: Arc::default(),
            tasks,
        }
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

    /// The leader's id; 0 where none is known.
    fn leader(&self) -> u64 {
        let alone = self.identity.member;
        let known =
            |members: Arc<dyn ClusterMembers>| members.leadership().borrow().leader.unwrap_or(0);
        self.backend.members().map_or(alone, known)
    }
}

#[cfg(test)]
mod tests;

/// Refuses what the store does not do.
fn refuse<T>(what: &str, instead: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!("kube-lite: {what} is not supported: {instead}")))
}
