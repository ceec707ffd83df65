//! HTTP/1.1 requests over a separate connection, and upgrades relayed from one connection to
//! another.

use base::{Kind, Tasks};
use bytes::Bytes;
use http::header::{CONNECTION, HeaderMap, HeaderName, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use base::io::{self, BoxIo};

/// Error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A body of any type.
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

/// Whether a header with a list of tokens contains this one, ignoring case.
pub fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .any(|part| part.trim().eq_ignore_ascii_case(token))
}

/// Whether the request asks for an upgrade.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    has_token(headers, &CONNECTION, "upgrade")
}

/// Whether the request asks for WebSocket.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    is_upgrade(headers) && has_token(headers, &UPGRADE, "websocket")
}

/// Sends one request over a new connection; a task drives the rest of the exchange.
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
                    tracing::debug!(%error, "an exchange ended early");
                }
            }
            () = shutdown.requested() => {}
        }
        Ok::<(), std::convert::Infallible>(())
    });
    Ok(sender.send_request(request).await?)
}

/// Relays an upgrade: sends the same request to the backend at `io`, and after its 101 copies bytes
/// in both directions.
///
/// `request` must be the client's with its upgrade in the extensions, which are kept until the
/// connections end; its URI and headers are sent to the backend. A refusal of the backend is
/// returned unchanged.
///
/// # Errors
/// When the backend does not answer, or answers with neither 101 nor a refusal.
pub async fn relay<B>(
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

/// Connects two connections once both are upgraded; `kept` is dropped after them.
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Shutdown, Tasks};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// The response to a client that requests an upgrade and sends a second request right behind
    /// it, and the bytes of both that reach the backend, which answers `reply`.
    #[expect(clippy::disallowed_methods, reason = "both ends of a test end with it")]
    async fn exchange(reply: &'static str) -> (String, String) {
        let tasks = Tasks::new(Shutdown::new());
        let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = backend.local_addr().unwrap();
        let heard = tokio::spawn(async move {
            let (mut stream, _) = backend.accept().await.unwrap();
            let mut heard = vec![0; 4096];
            let first = stream.read(&mut heard).await.unwrap();
            heard.truncate(first);
            stream.write_all(reply.as_bytes()).await.unwrap();
            // Reads until the peer has finished.
            let _ = stream.read_to_end(&mut heard).await;
            String::from_utf8_lossy(&heard).into_owned()
        });
        let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let door = front.local_addr().unwrap();
        let own = tasks.clone();
        let serving = tokio::spawn(async move {
            let (stream, _) = front.accept().await.unwrap();
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let tasks = own.clone();
                async move {
                    let asked = request.uri().path().to_owned();
                    if asked != "/exec" {
                        return Ok::<_, std::convert::Infallible>(Response::new(full("own")));
                    }
                    let io: BoxIo = Box::new(TcpStream::connect(at).await.unwrap());
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
        let mut client = TcpStream::connect(door).await.unwrap();
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
        (String::from_utf8_lossy(&answer).into_owned(), heard.await.unwrap())
    }

    /// C1.11, C2.1: CVE-2018-1002105: a backend that refuses the upgrade receives no further bytes
    /// of the client. CVE-2020-8559: a redirect is not a response to an upgrade.
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
            let (answer, heard) = exchange(reply).await;
            assert!(answer.contains(want), "{reply}: {answer}");
            assert!(heard.starts_with("GET /exec") && !heard.contains("secret"), "{heard}");
        }
    }

    #[tokio::test]
    async fn an_accepted_upgrade_relays_bytes() {
        let (answer, heard) = exchange(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 101") && answer.ends_with("hello"), "{answer}");
        assert!(heard.contains("DELETE /secret"), "{heard}");
    }
}
