//! A server that joins others: it is given what servers share, and asks to become a member of their store.

use std::path::{Path, PathBuf};

use base::io::Tcp;
use base::{Shutdown, fs};
use cluster::join::servers::{self, AddMemberRequest, ServerJoinRequest, SharedFiles};
use cluster::join::{self, Error, JoinClient, ServerAddress};
use cluster::token::Token;
use serde::{Deserialize, Serialize};
use settings::ClusterSettings;
use store::{ClusterId, Members};

use crate::error_catalogue::{DATA_DIR, OTHER_CLUSTER, Refusal};
use crate::join::{check_ca, check_clock, until_answered};
use crate::machine::VERSION;
use crate::server::config::{Config, JoinTarget};

/// That a server has been given what servers share, and whose store it is a member of; written last.
pub(crate) const RECORD: &str = "server/member.json";
/// What servers share: files below `server` in the data directory.
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
/// Token files; who has only one of them has a link in place of the other.
pub(crate) const TOKENS: [&str; 2] = ["token", "agent-token"];

#[derive(Serialize, Deserialize)]
struct Record {
    store: String,
    server: String,
}

/// A server that has what servers share.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    target: &'a JoinTarget,
    /// PEM of their CA.
    server_ca: String,
    /// Whose store it is.
    pub(crate) store: ClusterId,
    /// When that store was put in the place of another one.
    pub(crate) replaced_at: u64,
}

/// Asks the others once for what servers share. `None` for a server that joins nobody: by its flags, or because it has data
/// of its own cluster already.
///
/// # Errors
/// Data of another cluster; whatever the others say no to.
pub(crate) async fn enter<'a>(
    config: &'a Config,
    settings: ClusterSettings,
    port: u16,
    shutdown: &Shutdown,
) -> Result<Option<Entered<'a>>, Refusal> {
    let Some(target) = &config.join else { return Ok(None) };
    let data_dir = &config.machine.data_dir;
    if let Some(store) = kept(data_dir, &target.token)? {
        let server_ca = fs::read_to_string(&data_dir.join("server/tls/server-ca.crt"))
            .map_err(|e| DATA_DIR.refuse(e))?;
        let Some(store) = store else { return Ok(None) };
        return Ok(Some(Entered { target, server_ca, store, replaced_at: 0 }));
    }
    let enter = ServerJoinRequest {
        name: config.machine.node_name.clone(),
        version: VERSION.to_owned(),
        settings,
        port,
    };
    let (shared, server_ca) =
        until_answered(shutdown, async || ask(&target.server, &target.token, &enter).await).await?;
    let store = keep(data_dir, &target.server, &shared)?;
    tracing::info!(server = %target.server, store = shared.store, "joining");
    let replaced_at = shared.replaced_at;
    Ok(Some(Entered { target, server_ca, store, replaced_at }))
}

/// What is here already: nothing, data of this cluster's first server, or (with the store's id) what a server was given that
/// joined it.
///
/// # Errors
/// Data of another cluster than the token's.
#[expect(clippy::option_option, reason = "nothing here, a first server, a further one")]
fn kept(data_dir: &Path, token: &Token) -> Result<Option<Option<ClusterId>>, Refusal> {
    let ca = data_dir.join("server/tls/server-ca.crt");
    let record = data_dir.join(RECORD);
    // Without a store it enters anew, for the others' may be another one since.
    let db = data_dir.join("server/db");
    let has_store =
        store::has_store(&db).map_err(|e| DATA_DIR.refuse(format!("{}: {e}", db.display())))?;
    let store = if record.exists() && has_store {
        let text = fs::read_to_string(&record).map_err(|e| DATA_DIR.refuse(e))?;
        let record = serde_json::from_str::<Record>(&text).ok();
        let store = record.and_then(|record| ClusterId::parse(&record.store)).ok_or_else(|| {
            DATA_DIR.refuse(format!(
                "{} does not say whose store this is",
                data_dir.join(RECORD).display()
            ))
        })?;
        Some(store)
    } else if has_store && ca.exists() {
        None
    } else {
        return Ok(None);
    };
    let pem = fs::read_to_string(&ca).map_err(|e| DATA_DIR.refuse(e))?;
    let named = |hash: &String| base::pki::rotation::named(&pem, hash);
    match token.ca_hash.as_ref().map(named).transpose().map_err(|e| DATA_DIR.refuse(e))? {
        Some(named) if named.is_empty() => Err(OTHER_CLUSTER.refuse(format!(
            "{} has the data of a server of another cluster than the token's",
            data_dir.display()
        ))),
        _ => Ok(Some(store)),
    }
}

async fn ask(
    server: &ServerAddress,
    token: &Token,
    enter: &ServerJoinRequest,
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
    let shared = servers::fetch_shared_files(party, enter).await?;
    let whole = SHARED.iter().all(|file| shared.files.contains_key(*file));
    let why = if !whole {
        "what it shares is not all that a server needs"
    } else if shared.files.get("tls/server-ca.crt").is_none_or(|ca| ca.0 != shown.pem) {
        "it says another CA than it shows"
    } else {
        return Ok((shared, shown.pem));
    };
    Err(Error::WrongCa { server: server.to_string(), why: why.into() })
}

/// Writes everything, the record last: a start that is interrupted before begins anew.
fn keep(
    data_dir: &Path,
    server: &ServerAddress,
    shared: &SharedFiles,
) -> Result<ClusterId, Refusal> {
    let refuse = |e: &dyn std::fmt::Display| DATA_DIR.refuse(e);
    let store = ClusterId::parse(&shared.store)
        .ok_or_else(|| refuse(&format!("{server} names the store {:?}", shared.store)))?;
    let directory = data_dir.join("server");
    for folder in ["", "tls", "tls/etcd"] {
        fs::create_dir(&directory.join(folder), 0o700).map_err(|e| refuse(&e))?;
    }
    for file in SHARED.iter().chain(&TOKENS) {
        let Some(content) = shared.files.get(*file) else { continue };
        let path: PathBuf = directory.join(file);
        fs::write_atomic(&path, content.0.as_bytes(), 0o600).map_err(|e| refuse(&e))?;
    }
    let record = Record { store: shared.store.clone(), server: server.to_string() };
    let text = serde_json::to_string_pretty(&record).map_err(|e| refuse(&e))?;
    fs::write_atomic(&data_dir.join(RECORD), text.as_bytes(), 0o600).map_err(|e| refuse(&e))?;
    Ok(store)
}

impl Entered<'_> {
    /// Becomes a member, unless it is one.
    ///
    /// # Errors
    /// What the others say no to.
    pub(crate) async fn become_member(
        &self,
        members: &Members,
        address: &str,
        shutdown: &Shutdown,
    ) -> Result<(), Refusal> {
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
