//! Connects to kubelets for logs, exec, attach and port-forward, and proxies to nodes, pods and
//! services.

pub(crate) mod headers;
mod html;
pub mod kubelet_client;
mod target;
mod tls;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::Status;
use async_trait::async_trait;
use base::io::{BoxIo, Dial};
use base::{Kind, Tasks};
use http::header::{CONTENT_TYPE, HOST, HeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use serde_json::Value;
use stream::upgrade::{self, is_upgrade};
use stream::websocket;

use crate::interfaces::{Connect, ConnectRequest};
use crate::request::Query;
use crate::request::body;
use crate::request::body::Body;
use lookup::Lookup;
use target::{Target, Trust};

/// The timeout for a connection to a node, pod or service (as in upstream's dialer).
const DIAL_MAX: Duration = Duration::from_secs(30);
/// The maximum length of a kubelet's error response, in bytes.
const ERROR_BYTES_MAX: usize = 50_000;

/// Connects to nodes, pods and services.
pub struct Nodes {
    lookup: Arc<dyn Lookup>,
    dial: Arc<dyn Dial>,
    tasks: Tasks,
    /// Verifies the server and presents our client certificate.
    kubelet: Arc<ClientConfig>,
    /// Presents our client certificate without verifying the server.
    unverified: Arc<ClientConfig>,
    /// Neither verifies the server nor presents a certificate.
    anonymous: Arc<ClientConfig>,
    /// The index at which the next endpoint selection starts, for round robin.
    turn: AtomicUsize,
}

impl Nodes {
    /// `tls` verifies kubelets and holds the client certificate of the API server; it must offer
    /// HTTP/1.1 only.
    ///
    /// # Errors
    /// If TLS without verification, for pods and services, cannot be set up.
    pub fn new(
        lookup: Arc<dyn Lookup>,
        tls: Arc<ClientConfig>,
        dial: Arc<dyn Dial>,
        tasks: Tasks,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            lookup,
            dial,
            tasks,
            unverified: tls::unverified(&tls),
            anonymous: tls::anonymous_unverified(&tls)?,
            kubelet: tls,
            turn: AtomicUsize::new(0),
        })
    }

    async fn open(&self, target: &Target) -> io::Result<BoxIo> {
        let opened = async {
            let found = target.resolved_ip.map(|ip| ip.to_string());
            let io = self.dial.dial(found.as_deref().unwrap_or(&target.host), target.port).await?;
            let config = match target.trust {
                Trust::Plain => return Ok(io),
                Trust::Kubelet => &self.kubelet,
                Trust::UnverifiedKubelet => &self.unverified,
                Trust::Unverified => &self.anonymous,
            };
            tls::wrap(io, &target.host, Arc::clone(config)).await
        };
        match tokio::time::timeout(DIAL_MAX, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "i/o timeout")),
        }
    }

    /// `pods/log`.
    async fn log(&self, mut connect: ConnectRequest) -> Result<Response<Body>, Status> {
        let Some((pod, node)) = connect.object.as_ref().zip(connect.node.as_ref()) else {
            // A pod without a node has no logs.
            return empty_response(StatusCode::NO_CONTENT, &[]);
        };
        let query = Query::parse(connect.request.uri().query().unwrap_or_default());
        let mut target = target::kubelet(node)?;
        let skip = query.get("insecureSkipTLSVerifyBackend");
        if skip.is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false")) {
            target.trust = Trust::UnverifiedKubelet;
        }
        let path = target::kubelet_path("log", pod, &query)?;
        let authority = target.authority();
        let failed = |error: &dyn std::fmt::Display| {
            let url = format!("{}://{authority}{path}", target.scheme());
            Status::failure(500, "", format!("Get {}: {error}", api::field::go_quote(&url)))
        };
        let io = self.open(&target).await.map_err(|e| {
            let tls = e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            if matches!(tls, Some(rustls::Error::InvalidCertificate(_))) {
                crate::metrics::requests::LOGS_FAILED.inc(&[]);
            }
            failed(&dial_error(&target, &e))
        })?;
        let request = Request::builder()
            .uri(&path)
            .header(HOST, &authority)
            .body(upgrade::empty())
            .map_err(|e| Status::internal(&e.to_string()))?;
        let response = upgrade::send(io, request, &self.tasks).await.map_err(|e| failed(&e))?;
        if !(200..=206).contains(&response.status().as_u16()) {
            let code = response.status().as_u16();
            return Err(error_status(
                code,
                &connect.name,
                read_error_body(response.into_body()).await,
            ));
        }
        if upgrade::is_websocket(connect.request.headers()) {
            return self.stream_log(&mut connect.request, response.into_body());
        }
        let body = response.into_body().map_err(Into::into).boxed_unsync();
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        Ok(response)
    }

    /// Sends a log as messages of a WebSocket.
    fn stream_log(
        &self,
        request: &mut Request<Body>,
        log: hyper::body::Incoming,
    ) -> Result<Response<Body>, Status> {
        let refused = |why: &str| Status::failure(403, "Forbidden", why.to_owned());
        let protocol = websocket::one_stream(request.headers())
            .ok_or_else(|| refused("requested protocol(s) are not supported"))?;
        let response = websocket::accept(request.headers(), protocol)
            .ok_or_else(|| refused("not a WebSocket handshake: key or version 13 is missing"))?;
        let client = hyper::upgrade::on(&mut *request);
        let extensions = std::mem::take(request.extensions_mut());
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(Kind::Request, "log-websocket", async move {
            match client.await {
                Ok(client) => tokio::select! {
                    () = websocket::pour(TokioIo::new(client), protocol, log) => {}
                    () = shutdown.requested() => {}
                },
                Err(error) => tracing::debug!(%error, "the client did not complete an upgrade"),
            }
            drop(extensions);
            Ok::<(), std::convert::Infallible>(())
        });
        Ok(response)
    }

    /// `pods/exec`, `pods/attach`, `pods/portforward`: forwards the upgrade to the kubelet and
    /// copies bytes.
    async fn session(&self, connect: ConnectRequest) -> Result<Response<Body>, Status> {
        let Some((pod, node)) = connect.object.as_ref().zip(connect.node.as_ref()) else {
            let message = format!("pod {} does not have a host assigned", connect.name);
            return Err(Status::bad_request(message));
        };
        let query = Query::parse(connect.request.uri().query().unwrap_or_default());
        let target = target::kubelet(node)?;
        let path = target::kubelet_path(&connect.subresource, pod, &query)?;
        if !is_upgrade(connect.request.headers()) {
            return Err(Status::bad_request("Upgrade request required"));
        }
        self.forward_upgrade(connect.request, &target, &path).await
    }

    /// Forwards an upgrade request and joins the connections.
    async fn forward_upgrade(
        &self,
        mut request: Request<Body>,
        target: &Target,
        path: &str,
    ) -> Result<Response<Body>, Status> {
        let failed = |error: &dyn std::fmt::Display| {
            Status::failure(500, "", format!("error dialing backend: {error}"))
        };
        headers::remove_credentials(request.headers_mut());
        headers::set_host(&mut request, &target.authority());
        *request.uri_mut() = path.parse::<Uri>().map_err(|e| failed(&e))?;
        let io = self.open(target).await.map_err(|e| failed(&dial_error(target, &e)))?;
        let response = upgrade::relay(io, request, &self.tasks)
            .await
            .map_err(|e| Status::failure(500, "", e.to_string()))?;
        Ok(response)
    }

    /// `proxy` of nodes, pods and services.
    async fn proxy(&self, connect: ConnectRequest) -> Result<Response<Body>, Status> {
        let uri = connect.request.uri().clone();
        let namespaced = connect.resource != "nodes";
        let (prefix, rest) = headers::split_path(uri.path(), if namespaced { 8 } else { 6 });
        if rest.is_empty()
            && matches!(*connect.request.method(), Method::GET | Method::HEAD)
            && !is_upgrade(connect.request.headers())
        {
            let query = uri.query().map(|q| format!("?{q}")).unwrap_or_default();
            let location = format!("{}/{query}", uri.path());
            return empty_response(
                StatusCode::MOVED_PERMANENTLY,
                &[(LOCATION.as_str(), &location)],
            );
        }
        let ConnectRequest { resource, namespace, name, object, mut request, .. } = connect;
        let target = self.proxy_target(&Proxied { resource, namespace, name, object }).await?;
        let mut path = if rest.is_empty() { "/".to_owned() } else { rest.to_owned() };
        if let Some(query) = uri.query() {
            path.push('?');
            path.push_str(query);
        }
        if is_upgrade(request.headers()) {
            return self.forward_upgrade(request, &target, &path).await;
        }
        let failed = |error: &dyn std::fmt::Display| {
            let message = format!("error trying to reach service: {error}");
            Status::failure(503, "ServiceUnavailable", message)
        };
        headers::remove_credentials(request.headers_mut());
        headers::remove_hop_by_hop_headers(request.headers_mut());
        headers::set_host(&mut request, &target.authority());
        let host = request.headers().get(HOST).cloned();
        if let Ok(forwarded) = HeaderValue::from_str(&format!("{prefix}{rest}")) {
            request.headers_mut().insert("x-forwarded-uri", forwarded);
        }
        *request.uri_mut() = path.parse::<Uri>().map_err(|e| failed(&e))?;
        *request.version_mut() = http::Version::HTTP_11;
        let is_head = *request.method() == Method::HEAD;
        let io = self.open(&target).await.map_err(|e| failed(&dial_error(&target, &e)))?;
        let response = upgrade::send(io, request, &self.tasks).await.map_err(|e| failed(&e))?;
        let mut response = response.map(|b| b.map_err(Into::into).boxed_unsync());
        headers::remove_hop_by_hop_headers(response.headers_mut());
        let hosts = [target.authority(), text_of(host.as_ref())];
        headers::rewrite_location(response.headers_mut(), prefix, &hosts);
        if is_head {
            return Ok(response);
        }
        let link = |link: &str| {
            // The page uses the proxy's path already.
            if link.starts_with(prefix) {
                None
            } else {
                headers::through_proxy(link, prefix, &hosts)
            }
        };
        html::rewrite(response, link).await.map_err(|e| failed(&e))
    }

    async fn proxy_target(&self, proxied: &Proxied) -> Result<Target, Status> {
        let missing = || Status::not_found("", &proxied.resource, &proxied.name);
        let object = proxied.object.as_ref().ok_or_else(missing)?;
        match proxied.resource.as_str() {
            "nodes" => resolved(target::node_proxy(&proxied.name, object)?).await,
            "pods" => target::pod_proxy(&proxied.name, object),
            _ => self.endpoint(proxied, object).await,
        }
    }

    /// Selects an endpoint of a service whose pod has that address.
    async fn endpoint(&self, proxied: &Proxied, service: &Value) -> Result<Target, Status> {
        let named = target::named("service", &proxied.name)?;
        let port = target::service_port(&named, service)?;
        let all = self.lookup.list(&lookup::ENDPOINT_SLICES, &proxied.namespace).await?;
        let is_of_service = |s: &Value| {
            let label = s.pointer("/metadata/labels/kubernetes.io~1service-name");
            label.and_then(Value::as_str) == Some(named.name)
        };
        let slices: Vec<Value> =
            all.iter().filter_map(|o| o.value().ok()).filter(|s| is_of_service(s)).collect();
        let family = service.pointer("/spec/ipFamilies/0").and_then(Value::as_str);
        let found = target::endpoints(&slices, &port, family.unwrap_or("IPv4"), &proxied.namespace);
        let from = self.turn.fetch_add(1, Ordering::Relaxed) % found.len().max(1);
        for (address, port, pod) in found.iter().cycle().skip(from).take(found.len()) {
            let found = self.lookup.get(&lookup::PODS, &proxied.namespace, pod).await;
            // As in upstream, an endpoint whose pod cannot be read is skipped like one without a
            // pod.
            let pod = match found.and_then(lookup::value) {
                Ok(Some(pod)) => pod,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(
                        address, pod, %error, "skipping an endpoint whose pod cannot be read"
                    );
                    continue;
                }
            };
            if target::has_address(&pod, address) {
                let trust = if named.scheme == "https" { Trust::Unverified } else { Trust::Plain };
                return Ok(Target {
                    host: (*address).to_owned(),
                    resolved_ip: None,
                    port: *port,
                    trust,
                });
            }
        }
        Err(target::no_endpoints(named.name))
    }
}

