//! The transport over HTTPS: HTTP/1.1 or HTTP/2 by ALPN, certificates or a bearer token.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::{Object, Status, WatchEvent};
use async_trait::async_trait;
use base::io::{BoxIo, Dial, Tcp};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::query;
use crate::transport::{Scope, Transport, WatchStream};
use crate::{Client, Error, unexpected};

/// Maximum size of a response in bytes.
const ANSWER_MAX: usize = 64 << 20;
/// Maximum size of a line (one event) of a watch: an object of 3 MiB with its frame.
const EVENT_MAX: usize = 4 << 20;
/// Maximum number of events queued for a slow consumer; then the connection is not read further.
const WATCH_BUFFER_MAX: usize = 64;
/// Timeout of a response (upstream's default request timeout).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of connecting and the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that is silent for this long while requests wait is pinged (client-go's
/// `HTTP2_READ_IDLE_TIMEOUT_SECONDS`).
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout of a ping, after which the connection is closed (client-go's
/// `HTTP2_PING_TIMEOUT_SECONDS`).
const PING_TIMEOUT: Duration = Duration::from_secs(15);

type Pool = hyper_util::client::legacy::Client<TlsDialer, Full<Bytes>>;

/// HTTPS to a server, bound to one identity.
#[derive(Clone)]
pub struct HttpsTransport {
    pool: Pool,
    dial: Arc<dyn Dial>,
    base: Arc<str>,
    authorization: Option<HeaderValue>,
}

impl fmt::Debug for HttpsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpsTransport({})", self.base)
    }
}

impl HttpsTransport {
    /// Creates a transport to `server` (`https://host:port`); `token` is empty if `tls` has a
    /// client certificate.
    ///
    /// # Errors
    /// When the token is not a valid header value.
    pub fn new(server: &str, tls: ClientConfig, token: &str) -> Result<Self, Error> {
        Self::over(Arc::new(Tcp), server, tls, token)
    }

    /// As [`HttpsTransport::new`], with connections opened by `dial`, which chooses the machine;
    /// `server` is the name in the certificate.
    ///
    /// # Errors
    /// When the token is not a valid header value.
    pub fn over(
        dial: Arc<dyn Dial>,
        server: &str,
        tls: ClientConfig,
        token: &str,
    ) -> Result<Self, Error> {
        let mut tls = tls;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let pool = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(90))
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .build(TlsDialer {
                dial: Arc::clone(&dial),
                connector: TlsConnector::from(Arc::new(tls)),
            });
        let authorization = if token.is_empty() {
            None
        } else {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|e| Error::Transport(e.to_string()))?;
            value.set_sensitive(true);
            Some(value)
        };
        Ok(Self { pool, dial, base: server.trim_end_matches('/').into(), authorization })
    }

    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Incoming>, Error> {
        let failed = |e: String| Error::Transport(format!("{}: {e}", self.base));
        let path = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        *request.uri_mut() =
            format!("{}{path}", self.base).parse::<Uri>().map_err(|e| failed(e.to_string()))?;
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, value.clone());
        }
        let answer =
            tokio::time::timeout(REQUEST_TIMEOUT, self.pool.request(request.map(Full::new))).await;
        match answer {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let cause =
                    std::error::Error::source(&error).map(|c| format!(": {c}")).unwrap_or_default();
                Err(failed(format!("{error}{cause}")))
            }
            Err(_) => Err(failed(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()))),
        }
    }
}

