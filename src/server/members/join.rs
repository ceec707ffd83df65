//! A server that joins a cluster: it receives the files that all servers share and becomes a member
//! of their store.

use std::path::{Path, PathBuf};

use base::io::Tcp;
use base::{Shutdown, fs};
use cluster::join::servers::{self, AddMemberRequest, ServerJoinRequest, SharedFiles};
use cluster::join::{self, Error, JoinClient, ServerAddress};
use cluster::token::Token;
use serde::{Deserialize, Serialize};
use settings::ClusterSettings;
use store::{ClusterId, Members};

use crate::error_catalogue::{CommandError, DATA_DIR, OTHER_CLUSTER};
use crate::join::{check_ca, check_clock, until_answered};
use crate::machine::VERSION;
use crate::server::config::{Config, JoinTarget};

/// The record of a join: which store this server is a member of. Written after all shared files.
pub(crate) const RECORD: &str = "server/member.json";
/// The files that all servers share, relative to `server/` in the data directory.
pub(crate) const SHARED: [&str; 12] = [
    "tls/server-ca.crt",
    "tls/server-ca.key",
    "tls/client-ca.crt",
    "tls/client-ca.key",
    "tls/request-header-ca.crt",
    "tls/request-header-ca.key",
    "tls/etcd/server-ca.crt",
    "tls/etcd/server-ca.key",
    "tls/etcd/peer-ca.crt",
    "tls/etcd/peer-ca.key",
    "tls/service.key",
    "tls/encryption.keys",
];
/// Token files. A cluster with one token has a link in place of the other file.
pub(crate) const TOKENS: [&str; 2] = ["token", "agent-token"];

#[derive(Serialize, Deserialize)]
struct MemberRecord {
    store: String,
    server: String,
}

/// The cluster whose shared files this server has received, and whose member it becomes.
#[derive(Debug)]
pub(crate) struct JoinedCluster<'a> {
    target: &'a JoinTarget,
    /// PEM of their CA.
    server_ca: String,
    /// Identity of the store.
    pub(crate) store: ClusterId,
    /// When that store replaced another one, in seconds since the epoch; 0 if it never did.
    pub(crate) replaced_at: u64,
}

/// Requests the shared files from `--server`, once. `None` if this server joins no cluster, because
/// of its flags or because it has data of that cluster already.
///
/// # Errors
/// The data directory belongs to another cluster, or the other servers reject the request.
pub(crate) async fn receive_shared_files<'a>(
    config: &'a Config,
    settings: ClusterSettings,
    port: u16,
    shutdown: &Shutdown,
) -> Result<Option<JoinedCluster<'a>>, CommandError> {
    let Some(target) = &config.join else { return Ok(None) };
    let data_dir = &config.machine.data_dir;
    if let Some(store) = existing_membership(data_dir, &target.token)? {
        let server_ca = fs::read_to_string(&data_dir.join("server/tls/server-ca.crt"))
            .map_err(|e| DATA_DIR.error(e))?;
        let Some(store) = store else { return Ok(None) };
        return Ok(Some(JoinedCluster { target, server_ca, store, replaced_at: 0 }));
    }
    let request = ServerJoinRequest {
        name: config.machine.node_name.clone(),
        version: VERSION.to_owned(),
        settings,
        port,
    };
    let (shared, server_ca) = until_answered(shutdown, async || {
        request_shared_files(&target.server, &target.token, &request).await
    })
    .await?;
    let store = write_shared_files(data_dir, &target.server, &shared)?;
    tracing::info!(server = %target.server, store = shared.store, "members: joining the cluster");
    let replaced_at = shared.replaced_at;
    Ok(Some(JoinedCluster { target, server_ca, store, replaced_at }))
}

