//! Errors of webhook calls, with the messages of Go's HTTP and TLS: operators search for these.

use std::io;
use std::time::Duration;

use api::Status;
use api::status::{Cause, Details};
use rustls::CertificateError;

/// The maximum length of foreign text in an error (client-go's `maxUnstructuredResponseTextBytes`).
const FOREIGN_MAX: usize = 2048;

/// The error of a webhook call. Any of them may be transient; the client does not retry.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The configuration is unusable: no call was made.
    #[error("{0}")]
    Config(String),
    /// There is no response: name resolution, connection, TLS or timeout. The message is that of
    /// Go's `url.Error`.
    #[error("{0}")]
    Transport(String),
    /// An error response: a `Status`, or an HTTP code other than success.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// The response cannot be parsed.
    #[error("{0}")]
    Answer(String),
}

impl CallError {
    /// The HTTP code in upstream's metrics.
    pub fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            Self::Config(_) => 500,
            Self::Transport(_) | Self::Answer(_) => 503,
        }
    }
}

/// A duration of whole seconds in Go's format.
pub(crate) fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

/// The message for a failure to dial `address` (`ip:port`).
pub(super) fn dial(address: &str, error: &io::Error) -> String {
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

/// The message for a failed TLS handshake with `host`.
pub(crate) fn handshake(host: &str, error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    let Some(inner) = inner else {
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
                crate::metrics::requests::NAMELESS.inc(&[]);
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
    let cut = body.get(..FOREIGN_MAX.min(body.len())).unwrap_or_default();
    let said =
        if is_text { String::from_utf8_lossy(cut).trim().to_owned() } else { "unknown".to_owned() };
    let (reason, message) = reason_of(code, &said);
    let mut status = Status::failure(code, reason, message);
    let cause = Cause {
        reason: "UnexpectedServerResponse".to_owned(),
        message: said,
        field: String::new(),
    };
    status.details = Some(Details { causes: vec![cause], ..Details::default() });
    status
}

fn reason_of(code: u16, said: &str) -> (&'static str, String) {
    let own = |reason: &'static str, text: &str| (reason, text.to_owned());
    match code {
        400 => own("BadRequest", "the server rejected our request for an unknown reason"),
        401 => own("Unauthorized", "the server has asked for the client to provide credentials"),
        403 => own("Forbidden", said),
        404 => own("NotFound", "the server could not find the requested resource"),
        405 => own(
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        406 if matches!(said, "" | "unknown") => own(
            "NotAcceptable",
            "the server was unable to respond with a content type that the client supports",
        ),
        406 => own("NotAcceptable", said),
        409 => own("AlreadyExists", "the server reported a conflict"),
        415 => own("UnsupportedMediaType", said),
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
                api::field::go_quote(said)
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
    fn durations_are_written_as_go_does() {
        for (millis, text) in [(10_000, "10s"), (9_100, "10s"), (60_000, "1m0s"), (30_000, "30s")] {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn codes_without_a_status_have_client_gos_texts() {
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
