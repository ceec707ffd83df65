//! Stage `membership`: a server with `--server` receives the files that all servers share.

use std::net::SocketAddr;

use base::Tasks;
use settings::ClusterSettings;

use crate::error_catalogue::CommandError;
use crate::server::config::Config;
use crate::server::members::join::{JoinedCluster, receive_shared_files};
use crate::server::store_identity::StoreIdentity;

/// The cluster that this server belongs to.
pub(crate) struct Membership<'a> {
    /// The cluster that this server joins; `None` if it is the first server or already a member.
    pub(crate) joined: Option<JoinedCluster<'a>>,
    /// Recorded identity of the store; `None` with an external datastore.
    pub(crate) identity: Option<StoreIdentity>,
    /// The settings that nodes and further servers receive, with the bound port of this server.
    pub(crate) settings: ClusterSettings,
}

/// Joins the cluster of `--server`, if the flag is set and this server has not joined before.
///
/// # Errors
/// The other servers reject the request, or the data directory belongs to another cluster.
pub(crate) async fn join_cluster<'a>(
    config: &'a Config,
    identity: Option<StoreIdentity>,
    address: SocketAddr,
    tasks: &Tasks,
) -> Result<Membership<'a>, CommandError> {
    let settings = config.settings_for_nodes(address.port());
    let port = config.advertised_port(address.port());
    let joined = receive_shared_files(config, settings.clone(), port, tasks.shutdown()).await?;
    let identity = match (identity, &joined) {
        (None, Some(joined)) => {
            Some(StoreIdentity::join(config, joined.store, joined.replaced_at)?)
        }
        (identity, _) => identity,
    };
    Ok(Membership { joined, identity, settings })
}
