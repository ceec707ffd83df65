//! openraft's way to other members: its requests in our encoding, checkpoints in pieces.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};

use super::checkpoints::Checkpoint;
use super::link::{Lane, Link};
use super::machine::Applied;
use super::wire::{Answer, Chunk, Request};
use super::{Address, Types, Vote};
use crate::disk::DiskWork;

type Snapshot = openraft::type_config::alias::SnapshotOf<Types, Checkpoint>;

/// Bytes of a checkpoint in one message.
const CHUNK_BYTES: usize = if cfg!(test) { 16 * 1024 } else { 1024 * 1024 };

/// Longest wait for entries to be on a follower's disk before they are sent again: a flash card may take seconds for a sync, and
/// a member that was cut off must not be waited for much longer than it is away.
const APPEND_WAIT: Duration = Duration::from_secs(2);

/// Longest wait for the answer to a piece of a checkpoint: also over a link of some kilobytes a second.
const CHUNK_WAIT: Duration = Duration::from_secs(60);

/// Longest wait for the answer to the last piece, behind which the receiver reads the whole state.
const INSTALL_WAIT: Duration = Duration::from_secs(600);

/// Pieces that may be asked for again before the transfer is begun anew.
const REPEATS_MAX: usize = 8;

/// Makes [`Peer`]s.
pub(super) struct Peers {
    pub(super) link: Arc<Link>,
    pub(super) work: DiskWork,
}

/// Another member.
pub(super) struct Peer {
    id: u64,
    link: Arc<Link>,
    work: DiskWork,
}

/// An answer to something else.
fn unexpected(answer: &Answer) -> Unreachable<Types> {
    let text = match answer {
        Answer::Refused(error) => format!("the member refused: {error}"),
        _ => "the member answered something else".to_owned(),
    };
    Unreachable::from_string(text)
}

impl Peer {
    async fn ask(&self, request: &Request, limit: Duration) -> Result<Answer, Unreachable<Types>> {
        let answer = self.link.call(self.id, Lane::Steps, request, limit).await;
        answer.map_err(|error| Unreachable::new(&error))
    }

    async fn send(&self, vote: Vote, snapshot: Snapshot) -> io::Result<Vote> {
        let meta = snapshot.meta;
        let applied = Applied { id: meta.last_log_id, membership: meta.last_membership };
        let checkpoint = snapshot.snapshot;
        let (mut file, total) = self.work.run(move || checkpoint.open()).await??;
        // Empty at first: that asks how much is there of an interrupted transfer.
        let (mut offset, mut data, mut repeats) = (0, Vec::new(), 0);
        loop {
            let whole = offset + data.len() as u64 == total;
            let chunk = Chunk {
                vote,
                applied: applied.clone(),
                total,
                offset,
                checksum: crc32c::crc32c(&data),
                data: std::mem::take(&mut data).into(),
            };
            let limit = if whole { INSTALL_WAIT } else { CHUNK_WAIT };
            let before = offset + chunk.data.len() as u64;
            let request = Request::Chunk(chunk);
            let answer = self.link.call(self.id, Lane::Bulk, &request, limit).await;
            match answer.map_err(io::Error::other)? {
                Answer::Have(have) if have <= total => offset = have,
                Answer::Installed(vote) => return Ok(vote),
                other => return Err(io::Error::other(unexpected(&other))),
            }
            if offset < before || whole {
                repeats += 1;
                if repeats > REPEATS_MAX {
                    return Err(io::Error::other("the member does not get the whole checkpoint"));
                }
            }
            let from = offset;
            let read = move || {
                let mut data = vec![0; CHUNK_BYTES];
                let read = file.read_at(from, &mut data);
                read.map(|read| {
                    data.truncate(read);
                    (data, file)
                })
            };
            (data, file) = self.work.run(read).await??;
            if data.is_empty() && offset < total {
                return Err(io::Error::other("the checkpoint has become shorter"));
            }
        }
    }
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, address: &Address) -> Peer {
        self.link.locate(target, address);
        Peer { id: target, link: Arc::clone(&self.link), work: self.work }
    }
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = Checkpoint;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let limit = if request.entries.is_empty() { option.hard_ttl() } else { APPEND_WAIT };
        match self.ask(&Request::Append(request), limit).await? {
            Answer::Append(answer) => Ok(answer),
            other => Err(unexpected(&other).into()),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.ask(&Request::Vote(request), option.hard_ttl()).await? {
            Answer::Vote(answer) => Ok(answer),
            other => Err(unexpected(&other).into()),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.ask(&Request::PreVote(request), option.hard_ttl()).await? {
            Answer::Vote(answer) => Ok(answer),
            other => Err(unexpected(&other).into()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        tokio::select! {
            biased;
            closed = cancel => Err(closed.into()),
            // Also where the file cannot be read: a newer checkpoint may have taken its place.
            sent = self.send(vote, snapshot) => match sent {
                Ok(vote) => Ok(SnapshotResponse { vote }),
                Err(error) => Err(Unreachable::new(&error).into()),
            },
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        match self.ask(&Request::Transfer(request), option.hard_ttl()).await? {
            Answer::Transfer(answer) => Ok(answer),
            other => Err(unexpected(&other).into()),
        }
    }
}
