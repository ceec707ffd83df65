//! Errors of webhook calls, with the messages of Go's HTTP and TLS: operators search for these.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use api::Status;
use api::field::go_quote;
use api::status::{Cause, Details};
use base::metrics::Family;
use rustls::CertificateError;
use rustls::pki_types::InvalidDnsNameError;

/// The maximum length of a webhook's text in an error (client-go's
/// `maxUnstructuredResponseTextBytes`).
const RESPONSE_TEXT_MAX: usize = 2048;

/// The error of a webhook call. Any of them may be transient; the client does not retry.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The configuration is unusable: no call was made.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no response. The message is that of Go's `url.Error`.
    #[error("Post {}: {source}", go_quote(.url))]
    Transport {
        /// The URL of the request.
        url: String,
        /// The cause.
        source: TransportError,
    },
    /// An error response: a `Status`, or an HTTP code other than success.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// The response cannot be parsed.
    #[error(transparent)]
    Response(#[from] ResponseError),
}

/// The configuration of a webhook, or the review to send, is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// `caBundle` is not base64.
    #[error("caBundle is no base64: {0}")]
    CaBundle(#[source] base64::DecodeError),
    /// The port of the Service is not between 1 and 65535.
    #[error("the Service's port is no port")]
    ServicePort,
    /// Neither a Service nor a URL is configured.
    #[error("webhook configuration must have either service or URL")]
    NoEndpoint,
    /// The URL is unusable.
    #[error("Unparsable URL: {url}: {reason}")]
    Url {
        /// The URL as configured.
        url: String,
        /// What is wrong with it.
        reason: UrlError,
    },
    /// The CA certificates are unusable.
    #[error("{reason}")]
    RootCertificates {
        /// The message of the TLS configuration.
        reason: String,
    },
    /// The review cannot be encoded as JSON.
    #[error("the review cannot be encoded: {0}")]
    Review(#[source] serde_json::Error),
    /// The HTTP request cannot be built.
    #[error("the request cannot be made: {0}")]
    Request(#[source] http::Error),
}

/// A URL of a webhook is unusable.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// It is not a URI.
    #[error(transparent)]
    Syntax(#[from] http::uri::InvalidUri),
    /// It is not HTTPS.
    #[error("the scheme has to be https")]
    Scheme,
    /// It has no host.
    #[error("it has no host")]
    NoHost,
    /// It contains a user name or a password.
    #[error("user information is not permitted")]
    UserInfo,
}

/// A response cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    /// The body ends early or is too long.
    #[error("unexpected error when reading response body. Please retry. Original error: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The body is empty.
    #[error("0-length response with status code: {code} and content type: {media_type}")]
    Empty {
        /// The HTTP code.
        code: u16,
        /// The content type.
        media_type: String,
    },
    /// The body is not JSON.
    #[error("couldn't get version/kind; json parse error: {0}")]
    Json(#[source] serde_json::Error),
}

/// A host or a Service cannot be resolved to an address that webhooks may use.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The name has no address.
    #[error("dial tcp: lookup {host}: no such host")]
    NoSuchHost {
        /// The name.
        host: String,
    },
    /// All addresses of the name are forbidden.
    #[error("dial tcp {address}: address not allowed")]
    Forbidden {
        /// The first address.
        address: SocketAddr,
    },
    /// The Service or its EndpointSlices cannot be read.
    #[error("{}", .0.message)]
    Lookup(Box<Status>),
    /// The Service does not exist.
    #[error("service {} not found", go_quote(.name))]
    ServiceNotFound {
        /// The name of the Service.
        name: String,
    },
    /// Services of this type have no endpoints in the cluster.
    #[error("unsupported service type {}", go_quote(.kind))]
    ServiceType {
        /// The type.
        kind: String,
    },
    /// The Service does not have this port.
    #[error("no service port {port} found for service {}", go_quote(.name))]
    ServicePort {
        /// The name of the Service.
        name: String,
        /// The port.
        port: u16,
    },
    /// No endpoint of the Service is ready.
    #[error("no endpoints available for service {}", go_quote(.name))]
    NoEndpoints {
        /// The name of the Service.
        name: String,
    },
    /// The endpoint has an address of this machine or of its link.
    #[error(
        "endpoint {address} of service {} is not allowed: address of this machine or link",
        go_quote(.name)
    )]
    ForbiddenEndpoint {
        /// The address.
        address: SocketAddr,
        /// The name of the Service.
        name: String,
    },
}

