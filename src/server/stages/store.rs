//! Stage `store`: opens the store as a member and starts what keeps the servers consistent.

use std::path::PathBuf;
use std::sync::Arc;

use base::{Kind, Tasks};
use store::{Backend, Members};

use super::{Certificates, TaskSets};
use crate::certificates::CaRotation;
use crate::error_catalogue::{
    CommandError, DATA_DIR, DATA_DIR_LOCKED, SERVER_STOPPED, STORE_DAMAGED,
};
use crate::peer_servers::PeerServers;
use crate::secrets_encrypt::{self, SecretsEncryption};
use crate::server::config::Config;
use crate::server::datastore;
use crate::server::members::join::JoinedCluster;
use crate::server::members::{self, PeerListener};
use crate::server::store_identity::{self, StoreIdentity};
use crate::server::virtual_addresses::AddressLeases;

/// The store, which answers, and its members.
pub(crate) struct OpenStore {
    /// The store of the cluster's objects: the embedded one or an external datastore.
    pub(crate) backend: Arc<dyn Backend>,
    /// Members of the embedded store.
    pub(crate) members: Arc<Members>,
    /// The other servers.
    pub(crate) peer_servers: PeerServers,
    /// Listener for other members.
    pub(crate) peer_listener: Arc<PeerListener>,
    /// Leases of virtual addresses.
    pub(crate) address_leases: Arc<AddressLeases>,
    /// Changes the keys of encryption at rest.
    pub(crate) secrets_encryption: Arc<SecretsEncryption>,
    /// Changes the CAs.
    pub(crate) ca_rotation: Arc<CaRotation>,
}

/// Opens the store in `db`, waits until it answers, and takes newer keys of the other servers.
///
/// # Errors
/// The store is locked, damaged or missing, or does not answer before shutdown.
pub(crate) async fn open_store(
    config: &Config,
    db: PathBuf,
    identity: Option<&StoreIdentity>,
    joined: Option<JoinedCluster<'_>>,
    certificates: &Certificates,
    tasks: &TaskSets,
) -> Result<OpenStore, CommandError> {
    let keys = &certificates.keys;
    let has_joined = joined.is_some();
    let settings = store_settings(config, db, identity);
    let (member, calls) =
        members::member_options(config, &certificates.certs, has_joined, &tasks.peers)?;
    let address = member.address.clone();
    let opened = store::open_member(settings, member, &tasks.store).await;
    let (embedded, members) = opened.map_err(|e| command_error_of(&e))?;
    let address_leases = Arc::new(AddressLeases::new(config, &members));
    let parts = (&members, keys, &address_leases);
    let peer_listener =
        Arc::new(PeerListener::new(config, &certificates.certs, parts, &tasks.peers)?);
    if config.cluster_init || has_joined || members.list().len() > 1 {
        peer_listener.ensure_bound().await?;
    }
    let shutdown = tasks.api.shutdown();
    if let Some(joined) = joined {
        joined.become_member(&members, &address, shutdown).await?;
    }
    let ready = members::wait_until_ready(&*embedded, shutdown).await;
    ready.map_err(|e| SERVER_STOPPED.error(format!("the store does not answer: {e}")))?;
    follow_members(&members, address, &tasks.api);
    let backend = match &config.datastore {
        Some(endpoint) => datastore::open(endpoint, config, members.id(), &tasks.store).await?,
        None => embedded,
    };
    if let Some(identity) = identity {
        identity.record_files()?;
    }
    let servers = PeerServers::new(&members, &calls);
    secrets_encrypt::catch_up(&keys.keys, &servers, has_joined, shutdown).await;
    let (secrets_encryption, ca_rotation) =
        start_changes(config, certificates, &backend, servers.clone(), &tasks.api);
    Ok(OpenStore {
        backend,
        members,
        peer_servers: servers,
        peer_listener,
        address_leases,
        secrets_encryption,
        ca_rotation,
    })
}

fn store_settings(config: &Config, db: PathBuf, identity: Option<&StoreIdentity>) -> store::Config {
    let mut settings = store::Config::new(db);
    settings.cluster = identity.map(StoreIdentity::store);
    settings.record = identity.map(StoreIdentity::file);
    settings.exists = identity.is_some_and(|own| own.exists);
    settings.quota = Some(config.etcd_quota);
    settings
}

/// Announces this member's address and promotes learners.
fn follow_members(members: &Arc<Members>, address: String, tasks: &Tasks) {
    let (problems, shutdown) = (tasks.problems().clone(), tasks.shutdown().clone());
    let announcement =
        members::announce_address(Arc::clone(members), address, problems, shutdown.clone());
    tasks.spawn(Kind::Request, "member address", announcement);
    let promotion = members::promote(Arc::clone(members), shutdown);
    tasks.spawn(Kind::Critical, "voters", promotion);
}

/// The two changes that all servers make together: keys of encryption at rest, and CAs.
fn start_changes(
    config: &Config,
    certificates: &Certificates,
    backend: &Arc<dyn Backend>,
    servers: PeerServers,
    tasks: &Tasks,
) -> (Arc<SecretsEncryption>, Arc<CaRotation>) {
    let file = config.encryption.as_ref().map(|plan| plan.file.clone());
    let keys = &certificates.keys;
    let encryption = SecretsEncryption::new(keys, backend, servers.clone(), file, tasks.problems());
    (encryption, CaRotation::new(config.machine.data_dir.clone(), servers))
}

fn command_error_of(error: &store::OpenError) -> CommandError {
    if let Some(command_error) = store_identity::command_error_of(error) {
        return command_error;
    }
    let text = error.to_string();
    match error {
        store::OpenError::Locked { .. } => DATA_DIR_LOCKED.error(text),
        store::OpenError::Corrupt { .. } => STORE_DAMAGED.error(text),
        _ => DATA_DIR.error(text),
    }
}