/// What the data directory has of the cluster: nothing, the data of its first server, or, with the
/// identity of the store, those of a server that joined.
///
/// # Errors
/// The data belongs to another cluster than the token.
#[expect(clippy::option_option, reason = "no data, a first server, a server that joined")]
fn existing_membership(
    data_dir: &Path,
    token: &Token,
) -> Result<Option<Option<ClusterId>>, CommandError> {
    let ca = data_dir.join("server/tls/server-ca.crt");
    let record = data_dir.join(RECORD);
    // Without a store the server joins again: the cluster may have replaced its store since.
    let db = data_dir.join("server/db");
    let has_store =
        store::has_store(&db).map_err(|e| DATA_DIR.error(format!("{}: {e}", db.display())))?;
    let store = if record.exists() && has_store {
        let text = fs::read_to_string(&record).map_err(|e| DATA_DIR.error(e))?;
        let record = serde_json::from_str::<MemberRecord>(&text).ok();
        let store = record.and_then(|record| ClusterId::parse(&record.store)).ok_or_else(|| {
            DATA_DIR.error(format!("{} does not name the store", data_dir.join(RECORD).display()))
        })?;
        Some(store)
    } else if has_store && ca.exists() {
        None
    } else {
        return Ok(None);
    };
    let pem = fs::read_to_string(&ca).map_err(|e| DATA_DIR.error(e))?;
    let named = |hash: &String| base::pki::rotation::named(&pem, hash);
    match token.ca_hash.as_ref().map(named).transpose().map_err(|e| DATA_DIR.error(e))? {
        Some(named) if named.is_empty() => Err(OTHER_CLUSTER.error(format!(
            "{} has the data of a server of another cluster than the token's",
            data_dir.display()
        ))),
        _ => Ok(Some(store)),
    }
}

async fn request_shared_files(
    server: &ServerAddress,
    token: &Token,
    request: &ServerJoinRequest,
) -> Result<(SharedFiles, String), Error> {
    let shown = join::fetch_ca(&Tcp, server).await?;
    let trusted = check_ca(token, server, &shown)?;
    check_clock(&shown, server)?;
    let authorization = token.authorization();
    let party = JoinClient {
        dial: &Tcp,
        server,
        server_ca: &trusted,
        authorization: Some(&authorization),
        cert: None,
    };
    let shared = servers::fetch_shared_files(party, request).await?;
    let whole = SHARED.iter().all(|file| shared.files.contains_key(*file));
    let why = if !whole {
        "the answer lacks files that a server needs"
    } else if shared.files.get("tls/server-ca.crt").is_none_or(|ca| ca.0 != shown.pem) {
        "its answer contains another CA than /cacerts"
    } else {
        return Ok((shared, shown.pem));
    };
    Err(Error::WrongCa { server: server.to_string(), why: why.into() })
}

/// Writes the shared files and the record. The record is last, so that the next start repeats an
/// interrupted join.
fn write_shared_files(
    data_dir: &Path,
    server: &ServerAddress,
    shared: &SharedFiles,
) -> Result<ClusterId, CommandError> {
    let error = |e: &dyn std::fmt::Display| DATA_DIR.error(e);
    let store = ClusterId::parse(&shared.store)
        .ok_or_else(|| error(&format!("{server} names the store {:?}", shared.store)))?;
    let directory = data_dir.join("server");
    for folder in ["", "tls", "tls/etcd"] {
        fs::create_dir(&directory.join(folder), 0o700).map_err(|e| error(&e))?;
    }
    for file in SHARED.iter().chain(&TOKENS) {
        let Some(content) = shared.files.get(*file) else { continue };
        let path: PathBuf = directory.join(file);
        fs::write_atomic(&path, content.0.as_bytes(), 0o600).map_err(|e| error(&e))?;
    }
    let record = MemberRecord { store: shared.store.clone(), server: server.to_string() };
    let text = serde_json::to_string_pretty(&record).map_err(|e| error(&e))?;
    fs::write_atomic(&data_dir.join(RECORD), text.as_bytes(), 0o600).map_err(|e| error(&e))?;
    Ok(store)
}

impl JoinedCluster<'_> {
    /// Becomes a member of the store, unless this server is one.
    ///
    /// # Errors
    /// The other servers reject the request.
    pub(crate) async fn become_member(
        &self,
        members: &Members,
        address: &str,
        shutdown: &Shutdown,
    ) -> Result<(), CommandError> {
        if members.list().iter().any(|member| member.id == members.id()) {
            return Ok(());
        }
        let member = AddMemberRequest {
            id: format!("{:016x}", members.id()),
            address: address.to_owned(),
            store: self.store.to_string(),
        };
        let authorization = self.target.token.authorization();
        let party = JoinClient {
            dial: &Tcp,
            server: &self.target.server,
            server_ca: &self.server_ca,
            authorization: Some(&authorization),
            cert: None,
        };
        until_answered(shutdown, async || servers::add_member(party.clone(), &member).await).await
    }
}