/// There is no response. The messages are those of Go's `net`, `crypto/tls` and `net/http`.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Name resolution failed.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The name resolved to no address at all.
    #[error("no address")]
    NoAddress,
    /// The connection failed.
    #[error("{}", dial_message(.address, .source))]
    Dial {
        /// `host:port` or `ip:port`.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The connection was not established in time.
    #[error("dial tcp {address}: i/o timeout")]
    DialTimeout {
        /// The address.
        address: SocketAddr,
    },
    /// The host cannot be the name of a certificate.
    #[error("tls: {host}: {source}")]
    ServerName {
        /// The host.
        host: String,
        /// The cause.
        source: InvalidDnsNameError,
    },
    /// `tls-server-name` cannot be the name of a certificate.
    #[error(transparent)]
    TlsServerName(#[from] InvalidDnsNameError),
    /// The trusted CA certificates are unusable.
    #[error("{reason}")]
    RootCertificates {
        /// The message of the TLS configuration.
        reason: String,
    },
    /// The TLS handshake failed.
    #[error("{}", handshake_message(.host, .source))]
    Handshake {
        /// The name that the certificate must be valid for.
        host: String,
        /// The cause.
        source: io::Error,
    },
    /// The TLS handshake took too long.
    #[error("net/http: TLS handshake timeout")]
    HandshakeTimeout,
    /// The HTTP request cannot be built.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The connection failed while the request was sent or the response was read.
    #[error("{}", exchange_text(.0))]
    Exchange(#[source] hyper::Error),
    /// There was no response in time.
    #[error("context deadline exceeded")]
    Deadline,
}

impl TransportError {
    /// Whether a retry can succeed (upstream's `DefaultShouldRetry`).
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Handshake { source, .. }
            if source.kind() == io::ErrorKind::ConnectionReset && tls_error(source).is_none())
    }

    /// A failed TLS handshake with `host`; counts certificates without subject alternative names.
    pub fn handshake(host: &str, source: io::Error) -> Self {
        count_nameless_certificate(&source);
        Self::Handshake { host: host.to_owned(), source }
    }

    /// A failed connection to `address`.
    pub fn dial(address: SocketAddr, source: io::Error) -> Self {
        Self::Dial { address: address.to_string(), source }
    }
}

impl CallError {
    /// The HTTP code in upstream's metrics.
    pub fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            Self::Config(_) => 500,
            Self::Transport { .. } | Self::Response(_) => 503,
        }
    }
}

/// A duration of whole seconds in Go's format.
pub fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

/// The message for a failure to dial `address` (`ip:port`).
fn dial_message(address: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("dial tcp {address}: connect: connection refused")
        }
        io::ErrorKind::HostUnreachable => format!("dial tcp {address}: connect: no route to host"),
        io::ErrorKind::NetworkUnreachable => {
            format!("dial tcp {address}: connect: network is unreachable")
        }
        io::ErrorKind::TimedOut => format!("dial tcp {address}: i/o timeout"),
        _ => format!("dial tcp {address}: {error}"),
    }
}

/// Connections to servers whose certificate has no subject alternative name.
pub(super) static NAMELESS: Family = Family::counter(
    "apiserver_webhooks_x509_missing_san_total",
    "[BETA] Counts the number of requests to servers missing SAN extension in their serving \
     certificate OR the number of connection failures due to the lack of x509 certificate \
     SAN extension missing (either/or, based on the runtime environment)",
    &[],
);

fn count_nameless_certificate(error: &io::Error) {
    if let Some(rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
        presented,
        ..
    })) = tls_error(error)
        && presented.is_empty()
    {
        NAMELESS.inc(&[]);
    }
}

/// The error of the TLS library in an I/O error.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|e| e.downcast_ref())
}

