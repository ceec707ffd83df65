//! Chart archives: out of the object, by URL, from a repository or from an OCI registry.

mod connect;
mod credentials;
pub(crate) mod http;
mod oci;
mod repository;

pub use credentials::Credentials;
pub use http::HttpError;
pub use oci::OciError;
pub use repository::RepositoryError;

use bytes::Bytes;
use client::proxy::ProxyRules;

use crate::chart::archive::BYTES_MAX;
use http::Client;

/// The largest chart archive in bytes; Helm has no bound before decompression.
const ARCHIVE_MAX: usize = 64 << 20;

/// Placeholder of the API server's address in chart URLs, as in k3s.
const API_SERVER: &str = "%{KUBERNETES_API}%";

/// Where a chart comes from, with all references to Secrets and ConfigMaps resolved.
#[derive(Clone, Default)]
pub struct Source {
    /// Chart name, URL, `oci://` reference or empty with content.
    pub chart: String,
    /// Version or range; empty is the latest stable one.
    pub version: String,
    /// Address of the repository.
    pub repository: String,
    /// Base64 of the archive.
    pub content: String,
    /// CA certificates (PEM); empty trusts the system's.
    pub ca: String,
    /// User and password of the repository or registry.
    pub credentials: Option<Credentials>,
    /// Whether the credentials go to other hosts than that of the repository too.
    pub pass_credentials: bool,
    /// A `.dockerconfigjson`.
    pub docker_config: Option<Vec<u8>>,
    /// Whether certificates are not verified.
    pub insecure: bool,
    /// Whether requests to registries use no TLS.
    pub plain_http: bool,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Source({} {} {})", self.chart, self.version, self.repository)
    }
}

/// A chart archive cannot be obtained.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The content is not base64.
    #[error("spec.chartContent is not base64: {0}")]
    Content(base64::DecodeError),
    /// Neither content nor a place.
    #[error(
        "spec.chart {0:?} is a name without a repository; set spec.repo, or use a URL or oci:// \
         reference"
    )]
    NoRepository(String),
    /// The request failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The repository has no such chart.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The registry has no such chart.
    #[error(transparent)]
    Oci(#[from] OciError),
}

/// The API server of this process, for charts that it serves itself.
#[derive(Debug, Clone)]
pub struct OwnServer {
    /// `HOST:PORT`.
    pub address: String,
    /// The CA of its certificate (PEM).
    pub ca: String,
}

/// What downloads need besides their source.
#[derive(Debug, Clone)]
pub struct Network {
    /// The API server of this process.
    pub own: OwnServer,
    /// The proxies of this process.
    pub proxies: ProxyRules,
}

/// Obtains the archive of a chart.
///
/// # Errors
/// The place cannot be reached or has no such chart; the text names both.
pub async fn archive(source: &Source, network: &Network) -> Result<Bytes, FetchError> {
    debug_assert!(BYTES_MAX > ARCHIVE_MAX as u64);
    if !source.content.is_empty() {
        let compact: String = source.content.split_whitespace().collect();
        let decoded = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, compact);
        return decoded.map(Bytes::from).map_err(FetchError::Content);
    }
    let chart = source.chart.replace(API_SERVER, &network.own.address);
    let ca = if chart == source.chart {
        source.ca.clone()
    } else {
        format!("{}\n{}", network.own.ca, source.ca)
    };
    let client = Client::new(&ca, source.insecure, &network.proxies).await?;
    if chart.starts_with("oci://") {
        return Ok(oci::pull(&client, &chart, source).await?);
    }
    if chart.contains("://") {
        let auth = source.credentials.as_ref();
        return Ok(client.get(&chart, &http::Get { auth, ..http::Get::new(ARCHIVE_MAX) }).await?);
    }
    if source.repository.is_empty() {
        return Err(FetchError::NoRepository(source.chart.clone()));
    }
    if source.repository.starts_with("oci://") {
        let reference = format!("{}/{chart}", source.repository.trim_end_matches('/'));
        return Ok(oci::pull(&client, &reference, source).await?);
    }
    repository::download(&client, &chart, source).await
}
