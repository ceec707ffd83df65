//! HTTP/1.1 requests over a connection of one's own, and upgrades carried from one connection to another.

use base::{Kind, Tasks};
use bytes::Bytes;
use http::header::{CONNECTION, HeaderMap, HeaderName, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use base::io::{self, BoxIo};

/// The error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A body of any make.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The other side does not speak HTTP/1.1, or the connection broke.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The other side cannot be reached.
    #[error("error dialing backend: {0}")]
    Dial(#[source] std::io::Error),
    /// It answered an upgrade with something that is neither an upgrade nor a refusal.
    #[error("invalid upgrade response: status code {0}")]
    NotUpgraded(u16),
    /// The request did not come over HTTP/1.1 or asks for no upgrade.
    #[error("Upgrade request required")]
    NoUpgrade,
}

/// No bytes.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Bytes as a body.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A header that lists tokens has this one, in any case.
pub fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .any(|part| part.trim().eq_ignore_ascii_case(token))
}

/// The request asks for another protocol on its connection.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    has_token(headers, &CONNECTION, "upgrade")
}

/// The request asks for WebSocket.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    is_upgrade(headers) && has_token(headers, &UPGRADE, "websocket")
}

/// Sends one request over a fresh connection; the rest of the exchange goes on as a task.
///
/// # Errors
/// When no response comes.
pub async fn send<B>(
    io: BoxIo,
    request: Request<B>,
    tasks: &Tasks,
) -> Result<Response<Incoming>, Error>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "http-exchange", async move {
        tokio::select! {
            ended = connection.with_upgrades() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "an exchange ended early");
                }
            }
            () = shutdown.requested() => {}
        }
        Ok::<(), std::convert::Infallible>(())
    });
    Ok(sender.send_request(request).await?)
}

/// Carries an upgrade over: the same request to the backend at `io`, and when that agrees, bytes both ways.
///
/// `request` must be the client's own with its upgrade in the extensions, which are kept until the connections end; its URI and
/// headers are those for the backend.
/// A refusal of the backend is returned as it came.
///
/// # Errors
/// When the backend does not answer, or answers neither 101 nor a refusal.
pub async fn carry<B>(
    io: BoxIo,
    mut request: Request<B>,
    tasks: &Tasks,
) -> Result<Response<Body>, Error> {
    let client = hyper::upgrade::on(&mut request);
    let (parts, _) = request.into_parts();
    let mut onward = Request::new(empty());
    *onward.method_mut() = parts.method;
    *onward.uri_mut() = parts.uri;
    *onward.headers_mut() = parts.headers;
    let mut response = send(io, onward, tasks).await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            let backend = hyper::upgrade::on(&mut response);
            splice(client, backend, parts.extensions, tasks);
            let (answered, _) = response.into_parts();
            let mut answer = Response::new(empty());
            *answer.status_mut() = answered.status;
            *answer.headers_mut() = answered.headers;
            Ok(answer)
        }
        status if status.as_u16() < 400 => Err(Error::NotUpgraded(status.as_u16())),
        _ => Ok(response.map(|body| body.map_err(Into::into).boxed_unsync())),
    }
}

/// Joins two connections once both are upgraded; `kept` goes with them.
fn splice(client: OnUpgrade, backend: OnUpgrade, kept: http::Extensions, tasks: &Tasks) {
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "upgraded", async move {
        match tokio::try_join!(client, backend) {
            Ok((client, backend)) => {
                io::join(TokioIo::new(client), TokioIo::new(backend), &shutdown).await;
            }
            Err(error) => tracing::debug!(%error, "an upgrade did not come about"),
        }
        drop(kept);
        Ok::<(), std::convert::Infallible>(())
    });
}