/// The message for a failed exchange of request and response.
fn exchange_text(error: &hyper::Error) -> String {
    if error.is_incomplete_message() {
        return "EOF".to_owned();
    }
    let cause = std::error::Error::source(error).map(|c| format!(": {c}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// The message for a failed TLS handshake with `host`.
fn handshake_message(host: &str, error: &io::Error) -> String {
    let Some(inner) = tls_error(error) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
            io::ErrorKind::ConnectionReset => "read: connection reset by peer".to_owned(),
            _ => error.to_string(),
        };
    };
    match inner {
        rustls::Error::InvalidCertificate(why) => {
            format!("tls: failed to verify certificate: x509: {}", certificate(host, why))
        }
        rustls::Error::InvalidMessage(_) => {
            "tls: first record does not look like a TLS handshake".to_owned()
        }
        rustls::Error::AlertReceived(alert) => format!("remote error: tls: {alert:?}"),
        other => format!("tls: {other}"),
    }
}

fn certificate(host: &str, why: &CertificateError) -> String {
    match why {
        // A bad signature comes from a CA with the same name and another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "certificate signed by unknown authority".to_owned()
        }
        CertificateError::NotValidForName => format!("certificate is not valid for {host}"),
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<&str> = presented.iter().map(|name| plain_name(name)).collect();
            if names.is_empty() {
                return format!(
                    "cannot validate certificate for {host} because it doesn't contain any SANs"
                );
            }
            format!("certificate is valid for {}, not {host}", names.join(", "))
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            "certificate has expired or is not yet valid".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "certificate specifies an incompatible key usage".to_owned()
        }
        other => other.to_string(),
    }
}

/// The content of `DnsName("a.b")` and `IpAddress(1.2.3.4)`.
fn plain_name(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, rest)| rest.trim_end_matches(')'));
    inner.trim_matches('"')
}

/// The Status for a response with an error code and without a Status in its body (client-go's
/// `NewGenericServerResponse`).
pub(super) fn generic(code: u16, body: &[u8], is_text: bool) -> Status {
    let cut = body.get(..RESPONSE_TEXT_MAX.min(body.len())).unwrap_or_default();
    let text =
        if is_text { String::from_utf8_lossy(cut).trim().to_owned() } else { "unknown".to_owned() };
    let (reason, message) = reason_of(code, &text);
    let mut status = Status::failure(code, reason, message);
    let cause = Cause {
        reason: "UnexpectedServerResponse".to_owned(),
        message: text,
        field: String::new(),
    };
    status.details = Some(Details { causes: vec![cause], ..Details::default() });
    status
}

fn reason_of(code: u16, text: &str) -> (&'static str, String) {
    let own = |reason: &'static str, message: &str| (reason, message.to_owned());
    match code {
        400 => own("BadRequest", "the server rejected our request for an unknown reason"),
        401 => own("Unauthorized", "the server has asked for the client to provide credentials"),
        403 => own("Forbidden", text),
        404 => own("NotFound", "the server could not find the requested resource"),
        405 => own(
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        406 if matches!(text, "" | "unknown") => own(
            "NotAcceptable",
            "the server was unable to respond with a content type that the client supports",
        ),
        406 => own("NotAcceptable", text),
        409 => own("AlreadyExists", "the server reported a conflict"),
        415 => own("UnsupportedMediaType", text),
        422 => own("Invalid", "the server rejected our request due to an error in our request"),
        429 => own(
            "TooManyRequests",
            "the server has received too many requests and has asked us to try again later",
        ),
        503 => own("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => own(
            "Timeout",
            "the server was unable to return a response in the time allotted, but may still be processing the request",
        ),
        code if code >= 500 => (
            "InternalError",
            format!(
                "an error on the server ({}) has prevented the request from succeeding",
                go_quote(text)
            ),
        ),
        code => (
            "Unknown",
            format!(
                "the server responded with the status code {code} but did not return more information"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_gos_format() {
        for (millis, text) in [(10_000, "10s"), (9_100, "10s"), (60_000, "1m0s"), (30_000, "30s")] {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn codes_without_a_status_have_client_gos_messages() {
        let status = generic(500, b"oops\n", true);
        assert_eq!(
            status.message,
            "an error on the server (\"oops\") has prevented the request from succeeding"
        );
        assert_eq!(status.reason, "InternalError");
        assert_eq!(
            generic(302, b"", true).message,
            "the server responded with the status code 302 but did not return more information"
        );
        assert_eq!(
            generic(404, b"{}", false).message,
            "the server could not find the requested resource"
        );
    }
}
