//! The members of a cluster, its leader and its identity.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::error::StoreError;

/// Identity of a cluster, recorded in every file of the store. Its text form is 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ClusterId(pub [u8; 16]);

/// A text that is not a [`ClusterId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a cluster id")]
pub struct InvalidClusterId(String);

impl ClusterId {
    /// Generates a new identity.
    pub fn random() -> Self {
        let mut id = [0; 16];
        base::clock::random_bytes(&mut id);
        Self(id)
    }

    /// Parses the output of [`std::fmt::Display`].
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(|number| Self(number.to_be_bytes()))
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for ClusterId {
    type Error = InvalidClusterId;

    fn try_from(text: String) -> Result<Self, InvalidClusterId> {
        Self::parse(&text).ok_or(InvalidClusterId(text))
    }
}

impl std::fmt::Display for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The leadership as this member knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Newest term known.
    pub term: u64,
    /// Id of the leader, if known.
    pub leader: Option<u64>,
    /// Address of the leader, if known.
    pub address: Option<String>,
    /// Whether this member leads.
    pub leads: bool,
}

/// Role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Counts for the quorum.
    Voter,
    /// Receives the log, but does not count for the quorum.
    Learner,
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Id; never reused.
    pub id: u64,
    /// Address; empty if the member never announced one.
    pub address: String,
    /// Role.
    pub role: Role,
}

/// What a member announces about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Name of its machine.
    pub name: String,
    /// URLs for clients.
    pub client_urls: Vec<String>,
}

/// Traffic between this member and another one since the start of the process, requests and
/// responses of both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent to the member.
    pub sent_bytes: u64,
    /// Bytes received from the member.
    pub received_bytes: u64,
    /// Requests that were not delivered or not answered.
    pub sent_failures: u64,
    /// Requests and responses of the member that could not be decoded.
    pub received_failures: u64,
}

/// The members of the cluster, as etcd's Cluster service manages them.
#[async_trait]
pub trait ClusterMembers: Send + Sync + std::fmt::Debug {
    /// Id of this member.
    fn id(&self) -> u64;

    /// Identity of the cluster.
    fn cluster(&self) -> ClusterId;

    /// All members known locally, by id.
    fn list(&self) -> Vec<Member>;

    /// Profiles of the members, by id.
    fn profiles(&self) -> BTreeMap<u64, Profile>;

    /// The current leadership and its changes.
    fn leadership(&self) -> watch::Receiver<Leadership>;

    /// Number of connections that each other member has to this one.
    fn connected(&self) -> BTreeMap<u64, usize>;

    /// Traffic with each other member since the start of the process.
    fn traffic(&self) -> BTreeMap<u64, Traffic>;

    /// Adds a learner, or updates the address of a member.
    async fn add(&self, id: u64, address: &str) -> Result<(), StoreError>;

    /// Promotes learners to voters.
    async fn promote(&self, ids: Vec<u64>) -> Result<(), StoreError>;

    /// Removes a member.
    async fn remove(&self, id: u64) -> Result<(), StoreError>;

    /// Transfers leadership to a voter; resolves once that voter leads.
    async fn transfer(&self, id: u64) -> Result<(), StoreError>;
}

/// The position of this store in its cluster.
pub trait Cluster: Send + Sync {
    /// Whether this member is the only voter.
    fn is_alone(&self) -> bool;

    /// Whether processes outside this cluster write to the store, so that they must agree on a
    /// compactor through the store itself.
    fn is_shared(&self) -> bool {
        false
    }

    /// Newest known term of the consensus; a new leader, or a restart of the only member, has a
    /// higher one.
    fn term(&self) -> u64;

    /// Index of the newest log entry applied locally.
    fn applied_index(&self) -> u64;

    /// The members, for stores that can have several.
    fn members(&self) -> Option<Arc<dyn ClusterMembers>>;
}

#[cfg(test)]
mod tests {
    use super::ClusterId;

    #[test]
    fn the_id_of_a_cluster_round_trips() {
        let id = ClusterId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 254, 255]);
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0dfeff");
        assert_eq!(ClusterId::parse(&id.to_string()), Some(id));
        for bad in
            ["", "00", "zz0102030405060708090a0b0c0dfeff", "000102030405060708090a0b0c0dfeff00"]
        {
            assert_eq!(ClusterId::parse(bad), None, "{bad}");
        }
    }
}
