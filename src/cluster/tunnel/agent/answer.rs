//! Handles the requests of a server: connections to the kubelet or a pod, and the heartbeat stream.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use base::io::{Io, join};
use base::{Kind, Shutdown, Tasks};
use bytes::Bytes;
use http::header::HeaderValue;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::servers;
use crate::tunnel::allow::{Destination, LocalMachine, Pods, classify};
use crate::tunnel::{FAULT_HEADER, HEARTBEAT_AUTHORITY, heartbeat};

/// Timeout of connecting to a pod or the kubelet, which run on this machine.
const DIAL_MAX: Duration = Duration::from_secs(10);
/// How long a stream stays open for the server to close it after the local side has ended.
const LINGER_MAX: Duration = Duration::from_secs(10);

/// Handles one request.
pub(super) async fn answer(
    mut request: Request<Incoming>,
    interval: Duration,
    own: &LocalMachine,
    pods: &dyn Pods,
    tasks: &Tasks,
) -> Response<Empty<Bytes>> {
    let authority = request.uri().authority().filter(|_| request.method() == Method::CONNECT);
    let Some(authority) = authority.cloned() else {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "");
    };
    if authority.as_str() == HEARTBEAT_AUTHORITY {
        let upgrade = hyper::upgrade::on(&mut request);
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(Kind::Request, "tunnel-heartbeat", async move {
            let Ok(upgraded) = upgrade.await else { return Ok(()) };
            tokio::select! {
                () = heartbeat::send_heartbeats(TokioIo::new(upgraded), interval) => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
        return Response::new(Empty::new());
    }
    let to = match classify(authority.host(), authority.port_u16().unwrap_or(0), own) {
        Destination::Allowed(to) => to,
        Destination::IfPod(to) if pods.is_pod(to.ip()).await => to,
        Destination::IfPod(_) | Destination::Refused => {
            tracing::warn!(%authority, "refused a server's connection to a foreign destination");
            return refuse(StatusCode::FORBIDDEN, "");
        }
    };
    match dial(to).await {
        Ok(stream) => {
            let upgrade = hyper::upgrade::on(&mut request);
            let shutdown = tasks.shutdown().clone();
            tasks.spawn(Kind::Request, "tunnel-stream", async move {
                if let Ok(upgraded) = upgrade.await {
                    copy_stream(TokioIo::new(upgraded), stream, &shutdown).await;
                }
                Ok::<(), std::convert::Infallible>(())
            });
            Response::new(Empty::new())
        }
        Err(error) => {
            let fault = match error.kind() {
                io::ErrorKind::ConnectionRefused => "refused",
                io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "unreachable",
                io::ErrorKind::TimedOut => "timeout",
                _ => "other",
            };
            refuse(StatusCode::BAD_GATEWAY, fault)
        }
    }
}

/// Copies between a stream of the tunnel and a local connection, then waits for the server to close
/// the stream. If the agent dropped it first, HTTP/2 would reset it, and the server's writes would
/// fail before it has read the last bytes.
async fn copy_stream(mut tunnel: impl Io, stream: TcpStream, shutdown: &Shutdown) {
    join(&mut tunnel, stream, shutdown).await;
    let mut nowhere = tokio::io::sink();
    tokio::select! {
        _ = tokio::time::timeout(LINGER_MAX, tokio::io::copy(&mut tunnel, &mut nowhere)) => {}
        () = shutdown.requested() => {}
    }
}

async fn dial(to: SocketAddr) -> io::Result<TcpStream> {
    servers::connect(&to.to_string(), DIAL_MAX).await
}

fn refuse(code: StatusCode, fault: &'static str) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = code;
    response.headers_mut().insert(FAULT_HEADER, HeaderValue::from_static(fault));
    response
}
