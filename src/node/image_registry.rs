//! The registry on each node, on the loopback interface: containerd pulls through it from other
//! nodes (`--embedded-registry`) and from mirrors whose names are rewritten. Other nodes reach it
//! at the kubelet API.
//!
//! It implements the pull part of the OCI distribution API, out of containerd's content store.

mod content;
mod fetch;
mod peers;
mod request;
mod response;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base::accept::{Accepted, accept, bind_when_free};
use base::{Kind, Tasks};
use futures::TryStreamExt;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ClientConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::content::ContentStore;
use self::fetch::{BodyError, Expected, Source};
use self::request::{ContentKind, ContentRequest, PathParts, Reference, Unsatisfiable, range};
use self::response::{Body, Content, ErrorCode, error, found, redirect};
use crate::runtime::registries::Registries;

pub(crate) use self::peers::Peers;

/// Connections at one time; containerd opens three for each image that it pulls.
const CONNECTIONS_MAX: usize = 128;
/// Time limit for the headers of a request.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// Content of at most this size is verified before any of it is passed on.
const BUFFERED_MAX: u64 = 1 << 20;
/// Nodes that are tried one after the other if their content is corrupt.
const TRIES_MAX: usize = 3;

/// What the registry needs.
#[derive(Debug)]
pub(crate) struct RegistryConfig {
    /// Its port on the loopback interface.
    pub(crate) port: u16,
    /// Whether nodes pull from each other.
    pub(crate) embedded: bool,
    /// Whether the tag `latest` is shared.
    pub(crate) latest: bool,
    /// TLS to the kubelet APIs of other nodes, with a certificate of this node; `None` if other
    /// nodes cannot be asked.
    pub(crate) peer_tls: Option<Arc<ClientConfig>>,
}

/// The registry of a node.
#[derive(Debug)]
pub(crate) struct ImageRegistry {
    config: RegistryConfig,
    registries: Arc<ArcSwap<Registries>>,
    store: ContentStore,
    peers: Arc<Peers>,
    tasks: Tasks,
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// This machine.
    Local,
    /// Another node; it is served from this node's content only.
    Peer,
}

/// Where content may be taken from, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sources {
    Own,
    OwnThenPeers,
    PeersOnly,
}

/// Where the content of a request may be taken from. A tag that containerd resolves through a
/// mirror is not answered from its own images: with the pull policy `Always` it would never change.
fn sources(request: &ContentRequest, origin: Origin) -> Sources {
    match (origin, &request.reference) {
        (Origin::Peer, _) => Sources::Own,
        (Origin::Local, Reference::Tag(_)) if request.as_mirror => Sources::PeersOnly,
        (Origin::Local, _) => Sources::OwnThenPeers,
    }
}

/// Why content is not served.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("containerd: {0}")]
    Containerd(#[from] tonic::Status),
}

impl ImageRegistry {
    pub(crate) fn new(
        config: RegistryConfig,
        registries: Arc<ArcSwap<Registries>>,
        socket: &Path,
        peers: Peers,
        tasks: Tasks,
    ) -> Arc<Self> {
        let (store, peers) = (ContentStore::new(socket), Arc::new(peers));
        Arc::new(Self { config, registries, store, peers, tasks })
    }

    /// Serves the loopback interface while the registry is embedded or a mirror's names are
    /// rewritten; `changed` reports changes of the registries.
    pub(crate) async fn run(
        self: Arc<Self>,
        mut changed: watch::Receiver<()>,
    ) -> Result<(), Infallible> {
        let shutdown = self.tasks.shutdown().clone();
        while !self.config.embedded && !self.registries.load().has_rewrites() {
            tokio::select! {
                () = shutdown.requested() => return Ok(()),
                more = changed.changed() => if more.is_err() {
                    shutdown.requested().await;
                    return Ok(());
                }
            }
        }
        let Some(listener) = self.listen().await else { return Ok(()) };
        accept(&listener, "image registry", CONNECTIONS_MAX, &shutdown, |accepted| {
            let (registry, stop) = (Arc::clone(&self), shutdown.clone());
            self.tasks.spawn(Kind::Request, "image-registry", async move {
                tokio::select! {
                    () = stop.requested() => {}
                    () = registry.serve_connection(accepted) => {}
                }
                Ok::<(), Infallible>(())
            });
        })
        .await;
        Ok(())
    }