/// Resolves a node that has a name and no address; users that write node status must not lead the
/// server to itself.
async fn resolved(mut target: Target) -> Result<Target, Status> {
    if target.host.parse::<IpAddr>().is_err() {
        let found = tokio::net::lookup_host((target.host.as_str(), target.port)).await;
        // An unresolvable name may be that of a node with a tunnel.
        let found: Vec<IpAddr> = found.into_iter().flatten().map(|to| to.ip()).collect();
        target.resolved_ip = target::foreign_address(&found)?;
    }
    Ok(target)
}

/// The target of a proxied request.
struct Proxied {
    resource: String,
    namespace: String,
    name: String,
    object: Option<Value>,
}

#[async_trait]
impl Connect for Nodes {
    async fn connect(&self, connect: ConnectRequest) -> Result<Response<Body>, Status> {
        match connect.subresource.as_str() {
            "log" => self.log(connect).await,
            "exec" | "attach" | "portforward" => self.session(connect).await,
            _ => self.proxy(connect).await,
        }
    }
}

fn empty_response(code: StatusCode, headers: &[(&str, &str)]) -> Result<Response<Body>, Status> {
    let mut builder = Response::builder().status(code);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body::empty()).map_err(|e| Status::internal(&e.to_string()))
}

fn text_of(value: Option<&HeaderValue>) -> String {
    value.and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
}

