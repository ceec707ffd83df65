//! Messages between members and their versioned encoding; entries are encoded as in the log.
//!
//! ```text
//! request: version 2 | cluster 16 | from | to | address | tag 1 | body
//! answer:  version 1 | tag 1 | body
//! ```
//! Numbers and bytes are encoded as in the log (LEB128, length-prefixed). A change of a body needs
//! a new tag, a change of the frame a new version. Requests of version 1 have no address.

mod values;

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};

use crate::contract::{ClusterId, StoreError};
use crate::encoding::{Malformed, Put, Reader};
use crate::log::{
    Address, Applied, Kind, LogEntry, LogId, StoredMembership, Types, Vote, decode_head, decode_id,
    decode_membership, decode_vote, encode_entry, encode_id, encode_membership, encode_vote,
};
use crate::mvcc::{Command, Outcome};

/// Version of the frame of requests.
const REQUEST_VERSION: u8 = 2;

/// Version of the frame of responses.
const VERSION: u8 = 1;

/// The head of every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// Cluster of both members.
    pub(crate) cluster: ClusterId,
    /// Id of the sender.
    pub(crate) from: u64,
    /// Id of the receiver; another member may have taken over its address.
    pub(crate) to: u64,
    /// Address of the sender; unknown if it announced none.
    pub(crate) address: Address,
}

/// A chunk of a checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    /// The leader's vote.
    pub(crate) vote: Vote,
    /// Last entry and membership of the checkpoint.
    pub(crate) applied: Applied,
    /// Size of the whole file.
    pub(crate) total: u64,
    /// Offset of the chunk.
    pub(crate) offset: u64,
    /// CRC32C of the chunk.
    pub(crate) checksum: u32,
    /// The data; an empty chunk asks how much of the file was received.
    pub(crate) data: Bytes,
}

/// A change of the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Adds a learner, or changes the address of a member.
    Add(u64, Address),
    /// Promotes learners.
    Promote(Vec<u64>),
    /// Removes a member.
    Remove(u64),
}

/// A request.
#[derive(Debug)]
pub(crate) enum Request {
    /// Entries or a heartbeat.
    Append(AppendEntriesRequest<Types>),
    /// Requests a vote.
    Vote(VoteRequest<Types>),
    /// Requests a pre-vote.
    PreVote(VoteRequest<Types>),
    /// Asks the receiver to campaign.
    Transfer(TransferLeaderRequest<Types>),
    /// A chunk of a checkpoint.
    Chunk(Chunk),
    /// Commands for the leader to propose.
    Propose(Vec<Command>),
    /// Asks for the leader's commit index.
    ReadIndex,
    /// Renews a lease.
    KeepAlive(i64),
    /// Changes the membership at the leader.
    Change(Change),
    /// Asks for the remaining time of a lease.
    Remaining(i64),
}

/// A response.
#[derive(Debug)]
pub(crate) enum Response {
    /// To [`Request::Append`].
    Append(AppendEntriesResponse<Types>),
    /// To both kinds of votes.
    Vote(VoteResponse<Types>),
    /// To [`Request::Transfer`].
    Transfer(TransferLeaderResponse<Types>),
    /// To [`Request::Chunk`]: size of the part received.
    Have(u64),
    /// To the last chunk: the receiver's vote after it installed the checkpoint.
    Installed(Vote),
    /// To [`Request::Propose`]: number of entries applied at the leader, including these, and the
    /// outcomes.
    Proposed(u64, Vec<Result<Outcome, StoreError>>),
    /// To [`Request::ReadIndex`]: number of entries to wait for.
    ReadAt(u64),
    /// To [`Request::KeepAlive`]: granted seconds.
    KeptAlive(i64),
    /// To [`Request::Change`].
    Changed,
    /// To [`Request::Remaining`]: granted and remaining seconds.
    Remains(i64, i64),
    /// The receiver does not lead; the leader, if known.
    NotLeader(Option<u64>),
    /// The request was refused.
    Refused(StoreError),
    /// The sender is not a member any more.
    Removed,
}

