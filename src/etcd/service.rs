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

/// The version of etcd whose interface this is; clients select features by it.
pub const ETCD_VERSION: &str = "3.7.3";

/// The corresponding version of etcd's clusters and databases.
pub(crate) const STORAGE_VERSION: &str = "3.7.0";

/// Maximum message size in both directions: etcd's largest request with its allowance for gRPC
/// (`MaxRequestBytesWithOverhead`).
pub(crate) const MESSAGE_BYTES: usize = store::MAX_REQUEST_BYTES + 512 * 1024;

/// Maximum number of snapshots being sent; each has a file as large as the state.
const SNAPSHOTS_MAX: usize = 2;

/// The services; clones share the store.
#[derive(Debug, Clone)]
pub struct Etcd {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) identity: Arc<Identity>,
    /// Directory of snapshot files while they are sent.
    pub(crate) scratch: PathBuf,
    pub(crate) snapshots: Arc<Semaphore>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) compact_hashes: Arc<CompactHashes>,
    pub(crate) tasks: Tasks,
}

/// Identity of the server.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Id of the cluster, never 0.
    pub(crate) cluster: u64,
    /// Id of this member, never 0.
    pub(crate) member: u64,
    /// Profile of this member.
    pub(crate) profile: Profile,
}

impl Etcd {
    /// The services of a member over `backend`, with the store's ids. Streams run as tasks of
    /// `tasks`; snapshots are unnamed files in the directory `scratch` while they are sent.
    pub fn new(
        backend: Arc<dyn Backend>,
        profile: Profile,
        scratch: impl Into<PathBuf>,
        tasks: Tasks,
    ) -> Self {
        // A store in memory is a cluster of its own.
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

    /// The leader's id; 0 if unknown.
    pub(crate) fn leader(&self) -> u64 {
        let alone = self.identity.member;
        let known =
            |members: Arc<dyn ClusterMembers>| members.leadership().borrow().leader.unwrap_or(0);
        self.backend.members().map_or(alone, known)
    }
}

/// Refuses an unsupported request.
pub(crate) fn refuse<T>(what: &str, instead: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!("kube-lite: {what} is not supported: {instead}")))
}
