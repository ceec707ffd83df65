//! Keep-alive connections over TLS to a server that a benchmark loads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A request without an answer by then ends the run.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The sending half of a connection, which ends with it.
pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// How to reach the server.
#[derive(Clone)]
pub(crate) struct Target {
    address: String,
    name: ServerName<'static>,
    tls: TlsConnector,
    authorization: Option<header::HeaderValue>,
    accept: &'static str,
}

impl Target {
    /// A server at `address`, which is `host:port`; `ca` is a file of the authorities, or of the
    /// self-signed certificate, of the server; `identity` a client certificate and its key.
    ///
    /// # Errors
    ///
    /// A file is not readable, or no certificate; the address has no port.
    pub(crate) fn new(
        address: &str,
        ca: Option<&Path>,
        token: Option<&str>,
        identity: &[PathBuf],
        accept: &'static str,
    ) -> anyhow::Result<Self> {
        let tls = crate::tls::client_config(ca, identity)?;
        let host = address.rsplit_once(':').context("--server is host:port")?.0.to_owned();
        let authorization = match token {
            Some(token) => Some(format!("Bearer {token}").parse()?),
            None => None,
        };
        Ok(Self {
            address: address.to_owned(),
            name: ServerName::try_from(host)?,
            tls: TlsConnector::from(Arc::new(tls)),
            authorization,
            accept,
        })
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// The server does not accept it, or its certificate is of another authority.
    pub(crate) async fn connect(&self) -> anyhow::Result<Sender> {
        let tcp = TcpStream::connect(&self.address).await?;
        tcp.set_nodelay(true)?;
        let tls = self.tls.connect(self.name.clone(), tcp).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        // Ends with its sender; a fault shows in the next request.
        #[expect(clippy::disallowed_methods, reason = "a benchmark has no owner of tasks")]
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    /// A request with this server's headers.
    ///
    /// # Errors
    ///
    /// The path is not valid.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let content = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.address)
            .header(header::ACCEPT, self.accept)
            .header(header::CONTENT_TYPE, content);
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        Ok(request.body(Full::new(body))?)
    }

    /// Sends a request and returns the status and the body of the answer.
    ///
    /// # Errors
    ///
    /// The connection breaks, or there is no answer within [`REQUEST_TIMEOUT`].
    pub(crate) async fn send(
        &self,
        sender: &mut Sender,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<(u16, Bytes)> {
        let request = self.request(method, path, body)?;
        let answer = async {
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            Ok::<_, hyper::Error>((status, response.into_body().collect().await?.to_bytes()))
        };
        Ok(tokio::time::timeout(REQUEST_TIMEOUT, answer).await??)
    }
}