impl Envelope {
    /// Encodes a request.
    pub(crate) fn encode(self, request: &Request) -> Vec<u8> {
        let mut out = vec![REQUEST_VERSION];
        out.extend_from_slice(&self.cluster.0);
        out.put_u64(self.from);
        out.put_u64(self.to);
        out.put_bytes(self.address.as_str().as_bytes());
        request.encode(&mut out);
        out
    }

    /// Decodes the envelope; returns the reader of the request.
    ///
    /// # Errors
    /// [`Malformed`] with the offset, also for another version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, Reader<'_>), Malformed> {
        let mut reader = Reader::new(bytes);
        let version = reader.byte()?;
        if !(1..=REQUEST_VERSION).contains(&version) {
            return Err(Malformed { at: 0 });
        }
        let mut cluster = [0; 16];
        for byte in &mut cluster {
            *byte = reader.byte()?;
        }
        let (from, to) = (reader.u64()?, reader.u64()?);
        let mut address = Address::default();
        if version > 1 {
            let text = std::str::from_utf8(reader.slice()?).or_else(|_| reader.malformed())?;
            address = Address::new(text);
        }
        Ok((Self { cluster: ClusterId(cluster), from, to, address }, reader))
    }
}

fn check_version(reader: &mut Reader<'_>) -> Result<(), Malformed> {
    match reader.byte()? {
        VERSION => Ok(()),
        _ => Err(Malformed { at: 0 }),
    }
}

impl Request {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Append(append) => {
                out.push(1);
                encode_append(append, out);
            }
            Self::Vote(vote) => {
                out.push(2);
                encode_ask(vote, out);
            }
            Self::PreVote(vote) => {
                out.push(3);
                encode_ask(vote, out);
            }
            Self::Transfer(transfer) => {
                out.push(4);
                encode_vote(Some(transfer.from_leader()), out);
                out.put_u64(*transfer.to_node_id());
                encode_id(transfer.last_log_id().copied(), out);
            }
            Self::Chunk(chunk) => {
                out.push(5);
                encode_vote(Some(&chunk.vote), out);
                encode_applied(&chunk.applied, out);
                out.put_u64(chunk.total);
                out.put_u64(chunk.offset);
                out.put_u64(u64::from(chunk.checksum));
                out.put_bytes(&chunk.data);
            }
            Self::Propose(commands) => {
                out.push(6);
                out.put_u64(commands.len() as u64);
                let mut scratch = Vec::new();
                for command in commands {
                    scratch.clear();
                    command.encode(&mut scratch);
                    out.put_bytes(&scratch);
                }
            }
            Self::ReadIndex => out.push(7),
            Self::KeepAlive(lease) => {
                out.push(8);
                out.put_i64(*lease);
            }
            Self::Change(change) => {
                out.push(9);
                encode_change(change, out);
            }
            Self::Remaining(lease) => {
                out.push(10);
                out.put_i64(*lease);
            }
        }
    }

    /// Decodes the request after an envelope.
    ///
    /// # Errors
    /// [`Malformed`] with the offset.
    pub(crate) fn decode(mut reader: Reader<'_>) -> Result<Self, Malformed> {
        let reader = &mut reader;
        let request = match reader.byte()? {
            1 => Self::Append(decode_append(reader)?),
            2 => Self::Vote(decode_ask(reader)?),
            3 => Self::PreVote(decode_ask(reader)?),
            4 => {
                let vote = some_vote(reader)?;
                let to = reader.u64()?;
                Self::Transfer(TransferLeaderRequest::new(vote, to, decode_id(reader)?))
            }
            5 => Self::Chunk(decode_chunk(reader)?),
            6 => {
                let mut commands = Vec::new();
                for _ in 0..reader.u64()? {
                    let command = reader.slice()?;
                    commands.push(Command::decode(command).or_else(|_| reader.malformed())?);
                }
                Self::Propose(commands)
            }
            7 => Self::ReadIndex,
            8 => Self::KeepAlive(reader.i64()?),
            9 => Self::Change(decode_change(reader)?),
            10 => Self::Remaining(reader.i64()?),
            _ => return reader.malformed(),
        };
        reader.end().map(|()| request)
    }
}

