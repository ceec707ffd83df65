//! Connections of an agent to its servers: the list of servers, tunnels and clients.

use std::sync::Arc;

use async_trait::async_trait;
use base::io::{BoxIo, Dial, Tcp};
use base::pki::reloadable_cert::LiveCert;
use base::pki::{tls, trust};
use base::{Kind, Tasks};
use client::{Client, HttpsTransport, Informers, Transport};
use cluster::join::files::Joined;
use cluster::join::{SERVER_NAME, ServerAddress};
use cluster::servers::{self, ServerState, Servers};
use cluster::tunnel;
use cluster::tunnel::agent::NodePods;
use cluster::tunnel::allow::LocalMachine;
use rustls::ClientConfig;
use tokio::sync::watch;

use crate::agent::ReloadableCerts;
use crate::agent::config::Config;
use crate::agent::virtual_addresses::AgentLeases;
use crate::certificates::renewal::Addresses;
use crate::error_catalogue::{CommandError, DATA_DIR};
use crate::machine::Clients;
use crate::status::{Link as LinkState, ServerLine};

/// Dials one server, whatever the host.
pub(super) struct FixedServer(pub(super) ServerAddress);

#[async_trait]
impl Dial for FixedServer {
    async fn dial(&self, _: &str, _: u16) -> std::io::Result<BoxIo> {
        Tcp.dial(&self.0.host, self.0.port).await
    }
}

/// The servers of this agent and the connections to them.
pub(super) struct Link {
    servers: Servers,
    /// The server that messages name.
    server: ServerAddress,
    /// Digest of the cluster's settings, as a server reports it over the tunnel.
    settings: watch::Sender<String>,
}

impl Link {
    /// Opens the list of servers: the stored ones, those in the answer to the join, and that of the
    /// flag.
    ///
    /// # Errors
    /// The stored list cannot be read.
    pub(super) fn new(config: &Config, joined: &Joined) -> Result<Self, CommandError> {
        let server: ServerAddress = match &config.server {
            Some(server) => server.clone(),
            None => joined.server.parse().map_err(|e| DATA_DIR.error(e))?,
        };
        let servers = Servers::open(&config.machine.directory(), Some(&server.to_string()))
            .map_err(|e| DATA_DIR.error(e))?;
        if servers.addresses().borrow().len() == 1 {
            // No list is stored yet.
            servers.set_addresses(&joined.settings.servers);
        }
        Ok(Self { servers, server, settings: watch::Sender::default() })
    }

    /// Dials the servers.
    pub(super) fn dial(&self) -> Arc<dyn Dial> {
        Arc::new(self.servers.clone())
    }

    /// Follows the list of servers and keeps a tunnel to each of them.
    ///
    /// # Errors
    /// The stored CA cannot be used.
    pub(super) fn start(
        &self,
        config: &Config,
        certs: &ReloadableCerts,
        clients: &Clients,
        addresses: Addresses,
        tasks: &Tasks,
    ) -> Result<(), CommandError> {
        let machine = &config.machine;
        let remember = self.servers.clone().persist(tasks.shutdown().clone());
        tasks.spawn(Kind::Critical, "servers", remember);
        let informers = Informers::new(clients.network.clone(), tasks.clone());
        servers::follow(&self.servers, &informers, tasks);
        let agent = tunnel::Agent {
            servers: self.servers.clone(),
            tls: client_tls(&certs.servers, &certs.kubelet_client)?,
            own: LocalMachine {
                node: machine.node_name.clone(),
                addresses,
                kubelet_port: machine.args.kubelet_port,
            },
            pods: Arc::new(NodePods::new(clients.node.clone(), &machine.node_name)),
            settings: self.settings.clone(),
            tasks: tasks.clone(),
        };
        tasks.spawn(Kind::Critical, "tunnels", agent.run());
        Ok(())
    }

    /// The servers that grant virtual addresses.
    ///
    /// # Errors
    /// The stored CA cannot be used.
    pub(super) fn lease_servers(
        &self,
        certs: &ReloadableCerts,
        tasks: &Tasks,
    ) -> Result<Arc<AgentLeases>, CommandError> {
        let tls = client_tls(&certs.servers, &certs.kubelet_client)?;
        Ok(AgentLeases::new(self.servers.clone(), tls, tasks))
    }

    /// The list of servers.
    pub(super) fn servers(&self) -> Servers {
        self.servers.clone()
    }

    /// The servers for `kube-lite status`.
    pub(super) fn server_lines(&self) -> crate::agent::status::Servers {
        let servers = self.servers.clone();
        let line = |s: ServerState| ServerLine {
            address: s.address,
            link: LinkState {
                state: s.state.name().to_owned(),
                since_seconds: Some(s.since_seconds),
            },
            error: Some(s.error).filter(|e| !e.is_empty()),
        };
        Box::new(move || servers.states().into_iter().map(line).collect())
    }

    /// Digest of the cluster's settings; changes when a server reports another one.
    pub(super) fn settings(&self) -> watch::Receiver<String> {
        self.settings.subscribe()
    }

    /// Whether a server answers.
    pub(super) fn answering(&self) -> watch::Receiver<bool> {
        self.servers.answering()
    }

    /// The server that messages name.
    pub(super) fn server(&self) -> &ServerAddress {
        &self.server
    }

    /// A client that authenticates with `cert`.
    ///
    /// # Errors
    /// The stored CA cannot be used.
    pub(super) fn client(
        &self,
        trusted: &Arc<trust::Servers>,
        cert: &Arc<LiveCert>,
        agent: &str,
    ) -> Result<Client, CommandError> {
        let tls = client_tls(trusted, cert)?;
        let base = format!("https://{SERVER_NAME}");
        let transport =
            HttpsTransport::over(self.dial(), &base, tls, "").map_err(|e| DATA_DIR.error(e))?;
        let transport: Arc<dyn Transport> = Arc::new(transport);
        Ok(Client::new(transport, agent))
    }
}

/// TLS that trusts the servers of the cluster and presents `cert`.
fn client_tls(
    trusted: &Arc<trust::Servers>,
    cert: &Arc<LiveCert>,
) -> Result<ClientConfig, CommandError> {
    tls::following_client(Arc::clone(trusted), Some(Arc::clone(cert)), &[])
        .map_err(|e| DATA_DIR.error(e))
}
