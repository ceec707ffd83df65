//! GET requests over HTTP and HTTPS, each on its own connection, with redirects and bounds.

use std::time::Duration;

use base::pki;
use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, HOST, LOCATION, PROXY_AUTHORIZATION, USER_AGENT, WWW_AUTHENTICATE,
};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use url::Url;

use super::connect::{ConnectError, Connection, Connector};
use super::credentials::Credentials;
use client::proxy::{HttpProxy, ProxyRules};

/// The most redirects, as of Go's client.
const REDIRECTS_MAX: usize = 10;
/// Timeout of a request with its whole response (Helm's getters have 120 s).
const TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of connecting with the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Not a URL that can be fetched.
    #[error("{url}: {reason}")]
    Url {
        /// The text.
        url: String,
        /// Why.
        reason: String,
    },
    /// The CA certificates cannot be used.
    #[error("the CA certificates of spec.repoCA or spec.repoCAConfigMap cannot be used: {0}")]
    Roots(String),
    /// The server cannot be reached or answers no HTTP.
    #[error("cannot read {url}: {reason}")]
    Exchange {
        /// The address without credentials.
        url: String,
        /// Why.
        reason: String,
    },
    /// The server refuses.
    #[error("cannot read {url}: the server answers {status}")]
    Status {
        /// The address without credentials.
        url: String,
        /// The code.
        status: StatusCode,
    },
}

/// Options of a request.
#[derive(Debug, Default)]
pub(crate) struct Get<'a> {
    /// Credentials for Basic authentication.
    pub(crate) auth: Option<&'a Credentials>,
    /// Another value of `Authorization`.
    pub(crate) authorization: Option<&'a str>,
    /// Value of `Accept`.
    pub(crate) accept: Option<&'a str>,
    /// Whether credentials go to the hosts of redirects too.
    pub(crate) pass_credentials: bool,
    /// The most bytes of the response.
    pub(crate) limit: usize,
}

impl Get<'_> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }
}

/// A response of any status.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The address after redirects.
    pub(crate) url: Url,
}

impl Answer {
    /// The challenge of a 401.
    pub(crate) fn challenge(&self) -> Option<&str> {
        self.headers.get(WWW_AUTHENTICATE)?.to_str().ok()
    }

    /// The body of a success.
    pub(crate) fn success(self) -> Result<Bytes, HttpError> {
        if self.status.is_success() {
            return Ok(self.body);
        }
        Err(HttpError::Status { url: shown(&self.url), status: self.status })
    }
}

/// An address without user, password and query, for messages.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.to_string()
}

/// Makes requests with one set of trusted CAs.
pub(crate) struct Client {
    connector: Connector,
}

impl Client {
    /// Trusts `ca` (PEM), or the system's CAs if it is blank.
    pub(super) async fn new(
        ca: &str,
        insecure: bool,
        proxies: &ProxyRules,
    ) -> Result<Self, HttpError> {
        let tls = pki::external_roots::client(ca.as_bytes(), insecure, None).await;
        let tls = tls.map_err(|e| HttpError::Roots(e.to_string()))?;
        Ok(Self { connector: Connector { tls, proxies: proxies.clone() } })
    }

    /// Reads an address; other codes than 2xx are errors.
    pub(crate) async fn get(&self, url: &str, options: &Get<'_>) -> Result<Bytes, HttpError> {
        self.answer(url, options).await?.success()
    }

    /// Reads an address and follows redirects.
    pub(crate) async fn answer(&self, url: &str, options: &Get<'_>) -> Result<Answer, HttpError> {
        let bad = |reason: String| HttpError::Url { url: url.to_owned(), reason };
        let mut url = Url::parse(url).map_err(|e| bad(e.to_string()))?;
        let origin = url.origin();
        for _ in 0..=REDIRECTS_MAX {
            let with_credentials = options.pass_credentials || url.origin() == origin;
            let exchange = self.exchange(&url, options, with_credentials);
            let failed = |reason: String| HttpError::Exchange { url: shown(&url), reason };
            let answer = tokio::time::timeout(TIMEOUT, exchange)
                .await
                .map_err(|_| failed(format!("no answer within {} s", TIMEOUT.as_secs())))?
                .map_err(|e| failed(e.to_string()))?;
            let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            match location.filter(|_| answer.status.is_redirection()) {
                Some(location) => {
                    url = url.join(location).map_err(|e| failed(e.to_string()))?;
                }
                None => return Ok(answer),
            }
        }
        Err(HttpError::Exchange { url: shown(&url), reason: "too many redirects".into() })
    }

    async fn exchange(
        &self,
        url: &Url,
        options: &Get<'_>,
        with_credentials: bool,
    ) -> Result<Answer, ExchangeError> {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, self.connector.connect(url));
        let Connection { io, proxy } =
            connecting.await.map_err(|_| ExchangeError::ConnectTimeout)??;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
        // A proxy gets the whole address, without user and password.
        let start = match proxy {
            Some(_) => format!("{}://", url.scheme()),
            None => String::new(),
        };
        let from = match proxy {
            Some(_) => url::Position::BeforeHost,
            None => url::Position::BeforePath,
        };
        let target = format!("{start}{}", &url[from..url::Position::AfterQuery]);
        let mut request = Request::get(target)
            .header(HOST, &url[url::Position::BeforeHost..url::Position::AfterPort])
            .header(USER_AGENT, "kube-lite");
        if let Some(accept) = options.accept {
            request = request.header(ACCEPT, accept);
        }
        let from_url = (!url.username().is_empty()).then(|| Credentials {
            username: url.username().to_owned(),
            password: url.password().unwrap_or_default().to_owned(),
        });
        let basic = options.auth.or(from_url.as_ref()).map(Credentials::basic);
        let authorization = options.authorization.map(str::to_owned).or(basic);
        if let Some(value) = authorization.filter(|_| with_credentials) {
            request = request.header(AUTHORIZATION, value);
        }
        if let Some(value) = proxy.as_ref().and_then(HttpProxy::authorization) {
            request = request.header(PROXY_AUTHORIZATION, value);
        }
        let request = request.body(Empty::<Bytes>::new())?;
        let receive = async {
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, options.limit).collect().await;
            let body = body.map_err(|e| ExchangeError::Body(e.to_string()))?.to_bytes();
            Ok(Answer { status: parts.status, headers: parts.headers, body, url: url.clone() })
        };
        // An error of the connection is reported by the response.
        let drive = async {
            let _ = connection.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            received = receive => received,
            () = drive => Err(ExchangeError::Closed),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("cannot connect within {} s", CONNECT_TIMEOUT.as_secs())]
    ConnectTimeout,
    #[error("the answer cannot be read or is too large: {0}")]
    Body(String),
    #[error("the server closed the connection")]
    Closed,
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
    #[error(transparent)]
    Request(#[from] http::Error),
}