impl Response {
    /// Encodes a response.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        match self {
            Self::Append(append) => {
                out.push(1);
                match append {
                    AppendEntriesResponse::Success => out.push(0),
                    AppendEntriesResponse::PartialSuccess(last) => {
                        out.push(1);
                        encode_id(*last, &mut out);
                    }
                    AppendEntriesResponse::Conflict => out.push(2),
                    AppendEntriesResponse::HigherVote(vote) => {
                        out.push(3);
                        encode_vote(Some(vote), &mut out);
                    }
                }
            }
            Self::Vote(vote) => {
                out.push(2);
                encode_vote(Some(&vote.vote), &mut out);
                out.push(u8::from(vote.vote_granted));
                encode_id(vote.last_log_id, &mut out);
            }
            Self::Transfer(transfer) => {
                out.push(3);
                encode_transferred(transfer, &mut out);
            }
            Self::Have(bytes) => {
                out.push(4);
                out.put_u64(*bytes);
            }
            Self::Installed(vote) => {
                out.push(5);
                encode_vote(Some(vote), &mut out);
            }
            Self::Proposed(applied, outcomes) => {
                out.push(6);
                out.put_u64(*applied);
                values::encode_outcomes(outcomes, &mut out);
            }
            Self::ReadAt(index) => {
                out.push(7);
                out.put_u64(*index);
            }
            Self::KeptAlive(ttl) => {
                out.push(8);
                out.put_i64(*ttl);
            }
            Self::Changed => out.push(9),
            Self::Remains(granted, left) => {
                out.push(12);
                out.put_i64(*granted);
                out.put_i64(*left);
            }
            Self::NotLeader(leader) => {
                out.push(10);
                out.put_u64(leader.unwrap_or(0));
            }
            Self::Refused(error) => {
                out.push(11);
                values::encode_error(error, &mut out);
            }
            Self::Removed => out.push(13),
        }
        out
    }

    /// Decodes a response.
    ///
    /// # Errors
    /// [`Malformed`] with the offset, also for another version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let reader = &mut Reader::new(bytes);
        check_version(reader)?;
        let answer = match reader.byte()? {
            1 => Self::Append(match reader.byte()? {
                0 => AppendEntriesResponse::Success,
                1 => AppendEntriesResponse::PartialSuccess(decode_id(reader)?),
                2 => AppendEntriesResponse::Conflict,
                3 => AppendEntriesResponse::HigherVote(some_vote(reader)?),
                _ => return reader.malformed(),
            }),
            2 => {
                let vote = some_vote(reader)?;
                let vote_granted = values::flag(reader)?;
                let last_log_id = decode_id(reader)?;
                Self::Vote(VoteResponse { vote, vote_granted, last_log_id })
            }
            3 => Self::Transfer(decode_transferred(reader)?),
            4 => Self::Have(reader.u64()?),
            5 => Self::Installed(some_vote(reader)?),
            6 => Self::Proposed(reader.u64()?, values::decode_outcomes(reader)?),
            7 => Self::ReadAt(reader.u64()?),
            8 => Self::KeptAlive(reader.i64()?),
            9 => Self::Changed,
            10 => Self::NotLeader(Some(reader.u64()?).filter(|leader| *leader != 0)),
            11 => Self::Refused(values::decode_error(reader)?),
            12 => Self::Remains(reader.i64()?, reader.i64()?),
            13 => Self::Removed,
            _ => return reader.malformed(),
        };
        reader.end().map(|()| answer)
    }
}

fn some_vote(reader: &mut Reader<'_>) -> Result<Vote, Malformed> {
    match decode_vote(reader)? {
        Some(vote) => Ok(vote),
        None => reader.malformed(),
    }
}

fn encode_append(append: &AppendEntriesRequest<Types>, out: &mut Vec<u8>) {
    encode_vote(Some(&append.vote), out);
    encode_id(append.prev_log_id, out);
    encode_id(append.leader_commit, out);
    out.put_u64(append.entries.len() as u64);
    let mut scratch = Vec::new();
    for entry in &append.entries {
        scratch.clear();
        // The commit index is encoded once for all of them.
        let (kind, write) = encode_entry(entry, entry.log_id.index() + 1);
        write(&mut scratch);
        out.push(kind as u8);
        out.put_bytes(&scratch);
    }
}

