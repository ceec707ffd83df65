//! Connects a client's exec, attach or port-forward to the streaming server of a container runtime.
//!
//! Runtimes support SPDY/3.1 and an older WebSocket protocol without half-closed input; both pass
//! through unchanged. Protocols of newer clients are translated here: `v5.channel.k8s.io`, and SPDY
//! inside WebSocket for port-forward.

mod command;

use base::{Kind, Tasks};
use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;

use crate::spdy::{self, Connection, Role};
use crate::upgrade::{self, Body, Error, is_upgrade, is_websocket};
use crate::websocket;
use base::io::{Dial, Io};

/// The kind of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// Exec or attach with these streams.
    Command(Streams),
    /// Port-forward.
    PortForward,
}

/// The streams of a command besides the error stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; never with a terminal.
    pub stderr: bool,
    /// A terminal, which can be resized.
    pub tty: bool,
}

/// Answers `request` by connecting it to the runtime's `url`. Bytes are then copied in `tasks`.
///
/// A refusal of the runtime is returned unchanged. A request without an upgrade gets 400.
///
/// # Errors
/// When the runtime cannot be reached or does not answer.
pub async fn serve<B>(
    mut request: Request<B>,
    session: Session,
    url: &Uri,
    dial: &dyn Dial,
    tasks: &Tasks,
) -> Result<Response<Body>, Error> {
    if !is_upgrade(request.headers()) {
        return Ok(refuse(StatusCode::BAD_REQUEST, Error::NoUpgrade.to_string()));
    }
    let host = url.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let io = dial.dial(host, url.port_u16().unwrap_or(80)).await.map_err(Error::Dial)?;
    let path = url.path_and_query().map_or("/", |p| p.as_str());
    let path: Uri = path.parse().map_err(|_| Error::NoUpgrade)?;
    let offers = |wanted| websocket::offered(request.headers()).any(|p| p == wanted);
    let websocket = is_websocket(request.headers());
    let (ours, theirs) = match session {
        Session::Command(_) if websocket && offers(websocket::V5) => {
            (websocket::V5, "v4.channel.k8s.io")
        }
        Session::PortForward if websocket && offers(websocket::TUNNEL) => {
            (websocket::TUNNEL, "portforward.k8s.io")
        }
        _ => {
            *request.uri_mut() = path;
            return upgrade::relay(io, request, tasks).await;
        }
    };
    let Some(answer) = websocket::accept(request.headers(), ours) else {
        return Ok(refuse(
            StatusCode::BAD_REQUEST,
            "not a WebSocket handshake: key or version 13 is missing",
        ));
    };
    let client = hyper::upgrade::on(&mut request);
    let mut response = upgrade::send(io, runtime_request(&path, url, theirs), tasks).await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {}
        status if status.as_u16() < 400 => return Err(Error::NotUpgraded(status.as_u16())),
        _ => return Ok(response.map(|b| b.map_err(Into::into).boxed_unsync())),
    }
    let backend = hyper::upgrade::on(&mut response);
    let (shutdown, owner) = (tasks.shutdown().clone(), tasks.clone());
    tasks.spawn(Kind::Request, "translated", async move {
        match tokio::try_join!(client, backend) {
            Ok((client, backend)) => {
                let (client, backend) = (TokioIo::new(client), TokioIo::new(backend));
                tokio::select! {
                    () = translate(session, client, backend, &owner) => {}
                    () = shutdown.requested() => {}
                }
            }
            Err(error) => tracing::debug!(%error, "an upgrade did not come about"),
        }
        Ok::<(), std::convert::Infallible>(())
    });
    Ok(answer)
}

async fn translate(session: Session, client: impl Io, backend: impl Io + 'static, tasks: &Tasks) {
    match session {
        Session::PortForward => websocket::tunnel(client, backend).await,
        Session::Command(streams) => {
            let connection = Connection::start(backend, Role::Client, tasks);
            command::run(client, &connection, streams).await;
        }
    }
}

/// The SPDY request to the runtime.
fn runtime_request(path: &Uri, url: &Uri, protocol: &'static str) -> Request<Body> {
    let mut request = Request::new(upgrade::empty());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.clone();
    let headers = request.headers_mut();
    if let Some(Ok(host)) = url.authority().map(|a| HeaderValue::from_str(a.as_str())) {
        headers.insert(HOST, host);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(spdy::UPGRADE));
    headers.insert(spdy::PROTOCOL_HEADER, HeaderValue::from_static(protocol));
    request
}

fn refuse(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(upgrade::full(text));
    *response.status_mut() = code;
    response
}

#[cfg(test)]
mod tests;
