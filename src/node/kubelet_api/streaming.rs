//! Exec, attach and port-forward: joins the upgraded connection to the runtime's own streaming
//! server.

use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use proto::runtime::v1 as cri;
use stream::bridge::{self, Session, Streams};

use super::query::Query;
use super::response::{Body, text_response};
use super::state::KubeletApi;
use crate::pods::observed::ObservedState;
use crate::runtime::StreamingRequest;

type Joined =
    Pin<Box<dyn Future<Output = Result<Response<Vec<u8>>, stream::upgrade::Error>> + Send>>;

/// Maximum number of bytes of an error response of the runtime to pass on.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// What a client does in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// Runs a new process.
    Exec,
    /// Joins the streams of the container's process.
    Attach,
}

/// `exec` and `attach`.
pub(super) async fn in_container(
    api: &Arc<KubeletApi>,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
    command: Command,
    request: Request<()>,
) -> Response<Body> {
    let Some((wanted, handle)) = api.table.find(namespace, pod) else {
        return text_response(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let observed = Arc::clone(&handle.reported.lock().observed);
    let found = observed.active_container(container).filter(|c| c.state == ObservedState::Running);
    let (Some(found), Some(_)) = (found, wanted.container(container)) else {
        return text_response(
            StatusCode::NOT_FOUND,
            format!("container not found ({container:?})"),
        );
    };
    let (stdin, tty) = (query.flag("input") || query.flag("stdin"), query.flag("tty"));
    let stdout = query.flag("output") || query.flag("stdout");
    // A terminal has a single output stream.
    let stderr = (query.flag("error") || query.flag("stderr")) && !tty;
    if !stdin && !stdout && !stderr {
        let why = "you must specify at least 1 of stdin, stdout, stderr";
        return text_response(StatusCode::BAD_REQUEST, why);
    }
    let session = Session::Command(Streams { stdin, stdout, stderr, tty });
    let container_id = found.id.clone();
    let message = match command {
        Command::Attach => StreamingRequest::Attach(cri::AttachRequest {
            container_id,
            stdin,
            tty,
            stdout,
            stderr,
        }),
        Command::Exec => StreamingRequest::Exec(cri::ExecRequest {
            container_id,
            cmd: query.all("command").to_vec(),
            tty,
            stdin,
            stdout,
            stderr,
        }),
    };
    join(api, message, session, request).await
}

/// `portForward`.
pub(super) async fn port_forward(
    api: &Arc<KubeletApi>,
    namespace: &str,
    pod: &str,
    query: &Query,
    request: Request<()>,
) -> Response<Body> {
    let Some((_, handle)) = api.table.find(namespace, pod) else {
        return text_response(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let observed = Arc::clone(&handle.reported.lock().observed);
    let Some(sandbox) = observed.ready_sandbox() else {
        return text_response(StatusCode::NOT_FOUND, format!("pod {pod:?} is not running"));
    };
    let ports = query.all("port").iter().chain(query.all("ports"));
    let port = ports.flat_map(|p| p.split(',')).filter_map(|p| p.parse().ok()).collect();
    let message = cri::PortForwardRequest { pod_sandbox_id: sandbox.id.clone(), port };
    join(api, StreamingRequest::PortForward(message), Session::PortForward, request).await
}

/// Joins the client to the runtime, or returns an error response.
async fn join(
    api: &Arc<KubeletApi>,
    message: StreamingRequest,
    session: Session,
    mut request: Request<()>,
) -> Response<Body> {
    let url = match api.node.runtime.cri.streaming(message).await {
        Ok(url) => url,
        Err(error) => {
            let code = match error.code {
                tonic::Code::NotFound => StatusCode::NOT_FOUND,
                tonic::Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            return text_response(code, error.message);
        }
    };
    let Ok(url) = url.parse::<http::Uri>() else {
        return text_response(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the runtime's streaming address {url:?} is not a URL"),
        );
    };
    request.headers_mut().remove(http::header::AUTHORIZATION);
    let tasks = api.node.tasks.clone();
    let joined: Joined = Box::pin(async move {
        let response = bridge::serve(request, session, &url, &base::io::Tcp, &tasks).await?;
        let (parts, mut body) = response.into_parts();
        let mut bytes = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            let data = frame.into_data().unwrap_or_default();
            if bytes.len() + data.len() > REFUSAL_BYTES_MAX {
                break;
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Response::from_parts(parts, bytes))
    });
    match joined.await {
        Ok(response) => {
            response.map(|bytes| Full::new(bytes.into()).map_err(|never| match never {}).boxed())
        }
        Err(error) => text_response(
            StatusCode::BAD_GATEWAY,
            format!("cannot reach the runtime's streaming server: {error}"),
        ),
    }
}