/// The error in Go's format: clients and operators search for these messages.
fn dial_error(target: &Target, error: &io::Error) -> String {
    let authority = target.authority();
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("dial tcp {authority}: connect: connection refused")
        }
        io::ErrorKind::HostUnreachable => {
            format!("dial tcp {authority}: connect: no route to host")
        }
        io::ErrorKind::TimedOut => format!("dial tcp {authority}: i/o timeout"),
        _ => format!("dial tcp {authority}: {error}"),
    }
}

async fn read_error_body(mut body: hyper::body::Incoming) -> String {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            let room = ERROR_BYTES_MAX.saturating_sub(bytes.len());
            bytes.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
        }
        if bytes.len() >= ERROR_BYTES_MAX {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Converts a kubelet's error response for a log to a Status.
fn error_status(code: u16, pod: &str, text: String) -> Status {
    match code {
        500 => return Status::internal(&text),
        400 => return Status::bad_request(text),
        _ => {}
    }
    let (reason, message) = match code {
        404 => ("NotFound", "the server could not find the requested resource".to_owned()),
        401 => (
            "Unauthorized",
            "the server has asked for the client to provide credentials".to_owned(),
        ),
        403 => ("Forbidden", text),
        405 => (
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource".to_owned(),
        ),
        429 => (
            "TooManyRequests",
            "the server has received too many requests and has asked us to try again later"
                .to_owned(),
        ),
        503 => (
            "ServiceUnavailable",
            "the server is currently unable to handle the request".to_owned(),
        ),
        500.. => {
            let quoted = api::field::go_quote(&text);
            (
                "InternalError",
                format!(
                    "an error on the server ({quoted}) has prevented the request from succeeding"
                ),
            )
        }
        _ => (
            "",
            format!(
                "the server responded with the status code {code} but did not return more information"
            ),
        ),
    };
    Status::failure(code, reason, format!("{message} ( pods/log {pod})")).about("", "pods/log", pod)
}

#[cfg(test)]
mod tests;
