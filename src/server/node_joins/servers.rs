//! Answers to servers that join: the shared files, and membership in the store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::Status;
use cluster::join::reason;
use cluster::join::servers::{
    AddMemberRequest, AddMemberResponse, Content, ServerJoinRequest, SharedFiles,
};
use settings::ClusterSettings;
use store::{Members, StoreError};

use super::{failure, skew};
use crate::machine::VERSION;
use crate::server::members::PeerListener;
use crate::server::members::join::{SHARED, TOKENS};

/// Admits servers as members of the store.
pub(crate) struct MemberAdmission {
    /// Members of the store.
    pub(crate) members: Arc<Members>,
    /// Listener for other members; bound by the first join.
    pub(crate) listener: Arc<PeerListener>,
    /// Data directory of this server.
    pub(crate) data_dir: PathBuf,
    /// When the store replaced another one, in seconds since the epoch; 0 if it never did.
    pub(crate) replaced_at: u64,
    /// Port of the API.
    pub(crate) port: u16,
    /// Whether the cluster is in an external datastore, which one server uses.
    pub(crate) external: bool,
}

impl MemberAdmission {
    /// The shared files, for a server with the same version and settings.
    ///
    /// # Errors
    /// 403 for another version, 400 for other settings, 500 if a file or the port for servers
    /// cannot be used.
    pub(super) async fn shared(
        &self,
        settings: &ClusterSettings,
        enter: &ServerJoinRequest,
    ) -> Result<SharedFiles, Status> {
        skew::check(VERSION, &enter.version)
            .map_err(|e| failure(403, reason::VERSION_SKEW, e.to_string()))?;
        if self.external {
            let why = "this cluster is in an external datastore (--datastore-endpoint), which one server uses: servers join where the embedded store is";
            return Err(failure(400, reason::BAD_REQUEST, why.to_owned()));
        }
        let mut differ: Vec<String> =
            settings.server_differences(&enter.settings).into_iter().map(str::to_owned).collect();
        if enter.port != self.port {
            differ.push(format!("port of the API ({} here)", self.port));
        }
        if !differ.is_empty() {
            let why = format!(
                "settings that all servers of a cluster have in common differ: {}; start the new server with the flags of this one",
                differ.join(", ")
            );
            return Err(failure(400, reason::BAD_REQUEST, why));
        }
        // The joining server would receive CAs that this server replaces at its next start.
        if cluster::rotation::is_pending(&self.data_dir) {
            let why = "new CAs take effect at the next start of this server; restart kube-lite on it first";
            return Err(failure(400, reason::BAD_REQUEST, why));
        }
        self.listener.ensure_bound().await.map_err(|error| Status::internal(&error.details))?;
        let data_dir = self.data_dir.clone();
        let files = base::tasks::blocking(move || read(&data_dir)).await;
        let files = files.map_err(|e| e.to_string()).and_then(|f| f.map_err(|e| e.to_string()));
        let files = files.map_err(|error| {
            tracing::error!(error, "joins: cannot read the shared files");
            Status::internal("the server cannot read the shared files, see its log")
        })?;
        let store = self.members.cluster().to_string();
        Ok(SharedFiles { store, replaced_at: self.replaced_at, files })
    }

    /// Adds a member.
    ///
    /// # Errors
    /// 400 for an invalid member, 503 without a leader.
    pub(super) async fn add(&self, ask: &AddMemberRequest) -> Result<AddMemberResponse, Status> {
        let bad = |why: String| failure(400, reason::BAD_REQUEST, why);
        let own = self.members.cluster().to_string();
        if ask.store != own {
            return Err(bad(format!("this is the store {own}, not {}", ask.store)));
        }
        let id = u64::from_str_radix(&ask.id, 16)
            .map_err(|_| bad(format!("{:?} is not a member id", ask.id)))?;
        if ask.address.parse::<std::net::SocketAddr>().is_err() {
            return Err(bad(format!("{:?} is not a member address", ask.address)));
        }
        self.members.add(id, &ask.address).await.map_err(|error| match error {
            StoreError::Invalid(why) => bad(why),
            error => failure(503, "ServiceUnavailable", error.to_string()),
        })?;
        tracing::info!(member = ask.id, address = ask.address, "joins: added a server as a member");
        Ok(AddMemberResponse {})
    }
}

/// The shared files. A token file that is a link to the other one is left out.
fn read(data_dir: &Path) -> std::io::Result<BTreeMap<String, Content>> {
    let directory = data_dir.join("server");
    let mut files = BTreeMap::new();
    for file in SHARED.iter().chain(&TOKENS) {
        let path = directory.join(file);
        if !path.is_symlink() {
            files.insert((*file).to_owned(), Content(base::fs::read_to_string(&path)?));
        }
    }
    Ok(files)
}
