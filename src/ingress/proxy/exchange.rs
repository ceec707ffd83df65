//! One request: find its rule, choose an endpoint, forward, answer.

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::Kind;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version, request};
use http_body::Body as _;
use hyper::body::Incoming;

use super::body::{Lease, RequestBody, ResponseBody};
use super::connection::Listener;
use super::headers::{self, ClientAddress};
use super::pool::SendError;
use super::upgrade;
use crate::backend::{ActiveRequest, Backend, Protocol};
use crate::routes::edits::Redirect;
use crate::routes::{Action, Forward, Rule, hosts, path};

/// Endpoints that are tried for one request.
const ATTEMPTS_MAX: usize = 3;

/// The redirect of a rule that is served over HTTPS only; 308 keeps method and body, as with
/// ingress-nginx.
const TO_HTTPS: Redirect = Redirect {
    scheme: Some(http::uri::Scheme::HTTPS),
    host: None,
    port: None,
    path: None,
    status: StatusCode::PERMANENT_REDIRECT,
};

/// A client's connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    /// The client's address.
    pub(super) address: SocketAddr,
    /// Whether the connection has TLS.
    pub(super) secure: bool,
}

/// Why a request got no answer of an endpoint.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no endpoint of {0} is ready")]
    NoEndpoint(Arc<str>),
    #[error("the backend does not exist or may not be used")]
    NoBackend,
    #[error("{0} accepts no connection: {1}")]
    Connect(SocketAddr, super::pool::ConnectError),
    #[error("{0} closed its connections before they could be used")]
    Closed(SocketAddr),
    #[error("{0} did not answer: {1}")]
    Send(SocketAddr, SendError),
    #[error("{0} did not answer within {1:?}")]
    Timeout(Arc<str>, Duration),
    #[error("the rewritten path is invalid: {0}")]
    Target(http::Error),
}

