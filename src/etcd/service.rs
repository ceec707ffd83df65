//! The state that all services share, and the headers of their responses.

use std::path::PathBuf;
use std::sync::Arc;

use base::Tasks;
use proto::etcdserverpb::ResponseHeader;
use store::{Backend, ClusterMembers, Profile, Revision};
use tokio::sync::Semaphore;
use tonic::Status;

use crate::compact_hashes::CompactHashes;
use crate::counters::Counters;

/// The version of etcd whose interface is spoken; clients choose by it what they ask for.
pub const ETCD_VERSION: &str = "3.7.3";

/// The version of etcd's clusters and databases that goes with it.
pub(crate) const STORAGE_VERSION: &str = "3.7.0";

/// Largest message either way: etcd's largest request with its allowance for gRPC (`MaxRequestBytesWithOverhead`).
pub(crate) const MESSAGE_BYTES: usize = store::MAX_REQUEST_BYTES + 512 * 1024;

/// Snapshots that are sent at a time: each has a file as large as the state.
const SNAPSHOTS_MAX: usize = 2;

/// The services; clones share the store.
#[derive(Debug, Clone)]
pub struct Etcd {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) identity: Arc<Identity>,
    /// Where snapshots stand while they are sent.
    pub(crate) scratch: PathBuf,
    pub(crate) snapshots: Arc<Semaphore>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) compact_hashes: Arc<CompactHashes>,
    pub(crate) tasks: Tasks,
}

/// Who answers.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Of the cluster, never 0.
    pub(crate) cluster: u64,
    /// Of this member, never 0.
    pub(crate) member: u64,
    /// What this member says of itself.
    pub(crate) profile: Profile,
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
            snapshots: Arc::new(Semaphore::new(SNAPSHOTS_MAX)),
            counters: Arc::default(),
            compact_hashes: Arc::default(),
            tasks,
        }
    }

    pub(crate) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.identity.cluster,
            member_id: self.identity.member,
            revision: revision.0,
            raft_term: self.backend.term(),
        })
    }

    pub(crate) fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.backend.revision())
    }

    /// The leader's id; 0 where none is known.
    pub(crate) fn leader(&self) -> u64 {
        let alone = self.identity.member;
        let known =
            |members: Arc<dyn ClusterMembers>| members.leadership().borrow().leader.unwrap_or(0);
        self.backend.members().map_or(alone, known)
    }
}

/// Refuses what the store does not do.
pub(crate) fn refuse<T>(what: &str, instead: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!("kube-lite: {what} is not supported: {instead}")))
}
