//! Exec, attach and port-forward: the upgraded connection is joined to the runtime's own streaming server.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use proto::runtime::v1 as cri;

use super::{Api, Body, Query, flag, text};
use crate::observed::State;
use crate::runtime::Streaming;

/// `exec` and `attach`.
pub(super) async fn in_container(
    api: &Arc<Api>,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
    attach: bool,
    request: Request<Incoming>,
) -> Response<Body> {
    let Some((wanted, handle)) = api.table.find(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod {pod:?} does not exist"));
    };
    let observed = Arc::clone(&handle.shown.lock().observed);
    let found = observed.active(container).filter(|c| c.state == State::Running);
    let (Some(found), Some(_)) = (found, wanted.member(container)) else {
        return text(StatusCode::NOT_FOUND, format!("container not found ({container:?})"));
    };
    let (stdin, tty) = (flag(query, "input") || flag(query, "stdin"), flag(query, "tty"));
    let stdout = flag(query, "output") || flag(query, "stdout");
    // A terminal has one stream of output.
    let stderr = (flag(query, "error") || flag(query, "stderr")) && !tty;
    let container_id = found.id.clone();
    let message = if attach {
        Streaming::Attach(cri::AttachRequest { container_id, stdin, tty, stdout, stderr })
    } else {
        let cmd = query.get("command").cloned().unwrap_or_default();
        Streaming::Exec(cri::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr })
    };
    join(api, message, request).await
}

/// `portForward`.
pub(super) async fn port_forward(
    api: &Arc<Api>,
    namespace: &str,
    pod: &str,
    query: &Query,
    request: Request<Incoming>,
) -> Response<Body> {
    let Some((_, handle)) = api.table.find(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod {pod:?} does not exist"));
    };
    let observed = Arc::clone(&handle.shown.lock().observed);
    let Some(sandbox) = observed.ready_sandbox() else {
        return text(StatusCode::NOT_FOUND, format!("pod {pod:?} is not running"));
    };
    let ports = query.get("port").into_iter().chain(query.get("ports")).flatten();
    let port = ports.flat_map(|p| p.split(',')).filter_map(|p| p.parse().ok()).collect();
    let message = cri::PortForwardRequest { pod_sandbox_id: sandbox.id.clone(), port };
    join(api, Streaming::PortForward(message), request).await
}

/// Sends the upgrade on to the runtime, and then every byte both ways.
async fn join(api: &Arc<Api>, message: Streaming, request: Request<Incoming>) -> Response<Body> {
    let url = match api.node.runtime.streaming(message).await {
        Ok(url) => url,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.message),
    };
    match upgrade(api, &url, request).await {
        Ok(response) => response,
        Err(why) => text(
            StatusCode::BAD_GATEWAY,
            format!("cannot reach the runtime's streaming server: {why}"),
        ),
    }
}

async fn upgrade(
    api: &Arc<Api>,
    url: &str,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, String> {
    let uri: http::Uri = url.parse().map_err(|e| format!("{url:?}: {e}"))?;
    let authority = uri.authority().ok_or_else(|| format!("{url:?} names no host"))?.clone();
    let path = uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let stream =
        tokio::net::TcpStream::connect(authority.as_str()).await.map_err(|e| e.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    api.node
        .tasks
        .spawn(base::Kind::Request, "streaming", async move { connection.with_upgrades().await });
    let mut forwarded = Request::builder().method(request.method().clone()).uri(path);
    for (name, value) in request.headers() {
        if name != "authorization" && name != "host" {
            forwarded = forwarded.header(name, value);
        }
    }
    let forwarded = forwarded
        .header("host", authority.as_str())
        .body(Empty::<Bytes>::new())
        .map_err(|e| e.to_string())?;
    let mut response = sender.send_request(forwarded).await.map_err(|e| e.to_string())?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response.map(|b| b.map_err(std::io::Error::other).boxed()));
    }
    let (client, runtime) = (hyper::upgrade::on(&mut request), hyper::upgrade::on(&mut response));
    api.node.tasks.spawn(base::Kind::Request, "streaming", async move {
        let (client, runtime) =
            futures::try_join!(client, runtime).map_err(std::io::Error::other)?;
        let (mut client, mut runtime) = (TokioIo::new(client), TokioIo::new(runtime));
        // Either side may just hang up: that is how a session ends.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut runtime).await;
        Ok::<(), std::io::Error>(())
    });
    let (parts, _) = response.into_parts();
    let empty = Empty::new().map_err(|never| match never {}).boxed();
    Ok(Response::from_parts(parts, empty))
}
