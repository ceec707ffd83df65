//! Sends requests to other members over a transport, which carries bytes and returns the response.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use async_trait::async_trait;
use base::Problems;
use bytes::Bytes;
use parking_lot::Mutex;
use sorting::CollectOrdered as _;
use tokio::sync::Notify;

use super::wire::{Envelope, Request, Response};
use crate::contract::{ClusterId, StoreError, Traffic};
use crate::log::Address;

/// Key of the problem report for a member that was removed while it was away.
const REMOVED: &str = "store/removed";

/// The reason why such a member gets no responses.
pub(crate) const REMOVED_TEXT: &str =
    "it was removed from the members of the store, as the other members report";

/// Key of the problem report for a log that cannot grow.
const ROOM: &str = "store/room";

/// Advice for a full device.
pub(crate) const MAKE_SPACE: &str =
    "free space on the file system of the data directory; writes then continue automatically";

/// Maximum size of a message in either direction: every entry fits, because an entry has at most
/// half a segment.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// Selects the connection of a message, so that large messages do not delay heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Heartbeats, entries, votes, proposals and reads.
    Steps,
    /// Snapshots.
    Bulk,
}

/// The target of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Member id.
    pub id: u64,
    /// Address from the membership.
    pub address: String,
}

/// The reason why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The member did not receive the request, and never will.
    #[error("the member cannot be reached: {0}")]
    NotSent(String),
    /// The member may have received the request.
    #[error("the member did not answer: {0}")]
    Unanswered(String),
}

/// Carries messages. A call may be dropped at any time; calls of a lane may arrive out of order.
#[async_trait]
pub trait Transport: Send + Sync + std::fmt::Debug + 'static {
    /// Sends `request`, at most [`MAX_MESSAGE_BYTES`], to `to`; returns the response of
    /// [`super::Members::answer`] there.
    async fn call(&self, to: &Peer, lane: Lane, request: Bytes) -> Result<Bytes, CallError>;
}

/// State of the connection to another member.
#[derive(Debug, Default)]
struct PeerState {
    at: PeerAddress,
    traffic: Traffic,
}

/// Candidate addresses of a member. A member that returns with a new address announces it before
/// the membership records it; its vote may be needed for that.
#[derive(Debug, Default)]
struct PeerAddress {
    /// Address from the membership.
    agreed: Address,
    /// Newer address that the member announced, if it differs.
    announced: Address,
    /// Whether the next call uses the announced address.
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

    /// Switches to the other address after a failed call at `address`: either of the two may be
    /// outdated.
    fn switch_address(&mut self, address: &Address) {
        if !self.announced.is_unknown() && self.next() == address {
            self.follow = !self.follow;
        }
    }
}

/// The connections to the other members.
#[derive(Debug)]
pub(crate) struct PeerLinks {
    pub(crate) cluster: ClusterId,
    pub(crate) me: u64,
    address: Address,
    transport: Option<Arc<dyn Transport>>,
    problems: Problems,
    /// The leader does not count this member as a member.
    removed: AtomicBool,
    /// The log only has room for commands that free space.
    short: AtomicBool,
    /// State per member; a member may change its address during a call.
    members: Mutex<HashMap<u64, PeerState>>,
    /// Entries that another member waits for, and a notification when there are more.
    awaited: (AtomicU64, Notify),
}

impl PeerLinks {
    /// Connections of the member `me` with the address `address`. Without a transport no member can
    /// be reached.
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

    /// Records that another member waits for the entries before `next`.
    pub(super) fn await_elsewhere(&self, next: u64) {
        if self.awaited.0.fetch_max(next, Relaxed) < next {
            self.awaited.1.notify_waiters();
        }
    }

    /// Resolves once another member waits for the entries before `next`.
    pub(super) async fn awaited_elsewhere(&self, next: u64) {
        loop {
            let more = self.awaited.1.notified();
            if self.awaited.0.load(Relaxed) >= next {
                return;
            }
            more.await;
        }
    }

    /// Reports whether there was room for a write.
    pub(crate) fn report_room(&self, refused: Option<&StoreError>) {
        if let Some(error @ StoreError::NoSpace(_)) = refused {
            self.short.store(true, Relaxed);
            let what = format!("only writes that free space are accepted: {error}");
            self.problems.put(ROOM, what, MAKE_SPACE);
        } else if self.short.load(Relaxed) {
            self.short.store(false, Relaxed);
            self.problems.clear(ROOM);
        }
    }

    /// Whether the leader said that this member was removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }

    /// Records whether the leader counts this member as a member.
    pub(crate) fn set_removed(&self, removed: bool) {
        if self.removed.swap(removed, Relaxed) == removed {
            return;
        }
        if removed {
            let fix = "to add it again, move the folder `server` of its data directory away and \
                start it with --server and the token; otherwise stop it";
            self.problems.put(REMOVED, format!("this server cannot join: {REMOVED_TEXT}"), fix);
        } else {
            self.problems.clear(REMOVED);
        }
    }

    /// Records the address of a member from the membership.
    pub(crate) fn set_agreed_address(&self, member: u64, address: &Address) {
        if !address.is_unknown() {
            self.members.lock().entry(member).or_default().at.set_agreed(address);
        }
    }

    /// Records the address that a member announces.
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

    /// Counts traffic with a member.
    pub(crate) fn count(&self, member: u64, count: impl FnOnce(&mut Traffic)) {
        if let Some(known) = self.members.lock().get_mut(&member) {
            count(&mut known.traffic);
        }
    }

    /// Traffic with each other member.
    pub(crate) fn traffic(&self) -> BTreeMap<u64, Traffic> {
        let members = self.members.lock();
        let others = members.iter().filter(|(id, _)| **id != self.me);
        others.map(|(id, known)| (*id, known.traffic)).collect_map()
    }

    /// Sends a request to a member, with a timeout.
    pub(crate) async fn call(
        &self,
        to: u64,
        lane: Lane,
        request: &Request,
        limit: Duration,
    ) -> Result<Response, CallError> {
        let address = self.members.lock().get(&to).map(|known| known.at.next().clone());
        let (Some(transport), Some(address)) = (&self.transport, address) else {
            let text = format!("the address of member {to:016x} is unknown");
            return Err(CallError::NotSent(text));
        };
        let peer = Peer { id: to, address: address.as_str().to_owned() };
        let (cluster, from) = (self.cluster, self.me);
        let envelope = Envelope { cluster, from, to, address: self.address.clone() };
        let bytes = envelope.encode(request);
        if bytes.len() > MAX_MESSAGE_BYTES {
            let text =
                format!("the message of {} bytes exceeds the maximum message size", bytes.len());
            return Err(CallError::NotSent(text));
        }
        let late = |_| CallError::Unanswered(format!("no response within {limit:?}"));
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
                CallError::Unanswered(format!("its response is {error}"))
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
        // A delayed message: calls return to the working address.
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
