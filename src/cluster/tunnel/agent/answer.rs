//! What a server asks of the agent: a connection to the kubelet or a pod, or the stream of beats.

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
use crate::tunnel::allow::{Own, Pods, Verdict, judge};
use crate::tunnel::{BEAT, FAULT_HEADER, heartbeat};

/// Time to reach a pod or the kubelet, which are on this machine.
const DIAL_MAX: Duration = Duration::from_secs(10);
/// Time for the server to end a stream whose other side has ended.
const LINGER_MAX: Duration = Duration::from_secs(10);

/// Answers one request.
pub(super) async fn answer(
    mut request: Request<Incoming>,
    interval: Duration,
    own: &Own,
    pods: &dyn Pods,
    tasks: &Tasks,
) -> Response<Empty<Bytes>> {
    let authority = request.uri().authority().filter(|_| request.method() == Method::CONNECT);
    let Some(authority) = authority.cloned() else {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "");
    };
    if authority.as_str() == BEAT {
        let upgrade = hyper::upgrade::on(&mut request);
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(Kind::Request, "tunnel-beat", async move {
            let Ok(upgraded) = upgrade.await else { return Ok(()) };
            tokio::select! {
                () = heartbeat::send_heartbeats(TokioIo::new(upgraded), interval) => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
        return Response::new(Empty::new());
    }
    let to = match judge(authority.host(), authority.port_u16().unwrap_or(0), own) {
        Verdict::Allowed(to) => to,
        Verdict::IfPod(to) if pods.is_pod(to.ip()).await => to,
        Verdict::IfPod(_) | Verdict::Refused => {
            tracing::warn!(%authority, "a server asked for a connection that is none of this node's");
            return refuse(StatusCode::FORBIDDEN, "");
        }
    };
    match dial(to).await {
        Ok(stream) => {
            let upgrade = hyper::upgrade::on(&mut request);
            let shutdown = tasks.shutdown().clone();
            tasks.spawn(Kind::Request, "tunnel-stream", async move {
                if let Ok(upgraded) = upgrade.await {
                    carry(TokioIo::new(upgraded), stream, &shutdown).await;
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

/// Joins a stream of the tunnel to what was dialled, and lets the server end it: dropped first,
/// HTTP/2 resets it, and a reset makes the server's writing fail while it has not yet read what was
/// said last.
async fn carry(mut tunnel: impl Io, stream: TcpStream, shutdown: &Shutdown) {
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
