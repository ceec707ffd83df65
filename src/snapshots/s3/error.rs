//! Errors of requests to an S3 bucket.

use std::io;
use std::path::PathBuf;

use client::proxy::{ProxyError, VariableError};
use http::StatusCode;
use tokio::task::JoinError;

/// Maximum number of list pages of a thousand objects each.
pub(super) const PAGES_MAX: usize = 100;

/// Why an operation on the bucket failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The endpoint is not a URL.
    #[error("{endpoint}: {source}")]
    Endpoint { endpoint: String, source: url::ParseError },
    /// Endpoint and bucket do not form a URL.
    #[error("{endpoint} with bucket {bucket}: {source}")]
    Bucket { endpoint: String, bucket: String, source: rusty_s3::BucketError },
    /// The CA certificates cannot be used.
    #[error("{0}")]
    Roots(String),
    /// The proxy is not one.
    #[error("--etcd-s3-proxy: {0}")]
    Proxy(ProxyError),
    /// The Secret with the settings cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A request failed.
    #[error("{location}: {source}")]
    Request { location: String, source: RequestError },
    /// A page of the list is not valid XML.
    #[error("{location}: the list cannot be read: {reason}")]
    MalformedList { location: String, reason: String },
    /// The folder has too many objects.
    #[error("{location}: holds more than {PAGES_MAX},000 objects")]
    TooManyObjects { location: String },
    /// A local file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A path was given where the bucket needs the name of a snapshot.
    #[error(
        "{name}: with --etcd-s3 the name of a snapshot in the bucket is needed; for a file add \
         --etcd-s3=false"
    )]
    NotAName { name: String },
    /// Blocking work panicked.
    #[error(transparent)]
    Task(#[from] JoinError),
}

/// Why a single attempt of a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The timeout has passed.
    #[error("no answer within {seconds} s")]
    Timeout { seconds: u64 },
    /// No connection.
    #[error("{address} cannot be reached: {source}")]
    Connect { address: String, source: io::Error },
    /// The host is not valid in a certificate.
    #[error(transparent)]
    HostName(#[from] rustls::pki_types::InvalidDnsNameError),
    /// The TLS handshake failed; permanent if the certificate is not trusted.
    #[error("TLS with {address} failed: {source}")]
    Tls { address: String, source: io::Error },
    /// A variable of the environment is not the URL of a proxy.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The proxy rejects the connection to the bucket.
    #[error("the proxy {address} answers: {line}")]
    Proxy { address: String, status: u16, line: String },
    /// The connection failed.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The connection ended before the response.
    #[error("the connection ended")]
    ConnectionClosed,
    /// The response ended early.
    #[error("the answer breaks off: {0}")]
    Truncated(String),
    /// The request has an invalid header.
    #[error(transparent)]
    InvalidRequest(#[from] http::Error),
    /// The downloaded file cannot be written.
    #[error(transparent)]
    File(io::Error),
    /// Blocking work panicked.
    #[error(transparent)]
    Task(#[from] JoinError),
    /// The bucket answers with an error status.
    #[error("{message}")]
    Rejected { status: StatusCode, message: String },
}

impl RequestError {
    /// Whether another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Connect { .. }
            | Self::Http(_)
            | Self::ConnectionClosed
            | Self::Truncated(_) => true,
            Self::Tls { source, .. } => {
                !source.get_ref().is_some_and(|error| error.is::<rustls::Error>())
            }
            Self::Rejected { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Proxy { status, .. } => *status >= 500,
            Self::Variable { .. }
            | Self::HostName(_)
            | Self::InvalidRequest(_)
            | Self::File(_)
            | Self::Task(_) => false,
        }
    }
}

/// What is wrong with a setting.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum SettingError {
    /// A flag has an invalid value.
    #[error("--etcd-s3-{name}={value}: {why}")]
    Flag { name: &'static str, value: String, why: String },
    /// A flag is missing.
    #[error("--etcd-s3 needs --etcd-s3-{0}")]
    MissingFlag(&'static str),
    /// A key of the Secret has an invalid value.
    #[error("Secret kube-system/{secret}: etcd-s3-{name}={value}: {why}")]
    Key { secret: String, name: &'static str, value: String, why: String },
    /// A key of the Secret is missing.
    #[error("Secret kube-system/{secret} has no key etcd-s3-{name}")]
    MissingKey { secret: String, name: &'static str },
}

/// Why the Secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// Only a running server reads Secrets.
    #[error(
        "the Secret kube-system/{0} of --etcd-s3-config-secret can be read by a running server \
         only; give the flags of S3 instead"
    )]
    NeedsServer(String),
    /// The Secret cannot be read.
    #[error("cannot read the Secret kube-system/{name} of --etcd-s3-config-secret: {source}")]
    Unreadable { name: String, source: client::Error },
    /// The ConfigMap with the CAs cannot be read.
    #[error("cannot read the ConfigMap kube-system/{name} of etcd-s3-endpoint-ca-name: {source}")]
    Authorities { name: String, source: client::Error },
    /// A key is missing or invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
}
