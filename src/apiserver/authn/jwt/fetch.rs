//! Fetches documents of issuers over HTTPS, with limits on size, time and redirects.

use std::sync::Arc;
use std::time::Duration;

use api::field::go_quote;
use base::io::Io;
use base::pki::external_roots;
use bytes::Bytes;
use futures::future::{Either, select};
use http::header::{ACCEPT, HOST, LOCATION, USER_AGENT};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

use webhook::{Reach, TransportError};

/// The timeout for one document (upstream's `http.Client.Timeout`).
pub(super) const FETCH_MAX: Duration = Duration::from_secs(30);
/// The maximum size of a document.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;
/// The maximum number of redirects, as in Go.
const REDIRECTS_MAX: usize = 10;

/// A document cannot be fetched. The messages are Go's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// There is no response.
    #[error("Get {}: {source}", go_quote(.url))]
    Get { url: String, source: GetError },
    /// The response has another code than 200.
    #[error("{status}: {text}")]
    Response { status: StatusCode, text: String },
}

/// There is no response to a GET request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GetError {
    #[error(transparent)]
    Url(#[from] http::uri::InvalidUri),
    #[error("no Host in request URL")]
    NoHost,
    #[error("{0} must begin with https://")]
    Scheme(Uri),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("unable to read response body: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("failed to parse Location header {}", go_quote(.0))]
    Location(String),
    #[error("stopped after {REDIRECTS_MAX} redirects", REDIRECTS_MAX = REDIRECTS_MAX)]
    Redirects,
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
}

/// The HTTP client for one issuer.
pub(super) struct Fetcher {
    reach: Arc<dyn Reach>,
    bundle: Vec<u8>,
    tls: OnceCell<Arc<rustls::ClientConfig>>,
}

impl Fetcher {
    /// Trusts servers with certificates of the bundle; an empty bundle means the system's CA
    /// certificates.
    pub(super) fn new(reach: Arc<dyn Reach>, bundle: &str) -> Self {
        Self { reach, bundle: bundle.as_bytes().to_vec(), tls: OnceCell::new() }
    }

    /// Fetches the document at a URL.
    ///
    /// # Errors
    /// If there is no response, or one with another code than 200.
    pub(super) async fn get(&self, url: &str) -> Result<Bytes, FetchError> {
        let failed = |source| FetchError::Get { url: url.to_owned(), source };
        match tokio::time::timeout(FETCH_MAX, self.follow(url)).await {
            Ok(Ok((StatusCode::OK, body))) => Ok(body),
            Ok(Ok((status, body))) => {
                let beginning = body.get(..body.len().min(512)).unwrap_or_default();
                let text = String::from_utf8_lossy(beginning).into_owned();
                Err(FetchError::Response { status, text })
            }
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => Err(failed(GetError::Timeout)),
        }
    }

    /// Sends the request, and follows redirects.
    async fn follow(&self, url: &str) -> Result<(StatusCode, Bytes), GetError> {
        let mut uri: Uri = url.parse()?;
        for _ in 0..=REDIRECTS_MAX {
            let (parts, body) = self.get_once(&uri).await?;
            let location = parts.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            match location.filter(|_| parts.status.is_redirection()) {
                Some(location) => uri = redirected(&uri, location)?,
                None => return Ok((parts.status, body)),
            }
        }
        Err(GetError::Redirects)
    }

    async fn get_once(&self, uri: &Uri) -> Result<(http::response::Parts, Bytes), GetError> {
        let authority = uri.authority().ok_or(GetError::NoHost)?;
        if uri.scheme_str() != Some("https") {
            return Err(GetError::Scheme(uri.clone()));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let tls =
            self.tls.get_or_try_init(|| external_roots::client(&self.bundle, false, None)).await;
        let unusable = |reason: String| TransportError::RootCertificates { reason };
        let tls = Arc::clone(tls.map_err(|e| unusable(e.to_string()))?);
        let name = ServerName::try_from(host.clone())
            .map_err(|source| TransportError::ServerName { host: host.clone(), source })?;
        let port = authority.port_u16().unwrap_or(443);
        let addresses = self.reach.resolve(&host, port).await.map_err(TransportError::from)?;
        let mut last = TransportError::NoAddress;
        let mut stream = None;
        for address in addresses {
            match self.reach.dial(address).await {
                Ok(io) => {
                    stream = Some(io);
                    break;
                }
                Err(error) => last = TransportError::dial(address, error),
            }
        }
        let stream = stream.ok_or(last)?;
        let stream = TlsConnector::from(tls).connect(name, stream).await;
        let stream = stream.map_err(|e| TransportError::handshake(&host, e))?;
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let request = Request::get(path)
            .header(HOST, authority.as_str())
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "kube-apiserver")
            .body(Full::default())
            .map_err(TransportError::from)?;
        exchange(stream, request).await
    }
}

/// Sends the only request of a connection.
///
/// # Errors
/// Connection errors, or that the response is too long.
async fn exchange(
    stream: impl Io + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(http::response::Parts, Bytes), GetError> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, DOCUMENT_BYTES_MAX).collect().await;
        let body = body.map_err(GetError::Body)?;
        Ok((parts, body.to_bytes()))
    };
    match select(Box::pin(exchange), Box::pin(connection)).await {
        Either::Left((answer, _)) => answer,
        Either::Right((_, exchange)) => exchange.await,
    }
}

/// The absolute URI of a `Location` header.
fn redirected(from: &Uri, location: &str) -> Result<Uri, GetError> {
    let absolute = if location.starts_with('/') && !location.starts_with("//") {
        let authority = from.authority().map_or("", http::uri::Authority::as_str);
        format!("https://{authority}{location}")
    } else {
        location.to_owned()
    };
    absolute.parse().map_err(|_| GetError::Location(location.to_owned()))
}
