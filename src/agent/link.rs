//! How this agent reaches its servers: the one place where connections are chosen and transports are made.

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

use crate::agent::Lives;
use crate::agent::config::Config;
use crate::certificates::renewal::Addresses;
use crate::error_catalogue::{DATA_DIR, Refusal};
use crate::machine::Clients;
use crate::status::{Link as Standing, ServerLine};

/// Every connection leads to one server, whatever host is asked for.
pub(super) struct To(pub(super) ServerAddress);

#[async_trait]
impl Dial for To {
    async fn dial(&self, _: &str, _: u16) -> std::io::Result<BoxIo> {
        Tcp.dial(&self.0.host, self.0.port).await
    }
}

/// Connections to servers.
pub(super) struct Link {
    servers: Servers,
    server: ServerAddress,
    settings: watch::Sender<String>,
}

impl Link {
    /// Leads to the servers that are remembered, that the cluster told at the join, and that the flag names.
    ///
    /// # Errors
    /// When what is remembered is no address, or cannot be read.
    pub(super) fn new(config: &Config, joined: &Joined) -> Result<Self, Refusal> {
        let server: ServerAddress = match &config.server {
            Some(server) => server.clone(),
            None => joined.server.parse().map_err(|e| DATA_DIR.refuse(e))?,
        };
        let servers = Servers::open(&config.machine.directory(), Some(&server.to_string()))
            .map_err(|e| DATA_DIR.refuse(e))?;
        if servers.addresses().borrow().len() == 1 {
            // Nothing is remembered yet but what was told at the join.
            servers.set_addresses(&joined.settings.servers);
        }
        Ok(Self { servers, server, settings: watch::Sender::default() })
    }

    /// What makes the connections.
    pub(super) fn dial(&self) -> Arc<dyn Dial> {
        Arc::new(self.servers.clone())
    }

    /// Keeps the list of servers and a tunnel to each of them.
    ///
    /// # Errors
    /// When the remembered CA cannot be used.
    pub(super) fn start(
        &self,
        config: &Config,
        lives: &Lives,
        clients: &Clients,
        addresses: Addresses,
        tasks: &Tasks,
    ) -> Result<(), Refusal> {
        let machine = &config.machine;
        let remember = self.servers.clone().persist(tasks.shutdown().clone());
        tasks.spawn(Kind::Critical, "servers", remember);
        let informers = Informers::new(clients.network.clone(), tasks.clone());
        servers::follow(&self.servers, &informers, tasks);
        let agent = tunnel::Agent {
            servers: self.servers.clone(),
            tls: client_tls(&lives.servers, &lives.kubelet_client)?,
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

    /// What `status` shows of servers.
    pub(super) fn known(&self) -> crate::agent::status::Servers {
        let servers = self.servers.clone();
        let line = |s: ServerState| ServerLine {
            address: s.address,
            link: Standing {
                state: s.state.name().to_owned(),
                since_seconds: Some(s.since_seconds),
            },
            error: Some(s.error).filter(|e| !e.is_empty()),
        };
        Box::new(move || servers.states().into_iter().map(line).collect())
    }

    /// A digest of the settings that the cluster has, told anew when a server says another one.
    pub(super) fn settings(&self) -> watch::Receiver<String> {
        self.settings.subscribe()
    }

    /// Whether a server answers.
    pub(super) fn answering(&self) -> watch::Receiver<bool> {
        self.servers.answering()
    }

    /// The server as messages name it.
    pub(super) fn server(&self) -> &ServerAddress {
        &self.server
    }

    /// A client that proves itself with `cert`.
    ///
    /// # Errors
    /// When the remembered CA cannot be used.
    pub(super) fn client(
        &self,
        trusted: &Arc<trust::Servers>,
        cert: &Arc<LiveCert>,
        agent: &str,
    ) -> Result<Client, Refusal> {
        let tls = client_tls(trusted, cert)?;
        let base = format!("https://{SERVER_NAME}");
        let transport =
            HttpsTransport::over(self.dial(), &base, tls, "").map_err(|e| DATA_DIR.refuse(e))?;
        let transport: Arc<dyn Transport> = Arc::new(transport);
        Ok(Client::new(transport, agent))
    }
}

/// Trusts the cluster's servers and shows `cert`.
fn client_tls(
    trusted: &Arc<trust::Servers>,
    cert: &Arc<LiveCert>,
) -> Result<ClientConfig, Refusal> {
    tls::following_client(Arc::clone(trusted), Some(Arc::clone(cert)), &[])
        .map_err(|e| DATA_DIR.refuse(e))
}
