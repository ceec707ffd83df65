//! The types of the consensus: entries, votes, memberships and their position in the log.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use openraft::raft::responder::Responder;

use super::address::Address;
use crate::contract::StoreError;
use crate::encoding::{Malformed, Put, Reader};
use crate::mvcc::{Command, Outcome};

#[cfg(test)]
use super::test_runtime::Ordered as Runtime;
#[cfg(not(test))]
use openraft::TokioRuntime as Runtime;

/// openraft's type configuration. A term has at most one leader, so term and index identify an
/// entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

impl openraft::RaftTypeConfig for Types {
    type D = Batch;
    type R = Outcomes;
    type NodeId = u64;
    type Node = Address;
    type Term = u64;
    type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = Payload;
    type Entry = openraft::Entry<openraft::type_config::alias::CommittedLeaderIdOf<Self>, Payload>;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = Reply<T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(crate) type LogEntry = openraft::type_config::alias::EntryOf<Types>;
pub(crate) type Payload = openraft::EntryPayload<Batch, u64, Address>;
pub(crate) type LogId = openraft::type_config::alias::LogIdOf<Types>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, Address>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;

/// Number of entries up to and including `id`: the index of the next one.
pub(crate) fn behind(id: Option<&LogId>) -> u64 {
    id.map_or(0, |id| id.index() + 1)
}

/// Approximate size of an entry in the log.
pub(crate) fn entry_bytes(entry: &LogEntry) -> usize {
    match &entry.payload {
        Payload::Normal(batch) => batch.encoded().len(),
        Payload::Blank | Payload::Membership(_) => 64,
    }
}

/// The commands of an entry; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Batch(Arc<Proposal>);

#[derive(Debug)]
struct Proposal {
    commands: Vec<Command>,
    /// The encoding in the log.
    encoded: Bytes,
    ceiling: i64,
    sync: bool,
}

impl Batch {
    /// The commands of an entry. `encoded` is the output of [`Batch::encode`] for each of them;
    /// `ceiling` is a revision that none of them reaches, or 0; without `sync` the entry counts as
    /// written before it is durable.
    pub(crate) fn new(
        commands: Vec<Command>,
        encoded: impl Into<Bytes>,
        ceiling: i64,
        sync: bool,
    ) -> Self {
        let encoded = encoded.into();
        Self(Arc::new(Proposal { commands, encoded, ceiling, sync }))
    }

    /// Appends the encoding of a command.
    pub(crate) fn encode(command: &Command, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        scratch.clear();
        command.encode(scratch);
        out.put_bytes(scratch);
    }

    /// Decodes the batch of an entry.
    ///
    /// # Errors
    /// [`Malformed`] with the offset.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let ceiling = Self::decode_ceiling(reader)?;
        let encoded = reader.rest();
        let mut commands = Vec::new();
        while reader.end().is_err() {
            let command = reader.slice()?;
            let command = Command::read(reader.inner(command));
            commands.push(command.or_else(|_| reader.malformed())?);
        }
        Ok(Self::new(commands, encoded, ceiling, true))
    }

    /// Decodes the ceiling of an entry.
    ///
    /// # Errors
    /// [`Malformed`] with the offset.
    pub(crate) fn decode_ceiling(reader: &mut Reader<'_>) -> Result<i64, Malformed> {
        reader.i64()
    }

    pub(crate) fn commands(&self) -> &[Command] {
        &self.0.commands
    }

    pub(crate) fn encoded(&self) -> &[u8] {
        &self.0.encoded
    }

    /// No revision from here on was handed out before the entry; 0 makes no statement.
    pub(crate) fn ceiling(&self) -> i64 {
        self.0.ceiling
    }

    /// Whether the entry must be durable before it counts as written.
    pub(crate) fn sync(&self) -> bool {
        self.0.sync
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands", self.0.commands.len())
    }
}

/// Results of an entry's commands, in order.
#[derive(Debug)]
pub(crate) struct Outcomes(pub(crate) Vec<Result<Outcome, StoreError>>);

/// A callback for the result of a proposal, called where it is applied, without an intermediate
/// task.
pub(crate) struct Reply<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Reply<T> {
    pub(crate) fn new(reply: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(reply))
    }
}

impl<T: Send + 'static> Responder<Types, T> for Reply<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}

/// Position up to which the log is applied, and the membership after it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Applied {
    /// Newest applied entry.
    pub(crate) id: Option<LogId>,
    /// Newest membership among the applied entries.
    pub(crate) membership: StoredMembership,
}
