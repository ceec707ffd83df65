//! openraft's network: its requests in the store's encoding, checkpoints in chunks.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream;
use futures::stream::{BoxStream, Stream, StreamExt as _};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};

use super::checkpoints::Checkpoint;
use super::transport::{Lane, PeerLinks};
use super::wire::{Chunk, Request, Response};
use crate::log::{Address, Applied, DiskWork, Types, Vote, behind};

type Snapshot = openraft::type_config::alias::SnapshotOf<Types, Checkpoint>;

/// Bytes of a checkpoint per message.
const CHUNK_BYTES: usize = if cfg!(test) { 16 * 1024 } else { 1024 * 1024 };

/// Maximum wait for entries to be on a follower's disk before they are sent again: a flash card may
/// take seconds for a sync, but a member that was cut off must not block for much longer than it is
/// away.
const APPEND_WAIT: Duration = Duration::from_secs(2);

/// Maximum wait for the response to a chunk: sufficient for a link of some kilobytes per second.
const CHUNK_WAIT: Duration = Duration::from_secs(60);

/// Maximum wait for the response to the last chunk, after which the receiver reads the whole state.
const INSTALL_WAIT: Duration = Duration::from_secs(600);

/// Maximum delay of a message that only announces committed entries: it is merged with the next
/// entries. Otherwise a follower that writes sequentially would cause one such message per entry.
const COMMIT_WAIT: Duration = Duration::from_millis(1);

/// Number of retries of chunks before the transfer restarts.
const REPEATS_MAX: usize = 8;

/// Creates [`PeerNetwork`]s.
pub(super) struct NetworkFactory {
    pub(super) links: Arc<PeerLinks>,
    pub(super) work: DiskWork,
}

/// The connection to another member.
pub(super) struct PeerNetwork {
    id: u64,
    links: Arc<PeerLinks>,
    work: DiskWork,
}

/// The error for a response of another type.
fn unexpected(answer: &Response) -> Unreachable<Types> {
    let text = match answer {
        Response::Refused(error) => format!("the member refused: {error}"),
        _ => "unexpected response of the member".to_owned(),
    };
    Unreachable::from_string(text)
}

impl PeerNetwork {
    async fn ask(
        &self,
        request: &Request,
        limit: Duration,
    ) -> Result<Response, Unreachable<Types>> {
        let answer = self.links.call(self.id, Lane::Steps, request, limit).await;
        answer.map_err(|error| Unreachable::new(&error))
    }

    async fn send(&self, vote: Vote, snapshot: Snapshot) -> io::Result<Vote> {
        let meta = snapshot.meta;
        let applied = Applied { id: meta.last_log_id, membership: meta.last_membership };
        let checkpoint = snapshot.snapshot;
        let (mut file, total) = self.work.run(move || checkpoint.open()).await??;
        // Empty at first: this asks how much of an interrupted transfer exists.
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
            let answer = self.links.call(self.id, Lane::Bulk, &request, limit).await;
            match answer.map_err(io::Error::other)? {
                Response::Have(have) if have <= total => offset = have,
                Response::Installed(vote) => return Ok(vote),
                other => return Err(io::Error::other(unexpected(&other))),
            }
            if offset < before || whole {
                repeats += 1;
                if repeats > REPEATS_MAX {
                    return Err(io::Error::other("the member does not accept the checkpoint"));
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
                return Err(io::Error::other("the checkpoint file was truncated"));
            }
        }
    }
}

type Append = AppendEntriesRequest<Types>;
type Appended = Result<StreamAppendResult<Types>, RPCError<Types>>;

/// Merges the requests of `input`: one without entries waits for the next request, which says the
/// same and more, unless another member waits for it.
fn gather(
    links: Arc<PeerLinks>,
    input: impl Stream<Item = Append> + Send + Unpin + 'static,
) -> impl Stream<Item = Append> + Send + Unpin + 'static {
    // Entries that the member may apply after the messages sent so far.
    let told = 0;
    Box::pin(stream::unfold(Some((links, input, told)), async |state| {
        let (links, mut input, told) = state?;
        let mut request = input.next().await?;
        let mut more = true;
        while more && request.entries.is_empty() {
            tokio::select! {
                biased;
                next = input.next() => match next {
                    Some(next) => request = next,
                    None => more = false,
                },
                () = links.awaited_elsewhere(told + 1) => break,
                () = base::clock::sleep(COMMIT_WAIT) => break,
            }
        }
        let told = behind(request.leader_commit.as_ref());
        Some((request, more.then_some((links, input, told))))
    }))
}