    /// Listens; reports a port in use and retries. `None` at shutdown.
    async fn listen(&self) -> Option<TcpListener> {
        const PROBLEM: &str = "registries/port";
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.config.port));
        let pauses = (Duration::from_secs(1), Duration::from_secs(60));
        let report = |error| {
            let what = format!(
                "cannot listen on {address} for the embedded registry and rewritten mirrors: \
                 {error}"
            );
            let fix = "free the port, or set --embedded-registry-port";
            self.tasks.problems().put(PROBLEM, what, fix);
        };
        let bind = || TcpListener::bind(address);
        let listener = bind_when_free(bind, pauses, self.tasks.shutdown(), report).await?;
        self.tasks.problems().clear(PROBLEM);
        tracing::info!(%address, "image registry: serving");
        Some(listener)
    }

    async fn serve_connection(self: Arc<Self>, accepted: Accepted) {
        let Accepted { stream, place: _place, .. } = accepted;
        let service = hyper::service::service_fn(move |request| {
            let registry = Arc::clone(&self);
            let (parts, _) = Request::<hyper::body::Incoming>::into_parts(request);
            async move {
                let (method, uri, headers) = (&parts.method, &parts.uri, &parts.headers);
                Ok::<_, Infallible>(registry.handle(method, uri, headers, Origin::Local).await)
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
        if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
            tracing::debug!(%error, "image registry: connection failed");
        }
    }

    /// Answers another node.
    pub(crate) async fn handle_peer(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Response<Body> {
        self.handle(method, uri, headers, Origin::Peer).await
    }

    async fn handle(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        origin: Origin,
    ) -> Response<Body> {
        let path = uri.path();
        if !matches!(*method, Method::GET | Method::HEAD) {
            let why = "the registry is read-only";
            return error(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::Unsupported, why);
        }
        if let Some(rest) = path.strip_prefix("/rewrite/").filter(|_| origin == Origin::Local) {
            return self.rewrite(rest, uri);
        }
        if !self.config.embedded {
            let why = "the embedded registry is off; --embedded-registry of the servers enables it";
            return error(StatusCode::NOT_FOUND, ErrorCode::Unsupported, why);
        }
        let Some(rest) = path.strip_prefix("/v2/") else {
            let (status, code) = match path {
                "/v2" => return Response::new(response::full("{}")),
                _ => (StatusCode::NOT_FOUND, ErrorCode::Unsupported),
            };
            return error(status, code, "no such path");
        };
        if rest.is_empty() {
            return Response::new(response::full("{}"));
        }
        let Some(wanted) = ContentRequest::parse(rest, uri) else {
            let why = "not a manifest or blob of a registry; name the registry in the parameter \
                ns or as the first part of the name";
            return error(StatusCode::NOT_FOUND, ErrorCode::NameInvalid, why);
        };
        match self.serve(&wanted, *method == Method::HEAD, headers, origin).await {
            Ok(Some(response)) => response,
            Ok(None) => unknown(&wanted),
            Err(failed) => {
                tracing::warn!(image = wanted.image(), error = %failed, "image registry: cannot \
                    serve content");
                unknown(&wanted)
            }
        }
    }

    /// Redirects to the mirror `REGISTRY/INDEX/NAME/KIND/REFERENCE` with the rewritten name.
    /// containerd follows the redirect with the TLS settings of this mirror's entry in its
    /// `hosts.toml`, and authenticates at the mirror itself.
    fn rewrite(&self, path: &str, uri: &Uri) -> Response<Body> {
        let registries = self.registries.load();
        let found = || {
            let (mirror, rest) = path.split_once('/')?;
            let (index, rest) = rest.split_once('/')?;
            let parts = PathParts::split(rest)?;
            let to = registries.rewritten(mirror, index.parse().ok()?, parts.name)?;
            let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
            Some(format!("{to}/{}/{}{query}", parts.kind, parts.reference))
        };
        match found() {
            Some(url) => redirect(&url),
            None => {
                let why = "no mirror with rewrites has this path";
                error(StatusCode::NOT_FOUND, ErrorCode::NameInvalid, why)
            }
        }
    }

    async fn serve(
        &self,
        wanted: &ContentRequest,
        head: bool,
        headers: &HeaderMap,
        origin: Origin,
    ) -> Result<Option<Response<Body>>, ServeError> {
        let is_latest = wanted.reference == Reference::Tag("latest".to_owned());
        if !self.registries.load().is_shared(&wanted.registry) || is_latest && !self.config.latest {
            return Ok(None);
        }
        let sources = sources(wanted, origin);
        if sources != Sources::PeersOnly
            && let Some(response) = self.serve_own(wanted, head, headers).await?
        {
            return Ok(Some(response));
        }
        if sources == Sources::Own {
            return Ok(None);
        }
        Ok(self.serve_from_peers(wanted, head, headers).await)
    }

    /// Serves from this node's content.
    async fn serve_own(
        &self,
        wanted: &ContentRequest,
        head: bool,
        headers: &HeaderMap,
    ) -> Result<Option<Response<Body>>, ServeError> {
        let digest = match &wanted.reference {
            Reference::Digest(digest) => digest.clone(),
            Reference::Tag(tag) => {
                let name = format!("{}:{tag}", wanted.image());
                let Some(digest) = self.store.resolve(&name).await? else { return Ok(None) };
                digest
            }
        };
        let Some(size) = self.store.size(&digest, &wanted.registry).await? else {
            return Ok(None);
        };
        let mut content =
            Content { digest: &digest, media_type: "application/octet-stream", size, part: None };
        if wanted.kind == ContentKind::Manifest {
            let Some((text, kind)) = self.store.manifest(&digest, size).await? else {
                return Ok(None);
            };
            content.media_type = &kind;
            let body = if head { response::empty() } else { response::full(text) };
            return Ok(Some(found(&content, body)));
        }
        let header = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
        content.part = match range(header.filter(|_| !head), size) {
            Ok(part) => part,
            Err(Unsatisfiable) => {
                let status = StatusCode::RANGE_NOT_SATISFIABLE;
                return Ok(Some(error(status, ErrorCode::BlobUnknown, "after the end")));
            }
        };
        if head {
            return Ok(Some(found(&content, response::empty())));
        }
        let parts = self.store.read(&digest, content.part).await?;
        Ok(Some(found(&content, response::stream(parts.map_err(std::io::Error::other)))))
    }

    /// Serves from another node.
    async fn serve_from_peers(
        &self,
        wanted: &ContentRequest,
        head: bool,
        headers: &HeaderMap,
    ) -> Option<Response<Body>> {
        let tls = self.config.peer_tls.as_ref()?;
        let (Reference::Tag(reference) | Reference::Digest(reference)) = &wanted.reference;
        let path = wanted.peer_path();
        for _ in 0..TRIES_MAX {
            let candidates = self.peers.candidates(&wanted.image(), reference).await;
            let mut source = fetch::find(candidates, &path, tls, &self.tasks).await?;
            let node = source.peer.node.clone();
            let served = if head {
                Ok(pass_on(&source.headers, response::empty()))
            } else {
                self.get(wanted, &mut source, &path, headers).await
            };
            match served {
                Ok(response) => {
                    tracing::debug!(node, path, head, "image registry: served from node");
                    return Some(response);
                }
                Err(BodyError::Corrupt { node, digest }) => {
                    self.peers.report_corrupt(&digest, &node);
                }
                Err(error) => {
                    tracing::warn!(%error, path, "image registry: cannot pull from a node");
                    return None;
                }
            }
        }
        None
    }

    /// Passes on the content of a node. Small content is verified first; the last part of other
    /// content is withheld until all was verified.
    async fn get(
        &self,
        wanted: &ContentRequest,
        source: &mut Source,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, BodyError> {
        let node = source.peer.node.clone();
        let failed = |why: String| BodyError::Read { node: node.clone(), why };
        let size = source.size();
        let range = headers.get(header::RANGE);
        let answer = source.get(path, range).await.map_err(|error| failed(error.to_string()))?;
        let (parts, body) = answer.into_parts();
        let whole = parts.status == StatusCode::OK;
        let digest = match &wanted.reference {
            Reference::Digest(digest) if whole => Some(digest.clone()),
            _ => None,
        };
        let stream = fetch::parts(body, Expected { node: node.clone(), digest: digest.clone() });
        let mut response = pass_on(&parts.headers, response::empty());
        *response.status_mut() = parts.status;
        if size.is_some_and(|size| size <= BUFFERED_MAX) {
            let limit = usize::try_from(BUFFERED_MAX).unwrap_or(usize::MAX);
            let add = |mut all: bytes::BytesMut, part: bytes::Bytes| {
                let fits = all.len().saturating_add(part.len()) <= limit;
                all.extend_from_slice(&part);
                let checked = fits.then_some(all).ok_or_else(|| failed("too long".to_owned()));
                std::future::ready(checked)
            };
            let all = stream.try_fold(bytes::BytesMut::new(), add).await?;
            *response.body_mut() = response::full(all.freeze());
            return Ok(response);
        }
        let (peers, wanted) = (Arc::clone(&self.peers), path.to_owned());
        let stream = stream.map_err(move |error| {
            match &error {
                BodyError::Corrupt { node, digest } => peers.report_corrupt(digest, node),
                other => tracing::warn!(error = %other, path = wanted, "image registry: a \
                    transfer from a node failed"),
            }
            std::io::Error::other(error)
        });
        *response.body_mut() = response::stream(stream);
        Ok(response)
    }
}

/// A response with those headers of a node's answer that describe the content.
fn pass_on(headers: &HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let digest = header::HeaderName::from_static("docker-content-digest");
    let names = [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::CONTENT_RANGE, digest];
    for name in names {
        if let Some(value) = headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

/// The answer for content that is nowhere; containerd asks the next endpoint.
fn unknown(wanted: &ContentRequest) -> Response<Body> {
    let code = match wanted.kind {
        ContentKind::Manifest => ErrorCode::ManifestUnknown,
        ContentKind::Blob => ErrorCode::BlobUnknown,
    };
    error(StatusCode::NOT_FOUND, code, "neither this node nor another one has it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_pulls_are_resolved_by_other_nodes_only() {
        let request = |path: &str| {
            let uri: Uri = path.parse().unwrap();
            ContentRequest::parse(uri.path().strip_prefix("/v2/").unwrap(), &uri).unwrap()
        };
        let tag = request("/v2/a/manifests/1?ns=r.io");
        assert_eq!(sources(&tag, Origin::Local), Sources::PeersOnly);
        assert_eq!(sources(&tag, Origin::Peer), Sources::Own);
        let direct = request("/v2/r.io/a/manifests/1");
        assert_eq!(sources(&direct, Origin::Local), Sources::OwnThenPeers);
        let digest = format!("/v2/a/blobs/{}?ns=r.io", crate::digest::sha256(b""));
        assert_eq!(sources(&request(&digest), Origin::Local), Sources::OwnThenPeers);
    }
}
