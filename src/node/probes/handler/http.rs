//! HTTP GET requests of probes and lifecycle hooks: they follow redirects to the same host and
//! accept any certificate.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use url::Url;

use super::{BODY_MAX, HandlerTarget, PortError, ProbeResult, connect, join, port};

/// A redirect after this many requests is an error (`RedirectChecker` of `pkg/probe/http`).
const REQUESTS_MAX: usize = 10;

/// The final response of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// The first [`BODY_MAX`] bytes.
    pub(crate) body: Vec<u8>,
}

/// A GET request without a response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct GetError {
    text: String,
    /// The server responds with HTTP to an HTTPS request.
    pub(crate) is_plain_http: bool,
}

impl GetError {
    fn new(url: &str, why: impl std::fmt::Display) -> Self {
        Self { text: format!("Get {url:?}: {why}"), is_plain_http: false }
    }
}

/// Sends the GET request of a probe. A status from 200 to 299 is a success, one from 300 to 399 a
/// warning.
pub(crate) async fn probe(
    target: HandlerTarget<'_>,
    action: &core::HTTPGetAction,
    limit: Duration,
) -> ProbeResult {
    let get = match HttpGet::new(target, action) {
        Ok(get) => get,
        Err(error) => return ProbeResult::Unknown(error.to_string()),
    };
    match get.send(limit).await {
        Ok(answer) => probe_result(&answer),
        Err(error) => ProbeResult::Failure(error.to_string()),
    }
}

fn probe_result(answer: &HttpResponse) -> ProbeResult {
    match answer.status {
        200..300 => ProbeResult::Success,
        300..400 => ProbeResult::Warning(format!(
            "Probe terminated redirects, Response body: {}",
            String::from_utf8_lossy(&answer.body)
        )),
        // The body may contain secrets, which an event would reveal.
        status => ProbeResult::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// A GET request as specified in a pod.
#[derive(Debug, Clone)]
pub(crate) struct HttpGet {
    pub(crate) https: bool,
    host: String,
    port: u16,
    path: String,
    /// Without `Host`.
    pub(crate) headers: Vec<(String, String)>,
    /// The `Host` header of the specification.
    host_header: Option<String>,
}

/// A redirect that cannot be followed; the texts are those of Go's `net/http`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum RedirectError {
    #[error("failed to parse Location header {location:?}: {source}")]
    Location { location: String, source: url::ParseError },
    #[error("unsupported protocol scheme {0:?}")]
    Scheme(String),
}

/// One request of a chain of redirects.
#[derive(Debug)]
struct Hop {
    https: bool,
    host: String,
    port: u16,
    path: String,
    /// Host and port as in the URL.
    authority: String,
}

impl Hop {
    fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }

    /// Resolves `location` relative to this URL; `None` if the result has no host.
    fn join(&self, location: &str) -> Result<Option<Self>, RedirectError> {
        let to = Url::parse(&self.url()).and_then(|url| url.join(location));
        let to =
            to.map_err(|source| RedirectError::Location { location: location.to_owned(), source })?;
        let Some(shown) = to.host_str() else { return Ok(None) };
        let https = match to.scheme() {
            "http" => false,
            "https" => true,
            other => return Err(RedirectError::Scheme(other.to_owned())),
        };
        let query = to.query().map(|q| format!("?{q}")).unwrap_or_default();
        Ok(Some(Self {
            https,
            host: shown.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: to.port_or_known_default().unwrap_or_default(),
            path: format!("{}{query}", to.path()),
            authority: match to.port() {
                Some(port) => format!("{shown}:{port}"),
                None => shown.to_owned(),
            },
        }))
    }
}

impl HttpGet {
    /// Converts the action of a probe or hook.
    ///
    /// # Errors
    ///
    /// A port that the container does not name, or an invalid one.
    pub(crate) fn new(
        target: HandlerTarget<'_>,
        action: &core::HTTPGetAction,
    ) -> Result<Self, PortError> {
        let path = action.path.as_deref().unwrap_or_default();
        let host = action.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(target.pod_ip);
        let specified = action.http_headers.as_deref().unwrap_or_default();
        let is = |name: &str, of: &core::HTTPHeader| of.name.eq_ignore_ascii_case(name);
        let host_header = specified.iter().find(|h| is("host", h)).map(|h| h.value.clone());
        let mut headers = Vec::new();
        for (name, value) in [("User-Agent", target.user_agent), ("Accept", "*/*")] {
            if !specified.iter().any(|h| is(name, h)) {
                headers.push((name.to_owned(), value.to_owned()));
            }
        }
        for header in specified.iter().filter(|h| !is("host", h)) {
            // An empty value removes one of these two headers.
            let removes = is("user-agent", header) || is("accept", header);
            if !(removes && header.value.is_empty()) {
                headers.push((header.name.clone(), header.value.clone()));
            }
        }
        Ok(Self {
            https: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            host: host.to_owned(),
            port: port(target.container, &action.port)?,
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            headers,
            host_header: host_header.filter(|h| !h.is_empty()),
        })
    }

