//! One request over one HTTPS connection. Its errors distinguish an unreachable server from a wrong
//! one.

use std::io;
use std::time::Duration;

use base::io::{BoxIo, Dial};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, Error as TlsError};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{SERVER_NAME, ServerAddress};

/// Timeout of the whole exchange (the value of k3s).
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response in bytes: certificates, CAs and the cluster's settings.
const ANSWER_MAX: usize = 256 * 1024;

/// A response, read to its end.
pub(super) struct HttpResponse {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// The server's clock, seconds since the epoch.
    pub(super) date: Option<i64>,
}

/// Why an exchange failed.
pub(super) enum ExchangeError {
    /// The server does not answer; transient.
    Unreachable(String),
    /// The server does not speak TLS.
    NotTls(String),
    /// The certificate is not signed by the CA.
    Certificate(String),
    /// The certificate is signed by the CA, but not valid at this machine's time.
    Expired(String),
}

/// An exchange with one server.
pub(super) struct Exchange<'a> {
    pub(super) dial: &'a dyn Dial,
    pub(super) server: &'a ServerAddress,
    pub(super) tls: ClientConfig,
}

impl Exchange<'_> {
    /// Sends the request and reads the whole answer.
    pub(super) async fn run(
        self,
        mut request: Request<Bytes>,
    ) -> Result<HttpResponse, ExchangeError> {
        let name = ServerName::try_from(SERVER_NAME).map_err(|e| unreachable_by(&e))?;
        let host = header::HeaderValue::from_static(SERVER_NAME);
        request.headers_mut().insert(header::HOST, host);
        let all = async {
            let io = self
                .dial
                .dial(&self.server.host, self.server.port)
                .await
                .map_err(|e| unreachable_by(&e))?;
            let connector = TlsConnector::from(std::sync::Arc::new(self.tls));
            let stream = connector.connect(name, io).await.map_err(|e| handshake(&e))?;
            talk(stream, request.map(Full::new)).await
        };
        tokio::time::timeout(TIMEOUT, all).await.unwrap_or_else(|_| {
            Err(ExchangeError::Unreachable(format!("no answer within {} s", TIMEOUT.as_secs())))
        })
    }
}

fn unreachable_by(error: &dyn std::fmt::Display) -> ExchangeError {
    ExchangeError::Unreachable(error.to_string())
}

fn handshake(error: &io::Error) -> ExchangeError {
    let tls = error.get_ref().and_then(|e| e.downcast_ref::<TlsError>());
    match tls {
        Some(TlsError::InvalidMessage(_)) => ExchangeError::NotTls("it does not speak TLS".into()),
        Some(TlsError::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => ExchangeError::Expired(format!(
            "its certificate is not valid at this machine's time: {error}"
        )),
        Some(TlsError::InvalidCertificate(why)) => ExchangeError::Certificate(format!(
            "its own certificate is not one of the CA that it shows ({why}); a machine in between may \
             impersonate the server"
        )),
        _ => ExchangeError::Unreachable(error.to_string()),
    }
}

async fn talk(
    stream: TlsStream<BoxIo>,
    request: Request<Full<Bytes>>,
) -> Result<HttpResponse, ExchangeError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| unreachable_by(&e))?;
    let answer = async move {
        let response = sender.send_request(request).await.map_err(|e| unreachable_by(&e))?;
        let (parts, body) = response.into_parts();
        let body =
            Limited::new(body, ANSWER_MAX).collect().await.map_err(|e| unreachable_by(&e))?;
        Ok(HttpResponse { status: parts.status, body: body.to_bytes(), date: date(&parts.headers) })
    };
    // An error of the connection also fails `send_request`.
    let drive = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        answer = answer => answer,
        () = drive => Err(ExchangeError::Unreachable("the connection ended".into())),
    }
}

/// The header `Date` (RFC 9110, 5.6.7), in seconds since the epoch.
fn date(headers: &HeaderMap) -> Option<i64> {
    let text = headers.get(header::DATE)?.to_str().ok()?;
    let text = text.strip_suffix("GMT").map_or_else(|| text.to_owned(), |t| format!("{t}+0000"));
    jiff::fmt::rfc2822::parse(&text).ok().map(|at| at.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_header_is_parsed_to_seconds_since_the_epoch() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::DATE, header::HeaderValue::from_static(text));
            date(&headers)
        };
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(read("yesterday"), None);
        assert_eq!(date(&HeaderMap::new()), None);
    }
}