#[async_trait]
impl Transport for HttpsTransport {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let (parts, body) = self.send(request).await?.into_parts();
        let read =
            tokio::time::timeout(REQUEST_TIMEOUT, Limited::new(body, ANSWER_MAX).collect()).await;
        let body = match read {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => return Err(Error::Transport(format!("{}: {error}", self.base))),
            Err(_) => {
                return Err(Error::Transport(format!(
                    "{}: the answer did not end in time",
                    self.base
                )));
            }
        };
        Ok(Response::from_parts(parts, body))
    }

    async fn watch(&self, scope: &Scope, resume_from: Option<i64>) -> Result<WatchStream, Error> {
        let mut path = Client::path(&scope.gvr, &scope.namespace, "", "");
        let from = resume_from.map(|r| r.to_string()).unwrap_or_default();
        let (initial, matching) =
            if resume_from.is_none() { ("true", "NotOlderThan") } else { ("", "") };
        path.push_str(&query(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("sendInitialEvents", initial),
            ("resourceVersionMatch", matching),
            ("resourceVersion", &from),
            ("labelSelector", &scope.label_selector),
            ("fieldSelector", &scope.field_selector),
        ]));
        let request = Request::get(&path)
            .header(header::ACCEPT, "application/json")
            .body(Bytes::new())
            .map_err(|e| Error::Transport(e.to_string()))?;
        let response = self.send(request).await?;
        let code = response.status().as_u16();
        if code != 200 {
            let body = Limited::new(response.into_body(), ANSWER_MAX)
                .collect()
                .await
                .map(|b| b.to_bytes())
                .unwrap_or_default();
            let status = serde_json::from_slice::<Status>(&body).ok();
            let unexpected = || unexpected::status(code, &Method::GET, &path, &body);
            return Err(status.unwrap_or_else(unexpected).into());
        }
        let (sender, receiver) = mpsc::channel(WATCH_BUFFER_MAX);
        #[expect(
            clippy::disallowed_methods,
            reason = "ends with its receiver, the reflector that owns it"
        )]
        tokio::spawn(pump(response.into_body(), sender));
        Ok(receiver)
    }

    async fn back(&self) {
        self.dial.back().await;
    }
}

/// Splits the body into lines and decodes each; ends with the body, an invalid event or the
/// receiver.
async fn pump(mut body: Incoming, sender: mpsc::Sender<WatchEvent>) {
    let mut buffer = BytesMut::new();
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = sender.closed() => return,
        };
        let Some(Ok(frame)) = frame else { return };
        let Ok(data) = frame.into_data() else { continue };
        buffer.extend_from_slice(&data);
        while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
            let line = buffer.split_to(end + 1);
            let event = match decode(&line) {
                Ok(event) => event,
                Err(error) => {
                    tracing::warn!(%error, "watch ended: event cannot be read");
                    return;
                }
            };
            if sender.send(event).await.is_err() {
                return;
            }
        }
        if buffer.len() > EVENT_MAX {
            tracing::warn!(limit = EVENT_MAX, "watch ended: event too large");
            return;
        }
    }
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct BookmarkObject {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    resource_version: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

fn decode(line: &[u8]) -> Result<WatchEvent, Error> {
    let frame: Frame<'_> = serde_json::from_slice(line)?;
    let text = frame.object.get();
    Ok(match frame.kind {
        "BOOKMARK" => {
            let object: BookmarkObject = serde_json::from_str(text)?;
            let revision = object
                .metadata
                .resource_version
                .parse()
                .map_err(|_| Error::Decode("resourceVersion".into()))?;
            let initial = object
                .metadata
                .annotations
                .get("k8s.io/initial-events-end")
                .is_some_and(|v| v == "true");
            WatchEvent::Bookmark { revision, initial }
        }
        "ERROR" => WatchEvent::Error(Box::new(serde_json::from_str(text)?)),
        kind => {
            let object = Arc::new(Object::from_value(serde_json::from_str(text)?)?);
            match kind {
                "ADDED" => WatchEvent::Added(object),
                "MODIFIED" => WatchEvent::Modified(object),
                "DELETED" => WatchEvent::Deleted(object),
                other => return Err(Error::Decode(format!("watch event of type {other:?}"))),
            }
        }
    })
}

/// Opens TLS connections for the pool.
#[derive(Clone)]
struct TlsDialer {
    dial: Arc<dyn Dial>,
    connector: TlsConnector,
}

impl tower::Service<Uri> for TlsDialer {
    type Response = TokioIo<TlsIo>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (dial, connector) = (Arc::clone(&self.dial), self.connector.clone());
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let port = uri.port_u16().unwrap_or(443);
            let connect = async {
                let io = dial.dial(&host, port).await?;
                connector.connect(name, io).await
            };
            let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect)
                .await
                .map_err(|_| io::ErrorKind::TimedOut)??;
            Ok(TokioIo::new(TlsIo(stream)))
        })
    }
}

/// A TLS connection that reports to the pool whether it uses HTTP/2.
struct TlsIo(TlsStream<BoxIo>);

impl Connection for TlsIo {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.0.get_ref().1.alpn_protocol() == Some(b"h2") {
            connected.negotiated_h2()
        } else {
            connected
        }
    }
}

impl AsyncRead for TlsIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
