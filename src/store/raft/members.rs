//! The members of the cluster: list, roles, leadership and changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use base::Tasks;
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::raft::Precondition;
use sorting::CollectOrdered as _;
use tokio::sync::{Notify, watch};

use super::engine::{LEADER_WAIT, RaftEngine};
use super::forward::LeaderReply;
use super::snapshot_receiver::SnapshotReceiver;
use super::wire::{Change, Request, Response};
use crate::contract::{
    ClusterId, ClusterMembers, Durability, Leadership, Member, Profile, Role, StoreError, Traffic,
};
use crate::log::{Address, Membership, StoredMembership, Types, behind};
use crate::mvcc::Command;
use parking_lot::Mutex;

/// Maximum number of voters: with more, a write waits for more disks without more safety.
const VOTERS_MAX: usize = 7;

/// Entries that a member may lag behind and still become a voter: the rest arrives while the change
/// is committed.
const LAG_MAX: u64 = 1000;

/// Number of connections of each member to this one.
pub(super) type Connections = Mutex<HashMap<u64, usize>>;

/// This member and its view of the others.
pub struct Members {
    pub(super) engine: Arc<RaftEngine>,
    pub(super) snapshot_receiver: Arc<tokio::sync::Mutex<SnapshotReceiver>>,
    pub(super) tasks: Tasks,
    address: Address,
    /// Serializes changes.
    changing: tokio::sync::Mutex<()>,
    pub(super) connections: Connections,
    /// Notified when a member without a connection connects.
    pub(super) met: Notify,
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Members").field("engine", &self.engine).finish_non_exhaustive()
    }
}

fn invalid(text: impl Into<String>) -> StoreError {
    StoreError::Invalid(text.into())
}

/// Selects the learners to promote so that the number of voters stays odd: a second voter of two
/// would add a failure mode and no safety.
pub fn to_promote(voters: usize, ready: &[u64]) -> &[u64] {
    let room = VOTERS_MAX.saturating_sub(voters).min(ready.len());
    let odd = room - (voters + room + 1) % 2 * usize::from(room > 0);
    ready.get(..odd).unwrap_or_default()
}

impl Members {
    pub(super) fn new(
        engine: Arc<RaftEngine>,
        snapshot_receiver: SnapshotReceiver,
        address: Address,
        tasks: &Tasks,
    ) -> Self {
        let snapshot_receiver = Arc::new(tokio::sync::Mutex::new(snapshot_receiver));
        Self {
            engine,
            snapshot_receiver,
            tasks: tasks.clone(),
            address,
            changing: tokio::sync::Mutex::default(),
            connections: Connections::default(),
            met: Notify::new(),
        }
    }

    /// This member's id.
    pub fn id(&self) -> u64 {
        self.engine.links().me
    }

    /// Identity of the cluster.
    pub fn cluster(&self) -> ClusterId {
        self.engine.links().cluster
    }

    /// Traffic with each other member since the start.
    pub fn traffic(&self) -> BTreeMap<u64, Traffic> {
        self.engine.links().traffic()
    }

    /// Number of connections of each other member to this one.
    pub fn connected(&self) -> BTreeMap<u64, usize> {
        self.connections.lock().iter().map(|(id, count)| (*id, *count)).collect_map()
    }

