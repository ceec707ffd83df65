//! Sends one request over one HTTPS connection. Its errors distinguish an unreachable server from
//! one whose certificate is not valid.

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

/// Timeout of connection, request and response together; k3s has the same value.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response's body in bytes. The largest has certificates, CAs and the cluster's
/// settings.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;

/// A response, read to its end.
pub(super) struct HttpResponse {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// The time of the server's clock in seconds since the epoch, if the server sends it.
    pub(super) date: Option<i64>,
}

/// Why an exchange failed.
pub(super) enum ExchangeError {
    /// The server does not answer; transient.
    Unreachable(String),
    /// The server does not use TLS.
    NotTls(String),
    /// The trusted CA did not sign the certificate.
    Certificate(String),
    /// The CA signed the certificate, but its validity does not include this machine's time.
    Expired(String),
}

/// A request to one server, with its response.
pub(super) struct Exchange<'a> {
    pub(super) dial: &'a dyn Dial,
    pub(super) server: &'a ServerAddress,
    pub(super) tls: ClientConfig,
}

impl Exchange<'_> {
    /// Sends the request and reads the whole response.
    pub(super) async fn run(
        self,
        mut request: Request<Bytes>,
    ) -> Result<HttpResponse, ExchangeError> {
        let name = ServerName::try_from(SERVER_NAME).map_err(|e| unreachable_by(&e))?;
        // The name in the servers' certificates, whatever the address is.
        let host = header::HeaderValue::from_static(SERVER_NAME);
        request.headers_mut().insert(header::HOST, host);
        let exchange = async {
            let io = self
                .dial
                .dial(&self.server.host, self.server.port)
                .await
                .map_err(|e| unreachable_by(&e))?;
            let connector = TlsConnector::from(std::sync::Arc::new(self.tls));
            let stream = connector.connect(name, io).await.map_err(|e| tls_error(&e))?;
            send(stream, request.map(Full::new)).await
        };
        tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| {
            Err(ExchangeError::Unreachable(format!("no answer within {} s", TIMEOUT.as_secs())))
        })
    }
}

/// Converts an error that does not distinguish more than that the exchange failed.
fn unreachable_by(error: &dyn std::fmt::Display) -> ExchangeError {
    ExchangeError::Unreachable(error.to_string())
}

/// Converts an error of the TLS handshake.
fn tls_error(error: &io::Error) -> ExchangeError {
    let tls = error.get_ref().and_then(|e| e.downcast_ref::<TlsError>());
    match tls {
        Some(TlsError::InvalidMessage(_)) => ExchangeError::NotTls("it does not use TLS".into()),
        Some(TlsError::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => ExchangeError::Expired(format!(
            "its certificate is not valid at this machine's time: {error}"
        )),
        Some(TlsError::InvalidCertificate(why)) => ExchangeError::Certificate(format!(
            "its certificate is not signed by the CA that it serves ({why}); a machine in between may \
             impersonate the server"
        )),
        _ => ExchangeError::Unreachable(error.to_string()),
    }
}

/// Sends the request over an established TLS connection and reads the response.
async fn send(
    stream: TlsStream<BoxIo>,
    request: Request<Full<Bytes>>,
) -> Result<HttpResponse, ExchangeError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| unreachable_by(&e))?;
    let response = async move {
        let response = sender.send_request(request).await.map_err(|e| unreachable_by(&e))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES_MAX)
            .collect()
            .await
            .map_err(|e| unreachable_by(&e))?;
        Ok(HttpResponse { status: parts.status, body: body.to_bytes(), date: date(&parts.headers) })
    };
    // Drives the connection and never resolves: an error of the connection also fails
    // `send_request`, and the connection may end before the response is read.
    let drive = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        response = response => response,
        () = drive => Err(ExchangeError::Unreachable("the connection ended".into())),
    }
}

/// Parses the header `Date` (RFC 9110, section 5.6.7) to seconds since the epoch.
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
