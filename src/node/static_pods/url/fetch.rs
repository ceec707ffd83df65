//! Requests of the document with static pods, each on its own connection.

use std::sync::Arc;
use std::time::Duration;

use base::io::{BoxIo, Dial, Tcp};
use base::pki::{RootsError, external_roots};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::future::{Either, select};
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderValue, LOCATION, TRAILER, TRANSFER_ENCODING,
    USER_AGENT,
};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use url::{Position, Url};

use crate::static_pods::document::DOCUMENT_MAX;
use crate::static_pods::url_config::StaticPodUrl;

/// Timeout of connecting, of the redirects and of the whole body (the kubelet's client).
const TIMEOUT: Duration = Duration::from_secs(10);
/// A redirect after this many requests is an error (Go's `net/http`).
const REQUESTS_MAX: usize = 10;
/// What the kubelet sends: the default of Go's `net/http`.
const AGENT: HeaderValue = HeaderValue::from_static("Go-http-client/1.1");

/// Why there is no document. The texts contain no value of a header.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("the server answers {0}")]
    Status(StatusCode),
    #[error("stopped after {REQUESTS_MAX} redirects")]
    Redirects,
    #[error("a redirect leads to no URL with http:// or https://")]
    Redirect,
    #[error("the CA certificates of the system cannot be used: {0}")]
    Roots(#[from] RootsError),
    #[error("{host} is no name of a server: {source}")]
    ServerName { host: String, source: rustls::pki_types::InvalidDnsNameError },
    #[error("cannot connect to {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    #[error("TLS: {0}")]
    Tls(#[source] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error("the body is larger than {DOCUMENT_MAX} bytes")]
    TooLarge,
    #[error("the body cannot be read: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The client for one URL.
#[derive(Debug)]
pub(super) struct Fetcher {
    source: StaticPodUrl,
    tls: OnceCell<Arc<ClientConfig>>,
}

impl Fetcher {
    pub(super) fn new(source: StaticPodUrl) -> Self {
        Self { source, tls: OnceCell::new() }
    }

    /// Requests the document.
    ///
    /// # Errors
    /// No response in time, one with another code than 200, or a body that is too large.
    pub(super) async fn get(&self) -> Result<Bytes, FetchError> {
        match tokio::time::timeout(TIMEOUT, self.follow()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(FetchError::Timeout),
        }
    }

    /// Sends the request, and follows redirects.
    async fn follow(&self) -> Result<Bytes, FetchError> {
        let mut url = self.source.url.clone();
        for _ in 0..REQUESTS_MAX {
            let (parts, body) = self.exchange(&url).await?;
            let is_redirect = matches!(parts.status.as_u16(), 301..=303 | 307 | 308);
            let location = parts.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            url = match location.filter(|_| is_redirect) {
                Some(location) => redirected(&url, location).ok_or(FetchError::Redirect)?,
                None if parts.status == StatusCode::OK => return Ok(body),
                None => return Err(FetchError::Status(parts.status)),
            };
        }
        Err(FetchError::Redirects)
    }

    async fn exchange(&self, url: &Url) -> Result<(http::response::Parts, Bytes), FetchError> {
        let io = self.connect(url).await?;
        let request = request(&self.source, url)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
        let exchange = async move {
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, DOCUMENT_MAX).collect().await;
            let body = body.map_err(|error| match error.is::<LengthLimitError>() {
                true => FetchError::TooLarge,
                false => FetchError::Body(error),
            })?;
            Ok((parts, body.to_bytes()))
        };
        match select(Box::pin(exchange), Box::pin(connection)).await {
            Either::Left((answer, _)) => answer,
            Either::Right((_, exchange)) => exchange.await,
        }
    }

    async fn connect(&self, url: &Url) -> Result<BoxIo, FetchError> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = url.port_or_known_default().unwrap_or_default();
        let io = Tcp.dial(host, port).await;
        let failed = |source| FetchError::Connect { address: format!("{host}:{port}"), source };
        let io = io.map_err(failed)?;
        if url.scheme() == "http" {
            return Ok(io);
        }
        let tls = self.tls.get_or_try_init(|| external_roots::client(b"", false, None)).await?;
        let name = ServerName::try_from(host.to_owned())
            .map_err(|source| FetchError::ServerName { host: host.to_owned(), source })?;
        let stream = TlsConnector::from(Arc::clone(tls)).connect(name, io).await;
        Ok(Box::new(stream.map_err(FetchError::Tls)?))
    }
}

