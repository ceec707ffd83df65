//! The join protocol of servers: a server fetches the files that all servers share, then becomes a
//! member of the store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use settings::ClusterSettings;

use super::{Error, JoinClient};

/// Path of requests for the shared files, authenticated by the server token.
pub const SHARED_PATH: &str = "/v1-kube-lite/server";
/// Path of requests to become a member of the store.
pub const MEMBER_PATH: &str = "/v1-kube-lite/server/member";

/// The body of a request for the shared files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerJoinRequest {
    /// Name of its machine.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The cluster settings of this server; they must equal those of all other servers.
    #[serde(rename = "facts")]
    pub settings: ClusterSettings,
    /// Port of its API; all servers of a cluster use the same port.
    pub port: u16,
}

/// The files that all servers of a cluster share.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedFiles {
    /// Identity of the store, 32 hex characters.
    pub store: String,
    /// When an administrator replaced an earlier store by this one, in seconds since the epoch; 0
    /// if it replaces none.
    #[serde(default)]
    pub replaced_at: u64,
    /// Keys, CA certificates and tokens, by path below `server` in the data directory.
    pub files: BTreeMap<String, Content>,
}

/// Content of a confidential file; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Content(pub String);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl std::fmt::Debug for SharedFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<&String> = self.files.keys().collect();
        f.debug_struct("Shared").field("store", &self.store).field("files", &files).finish()
    }
}

/// The body of a request to add a member to the store.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddMemberRequest {
    /// Id of the member, 16 hex characters.
    pub id: String,
    /// Its address for other members, `host:port`.
    pub address: String,
    /// Identity of the store, as [`SharedFiles::store`].
    pub store: String,
}

/// The body of the response when a member was added.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AddMemberResponse {}

/// Fetches the files that all servers share.
///
/// # Errors
/// As [`super::send_join_request`].
pub async fn fetch_shared_files(
    party: JoinClient<'_>,
    enter: &ServerJoinRequest,
) -> Result<SharedFiles, Error> {
    party.post(SHARED_PATH, enter).await
}

/// Requests to become a member of the store.
///
/// # Errors
/// As [`super::send_join_request`].
pub async fn add_member(party: JoinClient<'_>, member: &AddMemberRequest) -> Result<(), Error> {
    let _: AddMemberResponse = party.post(MEMBER_PATH, member).await?;
    Ok(())
}
