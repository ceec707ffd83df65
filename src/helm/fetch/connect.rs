//! Connections to the hosts of charts: directly, or through a proxy.

use std::sync::Arc;

use base::io::{BoxIo, Dial as _, Tcp};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;
use url::Url;

use super::proxy::{Proxies, Proxy, ProxyError};

/// The most bytes of a proxy's answer to `CONNECT`.
const ANSWER_MAX: usize = 16 << 10;

/// A connection on which requests are made.
pub(super) struct Connection {
    pub(super) io: BoxIo,
    /// The proxy, if it reads the requests itself; their targets are then whole addresses.
    pub(super) proxy: Option<Proxy>,
}

/// Opens connections.
pub(super) struct Connector {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) proxies: Proxies,
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
    Variable(#[from] ProxyError),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("it answers {0:?}")]
    Refused(String),
    #[error("its answer is longer than {ANSWER_MAX} bytes")]
    Length,
}

impl Connector {
    /// Connects to the server of an address.
    pub(super) async fn connect(&self, url: &Url) -> Result<Connection, ConnectError> {
        let is_tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(ConnectError::Scheme),
        };
        let name = url.host_str().unwrap_or_default().to_owned();
        let host = name.trim_matches(['[', ']']).to_owned();
        let port = url.port_or_known_default().unwrap_or(443);
        let Some(proxy) = self.proxies.of(url)? else {
            let io = Tcp.dial(&host, port).await.map_err(ConnectError::Connect)?;
            let io = if is_tls { self.handshake(io, host).await? } else { io };
            return Ok(Connection { io, proxy: None });
        };
        let (address, proxy_host) = (format!("{}:{}", proxy.host, proxy.port), proxy.host.clone());
        let failed = |cause| ConnectError::Proxy { address, cause };
        let io = match Tcp.dial(&proxy_host, proxy.port).await {
            Ok(io) => io,
            Err(error) => return Err(failed(error.into())),
        };
        let io = if proxy.is_tls { self.handshake(io, proxy_host).await? } else { io };
        if !is_tls {
            return Ok(Connection { io, proxy: Some(proxy) });
        }
        let io = match tunnel(io, request(&format!("{name}:{port}"), &proxy)).await {
            Ok(io) => io,
            Err(error) => return Err(failed(error)),
        };
        Ok(Connection { io: self.handshake(io, host).await?, proxy: None })
    }

    async fn handshake(&self, io: BoxIo, host: String) -> Result<BoxIo, ConnectError> {
        let name = ServerName::try_from(host).map_err(|_| ConnectError::Name)?;
        let io = TlsConnector::from(Arc::clone(&self.tls)).connect(name, io).await;
        Ok(Box::new(io.map_err(ConnectError::Tls)?))
    }
}

/// The request for a connection to `target`.
fn request(target: &str, proxy: &Proxy) -> String {
    let authorization = proxy.authorization.iter();
    let authorization = authorization.map(|value| format!("Proxy-Authorization: {value}\r\n"));
    let authorization: String = authorization.collect();
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n")
}

/// Sends the request and reads the answer up to its empty line, byte by byte, because what follows
/// belongs to the connection behind the proxy.
async fn tunnel(mut io: BoxIo, request: String) -> Result<BoxIo, TunnelError> {
    io.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() == ANSWER_MAX {
            return Err(TunnelError::Length);
        }
        answer.push(io.read_u8().await?);
    }
    let answer = String::from_utf8_lossy(&answer);
    let line = answer.lines().next().unwrap_or_default();
    match line.split(' ').nth(1) {
        Some(code) if line.starts_with("HTTP/1.") && code.starts_with('2') => Ok(io),
        _ => Err(TunnelError::Refused(line.chars().take(200).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tunnel_begins_after_the_answer_of_the_proxy() {
        for (answer, want) in [
            ("HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nrest", "rest"),
            ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "it answers \"HTTP/1.1 407 Pro"),
            ("SSH-2.0\r\n\r\n", "it answers \"SSH-2.0\""),
            ("HTTP/1.1 200 OK\r\n", "unexpected end of file"),
        ] {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            theirs.write_all(answer.as_bytes()).await.unwrap();
            theirs.shutdown().await.unwrap();
            let proxy = Proxy {
                is_tls: false,
                host: "p".into(),
                port: 1,
                authorization: Some("Basic x".into()),
            };
            let opened = tunnel(Box::new(ours), request("a.example:443", &proxy)).await;
            let text = match opened {
                Err(error) => error.to_string(),
                Ok(mut io) => {
                    let mut text = String::new();
                    io.read_to_string(&mut text).await.unwrap();
                    text
                }
            };
            assert!(text.starts_with(want), "{answer}: {text}");
        }
    }
}
