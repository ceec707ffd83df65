//! The way to other members: there are none yet, so every call says that the member cannot be reached.

use std::future::Future;
use std::io;

use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};

use super::checkpoints::Checkpoint;
use super::{Types, Vote};

type Snapshot = openraft::type_config::alias::SnapshotOf<Types, Checkpoint>;

/// Makes [`Peer`]s.
#[derive(Debug)]
pub(super) struct Peers;

/// Another member.
#[derive(Debug)]
pub(super) struct Peer(u64);

impl Peer {
    fn unreachable(&self) -> Unreachable<Types> {
        let text = format!("there is no way to the member {:016x}", self.0);
        Unreachable::new(&io::Error::other(text))
    }
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, _: &openraft::EmptyNode) -> Peer {
        Peer(target)
    }
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = Checkpoint;

    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn vote(
        &mut self,
        _: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn pre_vote(
        &mut self,
        _: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn full_snapshot(
        &mut self,
        _: Vote,
        _: Snapshot,
        _: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(StreamingError::Unreachable(self.unreachable()))
    }
}
