//! How a server joins others: it is given what all servers of a cluster share, and then becomes a
//! member of the store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use settings::ClusterSettings;

use super::{Error, Party};

/// Where it asks for what servers share; with the token of servers.
pub const SHARED_PATH: &str = "/v1-kube-lite/server";
/// Where it asks to be a member of the store.
pub const MEMBER_PATH: &str = "/v1-kube-lite/server/member";

/// What a server says of itself before it is told anything.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enter {
    /// Name of its machine.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The settings of the cluster as this server has them; they must be those of every other
    /// server.
    #[serde(rename = "facts")]
    pub settings: ClusterSettings,
    /// Port of its API: clients find all servers at the same.
    pub port: u16,
}

/// What all servers of a cluster have.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shared {
    /// Whose data the store is, 32 hex characters.
    pub store: String,
    /// When an administrator put that store in the place of another one; 0 when it replaces none.
    #[serde(default)]
    pub replaced_at: u64,
    /// Keys, certificates of CAs and tokens: path below `server` in the data directory, and
    /// content.
    pub files: BTreeMap<String, Content>,
}

/// Content of a file that nobody else may see.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Content(pub String);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<&String> = self.files.keys().collect();
        f.debug_struct("Shared").field("store", &self.store).field("files", &files).finish()
    }
}

/// A member that wants to be added.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberAsk {
    /// Its id, 16 hex characters.
    pub id: String,
    /// Where members reach it, `host:port`.
    pub address: String,
    /// Whose member it is, as [`Shared::store`].
    pub store: String,
}

/// It was added.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Added {}

/// Asks for what servers share.
///
/// # Errors
/// As [`super::ask`].
pub async fn shared(party: Party<'_>, enter: &Enter) -> Result<Shared, Error> {
    party.post(SHARED_PATH, enter).await
}

/// Asks to become a member.
///
/// # Errors
/// As [`super::ask`].
pub async fn add(party: Party<'_>, member: &MemberAsk) -> Result<(), Error> {
    let _: Added = party.post(MEMBER_PATH, member).await?;
    Ok(())
}
