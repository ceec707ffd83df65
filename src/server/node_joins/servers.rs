//! What servers that join are answered: what all servers share, and their place in the store.

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

use super::{refuse, skew};
use crate::machine::VERSION;
use crate::server::members::Listener;
use crate::server::members::join::{SHARED, TOKENS};

/// The store's side of joining.
pub(crate) struct Store {
    /// Who its members are.
    pub(crate) members: Arc<Members>,
    /// Where they hear this one.
    pub(crate) listener: Arc<Listener>,
    /// Of this server.
    pub(crate) data_dir: PathBuf,
    /// When its store was put in the place of another one.
    pub(crate) replaced_at: u64,
    /// Port of the API.
    pub(crate) port: u16,
    /// The cluster is in a database, which one server uses.
    pub(crate) external: bool,
}

impl Store {
    /// What servers share, for one that fits.
    ///
    /// # Errors
    /// 403 for another version, 400 for other settings; 500 when a file or the port for servers cannot be used.
    pub(super) async fn shared(
        &self,
        settings: &ClusterSettings,
        enter: &ServerJoinRequest,
    ) -> Result<SharedFiles, Status> {
        skew::check(VERSION, &enter.version)
            .map_err(|why| refuse(403, reason::VERSION_SKEW, why))?;
        if self.external {
            let why = "this cluster is in an external datastore (--datastore-endpoint), which one server uses: servers join where the embedded store is";
            return Err(refuse(400, reason::BAD_REQUEST, why.to_owned()));
        }
        let mut differ: Vec<String> =
            settings.differences(&enter.settings).into_iter().map(str::to_owned).collect();
        if enter.port != self.port {
            differ.push(format!("port of the API ({} here)", self.port));
        }
        if !differ.is_empty() {
            let why = format!(
                "settings that all servers of a cluster have in common differ: {}; start the new server with the flags of this one",
                differ.join(", ")
            );
            return Err(refuse(400, reason::BAD_REQUEST, why));
        }
        // It would be given CAs that this server has no more after its next start.
        if cluster::rotation::is_pending(&self.data_dir) {
            let why = "a change of the CAs waits for this server's next start; restart kube-lite on it first";
            return Err(refuse(400, reason::BAD_REQUEST, why));
        }
        self.listener.ensure().await.map_err(|refusal| Status::internal(&refusal.particulars))?;
        let data_dir = self.data_dir.clone();
        let files = base::tasks::blocking(move || read(&data_dir)).await;
        let files = files.map_err(|e| e.to_string()).and_then(|f| f.map_err(|e| e.to_string()));
        let files = files.map_err(|error| {
            tracing::error!(error, "servers cannot join");
            Status::internal("the server cannot read what servers share, its log says why")
        })?;
        let store = self.members.cluster().to_string();
        Ok(SharedFiles { store, replaced_at: self.replaced_at, files })
    }

    /// Adds a member.
    ///
    /// # Errors
    /// 400 for one that cannot be, 503 without a leader.
    pub(super) async fn add(&self, ask: &AddMemberRequest) -> Result<AddMemberResponse, Status> {
        let bad = |why: String| refuse(400, reason::BAD_REQUEST, why);
        let own = self.members.cluster().to_string();
        if ask.store != own {
            return Err(bad(format!("this is the store {own}, not {}", ask.store)));
        }
        let id = u64::from_str_radix(&ask.id, 16)
            .map_err(|_| bad(format!("{:?} is no id of a member", ask.id)))?;
        if ask.address.parse::<std::net::SocketAddr>().is_err() {
            return Err(bad(format!("{:?} is no address of a member", ask.address)));
        }
        self.members.add(id, &ask.address).await.map_err(|error| match error {
            StoreError::Invalid(why) => bad(why),
            error => refuse(503, "ServiceUnavailable", error.to_string()),
        })?;
        tracing::info!(member = ask.id, address = ask.address, "a server joined");
        Ok(AddMemberResponse {})
    }
}

/// The files. A token that is a link to the other one is left away.
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