    /// The leadership and its changes.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.engine.leadership.subscribe()
    }

    fn membership(&self) -> Membership {
        self.engine.raft().server_metrics().borrow_watched().membership_config.membership().clone()
    }

    /// The newest membership of the log, which the published metrics may not show yet, and whether
    /// it is committed.
    async fn newest_membership(&self) -> Result<(StoredMembership, bool), StoreError> {
        let newest = |state: &openraft::RaftState<Types>| {
            let (newest, agreed) =
                (state.membership_state.effective(), state.membership_state.committed());
            (StoredMembership::clone(newest), newest.log_id() == agreed.log_id())
        };
        let newest = self.engine.raft().with_raft_state(newest).await;
        newest.map_err(|error| self.engine.fatal(&error))
    }

    /// All members known locally, by id.
    pub fn list(&self) -> Vec<Member> {
        let membership = self.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect_set();
        let member = |(id, address): (&u64, &Address)| Member {
            id: *id,
            address: address.as_str().to_owned(),
            role: if voters.contains(id) { Role::Voter } else { Role::Learner },
        };
        membership.nodes().map(member).collect()
    }

    /// Learners that have nearly all entries; known to the leader only.
    pub fn ready(&self) -> Vec<u64> {
        let metrics = self.engine.raft().metrics().borrow_watched().clone();
        let Some(replication) = metrics.replication else { return Vec::new() };
        let last = metrics.last_log_index.map_or(0, |index| index + 1);
        let near = |id: &u64| {
            replication.get(id).is_some_and(|matched| {
                matched.is_some() && behind(matched.as_ref()) + LAG_MAX >= last
            })
        };
        metrics.membership_config.membership().learner_ids().filter(near).collect()
    }

    /// Adds a learner, or updates a member's address.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for an invalid id or address, [`StoreError::Unavailable`] without a
    /// leader.
    pub async fn add(&self, id: u64, address: &str) -> Result<(), StoreError> {
        self.change(Change::Add(id, Address::new(address))).await
    }

    /// Promotes learners to voters.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a member that is no learner or would be one voter too many,
    /// [`StoreError::NotCaughtUp`] if one of them lags too far behind, [`StoreError::Unavailable`]
    /// without a leader.
    pub async fn promote(&self, ids: Vec<u64>) -> Result<(), StoreError> {
        self.change(Change::Promote(ids)).await
    }

    /// Removes a member.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for an unknown member or the last voter, [`StoreError::Unavailable`]
    /// without a leader.
    pub async fn remove(&self, id: u64) -> Result<(), StoreError> {
        self.change(Change::Remove(id)).await?;
        if self.profiles().contains_key(&id) {
            let forget = Command::SetProfile { member: id, profile: Profile::default() };
            if let Err(error) = self.submit(forget).await {
                tracing::warn!(%error, "cannot remove the profile of a removed member");
            }
        }
        Ok(())
    }

    async fn change(&self, change: Change) -> Result<(), StoreError> {
        let deadline = base::clock::now() + LEADER_WAIT;
        let request = Request::Change(change);
        loop {
            match self.engine.call_leader(&request, false, deadline).await? {
                LeaderReply::Local => {
                    let Request::Change(change) = &request else { return Ok(()) };
                    if self.change_here(change).await? {
                        return Ok(());
                    }
                    if base::clock::now() >= deadline {
                        let text = "this member is not the leader any more";
                        return Err(StoreError::Unavailable(text.to_owned()));
                    }
                    self.engine.await_other_leadership().await;
                }
                LeaderReply::Remote(Response::Changed) => return Ok(()),
                LeaderReply::Remote(Response::Refused(error)) => return Err(error),
                LeaderReply::Remote(_) => {
                    let text = "unexpected response of the leader";
                    return Err(StoreError::Unavailable(text.to_owned()));
                }
            }
        }
    }

    /// Profiles by member.
    pub fn profiles(&self) -> BTreeMap<u64, Profile> {
        self.engine.applied_state.shared.state.read().cluster_data().profiles.clone()
    }

    /// Publishes this member's profile, unless it is unchanged.
    ///
    /// # Errors
    /// The errors of a write.
    pub async fn describe(&self, profile: Profile) -> Result<(), StoreError> {
        if self.profiles().get(&self.id()) == Some(&profile) {
            return Ok(());
        }
        self.submit(Command::SetProfile { member: self.id(), profile }).await
    }

    async fn submit(&self, command: Command) -> Result<(), StoreError> {
        use crate::local::engine::Engine;
        self.engine.submit(command, Durability::Synced).await.map(drop)
    }

    /// Index of the newest committed entry known.
    pub fn committed(&self) -> u64 {
        self.engine.committed()
    }

    /// Changes the membership as the leader; `false` if another member leads.
    pub(super) async fn change_here(&self, change: &Change) -> Result<bool, StoreError> {
        let _one = self.changing.lock().await;
        let (newest, agreed) = self.newest_membership().await?;
        let membership = newest.membership();
        if membership.get_node(&self.id()).is_none() {
            // A leader that removed itself leads until others know, but must not change the
            // membership any more.
            return Ok(false);
        }
        if !agreed {
            let text = "another membership change is not committed yet: try again";
            return Err(StoreError::Unavailable(text.to_owned()));
        }
        let changes = plan(membership, change, &self.ready())?;
        let Some(changes) = changes else { return Ok(true) };
        if matches!(change, Change::Add(..)) && membership.nodes().count() == 1 {
            self.engine.end_lazy().await?;
        }
        let changes = self.with_own_address(membership, change, changes)?;
        // If the caller is dropped, the change continues after the lock is released.
        let planned_on =
            Precondition::LastMembershipLogId { last_membership_log_id: *newest.log_id() };
        match self.engine.raft().change_membership_if(changes, false, [planned_on]).await {
            Ok(_) => {}
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => return Ok(false),
            Err(RaftError::APIError(error)) => {
                return Err(StoreError::Unavailable(error.to_string()));
            }
            Err(RaftError::Fatal(error)) => return Err(self.engine.fatal(&error)),
        }
        if self.membership().nodes().count() == 1 {
            self.engine.lazy_ended.store(false, Relaxed);
        }
        Ok(true)
    }

    /// Adds this member's own address: the first member of a cluster starts without one, and
    /// announces it before others join.
    fn with_own_address(
        &self,
        membership: &Membership,
        change: &Change,
        changes: ChangeMembers<u64, Address>,
    ) -> Result<ChangeMembers<u64, Address>, StoreError> {
        let own = membership.get_node(&self.id());
        if !matches!(change, Change::Add(..)) || own == Some(&self.address) {
            return Ok(changes);
        }
        if self.address.is_unknown() {
            let text = "this server was started as a single server: other members cannot reach it";
            return Err(invalid(text));
        }
        let own = ChangeMembers::SetNodes(BTreeMap::from([(self.id(), self.address.clone())]));
        Ok(ChangeMembers::Batch(vec![own, changes]))
    }
}

