//! Connections to the hosts of charts: directly, or through a proxy.

use std::sync::Arc;

use base::io::{BoxIo, Dial as _, Tcp};
use client::proxy::{HttpProxy, ProxyRules, TunnelError, VariableError, host_of};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use url::Url;

/// A connection on which requests are made.
pub(super) struct Connection {
    pub(super) io: BoxIo,
    /// The proxy, if it reads the requests itself; their targets are then whole addresses.
    pub(super) proxy: Option<HttpProxy>,
}

/// Opens connections.
pub(super) struct Connector {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) proxies: ProxyRules,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("only http, https and oci addresses are supported")]
    Scheme,
    #[error("the host is no name of a server")]
    Name,
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    #[error("cannot connect through the proxy {address}: {cause}")]
    Proxy { address: String, cause: TunnelError },
    #[error("TLS handshake failed: {0}")]
    Tls(std::io::Error),
    #[error(transparent)]
    Variable(#[from] VariableError),
}

impl Connector {
    /// Connects to the server of an address.
    pub(super) async fn connect(&self, url: &Url) -> Result<Connection, ConnectError> {
        let is_tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(ConnectError::Scheme),
        };
        let host = host_of(url).to_owned();
        let port = url.port_or_known_default().unwrap_or(443);
        let Some(proxy) = self.proxies.choose(url)? else {
            let io = Tcp.dial(&host, port).await.map_err(ConnectError::Connect)?;
            let io = if is_tls { self.handshake(io, host).await? } else { io };
            return Ok(Connection { io, proxy: None });
        };
        let failed = |cause| ConnectError::Proxy { address: proxy.address(), cause };
        let io = Tcp.dial(&proxy.host, proxy.port).await.map_err(|error| failed(error.into()))?;
        let mut io = if proxy.tls { self.handshake(io, proxy.host.clone()).await? } else { io };
        if !is_tls {
            return Ok(Connection { io, proxy: Some(proxy) });
        }
        proxy.tunnel(&mut io, &host, port).await.map_err(failed)?;
        Ok(Connection { io: self.handshake(io, host).await?, proxy: None })
    }

    async fn handshake(&self, io: BoxIo, host: String) -> Result<BoxIo, ConnectError> {
        let name = ServerName::try_from(host).map_err(|_| ConnectError::Name)?;
        let io = TlsConnector::from(Arc::clone(&self.tls)).connect(name, io).await;
        Ok(Box::new(io.map_err(ConnectError::Tls)?))
    }
}