impl RaftNetworkFactory<Types> for NetworkFactory {
    type Network = PeerNetwork;

    async fn new_client(&mut self, target: u64, address: &Address) -> PeerNetwork {
        self.links.set_agreed_address(target, address);
        PeerNetwork { id: target, links: Arc::clone(&self.links), work: self.work }
    }
}

impl RaftNetworkV2<Types> for PeerNetwork {
    type SnapshotData = Checkpoint;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let limit = if request.entries.is_empty() { option.hard_ttl() } else { APPEND_WAIT };
        match self.ask(&Request::Append(request), limit).await? {
            Response::Append(answer) => Ok(answer),
            other => Err(unexpected(&other).into()),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Appended>, RPCError<Types>>>
    where
        S: Stream<Item = Append> + Send + Unpin + 'static,
    {
        let input = gather(Arc::clone(&self.links), input);
        stream_append_sequential(self, input, option)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.ask(&Request::Vote(request), option.hard_ttl()).await? {
            Response::Vote(answer) => Ok(answer),
            other => Err(unexpected(&other).into()),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.ask(&Request::PreVote(request), option.hard_ttl()).await? {
            Response::Vote(answer) => Ok(answer),
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
            // Also if the file cannot be read: a newer checkpoint may have replaced it.
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
            Response::Transfer(answer) => Ok(answer),
            other => Err(unexpected(&other).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Problems;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;
    use crate::contract::ClusterId;
    use crate::log::{LogEntry, LogId, Payload};

    /// A request with a number of committed entries and a number of new entries.
    fn request(committed: u64, entries: u64) -> Append {
        let id = |index| LogId::new_term_index(1, index);
        let entry = |at| LogEntry { log_id: id(committed + at), payload: Payload::Blank };
        Append {
            vote: Vote::new_committed(1, 1),
            prev_log_id: committed.checked_sub(1).map(id),
            entries: (0..entries).map(entry).collect(),
            leader_commit: committed.checked_sub(1).map(id),
        }
    }

    /// A merging stream, with its input and its output.
    fn gathering() -> (Arc<PeerLinks>, mpsc::Sender<Append>, impl Stream<Item = Append> + Unpin) {
        let problems = Problems::default();
        let links = PeerLinks::new(ClusterId([7; 16]), 1, Address::default(), None, problems);
        let links = Arc::new(links);
        let (sender, mut receiver) = mpsc::channel(8);
        let input = stream::poll_fn(move |cx| receiver.poll_recv(cx));
        (Arc::clone(&links), sender, gather(links, input))
    }

    /// The next output: committed entries and new entries; and its delay.
    async fn next(output: &mut (impl Stream<Item = Append> + Unpin)) -> (u64, usize, Duration) {
        let begin = Instant::now();
        let request = output.next().await.unwrap();
        (behind(request.leader_commit.as_ref()), request.entries.len(), begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn the_commit_index_is_sent_with_entries_or_alone_after_a_delay() {
        let (_link, input, mut output) = gathering();
        input.send(request(1, 2)).await.unwrap();
        assert_eq!(next(&mut output).await, (1, 2, Duration::ZERO), "entries wait for nothing");
        for request in [request(3, 0), request(4, 0), request(4, 1), request(5, 0)] {
            input.send(request).await.unwrap();
        }
        assert_eq!(next(&mut output).await, (4, 1, Duration::ZERO));
        let (committed, entries, after) = next(&mut output).await;
        assert_eq!((committed, entries), (5, 0));
        assert!((COMMIT_WAIT..COMMIT_WAIT * 3).contains(&after), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_index_that_a_member_awaits_is_sent_at_once() {
        let (links, input, mut output) = gathering();
        input.send(request(5, 0)).await.unwrap();
        links.await_elsewhere(5);
        assert_eq!(next(&mut output).await, (5, 0, Duration::ZERO));
        // Everything that other members wait for was sent.
        input.send(request(6, 0)).await.unwrap();
        assert!(next(&mut output).await.2 >= COMMIT_WAIT);
        input.send(request(7, 0)).await.unwrap();
        let wait = async {
            tokio::task::yield_now().await;
            links.await_elsewhere(7);
        };
        let (sent, ()) = tokio::join!(next(&mut output), wait);
        assert_eq!(sent, (7, 0, Duration::ZERO), "also when it is waited for later");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_request_waits_for_nothing() {
        let (_link, input, mut output) = gathering();
        input.send(request(5, 0)).await.unwrap();
        drop(input);
        assert_eq!(next(&mut output).await, (5, 0, Duration::ZERO));
        assert!(output.next().await.is_none());
    }
}
