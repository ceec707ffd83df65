//! The seam to other members: bytes there and an answer back, whatever carries them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use async_trait::async_trait;
use base::Problems;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::wire::{Envelope, Request, Response};
use crate::contract::{ClusterId, StoreError, Traffic};
use crate::log::Address;

/// Key of what is wrong with a member that was removed while it was away.
const REMOVED: &str = "store/removed";

/// Why such a member gets no answers.
pub(crate) const REMOVED_TEXT: &str =
    "it was removed from the members of the store, as the others say";

/// Key of what is wrong when the log cannot grow.
const ROOM: &str = "store/room";

/// What to do about a full device.
pub(crate) const MAKE_SPACE: &str =
    "make space on the file system of the data directory; writes go on by themselves";

/// Largest message in bytes, there and back: every entry fits, for a segment of the log has half as many.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// Which messages share a connection, so that large ones do not hold up those that say who leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Heartbeats, entries, votes, proposals and reads.
    Steps,
    /// Snapshots.
    Bulk,
}

/// A member that is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub id: u64,
    /// Its address as the membership has it.
    pub address: String,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The member has not got the request and never will.
    #[error("the member cannot be reached: {0}")]
    NotSent(String),
    /// The member may have got the request.
    #[error("the member did not answer: {0}")]
    Unanswered(String),
}

/// Carries messages. A call may be dropped at any time; calls of one lane need not arrive in order.
#[async_trait]
pub trait Transport: Send + Sync + std::fmt::Debug + 'static {
    /// Sends `request`, at most [`MAX_MESSAGE_BYTES`], to `to`; what [`super::Members::answer`] answered there.
    async fn call(&self, to: &Peer, lane: Lane, request: Bytes) -> Result<Bytes, CallError>;
}

/// What is known of another member.
#[derive(Debug, Default)]
struct PeerState {
    at: PeerAddress,
    traffic: Traffic,
}

/// Where a member may be. One that came back elsewhere is in no agreed place before the others have agreed on it, and it may be
/// needed for that; it says itself where it is.
#[derive(Debug, Default)]
struct PeerAddress {
    /// As the membership has it.
    agreed: Address,
    /// Where it said to be since, when that is elsewhere.
    announced: Address,
    /// The next call goes to the latter.
    follow: bool,
}

impl PeerAddress {
    fn next(&self) -> &Address {
        if self.follow { &self.announced } else { &self.agreed }
    }

    fn set_agreed(&mut self, address: &Address) {
        if self.agreed != *address {
            *self = Self { agreed: address.clone(), ..Self::default() };
        }
    }

    fn set_announced(&mut self, address: &Address) {
        self.follow = self.agreed != *address;
        self.announced = if self.follow { address.clone() } else { Address::default() };
    }

    /// Nobody, or somebody else, was at `address`: what was heard may be older than what was agreed on, and the other way round.
    fn switch_address(&mut self, address: &Address) {
        if !self.announced.is_unknown() && self.next() == address {
            self.follow = !self.follow;
        }
    }
}

/// This member's side of the seam.
#[derive(Debug)]
pub(crate) struct PeerLinks {
    pub(crate) cluster: ClusterId,
    pub(crate) me: u64,
    address: Address,
    transport: Option<Arc<dyn Transport>>,
    problems: Problems,
    /// The leader has no such member as this one.
    removed: AtomicBool,
    /// The log has no room for more than what frees some.
    short: AtomicBool,
    /// Of each member: one may move while it is being called.
    members: Mutex<HashMap<u64, PeerState>>,
    /// Entries that another member waits to have applied, and a sign when there are more.
    awaited: (AtomicU64, Notify),
}

impl PeerLinks {
    /// The member `me`, reached at `address`. Without a transport nobody can be reached.
    pub(crate) fn new(
        cluster: ClusterId,
        me: u64,
        address: Address,
        transport: Option<Arc<dyn Transport>>,
        problems: Problems,
    ) -> Self {
        let (removed, short) = (AtomicBool::new(false), AtomicBool::new(false));
        let (members, awaited) = (Mutex::default(), Default::default());
        Self { cluster, me, address, transport, problems, removed, short, members, awaited }
    }

    /// Notes that another member waits until it may apply the entries before `next`.
    pub(super) fn await_elsewhere(&self, next: u64) {
        if self.awaited.0.fetch_max(next, Relaxed) < next {
            self.awaited.1.notify_waiters();
        }
    }

    /// Resolves once another member waits for entries up to and with the last before `next`.
    pub(super) async fn awaited_elsewhere(&self, next: u64) {
        loop {
            let more = self.awaited.1.notified();
            if self.awaited.0.load(Relaxed) >= next {
                return;
            }
            more.await;
        }
    }

    /// Says whether there was room for what was to be written.
    pub(crate) fn report_room(&self, refused: Option<&StoreError>) {
        if let Some(error @ StoreError::NoSpace(_)) = refused {
            self.short.store(true, Relaxed);
            let what = format!("only what frees space is written: {error}");
            self.problems.put(ROOM, what, MAKE_SPACE);
        } else if self.short.load(Relaxed) {
            self.short.store(false, Relaxed);
            self.problems.clear(ROOM);
        }
    }