    /// Host and port as the URL has them.
    pub(crate) fn authority(&self) -> String {
        join(&self.host, self.port)
    }

    /// Returns the response to the request or to its redirects on the same host, within `limit` in
    /// all.
    pub(crate) async fn send(&self, limit: Duration) -> Result<HttpResponse, GetError> {
        let first = Hop {
            https: self.https,
            host: self.host.clone(),
            port: self.port,
            path: self.path.clone(),
            authority: self.authority(),
        };
        let late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
        let url = first.url();
        match tokio::time::timeout(limit, self.follow(first, limit)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(GetError::new(&url, late)),
        }
    }

    async fn follow(&self, mut hop: Hop, limit: Duration) -> Result<HttpResponse, GetError> {
        let mut host_header = self.host_header.clone();
        let mut referer = None;
        let mut made = 1;
        loop {
            let shown = host_header.as_deref().unwrap_or(&hop.authority);
            let request = self.request(&hop, shown, referer.as_deref());
            let request = request.map_err(|e| GetError::new(&hop.url(), e))?;
            let (answer, location) = exchange(&hop, request, limit).await?;
            let moved = matches!(answer.status, 301..=303 | 307 | 308);
            let Some(location) = location.filter(|l| moved && !l.is_empty()) else {
                return Ok(answer);
            };
            let next = hop.join(&location).map_err(|e| GetError::new(&hop.url(), e))?;
            // The response of another host says nothing about this container.
            let same = |next: &Hop| next.host.eq_ignore_ascii_case(&self.host);
            let Some(next) = next.filter(same) else { return Ok(answer) };
            if made >= REQUESTS_MAX {
                let why = format!("stopped after {REQUESTS_MAX} redirects");
                return Err(GetError::new(&location, why));
            }
            if Url::parse(&location).is_ok() {
                host_header = None;
            }
            referer = (!hop.https || next.https).then(|| hop.url());
            hop = next;
            made += 1;
        }
    }

    fn request(
        &self,
        hop: &Hop,
        host: &str,
        referer: Option<&str>,
    ) -> Result<http::Request<Empty<Bytes>>, http::Error> {
        let mut request = http::Request::builder().uri(&hop.path).header("Host", host);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(referer) = referer.filter(|_| self.headers.iter().all(|h| h.0 != "Referer")) {
            request = request.header("Referer", referer);
        }
        request.header("Connection", "close").body(Empty::new())
    }
}

/// Sends one request; returns its response and the target of its redirect.
async fn exchange(
    hop: &Hop,
    request: http::Request<Empty<Bytes>>,
    limit: Duration,
) -> Result<(HttpResponse, Option<String>), GetError> {
    let failed = |why: &dyn std::fmt::Display| GetError::new(&hop.url(), why);
    let stream = connect(&hop.host, hop.port, limit).await.map_err(|e| failed(&e))?;
    if !hop.https {
        return transfer(TokioIo::new(stream), request).await.map_err(|e| failed(&e));
    }
    let connector = tokio_rustls::TlsConnector::from(Arc::new(no_verification()));
    let name = rustls::pki_types::ServerName::try_from(hop.host.clone());
    let name = name.map_err(|e| failed(&e))?;
    match connector.connect(name, stream).await {
        Ok(stream) => transfer(TokioIo::new(stream), request).await.map_err(|e| failed(&e)),
        Err(error) if is_plain(&error) => {
            let error =
                GetError::new(&hop.url(), "http: server gave HTTP response to HTTPS client");
            Err(GetError { is_plain_http: true, ..error })
        }
        Err(error) => Err(failed(&error)),
    }
}

/// Whether a handshake failed because the peer does not use TLS.
fn is_plain(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)))
}

async fn transfer<S>(
    io: TokioIo<S>,
    request: http::Request<Empty<Bytes>>,
) -> Result<(HttpResponse, Option<String>), hyper::Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let location = response.headers().get(http::header::LOCATION);
        let location = location.map(|l| String::from_utf8_lossy(l.as_bytes()).into_owned());
        let body = beginning(response.into_body()).await;
        Ok((HttpResponse { status, body }, location))
    };
    // The connection is polled along with the exchange and dropped with it.
    let mut exchange = std::pin::pin!(exchange);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        answer = &mut exchange => answer,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(error),
        },
    }
}

/// Reads the first [`BODY_MAX`] bytes of a body; a truncated body is returned as received.
async fn beginning(body: hyper::body::Incoming) -> Vec<u8> {
    let mut body = std::pin::pin!(Limited::new(body, BODY_MAX));
    let mut out = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref() {
            out.extend_from_slice(data);
        }
    }
    out
}

/// Probes accept any certificate, as with upstream: the target is an address, and no secret is
/// sent.
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

#[cfg(test)]
mod tests;
