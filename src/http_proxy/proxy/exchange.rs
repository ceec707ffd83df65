//! One request: find its rule, choose an endpoint, forward, answer.

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::Tasks;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, LOCATION, ORIGIN, WWW_AUTHENTICATE};
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version, request};
use http_body::Body as _;
use hyper::body::Incoming;

use super::body::{BodyError, RequestBody, ResponseBody};
use super::connection::Listener;
use super::headers::{self, ClientAddress};
use super::http1::ExchangeError;
use super::pool::SendError;
use super::session::{ServedBy, Session, set_session};
use super::{mirror, upgrade};
use crate::backend::{Backend, Protocol};
use crate::routes::affinity::EndpointId;
use crate::routes::auth::{BasicAuth, Refusal};
use crate::routes::edits::{Redirect, Rewrite};
use crate::routes::{Action, Forward, Rule, Timeouts, hosts, path};

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

/// Paths of challenges of certificate authorities.
const CHALLENGES: &str = "/.well-known/acme-challenge/";

/// A client's connection.
#[derive(Debug, Clone)]
pub(super) struct Client {
    /// The client's address.
    pub(super) address: SocketAddr,
    /// The same as the value of a header, written once for all requests of the connection.
    address_value: HeaderValue,
    /// Whether the connection has TLS.
    pub(super) secure: bool,
    /// The server name of the TLS handshake, where listeners share a port.
    pub(super) server_name: Option<Arc<str>>,
}

impl Client {
    /// A client; `server_name` is that of the TLS handshake, where listeners share a port.
    pub(super) fn new(address: SocketAddr, secure: bool, server_name: Option<Arc<str>>) -> Self {
        let text = address.ip().to_canonical().to_string();
        // An IP address has no character that a header must not have.
        let address_value =
            HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""));
        Self { address, address_value, secure, server_name }
    }
}

/// Why a request got no answer of an endpoint.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
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
            Self::Send(_, SendError::Exchange(ExchangeError::Body(error))) => match error {
                BodyError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
                _ => StatusCode::BAD_REQUEST,
            },
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
    let rule = match find(listener, &client, &parts) {
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
    client: &Client,
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
    if client.server_name.as_ref().is_some_and(|name| routes.is_misdirected(name, &host)) {
        return respond(StatusCode::MISDIRECTED_REQUEST);
    }
    let Some(rule) = routes.find(&host, &path, parts) else {
        return respond(StatusCode::NOT_FOUND);
    };
    let own = (client.secure, listener.public_port);
    match &rule.action {
        Action::Status(status) => respond(*status),
        Action::Redirect(redirect) => Err(Box::new(redirected(redirect, &parts.uri, &host, own))),
        Action::Location(status, location) => {
            let mut response = answer(*status);
            response.headers_mut().insert(LOCATION, location.clone());
            Err(Box::new(response))
        }
        // An authority that checks a challenge (RFC 8555, 8.3) begins with plain HTTP.
        Action::Forward(forward)
            if forward.https_only && !client.secure && !path.starts_with(CHALLENGES) =>
        {
            Err(Box::new(redirected(&TO_HTTPS, &parts.uri, &host, own)))
        }
        Action::Forward(_) => Ok(Arc::clone(rule)),
    }
}

fn redirected(
    redirect: &Redirect,
    uri: &Uri,
    host: &str,
    listener: (bool, u16),
) -> Response<ResponseBody> {
    let location = redirect.location(uri, host, listener);
    let value = location.ok().and_then(|uri| HeaderValue::from_str(&uri.to_string()).ok());
    let Some(value) = value else { return answer(StatusCode::BAD_REQUEST) };
    let mut response = answer(redirect.status);
    response.headers_mut().insert(LOCATION, value);
    response
}

/// The request as the endpoint gets it, in the form of HTTP/1.1.
fn prepare(
    listener: &Listener,
    client: &Client,
    rewrite: Option<&Rewrite>,
    parts: &mut request::Parts,
) -> Result<(), Failure> {
    let authority = parts.uri.authority().map(|a| HeaderValue::from_str(a.as_str()));
    let host = match authority {
        Some(authority) => authority.ok(),
        None => parts.headers.get(HOST).cloned(),
    };
    headers::remove_hop_by_hop(&mut parts.headers);
    let address = ClientAddress {
        value: &client.address_value,
        trusted: listener.trusts(client.address.ip()),
        secure: client.secure,
        port: listener.public_port,
    };
    headers::set_forwarded(&mut parts.headers, host.as_ref(), address);
    if let Some(rewrite) = rewrite {
        parts.uri = rewrite.target(&parts.uri).map_err(Failure::Target)?;
    }
    let rewritten = rewrite.and_then(|rewrite| rewrite.host.clone());
    if let Some(host) = rewritten.or(host) {
        parts.headers.insert(HOST, host);
    }
    // Of HTTP/2, and of HTTP/1.1 towards proxies.
    if parts.uri.authority().is_some() {
        let mut target = std::mem::take(&mut parts.uri).into_parts();
        (target.scheme, target.authority) = (None, None);
        parts.uri = Uri::from_parts(target).map_err(|e| Failure::Target(e.into()))?;
    }
    parts.version = Version::HTTP_11;
    Ok(())
}