/// The absolute URL of a `Location` header; `None` if it is none with HTTP.
fn redirected(from: &Url, location: &str) -> Option<Url> {
    from.join(location).ok().filter(|url| matches!(url.scheme(), "http" | "https"))
}

/// Whether a redirect may get the headers, which contain secrets: one to the same host, and not one
/// from HTTPS to HTTP.
fn may_have_headers(source: &Url, url: &Url) -> bool {
    source.host_str() == url.host_str() && (source.scheme() == "http" || url.scheme() == "https")
}

/// The request for a URL: `source`'s own, or that of a redirect.
fn request(source: &StaticPodUrl, url: &Url) -> Result<Request<Empty<Bytes>>, http::Error> {
    let mut request = Request::get(&url[Position::BeforePath..Position::AfterQuery])
        .header(HOST, &url[Position::BeforeHost..Position::AfterPort])
        .body(Empty::new())?;
    let headers = request.headers_mut();
    if may_have_headers(&source.url, url) {
        // Go's client sets these itself.
        let own = [HOST, CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING];
        for (name, value) in source.headers.iter().filter(|(name, _)| !own.contains(name)) {
            headers.append(name, value.clone());
        }
        let basic =
            basic_authorization(&source.url).filter(|_| !headers.contains_key(AUTHORIZATION));
        if let Some(basic) = basic {
            headers.insert(AUTHORIZATION, basic);
        }
    }
    if !headers.contains_key(USER_AGENT) {
        headers.insert(USER_AGENT, AGENT);
    }
    Ok(request)
}

/// Basic authentication with the user and password of a URL, as of Go's client.
fn basic_authorization(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let decoded = |text: &str| percent_decoded(text.as_bytes());
    let mut both = decoded(url.username());
    both.push(b':');
    both.extend(decoded(url.password().unwrap_or_default()));
    let mut value =
        HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(both))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Decodes `%XX`; what is no such sequence stays.
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let [first, after @ ..] = rest {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let decoded = match after {
            [high, low, ..] if *first == b'%' => {
                digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low)
            }
            _ => None,
        };
        out.push(decoded.unwrap_or(*first));
        rest = match decoded {
            Some(_) => after.get(2..).unwrap_or_default(),
            None => after,
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(url: &str, headers: &[(&str, &str)]) -> StaticPodUrl {
        let headers: Vec<_> =
            headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        StaticPodUrl::new(url, &headers, Duration::from_secs(20)).unwrap()
    }

    #[test]
    fn a_request_has_the_headers_of_the_settings() {
        let source =
            source("https://m.example:8443/a?b=c", &[("X-A", "1"), ("X-A", "2"), ("Host", "x")]);
        let request = request(&source, &source.url).unwrap();
        assert_eq!(request.uri(), "/a?b=c");
        let headers = request.headers();
        assert_eq!(headers[HOST], "m.example:8443");
        assert_eq!(headers[USER_AGENT], AGENT);
        let values: Vec<_> = headers.get_all("x-a").iter().collect();
        assert_eq!(values, ["1", "2"]);
        assert!(!headers.contains_key(AUTHORIZATION));
        let own = self::source("http://m/", &[("User-Agent", "own")]);
        assert_eq!(super::request(&own, &own.url).unwrap().headers()[USER_AGENT], "own");
    }

    #[test]
    fn user_and_password_of_the_url_authenticate_unless_a_header_does() {
        let of = |source: &StaticPodUrl| {
            let request = request(source, &source.url).unwrap();
            request.headers()[AUTHORIZATION].to_str().unwrap().to_owned()
        };
        assert_eq!(of(&source("http://us:p%40x@m/", &[])), "Basic dXM6cEB4");
        assert_eq!(of(&source("http://u:p@m/", &[("Authorization", "Bearer t")])), "Bearer t");
    }

    #[test]
    fn only_redirects_to_the_same_host_get_the_headers() {
        let source = source("https://m.example/a", &[("Authorization", "Bearer t")]);
        for (location, has) in [
            ("/b", true),
            ("https://m.example:8443/b", true),
            ("http://m.example/b", false),
            ("https://other.example/b", false),
        ] {
            let url = redirected(&source.url, location).unwrap();
            let request = request(&source, &url).unwrap();
            assert_eq!(request.headers().contains_key(AUTHORIZATION), has, "{location}");
        }
        assert_eq!(redirected(&source.url, "file:///etc/passwd"), None);
    }
}
