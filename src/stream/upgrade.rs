//! HTTP/1.1 requests over a connection of their own, and the relay of an upgraded connection from a
//! client to a backend.

use base::{Kind, Tasks};
use bytes::Bytes;
use http::header::{CONNECTION, HeaderMap, HeaderName, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use base::io::{self, BoxIo};

/// Error of reading a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A body whose concrete type is hidden, so that relayed and own responses have one type.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer does not support HTTP/1.1, or the connection failed.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The peer cannot be reached.
    #[error("error dialing backend: {0}")]
    Dial(#[source] std::io::Error),
    /// The peer answered an upgrade with neither an upgrade nor a refusal.
    #[error("invalid upgrade response: status code {0}")]
    NotUpgraded(u16),
    /// The request is not HTTP/1.1 or requests no upgrade.
    #[error("Upgrade request required")]
    NoUpgrade,
}

/// An empty body.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body with these bytes.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Whether a header whose value is a comma-separated list contains this token, ignoring case.
pub fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .any(|part| part.trim().eq_ignore_ascii_case(token))
}

/// Whether a request with these headers requests an upgrade.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    has_token(headers, &CONNECTION, "upgrade")
}

/// Whether a request with these headers requests an upgrade to WebSocket.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    is_upgrade(headers) && has_token(headers, &UPGRADE, "websocket")
}

/// Sends one request over the connection `io`, which carries nothing else. A task of `tasks` drives
/// the connection until the response, or the upgraded connection, ends.
///
/// # Errors
/// When no response arrives.
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
                    tracing::debug!(%error, "upgrade: the HTTP connection failed");
                }
            }
            () = shutdown.requested() => {}
        }
        Ok::<(), std::convert::Infallible>(())
    });
    Ok(sender.send_request(request).await?)
}

/// Relays an upgrade: sends the request to the backend at `io`, and after the backend answered 101
/// copies bytes in both directions.
///
/// `request` must be the request that hyper received, because its extensions contain the client's
/// upgrade; they are kept until the connections end. Its method, URI and headers are sent to the
/// backend. A response with status 400 or above is returned unchanged.
///
/// # Errors
/// When the backend does not answer, or answers with neither 101 nor a refusal.
pub async fn relay<B>(
    io: BoxIo,
    mut request: Request<B>,
    tasks: &Tasks,
) -> Result<Response<Body>, Error> {
    let client = hyper::upgrade::on(&mut request);
    // A request for an upgrade has no body: what follows belongs to the upgraded connection.
    let (parts, _) = request.into_parts();
    let mut backend_request = Request::new(empty());
    *backend_request.method_mut() = parts.method;
    *backend_request.uri_mut() = parts.uri;
    *backend_request.headers_mut() = parts.headers;
    let mut response = send(io, backend_request, tasks).await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            let backend = hyper::upgrade::on(&mut response);
            splice(client, backend, parts.extensions, tasks);
            let (parts, _) = response.into_parts();
            let mut client_response = Response::new(empty());
            *client_response.status_mut() = parts.status;
            *client_response.headers_mut() = parts.headers;
            Ok(client_response)
        }
        // Includes redirects: a client that follows one would send its credentials to an address
        // that the backend chooses (CVE-2020-8559).
        status if status.as_u16() < 400 => Err(Error::NotUpgraded(status.as_u16())),
        _ => Ok(response.map(|body| body.map_err(Into::into).boxed_unsync())),
    }
}

/// Copies bytes between two connections in both directions once both are upgraded. The extensions
/// of the request are dropped when the copy ends: they contain values of filters, such as metrics
/// of running requests, that must not end before.
fn splice(client: OnUpgrade, backend: OnUpgrade, extensions: http::Extensions, tasks: &Tasks) {
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "upgraded", async move {
        match tokio::try_join!(client, backend) {
            Ok((client, backend)) => {
                io::join(TokioIo::new(client), TokioIo::new(backend), &shutdown).await;
            }
            Err(error) => tracing::debug!(%error, "upgrade: cannot upgrade both connections"),
        }
        drop(extensions);
        Ok::<(), std::convert::Infallible>(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Shutdown, Tasks};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// Sends a request for an upgrade and a second request directly after it through [`relay`] to a
    /// backend that answers `reply`. Returns the response to the client, and the bytes that the
    /// backend receives.
    #[expect(clippy::disallowed_methods, reason = "both ends of a test end with it")]
    async fn exchange(reply: &'static str) -> (String, String) {
        let tasks = Tasks::new(Shutdown::new());
        let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend_address = backend.local_addr().unwrap();
        let backend_task = tokio::spawn(async move {
            let (mut stream, _) = backend.accept().await.unwrap();
            let mut received = vec![0; 4096];
            let length = stream.read(&mut received).await.unwrap();
            received.truncate(length);
            stream.write_all(reply.as_bytes()).await.unwrap();
            // Reads until the peer has finished.
            let _ = stream.read_to_end(&mut received).await;
            String::from_utf8_lossy(&received).into_owned()
        });
        let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let front_address = front.local_addr().unwrap();
        let relay_tasks = tasks.clone();
        let serving = tokio::spawn(async move {
            let (stream, _) = front.accept().await.unwrap();
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let tasks = relay_tasks.clone();
                async move {
                    if request.uri().path() != "/exec" {
                        return Ok::<_, std::convert::Infallible>(Response::new(full("own")));
                    }
                    let io: BoxIo = Box::new(TcpStream::connect(backend_address).await.unwrap());
                    Ok(relay(io, request, &tasks).await.unwrap_or_else(|error| {
                        let mut answer = Response::new(full(error.to_string()));
                        *answer.status_mut() = StatusCode::BAD_GATEWAY;
                        answer
                    }))
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            let _ = connection.await;
        });
        let mut client = TcpStream::connect(front_address).await.unwrap();
        client
            .write_all(
                b"GET /exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n\
                  DELETE /secret HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            )
            .await
            .unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") && client.read_buf(&mut answer).await.unwrap() > 0 {}
        drop(client);
        tasks.shutdown().request();
        tasks.drain(std::time::Duration::from_secs(5)).await;
        serving.await.unwrap();
        (String::from_utf8_lossy(&answer).into_owned(), backend_task.await.unwrap())
    }

    /// C1.11 and C2.1 of `tests/security.md`. CVE-2018-1002105: a backend that refuses the upgrade
    /// receives no further bytes of the client. CVE-2020-8559: a redirect is not a response to an
    /// upgrade.
    #[tokio::test]
    async fn a_refused_upgrade_sends_no_further_bytes_to_the_backend() {
        for (reply, want) in [
            ("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "HTTP/1.1 403 Forbidden"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                "invalid upgrade response: status code 200",
            ),
            (
                "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
                "invalid upgrade response: status code 302",
            ),
        ] {
            let (answer, received) = exchange(reply).await;
            assert!(answer.contains(want), "{reply}: {answer}");
            assert!(received.starts_with("GET /exec"), "{received}");
            assert!(!received.contains("secret"), "{received}");
        }
    }

    #[tokio::test]
    async fn an_accepted_upgrade_relays_bytes() {
        let (answer, received) = exchange(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 101") && answer.ends_with("hello"), "{answer}");
        assert!(received.contains("DELETE /secret"), "{received}");
    }
}