/// The proxy's own answer to a request that is not to be forwarded.
fn refused(
    client: &Client,
    forward: &Forward,
    parts: &request::Parts,
    body: &Incoming,
) -> Option<Response<ResponseBody>> {
    let client_address = client.address.ip().to_canonical();
    if !forward.sources.is_empty() && !forward.sources.iter().any(|s| s.contains(client_address)) {
        return Some(answer(StatusCode::FORBIDDEN));
    }
    if forward.body_bytes_max != 0 && body.size_hint().lower() > forward.body_bytes_max {
        return Some(answer(StatusCode::PAYLOAD_TOO_LARGE));
    }
    let headers = forward.cors.as_ref()?.preflight(parts)?;
    let mut response = Response::new(ResponseBody::Text(None));
    *response.status_mut() = StatusCode::NO_CONTENT;
    *response.headers_mut() = headers;
    Some(response)
}

async fn forwarded(
    listener: &Listener,
    client: Client,
    forward: &Forward,
    (mut parts, body): (request::Parts, Incoming),
) -> Result<Response<ResponseBody>, Failure> {
    if let Some(response) = refused(&client, forward, &parts, &body) {
        return Ok(response);
    }
    if let Some(auth) = &forward.auth
        && let Err(refusal) = Box::pin(auth.check(&parts.headers)).await
    {
        return Ok(unauthorized(auth, refusal));
    }
    // No weight at all means that no backend is to be used.
    let chosen = forward.choose(&parts.headers).ok_or(Failure::NoBackend)?;
    let backend = chosen.backend.as_ref().ok_or(Failure::NoBackend)?;
    let fallback = forward.fallback.as_ref().filter(|_| backend.is_empty());
    let backend = fallback.unwrap_or(backend);
    let session = forward.affinity.as_ref().map(|a| Session(a.endpoint(&parts.headers)));
    let upgrade = upgrade::wanted(&parts.headers).filter(|_| parts.version == Version::HTTP_11);
    let origin = forward.cors.as_ref().and_then(|_| parts.headers.get(ORIGIN).cloned());
    let rewrite = chosen.rewrite.as_ref().or(forward.rewrite.as_ref());
    prepare(listener, &client, rewrite, &mut parts)?;
    forward.request_headers.apply(&mut parts.headers);
    let max = if forward.body_bytes_max == 0 { u64::MAX } else { forward.body_bytes_max };
    let mut body = match body.is_end_stream() {
        true => RequestBody::empty(),
        false => RequestBody::new(body, max),
    };
    mirror::start(&listener.tasks, &forward.mirrors, &parts, &mut body);
    chosen.request_headers.apply(&mut parts.headers);
    if backend.protocol == Protocol::Http2 {
        as_http2(&mut parts)?;
    }
    let client_side = upgrade.map(|protocol| {
        upgrade::set(&mut parts.headers, protocol);
        parts.extensions.remove::<hyper::upgrade::OnUpgrade>()
    });
    parts.extensions.clear();
    if let Some(session) = session {
        parts.extensions.insert(session);
    }
    // In a box, as each of the futures below would have space for it otherwise.
    let request = Box::new(Request::from_parts(parts, body));
    let mut sending = std::pin::pin!(attempt(&listener.tasks, forward, backend, request));
    let mut response = match forward.timeouts.request {
        Some(limit) => tokio::time::timeout(limit, sending)
            .await
            .map_err(|_| Failure::Timeout(Arc::clone(&backend.name), limit))?,
        None => sending.as_mut().await,
    }?;
    finish(listener, client_side.flatten(), &mut response);
    set_session(forward, backend, session, client.secure, &mut response);
    chosen.response_headers.apply(response.headers_mut());
    forward.response_headers.apply(response.headers_mut());
    if let Some(cors) = &forward.cors {
        cors.apply(origin.as_ref(), response.headers_mut());
    }
    Ok(response)
}

/// The answer to a client without valid credentials.
fn unauthorized(auth: &BasicAuth, refusal: Refusal) -> Response<ResponseBody> {
    match refusal {
        Refusal::Busy => answer(StatusCode::SERVICE_UNAVAILABLE),
        Refusal::Unauthorized => {
            let mut response = answer(StatusCode::UNAUTHORIZED);
            response.headers_mut().insert(WWW_AUTHENTICATE, auth.challenge.clone());
            response
        }
    }
}

