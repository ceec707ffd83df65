//! A TLS server on the loopback address that answers like a webhook, for tests.

#![allow(clippy::unwrap_used, reason = "tests only")]

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use base::io::{BoxIo, Dial, Tcp};
use base::pki::reloadable_cert::LiveCert;
use base::pki::{Ca, Leaf, Profile};
use base::{Kind, Shutdown, Tasks};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{Reach, ResolveError};

/// The responses of the server by path.
pub type Answer = fn(&str, Value) -> Response<Full<Bytes>>;

/// A webhook on the loopback address, and its number of connections.
pub struct Hook {
    /// The CA of the certificate.
    pub ca: Ca,
    /// The address of the server.
    pub address: SocketAddr,
    /// The number of accepted connections.
    pub connections: Arc<AtomicUsize>,
    /// The tasks of the server.
    pub tasks: Tasks,
    _dir: tempfile::TempDir,
}

pub(crate) fn ca(dir: &tempfile::TempDir) -> Ca {
    Ca::load_or_create(&dir.path().join("ca.crt"), &dir.path().join("ca.key"), "test").unwrap()
}

/// Starts a webhook with a certificate for Service `s` in namespace `n`.
pub async fn hook(answer: Answer) -> Hook {
    let dir = tempfile::tempdir().unwrap();
    let ca = ca(&dir);
    let leaf = ca.issue(&Profile::server("hook", &["s.n.svc".to_owned()], &[])).unwrap();
    hook_with(dir, ca, &leaf, answer).await
}

pub(crate) async fn hook_with(dir: tempfile::TempDir, ca: Ca, leaf: &Leaf, answer: Answer) -> Hook {
    let tasks = Tasks::new(Shutdown::new());
    let connections = Arc::new(AtomicUsize::new(0));
    let config = base::pki::tls::server(LiveCert::new(leaf).unwrap(), &[], &["http/1.1"]).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (count, owner) = (Arc::clone(&connections), tasks.clone());
    tasks.spawn(Kind::Request, "hook", async move {
        while let Ok((io, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let acceptor = acceptor.clone();
            owner.spawn(Kind::Request, "hook-connection", async move {
                let Ok(io) = acceptor.accept(io).await else { return Ok::<(), Infallible>(()) };
                let service =
                    service_fn(move |request: Request<hyper::body::Incoming>| async move {
                        let target = request.uri().to_string();
                        let identity = identity_of(request.headers());
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let sent = serde_json::from_slice(&body).unwrap_or_default();
                        let mut response = answer(&target, sent);
                        response.headers_mut().insert("x-saw", identity.parse().unwrap());
                        Ok::<_, Infallible>(response)
                    });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(io), service)
                    .await;
                Ok(())
            });
        }
        Ok::<(), Infallible>(())
    });
    Hook { ca, address, connections, tasks, _dir: dir }
}

/// The user agent and credentials, for the header `x-saw`.
fn identity_of(headers: &http::HeaderMap) -> String {
    let all = |name: &str| {
        let values = headers.get_all(name).iter().map(|v| v.to_str().unwrap());
        values.collect::<Vec<_>>().join(",")
    };
    let authorization = headers.get("authorization").map_or("-", |v| v.to_str().unwrap());
    format!("{} [{}] {authorization}", all("x-remote-user"), all("x-remote-group"))
}

/// Resolves every Service to one address.
pub struct To(pub SocketAddr);

#[async_trait]
impl Reach for To {
    async fn endpoint(&self, _: &str, _: &str, _: u16) -> Result<SocketAddr, ResolveError> {
        Ok(self.0)
    }

    async fn resolve(&self, _: &str, _: u16) -> Result<Vec<SocketAddr>, ResolveError> {
        Ok(vec![self.0])
    }

    async fn dial(&self, address: SocketAddr) -> io::Result<BoxIo> {
        Tcp.dial(&address.ip().to_string(), address.port()).await
    }
}

/// A response with this code, media type and body.
pub fn body(code: u16, media: &str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::builder()
        .status(code)
        .header("content-type", media)
        .body(Full::new(body.into()))
        .unwrap()
}
