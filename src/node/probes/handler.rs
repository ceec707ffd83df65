//! Runs the handlers of probes: exec, HTTP, TCP, gRPC.

pub(crate) mod http;

use std::time::Duration;

use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

use crate::pods::cri_config::expand::expand;
use crate::runtime::Runtime;

/// Maximum number of bytes read of a response (`pkg/probe/http`: `maxRespBodyLength`).
const BODY_MAX: usize = 10 << 10;

/// Result of one probe, named as in the kubelet's `pkg/probe`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    Success,
    /// Counts as a success; an event reports the warning.
    Warning(String),
    Failure(String),
    /// The probe could not be run, which counts as a failure.
    Unknown(String),
}

/// The target of a handler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandlerTarget<'a> {
    pub(crate) runtime: &'a dyn Runtime,
    pub(crate) container_id: &'a str,
    pub(crate) container: &'a core::Container,
    pub(crate) pod_ip: &'a str,
    /// Probes and hooks have different user agents.
    pub(crate) user_agent: &'static str,
}

/// A port of a handler that is not a valid port of the container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PortError {
    #[error("port {0:?} not found")]
    NotFound(String),
    #[error("invalid port number: {0}")]
    Invalid(i32),
}

/// Resolves a port: a number, or the name of a container port.
fn port(container: &core::Container, port: &IntOrString) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            match container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name)) {
                Some(port) => port.container_port,
                None => return Err(PortError::NotFound(name.clone())),
            }
        }
    };
    u16::try_from(number).ok().filter(|p| *p > 0).ok_or(PortError::Invalid(number))
}

/// Formats `host:port`, with brackets around an IPv6 address.
fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns the command of a probe; replaces `$(NAME)` by variables of the container with a literal
/// value.
fn static_command(container: &core::Container, action: &core::ExecAction) -> Vec<String> {
    let value = |name: &str| {
        let variables = container.env.iter().flatten().filter(|e| e.value_from.is_none());
        let found = variables.rev().find(|e| e.name == name)?;
        Some(found.value.clone().unwrap_or_default())
    };
    action.command.iter().flatten().map(|word| expand(word, value)).collect()
}

/// Runs a command in the container.
pub(crate) async fn exec(
    target: HandlerTarget<'_>,
    action: &core::ExecAction,
    limit: Duration,
) -> ProbeResult {
    let command = static_command(target.container, action);
    match target.runtime.exec(target.container_id, &command, limit).await {
        Ok(output) if output.exit_code == 0 => ProbeResult::Success,
        Ok(output) => {
            let mut text = output.stdout;
            text.extend_from_slice(&output.stderr);
            text.truncate(BODY_MAX);
            ProbeResult::Failure(String::from_utf8_lossy(&text).into_owned())
        }
        Err(error) if error.code == tonic::Code::DeadlineExceeded => ProbeResult::Failure(format!(
            "command timed out: {:?} timed out after {}s",
            command.join(" "),
            limit.as_secs()
        )),
        Err(error) => ProbeResult::Unknown(error.grpc_text()),
    }
}

/// Opens a connection.
pub(crate) async fn tcp(
    target: HandlerTarget<'_>,
    action: &core::TCPSocketAction,
    limit: Duration,
) -> ProbeResult {
    let port = match port(target.container, &action.port) {
        Ok(port) => port,
        Err(error) => return ProbeResult::Unknown(error.to_string()),
    };
    let host = action.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(target.pod_ip);
    match connect(host, port, limit).await {
        Ok(_) => ProbeResult::Success,
        Err(error) => ProbeResult::Failure(error.to_string()),
    }
}

/// A TCP connection that was not established; the texts are those of Go's `net.Dial`.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("dial tcp {address}: connect: {}", os_text(.source))]
    Failed { address: String, source: std::io::Error },
    #[error("dial tcp {address}: i/o timeout")]
    Timeout { address: String },
}

async fn connect(host: &str, port: u16, limit: Duration) -> Result<TcpStream, ConnectError> {
    let address = join(host, port);
    match tokio::time::timeout(limit, TcpStream::connect((host, port))).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(source)) => Err(ConnectError::Failed { address, source }),
        Err(_) => Err(ConnectError::Timeout { address }),
    }
}

/// The operating system's error text, in Go's form.
fn os_text(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        _ => error.to_string(),
    }
}

/// Queries the gRPC health service.
pub(crate) async fn grpc(
    target: HandlerTarget<'_>,
    action: &core::GRPCAction,
    limit: Duration,
) -> ProbeResult {
    let Ok(port) = u16::try_from(action.port) else {
        return ProbeResult::Failure(format!("invalid port number: {}", action.port));
    };
    let address = join(target.pod_ip, port);
    let service = action.service.clone().unwrap_or_default();
    let late = format!("timeout: health rpc did not complete within {}s", limit.as_secs());
    match tokio::time::timeout(limit, check_health(&address, service, limit)).await {
        Ok(Ok(())) => ProbeResult::Success,
        Ok(Err(error)) => ProbeResult::Failure(error.to_string()),
        Err(_) => ProbeResult::Failure(late),
    }
}

/// A failed query of the gRPC health service; the texts are those of upstream's `pkg/probe/grpc`.
#[derive(Debug, thiserror::Error)]
enum HealthError {
    #[error(transparent)]
    InvalidAddress(#[from] tonic::transport::Error),
    #[error(
        "timeout: failed to connect service {address:?} within {seconds}s: context deadline exceeded"
    )]
    NotConnected { address: String, seconds: u64 },
    #[error(
        "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): \
         {message}"
    )]
    Unimplemented { message: String },
    #[error("error: health rpc probe failed: rpc error: code = {code:?} desc = {message}")]
    Rpc { code: tonic::Code, message: String },
    #[error("service unhealthy (responded with {status:?})")]
    NotServing { status: &'static str },
}

async fn check_health(address: &str, service: String, limit: Duration) -> Result<(), HealthError> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?;
    let channel = endpoint.connect().await.map_err(|_| HealthError::NotConnected {
        address: address.to_owned(),
        seconds: limit.as_secs(),
    })?;
    let mut client = proto::grpc::health::v1::health_client::HealthClient::new(channel);
    let request = proto::grpc::health::v1::HealthCheckRequest { service };
    let response = client.check(request).await.map_err(|s| match (s.code(), s.message()) {
        (tonic::Code::Unimplemented, message) => {
            HealthError::Unimplemented { message: message.to_owned() }
        }
        (code, message) => HealthError::Rpc { code, message: message.to_owned() },
    })?;
    let status = response.into_inner().status();
    if status == proto::grpc::health::v1::health_check_response::ServingStatus::Serving {
        return Ok(());
    }
    Err(HealthError::NotServing { status: status.as_str_name() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_commands_expand_literal_variables_only() {
        let container: core::Container = serde_json::from_value(serde_json::json!({
            "name": "a", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "ports": [{"name": "web", "containerPort": 80}],
        }))
        .unwrap();
        let command = ["x", "$(A)", "$(B)", "$$(A)"].map(str::to_owned).to_vec();
        let action = core::ExecAction { command: Some(command) };
        assert_eq!(static_command(&container, &action), ["x", "2", "$(B)", "$(A)"]);
        assert_eq!(port(&container, &IntOrString::String("web".to_owned())), Ok(80));
        let missing = port(&container, &IntOrString::String("db".to_owned()));
        assert_eq!(missing.unwrap_err().to_string(), "port \"db\" not found");
        let zero = port(&container, &IntOrString::Int(0));
        assert_eq!(zero.unwrap_err().to_string(), "invalid port number: 0");
    }
}
