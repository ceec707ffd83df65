//! Stage `ports`: every port is bound before anything on the machine changes.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::error_catalogue::{CommandError, PORT_IN_USE};
use crate::server::config::Config;
use crate::server::etcd::Listeners;

/// Bound listeners that do not accept connections yet.
pub(crate) struct Ports {
    /// Listener of the API.
    pub(crate) api: TcpListener,
    /// Its address.
    pub(crate) address: SocketAddr,
    /// Listeners of the etcd-compatible API.
    pub(crate) etcd: Listeners,
}

/// Binds the ports that the flags name.
///
/// # Errors
/// A port that cannot be bound.
pub(crate) async fn bind_ports(config: &Config) -> Result<Ports, CommandError> {
    let api = TcpListener::bind(config.listen).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => PORT_IN_USE.error(format!("{} is in use", config.listen)),
        _ => PORT_IN_USE.error(format!("cannot listen on {}: {e}", config.listen)),
    })?;
    let address = api.local_addr().map_err(|e| PORT_IN_USE.error(e))?;
    let etcd = Listeners::bind(config).await?;
    // Every accepted connection inherits it: tunnels and watches cross unreliable links.
    cluster::tunnel::socket::set_keepalive(&api);
    Ok(Ports { api, address, etcd })
}