fn decode_append(reader: &mut Reader<'_>) -> Result<AppendEntriesRequest<Types>, Malformed> {
    let vote = some_vote(reader)?;
    let (prev_log_id, leader_commit) = (decode_id(reader)?, decode_id(reader)?);
    let mut entries: Vec<LogEntry> = Vec::new();
    for _ in 0..reader.u64()? {
        let Some(kind) = Kind::from_byte(reader.byte()?) else { return reader.malformed() };
        let (head, mut payload) = decode_head(Reader::new(reader.slice()?))?;
        let follows = entries.last().map(|entry| entry.log_id).or(prev_log_id);
        if head.id.index() != crate::log::behind(follows.as_ref()) {
            return reader.malformed();
        }
        entries.push(head.body(kind, &mut payload)?);
    }
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

fn encode_ask(ask: &VoteRequest<Types>, out: &mut Vec<u8>) {
    encode_vote(Some(&ask.vote), out);
    encode_id(ask.last_log_id, out);
    out.push(u8::from(ask.leadership_transfer));
}

fn decode_ask(reader: &mut Reader<'_>) -> Result<VoteRequest<Types>, Malformed> {
    let vote = some_vote(reader)?;
    let last_log_id = decode_id(reader)?;
    Ok(VoteRequest { vote, last_log_id, leadership_transfer: values::flag(reader)? })
}

fn encode_applied(applied: &Applied, out: &mut Vec<u8>) {
    encode_id(applied.id, out);
    encode_id(*applied.membership.log_id(), out);
    encode_membership(applied.membership.membership(), out);
}

fn decode_chunk(reader: &mut Reader<'_>) -> Result<Chunk, Malformed> {
    let vote = some_vote(reader)?;
    let (id, since) = (decode_id(reader)?, decode_id(reader)?);
    let membership = StoredMembership::new(since, decode_membership(reader)?);
    let (total, offset) = (reader.u64()?, reader.u64()?);
    let checksum = u32::try_from(reader.u64()?).or_else(|_| reader.malformed())?;
    let data = reader.bytes()?;
    Ok(Chunk { vote, applied: Applied { id, membership }, total, offset, checksum, data })
}

fn encode_change(change: &Change, out: &mut Vec<u8>) {
    match change {
        Change::Add(id, address) => {
            out.push(1);
            out.put_u64(*id);
            out.put_bytes(address.as_str().as_bytes());
        }
        Change::Promote(ids) => {
            out.push(2);
            out.put_u64(ids.len() as u64);
            ids.iter().for_each(|id| out.put_u64(*id));
        }
        Change::Remove(id) => {
            out.push(3);
            out.put_u64(*id);
        }
    }
}

fn decode_change(reader: &mut Reader<'_>) -> Result<Change, Malformed> {
    Ok(match reader.byte()? {
        1 => {
            let id = reader.u64()?;
            let address = std::str::from_utf8(reader.slice()?).or_else(|_| reader.malformed())?;
            Change::Add(id, Address::new(address))
        }
        2 => {
            let mut ids = Vec::new();
            for _ in 0..reader.u64()? {
                ids.push(reader.u64()?);
            }
            Change::Promote(ids)
        }
        3 => Change::Remove(reader.u64()?),
        _ => return reader.malformed(),
    })
}

fn encode_transferred(transfer: &TransferLeaderResponse<Types>, out: &mut Vec<u8>) {
    match transfer {
        Ok(()) => out.push(0),
        Err(TransferLeaderError::VoteChanged { expected, actual }) => {
            out.push(1);
            encode_vote(Some(expected), out);
            encode_vote(Some(actual), out);
        }
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
            out.push(2);
            encode_id(*expected, out);
            encode_id(*actual, out);
        }
    }
}

fn decode_transferred(reader: &mut Reader<'_>) -> Result<TransferLeaderResponse<Types>, Malformed> {
    Ok(match reader.byte()? {
        0 => Ok(()),
        1 => {
            let (expected, actual) = (some_vote(reader)?, some_vote(reader)?);
            Err(TransferLeaderError::VoteChanged { expected, actual })
        }
        2 => {
            let (expected, actual): (Option<LogId>, _) = (decode_id(reader)?, decode_id(reader)?);
            Err(TransferLeaderError::LogNotFlushed { expected, actual })
        }
        _ => return reader.malformed(),
    })
}

#[cfg(test)]
mod tests;
