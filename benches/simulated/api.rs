//! One HTTP/2 connection under one identity: requests, and watches whose events come as lines.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use base::pki::Leaf;
use base::pki::reloadable_cert::LiveCert;
use base::pki::tls;
use base::{Kind, Tasks};
use bytes::{Bytes, BytesMut};
use cluster::servers::Servers;
use cluster::tunnel;
use cluster::tunnel::allow::{LocalMachine, Pods};
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

/// A request without an answer by then has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// What a server that is too busy asks for.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// As client-go's connections.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));

/// Who connects to which server.
#[derive(Clone)]
pub(crate) struct Identity {
    address: Arc<str>,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl Identity {
    pub(crate) fn new(
        server: &str,
        roots: &[CertificateDer<'static>],
        leaf: &Leaf,
    ) -> anyhow::Result<Self> {
        let host = server.rsplit_once(':').context("--server is host:port")?.0.to_owned();
        let config = tls::client(roots, Some(LiveCert::new(leaf)?), &["h2"])?;
        Ok(Self {
            address: server.into(),
            name: ServerName::try_from(host)?,
            config: Arc::new(config),
        })
    }

    /// Keeps a tunnel to the server under this identity, as real agents do, until shutdown. The
    /// list tells whether it is up.
    pub(crate) fn keep_tunnel(&self, node: &str, tasks: &Tasks) -> anyhow::Result<Servers> {
        // A list of servers is remembered where there is a directory; here is none.
        let servers = Servers::open(Path::new("/nonexistent"), Some(&self.address))?;
        let agent = tunnel::Agent {
            servers: servers.clone(),
            tls: ClientConfig::clone(&self.config),
            // No address is its own, none ever changes.
            own: LocalMachine {
                node: node.to_owned(),
                addresses: watch::Sender::default().subscribe(),
                kubelet_port: 0,
            },
            pods: Arc::new(NoPods),
            settings: watch::Sender::default(),
            tasks: tasks.clone(),
        };
        tasks.spawn(Kind::Request, "tunnels", agent.run());
        Ok(servers)
    }
}

/// Simulated pods serve no requests.
struct NoPods;

#[async_trait]
impl Pods for NoPods {
    async fn is_pod(&self, _: IpAddr) -> bool {
        false
    }
}

#[derive(Clone)]
pub(crate) struct Api {
    sender: SendRequest<Full<Bytes>>,
    address: Arc<str>,
}

impl Api {
    pub(crate) async fn connect(identity: &Identity, tasks: &Tasks) -> anyhow::Result<Self> {
        let open = async {
            let tcp = TcpStream::connect(&*identity.address).await?;
            tcp.set_nodelay(true)?;
            let tls = TlsConnector::from(Arc::clone(&identity.config))
                .connect(identity.name.clone(), tcp)
                .await?;
            let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
            builder.timer(TokioTimer::new());
            builder.keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
            anyhow::Ok(builder.handshake(TokioIo::new(tls)).await?)
        };
        let (sender, connection) = tokio::time::timeout(REQUEST_TIMEOUT, open)
            .await
            .context("connecting took too long")??;
        // Ends with its last sender; a fault shows in the next request.
        let end = async move {
            drop(connection.await);
            Ok::<(), std::convert::Infallible>(())
        };
        tasks.spawn(Kind::Request, "connection", end);
        Ok(Self { sender, address: Arc::clone(&identity.address) })
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: Bytes,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        Ok(Request::builder()
            .method(Method::from_bytes(method.as_bytes())?)
            .uri(format!("https://{}{path}", self.address))
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, kind)
            .header(header::USER_AGENT, "agents")
            .body(Full::new(body))?)
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> anyhow::Result<(u16, Bytes)> {
        let request = self.request(method, path, kind, serde_json::to_vec(body)?.into())?;
        let mut sender = self.sender.clone();
        let answer = async {
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            anyhow::Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, answer).await;
        answer.with_context(|| format!("{method} {path}: no answer"))?
    }

    pub(crate) async fn json(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<(u16, Bytes)> {
        self.send(method, path, "application/json", body).await
    }

    /// A streaming list that goes on as a watch.
    pub(crate) async fn watch(&self, path: &str, selector: &str) -> anyhow::Result<Watch> {
        let path = format!(
            "{path}?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&fieldSelector={selector}"
        );
        let response = loop {
            let request = self.request("GET", &path, "application/json", Bytes::new())?;
            let response = self.sender.clone().send_request(request).await?;
            if response.status() != 429 {
                break response;
            }
            tokio::time::sleep(RETRY).await;
        };
        let status = response.status();
        if status != 200 {
            let text = response.into_body().collect().await?.to_bytes();
            anyhow::bail!("GET {path}: {status} {}", String::from_utf8_lossy(&text));
        }
        Ok(Watch { body: response.into_body(), buffer: BytesMut::new() })
    }
}

pub(crate) struct Watch {
    body: Incoming,
    buffer: BytesMut,
}

impl Watch {
    /// Bytes as they come, for who counts only; `None` at the end.
    pub(crate) async fn bytes(&mut self) -> anyhow::Result<Option<Bytes>> {
        match self.body.frame().await {
            Some(frame) => Ok(Some(frame?.into_data().unwrap_or_default())),
            None => Ok(None),
        }
    }

    /// The next event; `None` at the end.
    pub(crate) async fn event(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                return Ok(Some(serde_json::from_slice(&self.buffer.split_to(end + 1))?));
            }
            match self.bytes().await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}