    /// Whether the leader said that this is no member any more.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }

    /// Notes whether the leader counts this member among its own.
    pub(crate) fn set_removed(&self, removed: bool) {
        if self.removed.swap(removed, Relaxed) == removed {
            return;
        }
        if removed {
            let fix = "if it is to be one again, move the folder `server` of its data directory away and start it with --server and the token; if not, stop it";
            self.problems.put(REMOVED, format!("this server waits in vain: {REMOVED_TEXT}"), fix);
        } else {
            self.problems.clear(REMOVED);
        }
    }

    /// Notes where the members agree that one of them is reached.
    pub(crate) fn set_agreed_address(&self, member: u64, address: &Address) {
        if !address.is_unknown() {
            self.members.lock().entry(member).or_default().at.set_agreed(address);
        }
    }

    /// Notes where a member says that it is reached.
    pub(crate) fn set_announced(&self, member: u64, address: &Address) {
        if !address.is_unknown()
            && let Some(known) = self.members.lock().get_mut(&member)
        {
            known.at.set_announced(address);
        }
    }

    fn switch_address(&self, member: u64, address: &Address) {
        if let Some(known) = self.members.lock().get_mut(&member) {
            known.at.switch_address(address);
        }
    }

    /// Counts what goes to a member and comes from it.
    pub(crate) fn count(&self, member: u64, count: impl FnOnce(&mut Traffic)) {
        if let Some(known) = self.members.lock().get_mut(&member) {
            count(&mut known.traffic);
        }
    }

    /// What was counted, for each other member.
    pub(crate) fn traffic(&self) -> BTreeMap<u64, Traffic> {
        let members = self.members.lock();
        let others = members.iter().filter(|(id, _)| **id != self.me);
        others.map(|(id, known)| (*id, known.traffic)).collect()
    }

    /// Asks a member and waits no longer than `limit`.
    pub(crate) async fn call(
        &self,
        to: u64,
        lane: Lane,
        request: &Request,
        limit: Duration,
    ) -> Result<Response, CallError> {
        let address = self.members.lock().get(&to).map(|known| known.at.next().clone());
        let (Some(transport), Some(address)) = (&self.transport, address) else {
            let text = format!("there is no way to the member {to:016x}");
            return Err(CallError::NotSent(text));
        };
        let peer = Peer { id: to, address: address.as_str().to_owned() };
        let (cluster, from) = (self.cluster, self.me);
        let envelope = Envelope { cluster, from, to, address: self.address.clone() };
        let bytes = envelope.encode(request);
        if bytes.len() > MAX_MESSAGE_BYTES {
            let text = format!("a message of {} bytes is larger than any may be", bytes.len());
            return Err(CallError::NotSent(text));
        }
        let late = |_| CallError::Unanswered(format!("nothing came within {limit:?}"));
        let sent = bytes.len() as u64;
        self.count(to, |traffic| traffic.sent_bytes += sent);
        let call = transport.call(&peer, lane, bytes.into());
        let answer = tokio::time::timeout(limit, call).await.map_err(late).flatten();
        self.count(to, |traffic| match &answer {
            Ok(answer) => traffic.received_bytes += answer.len() as u64,
            Err(_) => traffic.sent_failures += 1,
        });
        let answer = answer.and_then(|answer| {
            Response::decode(&answer).map_err(|error| {
                self.count(to, |traffic| traffic.received_failures += 1);
                CallError::Unanswered(format!("its answer is {error}"))
            })
        });
        if matches!(answer, Ok(Response::Removed)) {
            self.set_removed(true);
        }
        if matches!(answer, Err(_) | Ok(Response::Refused(StoreError::Unavailable(_)))) {
            self.switch_address(to, &address);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_where_it_says_until_the_others_agree_and_a_wrong_place_is_left() {
        let at = |text| Address::new(text);
        let mut member = PeerAddress::default();
        member.set_agreed(&at("a:1"));
        member.switch_address(&at("a:1"));
        assert_eq!(*member.next(), at("a:1"), "no other place is known");
        member.set_announced(&at("a:2"));
        assert_eq!(*member.next(), at("a:2"));
        member.set_agreed(&at("a:1"));
        assert_eq!(*member.next(), at("a:2"), "nothing new was agreed on");
        // A message that was long on its way: the calls find back.
        member.switch_address(&at("a:2"));
        assert_eq!(*member.next(), at("a:1"));
        member.switch_address(&at("a:2"));
        assert_eq!(*member.next(), at("a:1"), "an old call to where none goes any more");
        member.switch_address(&at("a:1"));
        assert_eq!(*member.next(), at("a:2"));
        member.set_agreed(&at("a:3"));
        assert_eq!(*member.next(), at("a:3"));
        member.set_announced(&at("a:3"));
        member.switch_address(&at("a:3"));
        assert_eq!(*member.next(), at("a:3"));
    }
}