impl Failure {
    /// The status of the answer: as Gateway API and nginx have them.
    fn status(&self) -> StatusCode {
        match self {
            Self::NoEndpoint(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoBackend | Self::Target(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Connect(..) | Self::Closed(_) | Self::Send(..) => StatusCode::BAD_GATEWAY,
            Self::Timeout(..) => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// An answer of the proxy.
fn answer(status: StatusCode) -> Response<ResponseBody> {
    let reason = status.canonical_reason().unwrap_or_default();
    let text = format!("{} {reason}\n", status.as_u16());
    let mut response = Response::new(ResponseBody::Text(Some(Bytes::from(text))));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

/// The host of a request: that of the target, else the header.
fn host(parts: &request::Parts) -> Option<Cow<'_, str>> {
    match parts.uri.authority() {
        Some(authority) => Some(authority.as_str().into()),
        None => parts.headers.get(HOST)?.to_str().ok().map(Cow::Borrowed),
    }
}

/// Whether a request has no host or several (RFC 9112, 3.2). hyper refuses ambiguous lengths.
fn is_ambiguous(parts: &request::Parts) -> bool {
    let hosts = parts.headers.get_all(HOST).iter().count();
    let missing =
        parts.version == Version::HTTP_11 && parts.uri.authority().is_none() && hosts == 0;
    missing || hosts > 1
}

/// Answers a request.
pub(super) async fn answer_request(
    listener: &Listener,
    client: Client,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let (parts, body) = request.into_parts();
    let rule = match find(listener, &parts) {
        Ok(rule) => rule,
        Err(response) => return Ok(*response),
    };
    let Action::Forward(forward) = &rule.action else {
        return Ok(answer(StatusCode::INTERNAL_SERVER_ERROR));
    };
    match forwarded(listener, client, forward, (parts, body)).await {
        Ok(response) => Ok(response),
        Err(failure) => {
            tracing::debug!(route = %rule.source, %failure, "ingress: request failed");
            Ok(answer(failure.status()))
        }
    }
}

/// The rule that forwards a request, or the proxy's own answer.
fn find(
    listener: &Listener,
    parts: &request::Parts,
) -> Result<Arc<Rule>, Box<Response<ResponseBody>>> {
    let respond = |status| Err(Box::new(answer(status)));
    if is_ambiguous(parts) {
        return respond(StatusCode::BAD_REQUEST);
    }
    let (Some(host), Ok(path)) = (host(parts), path::normalized(parts.uri.path())) else {
        return respond(StatusCode::BAD_REQUEST);
    };
    let routes = listener.routes.load();
    let host = hosts::normalized(&host);
    let Some(rule) = routes.find(&host, &path, parts) else {
        return respond(StatusCode::NOT_FOUND);
    };
    match &rule.action {
        Action::Status(status) => respond(*status),
        Action::Redirect(redirect) => {
            Err(Box::new(redirected(redirect, &parts.uri, &host, listener)))
        }
        Action::Forward(forward) if forward.https_only && listener.tls.is_none() => {
            Err(Box::new(redirected(&TO_HTTPS, &parts.uri, &host, listener)))
        }
        Action::Forward(_) => Ok(Arc::clone(rule)),
    }
}

fn redirected(
    redirect: &Redirect,
    uri: &Uri,
    host: &str,
    listener: &Listener,
) -> Response<ResponseBody> {
    let location = redirect.location(uri, host, (listener.tls.is_some(), listener.public_port));
    let value = location.ok().and_then(|uri| HeaderValue::from_str(&uri.to_string()).ok());
    let Some(value) = value else { return answer(StatusCode::BAD_REQUEST) };
    let mut response = answer(redirect.status);
    response.headers_mut().insert(LOCATION, value);
    response
}

/// The request as the endpoint gets it.
fn prepare(
    listener: &Listener,
    client: Client,
    forward: &Forward,
    parts: &mut request::Parts,
) -> Result<(), Failure> {
    let authority = parts.uri.authority().map(|a| HeaderValue::from_str(a.as_str()));
    let host = match authority {
        Some(authority) => authority.ok(),
        None => parts.headers.get(HOST).cloned(),
    };
    headers::remove_hop_by_hop(&mut parts.headers);
    let address = ClientAddress {
        address: client.address.ip(),
        trusted: listener.trusts(client.address.ip()),
        secure: client.secure,
        port: listener.public_port,
    };
    headers::set_forwarded(&mut parts.headers, host.as_ref(), address);
    let uri = match &forward.rewrite {
        Some(rewrite) => rewrite.target(&parts.uri).map_err(Failure::Target)?,
        None => parts.uri.clone(),
    };
    let rewritten = forward.rewrite.as_ref().and_then(|r| r.host.clone());
    if let Some(host) = rewritten.or(host) {
        parts.headers.insert(HOST, host);
    }
    let mut target = uri.into_parts();
    (target.scheme, target.authority) = (None, None);
    parts.uri = Uri::from_parts(target).map_err(|e| Failure::Target(e.into()))?;
    parts.version = Version::HTTP_11;
    forward.request_headers.apply(&mut parts.headers);
    Ok(())
}

async fn forwarded(
    listener: &Listener,
    client: Client,
    forward: &Forward,
    (mut parts, body): (request::Parts, Incoming),
) -> Result<Response<ResponseBody>, Failure> {
    let client_address = client.address.ip().to_canonical();
    if !forward.sources.is_empty() && !forward.sources.iter().any(|s| s.contains(client_address)) {
        return Ok(answer(StatusCode::FORBIDDEN));
    }
    let max = match forward.body_bytes_max {
        0 => u64::MAX,
        max => max,
    };
    if body.size_hint().lower() > max {
        return Ok(answer(StatusCode::PAYLOAD_TOO_LARGE));
    }
    let chosen = forward.split.choose();
    // No weight at all means that no backend is to be used.
    let chosen = chosen.ok_or(Failure::NoBackend)?;
    let backend = chosen.backend.as_ref().ok_or(Failure::NoBackend)?;
    let upgrade = upgrade::wanted(&parts.headers).filter(|_| parts.version == Version::HTTP_11);
    prepare(listener, client, forward, &mut parts)?;
    if backend.protocol == Protocol::Http2 {
        as_http2(&mut parts)?;
    }
    chosen.request_headers.apply(&mut parts.headers);
    let client_side = upgrade.map(|protocol| {
        upgrade::set(&mut parts.headers, protocol);
        parts.extensions.remove::<hyper::upgrade::OnUpgrade>()
    });
    parts.extensions.clear();
    let body = match body.is_end_stream() {
        true => RequestBody::empty(),
        false => RequestBody::new(body, max),
    };
    let request = Request::from_parts(parts, body);
    let sending = send(listener, forward, backend, request);
    let mut response = match forward.timeouts.request {
        Some(limit) => tokio::time::timeout(limit, sending)
            .await
            .map_err(|_| Failure::Timeout(Arc::clone(&backend.name), limit))?,
        None => sending.await,
    }?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let endpoint_side = hyper::upgrade::on(&mut response);
        if let Some(connection) = response.body_mut().take_connection() {
            listener.tasks.spawn(Kind::Request, "ingress-upstream", async move {
                connection.run().await;
                Ok::<(), Infallible>(())
            });
        }
        if let Some(client_side) = client_side.flatten() {
            upgrade::join(client_side, endpoint_side, &listener.tasks);
        }
        let protocol = response.headers().get(http::header::UPGRADE).cloned();
        headers::remove_hop_by_hop(response.headers_mut());
        if let Some(protocol) = protocol {
            upgrade::set(response.headers_mut(), protocol);
        }
    } else {
        headers::remove_hop_by_hop(response.headers_mut());
    }
    forward.response_headers.apply(response.headers_mut());
    Ok(response)
}

/// HTTP/2 has the host in the target.
fn as_http2(parts: &mut request::Parts) -> Result<(), Failure> {
    let host = parts.headers.remove(HOST);
    let host = host.as_ref().and_then(|value| value.to_str().ok()).unwrap_or("localhost");
    let mut target = std::mem::take(&mut parts.uri).into_parts();
    target.scheme = Some(http::uri::Scheme::HTTP);
    target.authority =
        Some(host.parse().map_err(|e: http::uri::InvalidUri| Failure::Target(e.into()))?);
    parts.uri = Uri::from_parts(target).map_err(|e| Failure::Target(e.into()))?;
    parts.version = Version::HTTP_2;
    Ok(())
}

/// Whether a request may be sent twice (RFC 9110, 9.2.2).
fn is_repeatable(request: &Request<RequestBody>) -> bool {
    request.method().is_idempotent() && request.body().is_end_stream()
}

/// A copy of a request without a body.
fn copy_of(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::empty());
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    *copy.version_mut() = request.version();
    copy
}

fn with_lease(
    response: Response<Incoming>,
    lease: Option<Lease>,
    active: ActiveRequest,
) -> Response<ResponseBody> {
    response.map(|incoming| ResponseBody::Endpoint { incoming, lease, _active: active })
}

/// Sends a request to one endpoint after another until one accepts it. Once bytes were written,
/// only an idempotent request without a body is repeated, and only over a connection that was
/// reused: the endpoint may have closed it in the same moment.
async fn send(
    listener: &Listener,
    forward: &Forward,
    backend: &Arc<Backend>,
    mut request: Request<RequestBody>,
) -> Result<Response<ResponseBody>, Failure> {
    let mut tried = Vec::new();
    let mut last = None;
    for _ in 0..ATTEMPTS_MAX {
        let Some(endpoint) = backend.choose(&tried) else { break };
        let connecting =
            endpoint.pool.connect(endpoint.address, forward.timeouts.connect, &listener.tasks);
        let connection = match connecting.await {
            Ok(connection) => connection,
            Err(error) => {
                endpoint.failed();
                tried.push(endpoint.address);
                last = Some(Failure::Connect(endpoint.address, error));
                continue;
            }
        };
        let copy = (connection.is_reused() && is_repeatable(&request)).then(|| copy_of(&request));
        let active = endpoint.begin();
        let sending = connection.send(request);
        let sent = match forward.timeouts.backend {
            Some(limit) => tokio::time::timeout(limit, sending)
                .await
                .map_err(|_| Failure::Timeout(Arc::clone(&backend.name), limit))?,
            None => sending.await,
        };
        match (sent, copy) {
            (Ok((response, connection)), _) => {
                endpoint.works();
                let endpoint = Arc::clone(&endpoint);
                let lease = connection.map(|connection| Lease { connection, endpoint });
                return Ok(with_lease(response, lease, active));
            }
            (Err(SendError::Unsent(unsent)), _) => {
                request = *unsent;
                last = Some(Failure::Closed(endpoint.address));
            }
            (Err(error), Some(copy)) => {
                request = copy;
                last = Some(Failure::Send(endpoint.address, error));
            }
            (Err(error), None) => return Err(Failure::Send(endpoint.address, error)),
        }
    }
    Err(last.unwrap_or_else(|| Failure::NoEndpoint(Arc::clone(&backend.name))))
}