/// Removes the headers of the endpoint's connection, and joins both sides of an upgrade.
fn finish(
    listener: &Listener,
    client_side: Option<hyper::upgrade::OnUpgrade>,
    response: &mut Response<ResponseBody>,
) {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        headers::remove_hop_by_hop(response.headers_mut());
        return;
    }
    let endpoint_side = response.body_mut().take_connection();
    if let (Some(client_side), Some(endpoint_side)) = (client_side, endpoint_side) {
        upgrade::join(client_side, *endpoint_side, &listener.tasks);
    }
    let protocol = response.headers().get(http::header::UPGRADE).cloned();
    headers::remove_hop_by_hop(response.headers_mut());
    if let Some(protocol) = protocol {
        upgrade::set(response.headers_mut(), protocol);
    }
}

/// Sends a request, again as often as the rule says. A request with a body is sent once.
async fn attempt(
    tasks: &Tasks,
    forward: &Forward,
    backend: &Arc<Backend>,
    mut request: Box<Request<RequestBody>>,
) -> Result<Response<ResponseBody>, Failure> {
    let mut left = forward.retry.as_ref().map_or(0, |retry| retry.attempts);
    loop {
        let is_repeatable = left > 0 && request.body().is_end_stream();
        let copy = is_repeatable.then(|| Box::new(copy_of(&request)));
        let sent = send(tasks, forward.timeouts, backend, request).await;
        let (Some(copy), Some(retry)) = (copy, &forward.retry) else { return sent };
        let is_wanted = match &sent {
            Ok(response) => retry.codes.contains(&response.status().as_u16()),
            Err(Failure::NoBackend | Failure::Target(_)) => false,
            Err(_) => true,
        };
        if !is_wanted {
            return sent;
        }
        drop(sent);
        base::clock::sleep(retry.backoff).await;
        left -= 1;
        request = copy;
    }
}

/// HTTP/2 has the host in the target.
pub(super) fn as_http2(parts: &mut request::Parts) -> Result<(), Failure> {
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

/// A copy of a request without a body.
fn copy_of(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::empty());
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    *copy.version_mut() = request.version();
    if let Some(session) = request.extensions().get::<Session>() {
        copy.extensions_mut().insert(*session);
    }
    copy
}

/// Waits for a response's head as long as the request's body makes progress.
///
/// # Errors
/// The limit, if it has passed since the last progress.
async fn within<T>(
    limit: Option<Duration>,
    progress: Option<Arc<AtomicUsize>>,
    mut sending: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Duration> {
    let Some(limit) = limit else { return Ok(sending.await) };
    let parts = || progress.as_ref().map_or(0, |parts| parts.load(Ordering::Relaxed));
    loop {
        let before = parts();
        match tokio::time::timeout(limit, sending.as_mut()).await {
            Ok(done) => return Ok(done),
            Err(_) if parts() != before => {}
            Err(_) => return Err(limit),
        }
    }
}

/// Sends a request to one endpoint after another until one accepts it. Once bytes were written,
/// only an idempotent request without a body is repeated, and only if the connection was reused.
pub(super) async fn send(
    tasks: &Tasks,
    timeouts: Timeouts,
    backend: &Arc<Backend>,
    mut request: Box<Request<RequestBody>>,
) -> Result<Response<ResponseBody>, Failure> {
    let mut tried = Vec::new();
    let mut last = None;
    let session = request.extensions().get::<Session>().copied();
    for _ in 0..ATTEMPTS_MAX {
        let Some(endpoint) = backend.choose_for(session.and_then(|s| s.0), &tried) else { break };
        let connecting = endpoint.pool.connect(endpoint.address, timeouts.connect, tasks);
        let connection = match connecting.await {
            Ok(connection) => connection,
            Err(error) => {
                endpoint.failed();
                tried.push(endpoint.address);
                last = Some(Failure::Connect(endpoint.address, error));
                continue;
            }
        };
        let active = endpoint.begin();
        let progress = request.body_mut().progress();
        let mut sending = std::pin::pin!(connection.send(request, &endpoint));
        let answer = within(timeouts.read, progress, sending.as_mut());
        let sent = match timeouts.backend {
            Some(limit) => tokio::time::timeout(limit, answer).await.unwrap_or(Err(limit)),
            None => answer.await,
        };
        let sent = sent.map_err(|limit| Failure::Timeout(Arc::clone(&backend.name), limit))?;
        match sent {
            Ok(mut response) => {
                if session.is_some() {
                    let id = EndpointId::new(&backend.name, endpoint.address);
                    response.extensions_mut().insert(ServedBy(id));
                }
                endpoint.works();
                let limit = timeouts.pause;
                return Ok(response.map(|body| ResponseBody::new(body, active, limit)));
            }
            Err(SendError::Unsent(unsent)) => {
                request = unsent;
                last = Some(Failure::Closed(endpoint.address));
            }
            Err(error) => return Err(Failure::Send(endpoint.address, error)),
        }
    }
    Err(last.unwrap_or_else(|| Failure::NoEndpoint(Arc::clone(&backend.name))))
}
