//! Fetches documents of issuers over HTTPS, with limits on size, time and redirects.

use std::sync::Arc;
use std::time::Duration;

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

use crate::webhook::{Reach, dial_text, handshake_text};

/// The timeout for one document (upstream's `http.Client.Timeout`).
pub(super) const FETCH_MAX: Duration = Duration::from_secs(30);
/// The maximum size of a document.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;
/// The maximum number of redirects, as in Go.
const REDIRECTS_MAX: usize = 10;

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
    /// The reason for the failure, with Go's message if there is one.
    pub(super) async fn get(&self, url: &str) -> Result<Bytes, String> {
        let failed = |why: String| format!("Get {}: {why}", api::field::go_quote(url));
        match tokio::time::timeout(FETCH_MAX, self.follow(url)).await {
            Ok(Ok((StatusCode::OK, body))) => Ok(body),
            Ok(Ok((status, body))) => {
                let text =
                    String::from_utf8_lossy(body.get(..body.len().min(512)).unwrap_or_default());
                Err(format!("{status}: {text}"))
            }
            Ok(Err(why)) => Err(failed(why)),
            Err(_) => Err(failed(
                "context deadline exceeded (Client.Timeout exceeded while awaiting headers)".into(),
            )),
        }
    }

    async fn follow(&self, url: &str) -> Result<(StatusCode, Bytes), String> {
        let mut uri: Uri = url.parse().map_err(|e| format!("{e}"))?;
        for _ in 0..=REDIRECTS_MAX {
            let (parts, body) = self.one(&uri).await?;
            let place = parts.headers.get(LOCATION).and_then(|place| place.to_str().ok());
            match place.filter(|_| parts.status.is_redirection()) {
                Some(place) => uri = redirected(&uri, place)?,
                None => return Ok((parts.status, body)),
            }
        }
        Err(format!("stopped after {REDIRECTS_MAX} redirects"))
    }

    async fn one(&self, uri: &Uri) -> Result<(http::response::Parts, Bytes), String> {
        let authority = uri.authority().ok_or("no Host in request URL")?;
        if uri.scheme_str() != Some("https") {
            return Err(format!("{uri} must begin with https://"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let tls =
            self.tls.get_or_try_init(|| external_roots::client(&self.bundle, false, None)).await;
        let tls = Arc::clone(tls.map_err(|e| e.to_string())?);
        let name = ServerName::try_from(host.clone()).map_err(|e| format!("tls: {host}: {e}"))?;
        let addresses = self.reach.resolve(&host, authority.port_u16().unwrap_or(443)).await?;
        let mut last = "no address".to_owned();
        let mut stream = None;
        for address in addresses {
            match self.reach.dial(address).await {
                Ok(io) => {
                    stream = Some(io);
                    break;
                }
                Err(error) => last = dial_text(address, &error),
            }
        }
        let stream = stream.ok_or(last)?;
        let stream = TlsConnector::from(tls).connect(name, stream).await;
        let stream = stream.map_err(|e| handshake_text(&host, &e))?;
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let request = Request::get(path)
            .header(HOST, authority.as_str())
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "kube-apiserver")
            .body(Full::default())
            .map_err(|e| e.to_string())?;
        exchange(stream, request).await
    }
}

/// Sends one request over a connection of its own.
///
/// # Errors
/// Connection errors, or that the response is too long.
async fn exchange(
    stream: impl Io + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(http::response::Parts, Bytes), String> {
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|e| e.to_string())?;
    let exchange = async move {
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, DOCUMENT_BYTES_MAX).collect().await;
        let body = body.map_err(|e| format!("unable to read response body: {e}"))?;
        Ok((parts, body.to_bytes()))
    };
    match select(Box::pin(exchange), Box::pin(connection)).await {
        Either::Left((answer, _)) => answer,
        Either::Right((_, exchange)) => exchange.await,
    }
}

fn redirected(from: &Uri, place: &str) -> Result<Uri, String> {
    let absolute = if place.starts_with('/') && !place.starts_with("//") {
        let authority = from.authority().map_or("", http::uri::Authority::as_str);
        format!("https://{authority}{place}")
    } else {
        place.to_owned()
    };
    absolute
        .parse()
        .map_err(|_| format!("failed to parse Location header {}", api::field::go_quote(place)))
}