#[async_trait]
impl ClusterMembers for Members {
    fn id(&self) -> u64 {
        self.id()
    }

    fn cluster(&self) -> ClusterId {
        self.cluster()
    }

    fn list(&self) -> Vec<Member> {
        self.list()
    }

    fn profiles(&self) -> BTreeMap<u64, Profile> {
        self.profiles()
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership()
    }

    fn connected(&self) -> BTreeMap<u64, usize> {
        self.connected()
    }

    fn traffic(&self) -> BTreeMap<u64, Traffic> {
        self.traffic()
    }

    async fn add(&self, id: u64, address: &str) -> Result<(), StoreError> {
        self.add(id, address).await
    }

    async fn promote(&self, ids: Vec<u64>) -> Result<(), StoreError> {
        self.promote(ids).await
    }

    async fn remove(&self, id: u64) -> Result<(), StoreError> {
        self.remove(id).await
    }

    async fn transfer(&self, id: u64) -> Result<(), StoreError> {
        self.transfer(id).await
    }
}

/// The change for openraft; `None` if there is nothing to do.
fn plan(
    membership: &Membership,
    change: &Change,
    ready: &[u64],
) -> Result<Option<ChangeMembers<u64, Address>>, StoreError> {
    let voters: BTreeSet<u64> = membership.voter_ids().collect_set();
    Ok(match change {
        Change::Add(0, _) => return Err(invalid("0 is not a valid member id")),
        Change::Add(_, address) if address.is_unknown() => {
            return Err(invalid("the address of the member is missing"));
        }
        Change::Add(id, address) if membership.get_node(id) == Some(address) => None,
        Change::Add(id, address) => {
            let other = membership.nodes().find(|(other, at)| *at == address && *other != id);
            if let Some((other, _)) = other {
                let text = format!(
                    "{address} is the address of member {other:016x}: remove that member first"
                );
                return Err(invalid(text));
            }
            Some(ChangeMembers::SetNodes(BTreeMap::from([(*id, address.clone())])))
        }
        Change::Promote(ids) => {
            let new: BTreeSet<u64> =
                ids.iter().copied().filter(|id| !voters.contains(id)).collect_set();
            if let Some(id) = new.iter().find(|id| membership.get_node(id).is_none()) {
                return Err(invalid(format!("{id:016x} is not a member: add it first")));
            }
            if voters.len() + new.len() > VOTERS_MAX {
                return Err(invalid(format!("there are at most {VOTERS_MAX} voters")));
            }
            if let Some(id) = new.iter().find(|id| !ready.contains(id)) {
                return Err(StoreError::NotCaughtUp(*id));
            }
            (!new.is_empty()).then_some(ChangeMembers::AddVoterIds(new))
        }
        Change::Remove(id) if membership.get_node(id).is_none() => {
            return Err(invalid(format!("{id:016x} is not a member")));
        }
        Change::Remove(id) if voters.len() == 1 && voters.contains(id) => {
            return Err(invalid("the only voter cannot be removed"));
        }
        Change::Remove(id) if voters.contains(id) => {
            Some(ChangeMembers::RemoveVoters(BTreeSet::from([*id])))
        }
        Change::Remove(id) => Some(ChangeMembers::RemoveNodes(BTreeSet::from([*id]))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voters_stay_an_odd_number_up_to_seven() {
        let promoted = |voters, ready: &[u64]| to_promote(voters, ready).len();
        assert_eq!([promoted(1, &[]), promoted(1, &[2]), promoted(1, &[2, 3])], [0, 0, 2]);
        assert_eq!([promoted(1, &[2, 3, 4]), promoted(3, &[4, 5])], [2, 2]);
        // One of three was lost and removed: its successor restores three voters.
        assert_eq!([promoted(2, &[4]), promoted(2, &[4, 5])], [1, 1]);
        assert_eq!([promoted(7, &[8]), promoted(6, &[7, 8]), promoted(5, &[6, 7, 8])], [0, 1, 2]);
    }

    #[test]
    fn a_change_that_cannot_be_is_refused_with_what_is_wrong() {
        let at = |text| Address::new(text);
        let nodes = BTreeMap::from([(1, at("a:1")), (2, at("b:1")), (3, at("c:1"))]);
        let members = Membership::new(vec![BTreeSet::from([1, 2])], nodes.clone()).unwrap();
        let refusal = |change| plan(&members, &change, &[]).unwrap_err().to_string();
        assert!(
            refusal(Change::Add(4, at("b:1")))
                .contains("b:1 is the address of member 0000000000000002")
        );
        assert!(refusal(Change::Add(4, at(""))).contains("address of the member is missing"));
        assert!(refusal(Change::Add(0, at("d:1"))).contains("0 is not a valid member id"));
        assert!(refusal(Change::Promote(vec![9])).contains("0000000000000009 is not a member"));
        assert!(refusal(Change::Promote(vec![3])).contains("not caught up"));
        assert!(refusal(Change::Remove(9)).contains("not a member"));
        assert_eq!(plan(&members, &Change::Add(3, at("c:1")), &[]).unwrap(), None);
        assert_eq!(plan(&members, &Change::Promote(vec![1]), &[]).unwrap(), None);
        assert!(plan(&members, &Change::Promote(vec![3]), &[3]).unwrap().is_some());
        let last = Membership::new(vec![BTreeSet::from([1])], nodes).unwrap();
        assert!(
            plan(&last, &Change::Remove(1), &[]).unwrap_err().to_string().contains("only voter")
        );
    }
}
