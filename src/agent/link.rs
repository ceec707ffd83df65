//! How this agent reaches its servers: the one place where connections are chosen and transports are made.

use std::sync::Arc;

use async_trait::async_trait;
use base::io::{BoxIo, Dial, Tcp};
use base::pki;
use base::pki::live::LiveCert;
use base::pki::tls;
use client::{Client, HttpsTransport, Transport};
use cluster::join::files::Joined;
use cluster::join::{SERVER_NAME, ServerAddress};

use crate::agent::config::Config;
use crate::catalogue::{DATA_DIR, Refusal};
use crate::status::ServerLine;

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
    dial: Arc<dyn Dial>,
    server: ServerAddress,
}

impl Link {
    /// Leads to the server of the flag, or else to the one that was joined.
    ///
    /// # Errors
    /// When what is remembered is no address.
    pub(super) fn new(config: &Config, joined: &Joined) -> Result<Self, Refusal> {
        let server = match &config.server {
            Some(server) => server.clone(),
            None => joined.server.parse().map_err(|e| DATA_DIR.refuse(e))?,
        };
        Ok(Self { dial: Arc::new(To(server.clone())), server })
    }

    /// What makes the connections.
    pub(super) fn dial(&self) -> &Arc<dyn Dial> {
        &self.dial
    }

    /// What `status` shows of servers.
    pub(super) fn known(&self) -> crate::agent::status::Servers {
        let address = self.server.to_string();
        let link = crate::status::Link { state: "known".into(), since_seconds: None };
        Box::new(move || {
            vec![ServerLine { address: address.clone(), link: link.clone(), error: None }]
        })
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
        joined: &Joined,
        cert: &Arc<LiveCert>,
        agent: &str,
    ) -> Result<Client, Refusal> {
        let ca = pki::certificates(&joined.server_ca).map_err(|e| DATA_DIR.refuse(e))?;
        let tls = tls::client(&ca, Some(Arc::clone(cert)), &[]).map_err(|e| DATA_DIR.refuse(e))?;
        let base = format!("https://{SERVER_NAME}");
        let transport = HttpsTransport::over(Arc::clone(&self.dial), &base, tls, "")
            .map_err(|e| DATA_DIR.refuse(e))?;
        let transport: Arc<dyn Transport> = Arc::new(transport);
        Ok(Client::new(transport, agent))
    }
}
