//! Runs the handlers of hooks and probes: exec, HTTP, TCP, gRPC.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::util::intstr::IntOrString;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::runtime::Runtime;

/// Bytes of an answer that are looked at (`pkg/probe/http`: `maxRespBodyLength`).
const BODY_MAX: usize = 10 << 10;

/// What a handler came to: done, or failed with these words.
pub(crate) type Outcome = Result<(), String>;

/// Where a handler goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) runtime: &'a dyn Runtime,
    pub(crate) container_id: &'a str,
    pub(crate) container: &'a core::Container,
    pub(crate) pod_ip: &'a str,
    /// Probes say they are one; hooks do not.
    pub(crate) user_agent: &'static str,
}

/// Number of a port: itself, or that of the container's port of this name.
fn port(container: &core::Container, port: &IntOrString) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            match container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name)) {
                Some(port) => port.container_port,
                None => name.parse().map_err(|_| format!("couldn't find port: {name}"))?,
            }
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|p| *p > 0)
        .ok_or_else(|| format!("invalid port number: {number}"))
}

/// Runs a command in the container.
pub(crate) async fn exec(
    target: Target<'_>,
    action: &core::ExecAction,
    limit: Duration,
) -> Outcome {
    let command = action.command.clone().unwrap_or_default();
    match target.runtime.exec(target.container_id, &command, limit).await {
        Ok(output) if output.exit_code == 0 => Ok(()),
        Ok(output) => {
            let mut text = output.stdout;
            text.extend_from_slice(&output.stderr);
            text.truncate(BODY_MAX);
            Err(String::from_utf8_lossy(&text).into_owned())
        }
        Err(error) if error.code == tonic::Code::DeadlineExceeded => Err(format!(
            "command timed out: {:?} timed out after {}s",
            command.join(" "),
            limit.as_secs()
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Opens a connection.
pub(crate) async fn tcp(
    target: Target<'_>,
    action: &core::TCPSocketAction,
    limit: Duration,
) -> Outcome {
    let port = port(target.container, &action.port)?;
    let host = action.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(target.pod_ip);
    connect(host, port, limit).await.map(drop)
}

async fn connect(host: &str, port: u16, limit: Duration) -> Result<TcpStream, String> {
    let shown =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    match tokio::time::timeout(limit, TcpStream::connect((host, port))).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!("dial tcp {shown}: connect: {}", os_text(&error))),
        Err(_) => Err(format!("dial tcp {shown}: i/o timeout")),
    }
}

/// The words of the operating system, in lower case as Go prints them.
fn os_text(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        _ => error.to_string(),
    }
}

/// Sends a GET; success is a status from 200 to 399.
pub(crate) async fn http(
    target: Target<'_>,
    action: &core::HTTPGetAction,
    limit: Duration,
) -> Outcome {
    let port = port(target.container, &action.port)?;
    let host = action.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(target.pod_ip);
    let tls = action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https"));
    let path = action.path.as_deref().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let shown =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let scheme = if tls { "https" } else { "http" };
    let url = format!("{scheme}://{shown}{path}");
    let exchange = async {
        let stream = connect(host, port, limit).await.map_err(|e| format!("Get {url:?}: {e}"))?;
        let request = http_request(target, action, &path, &shown)?;
        let answer = if tls {
            let connector = tokio_rustls::TlsConnector::from(Arc::new(no_verification()));
            let name = rustls::pki_types::ServerName::try_from(host.to_owned())
                .map_err(|e| e.to_string())?;
            let stream =
                connector.connect(name, stream).await.map_err(|e| format!("Get {url:?}: {e}"))?;
            send(TokioIo::new(stream), request).await
        } else {
            send(TokioIo::new(stream), request).await
        };
        answer.map_err(|e| format!("Get {url:?}: {e}"))
    };
    let (status, redirect) = tokio::time::timeout(limit, exchange)
        .await
        .map_err(|_| format!("Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"))??;
    if (200..400).contains(&status) {
        // A redirect to another host is a warning upstream, and success all the same.
        let _ = redirect;
        return Ok(());
    }
    Err(format!("HTTP probe failed with statuscode: {status}"))
}

fn http_request(
    target: Target<'_>,
    action: &core::HTTPGetAction,
    path: &str,
    authority: &str,
) -> Result<http::Request<Empty<Bytes>>, String> {
    let mut request = http::Request::builder().uri(path);
    let headers = action.http_headers.as_deref().unwrap_or_default();
    let has = |name: &str| headers.iter().any(|h| h.name.eq_ignore_ascii_case(name));
    if !has("host") {
        request = request.header("Host", authority);
    }
    if !has("user-agent") {
        request = request.header("User-Agent", target.user_agent);
    }
    if !has("accept") {
        request = request.header("Accept", "*/*");
    }
    for header in headers.iter().filter(|h| !h.value.is_empty()) {
        request = request.header(&header.name, &header.value);
    }
    request.header("Connection", "close").body(Empty::new()).map_err(|e| e.to_string())
}

async fn send<S>(
    io: TokioIo<S>,
    request: http::Request<Empty<Bytes>>,
) -> Result<(u16, bool), String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(io).await.map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = response.status();
        let _ = Limited::new(response.into_body(), BODY_MAX).collect().await;
        Ok((status.as_u16(), status.is_redirection()))
    };
    // The connection is driven beside the exchange and dropped with it.
    let mut exchange = std::pin::pin!(exchange);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        answer = &mut exchange => answer,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(error.to_string()),
        },
    }
}

/// Probes accept any certificate, as upstream: the target is an address, and nothing secret is sent.
fn no_verification() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth()
}

#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Asks the gRPC health service.
pub(crate) async fn grpc(
    target: Target<'_>,
    action: &core::GRPCAction,
    limit: Duration,
) -> Outcome {
    let port =
        u16::try_from(action.port).map_err(|_| format!("invalid port number: {}", action.port))?;
    let host = target.pod_ip.to_owned();
    let service = action.service.clone().unwrap_or_default();
    let address = if host.contains(':') {
        format!("http://[{host}]:{port}")
    } else {
        format!("http://{host}:{port}")
    };
    let call = async {
        let endpoint =
            tonic::transport::Endpoint::from_shared(address.clone()).map_err(|e| e.to_string())?;
        let channel = endpoint
            .connect()
            .await
            .map_err(|_| format!("timeout: failed to connect service {host}:{port} within {limit:?}: context deadline exceeded"))?;
        let mut client = proto::grpc::health::v1::health_client::HealthClient::new(channel);
        let request = proto::grpc::health::v1::HealthCheckRequest { service };
        let answer = client.check(request).await.map_err(|s| match s.code() {
            tonic::Code::Unimplemented => {
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)".to_owned()
            }
            _ => format!("error: health rpc probe failed: {}", s.message()),
        })?;
        let status = answer.into_inner().status();
        if status == proto::grpc::health::v1::health_check_response::ServingStatus::Serving {
            return Ok(());
        }
        Err(format!("service unhealthy (responded with {:?})", status.as_str_name()))
    };
    tokio::time::timeout(limit, call)
        .await
        .map_err(|_| format!("health rpc did not complete within {limit:?}"))?
}
