//! A single HTTP request over its own connection, streaming files in both directions.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use base::io::{BoxIo, Dial, Tcp};
use base::pki;
use base::tasks::blocking;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

use super::error::{Error, RequestError};
use client::proxy::{HttpProxy, ProxyRules, TunnelError, host_of};

/// Bytes per read of an uploaded file.
const CHUNK: usize = 64 * 1024;
/// Chunks buffered between disk and network.
const CHUNKS_MAX: usize = 4;
/// Maximum size of a response in memory: a page of a list.
const RESPONSE_BYTES_MAX: usize = 4 << 20;

/// What is sent, and where the response goes.
pub(crate) enum Transfer<'a> {
    /// No request body, and a short response in memory.
    Memory,
    /// Sends a file of this size.
    Upload { path: &'a Path, size: u64 },
    /// Writes the response to a file.
    Download(Arc<File>),
}

impl<'a> Transfer<'a> {
    /// The same transfer for another attempt.
    pub(crate) fn reborrow(&mut self) -> Transfer<'a> {
        match self {
            Self::Memory => Transfer::Memory,
            Self::Upload { path, size } => Transfer::Upload { path, size: *size },
            Self::Download(file) => Transfer::Download(Arc::clone(file)),
        }
    }
}

/// A successful response.
pub(crate) struct Received {
    /// Its body, unless it was written to a file.
    pub(crate) text: String,
}

/// Size and CRC32C of a file, the latter as in S3: base64 of its four bytes.
pub(crate) fn checksum(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let (mut size, mut sum, mut chunk) = (0_u64, 0, vec![0; CHUNK]);
    loop {
        let read = file.read(&mut chunk)?;
        let Some(part) = chunk.get(..read).filter(|part| !part.is_empty()) else { break };
        sum = crc32c::crc32c_append(sum, part);
        size = size.saturating_add(part.len() as u64);
    }
    let checksum = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, sum.to_be_bytes());
    Ok((size, checksum))
}

/// The message of an error response (S3's `Error` document), limited to one line.
pub(super) fn error_message(status: StatusCode, region: Option<&str>, body: &str) -> String {
    let field = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        let (text, _) = rest.split_once(&format!("</{name}>"))?;
        let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
        Some(plain.take(300).collect::<String>())
    };
    let mut text = format!("the bucket answers {}", status.as_u16());
    for part in ["Code", "Message"].into_iter().filter_map(field) {
        text = format!("{text}: {part}");
    }
    if let (true, Some(region)) = (status.is_redirection(), region) {
        text = format!("{text}: it is in region {region}, give --etcd-s3-region={region}");
    }
    text
}

fn tunnel_error(proxy: &HttpProxy, error: TunnelError) -> RequestError {
    let address = proxy.address();
    match error {
        TunnelError::Io(source) => RequestError::Connect { address, source },
        TunnelError::Refused { status, line } => RequestError::Proxy { address, status, line },
    }
}

/// Opens connections.
pub(crate) struct Client {
    /// Trust in the bucket, and in a proxy that is reached over TLS; `None` if neither is.
    tls: Option<Arc<ClientConfig>>,
    proxies: ProxyRules,
}

/// A connection for one request.
struct Connection {
    io: BoxIo,
    /// The proxy that forwards the request; none if the connection ends at the bucket.
    forwarder: Option<HttpProxy>,
}

impl Client {
    /// A client that trusts `ca` (PEM), or the CAs of the system if it is empty.
    ///
    /// # Errors
    /// The CA certificates cannot be used.
    pub(crate) async fn new(
        tls: bool,
        ca: &str,
        unverified: bool,
        proxies: ProxyRules,
    ) -> Result<Self, Error> {
        let tls = match tls || proxies.may_use_tls() {
            true => {
                let roots = pki::external_roots::client(ca.as_bytes(), unverified, None).await;
                Some(roots.map_err(|e| Error::Roots(e.to_string()))?)
            }
            false => None,
        };
        Ok(Self { tls, proxies })
    }

    async fn connect(&self, url: &url::Url) -> Result<Connection, RequestError> {
        let host = host_of(url);
        let port = url.port_or_known_default().unwrap_or(443);
        let has_tls = url.scheme() == "https";
        let proxy = self.proxies.choose(url)?;
        let mut io = match &proxy {
            Some(proxy) => {
                let io = self.dial(&proxy.host, proxy.port).await?;
                if proxy.tls { self.start_tls(io, &proxy.host, proxy.port).await? } else { io }
            }
            None => self.dial(host, port).await?,
        };
        if !has_tls {
            return Ok(Connection { io, forwarder: proxy });
        }
        if let Some(proxy) = &proxy {
            proxy.tunnel(&mut io, host, port).await.map_err(|error| tunnel_error(proxy, error))?;
        }
        let io = self.start_tls(io, host, port).await?;
        Ok(Connection { io, forwarder: None })
    }

    async fn dial(&self, host: &str, port: u16) -> Result<BoxIo, RequestError> {
        let io = Tcp.dial(host, port).await;
        io.map_err(|source| RequestError::Connect { address: format!("{host}:{port}"), source })
    }

    async fn start_tls(&self, io: BoxIo, host: &str, port: u16) -> Result<BoxIo, RequestError> {
        let failed = |source| RequestError::Tls { address: format!("{host}:{port}"), source };
        let tls = self.tls.as_ref();
        let tls = tls.ok_or_else(|| failed(io::Error::other("no CA certificates are loaded")))?;
        let name = ServerName::try_from(host.to_owned())?;
        let io = TlsConnector::from(Arc::clone(tls)).connect(name, io).await;
        io.map(|io| Box::new(io) as BoxIo).map_err(failed)
    }

    /// Sends the request and reads its response.
    pub(crate) async fn exchange(
        &self,
        method: Method,
        url: &url::Url,
        headers: &[(&'static str, String)],
        transfer: Transfer<'_>,
    ) -> Result<Received, RequestError> {
        let Connection { io, forwarder } = self.connect(url).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
        let authority = url.authority();
        let target = match forwarder {
            Some(_) => &url[..url::Position::AfterQuery],
            None => &url[url::Position::BeforePath..url::Position::AfterQuery],
        };
        let mut request = Request::builder().method(method).uri(target);
        request = request.header(HOST, authority).header(USER_AGENT, "kube-lite");
        if let Some(value) = forwarder.as_ref().and_then(HttpProxy::authorization) {
            request = request.header(PROXY_AUTHORIZATION, value);
        }
        for (name, value) in headers {
            let value = HeaderValue::try_from(value.as_str()).map_err(http::Error::from)?;
            request = request.header(HeaderName::from_static(name), value);
        }
        let (body, file) = match transfer {
            Transfer::Memory => (Empty::new().map_err(|never| match never {}).boxed_unsync(), None),
            Transfer::Upload { path, size } => {
                request = request.header(CONTENT_LENGTH, size);
                (upload(path.to_owned()), None)
            }
            Transfer::Download(file) => {
                (Empty::new().map_err(|never| match never {}).boxed_unsync(), Some(file))
            }
        };
        let request = request.body(body)?;
        let exchange = async move {
            let response = sender.send_request(request).await?;
            receive(response, file).await
        };
        // An error of the connection is reported by the response.
        let drive = async {
            let _ = connection.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            received = exchange => received,
            () = drive => Err(RequestError::ConnectionClosed),
        }
    }
}

async fn receive(
    response: http::Response<Incoming>,
    file: Option<Arc<File>>,
) -> Result<Received, RequestError> {
    let (parts, body) = response.into_parts();
    let status = parts.status;
    if let (true, Some(file)) = (status.is_success(), file) {
        download(body, file).await?;
        return Ok(Received { text: String::new() });
    }
    let read = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
    let body = read.map_err(|e| RequestError::Truncated(e.to_string()))?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    if status.is_success() {
        return Ok(Received { text });
    }
    let region = parts.headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
    Err(RequestError::Rejected { status, message: error_message(status, region, &text) })
}

/// A file as a body; after a read error the request is aborted, and the bucket keeps nothing.
fn upload(path: std::path::PathBuf) -> UnsyncBoxBody<Bytes, io::Error> {
    let (sender, mut receiver) = mpsc::channel(CHUNKS_MAX);
    let reading = blocking(move || {
        let outcome = (|| {
            let mut file = File::open(&path)?;
            loop {
                let mut chunk = vec![0; CHUNK];
                let read = file.read(&mut chunk)?;
                chunk.truncate(read);
                // The receiver is gone when the request is over.
                if read == 0 || sender.blocking_send(Ok(Bytes::from(chunk))).is_err() {
                    return Ok(());
                }
            }
        })();
        if let Err(error) = outcome {
            let _ = sender.blocking_send(Err(error));
        }
    });
    let mut reading = Box::pin(reading);
    let mut is_read = false;
    let stream = futures::stream::poll_fn(move |cx| {
        // Polled together with the writer, so that the transfer starts and its end is noticed.
        if !is_read {
            is_read = reading.as_mut().poll(cx).is_ready();
        }
        receiver.poll_recv(cx)
    });
    let stream = futures::StreamExt::map(stream, |chunk| chunk.map(Frame::data));
    BodyExt::boxed_unsync(StreamBody::new(stream))
}

/// Writes a body to a file from its start, and syncs it.
async fn download(mut body: Incoming, file: Arc<File>) -> Result<(), RequestError> {
    let (sender, mut receiver) = mpsc::channel::<Bytes>(CHUNKS_MAX);
    let writing = blocking(move || {
        let mut file = &*file;
        file.set_len(0)?;
        io::Seek::rewind(&mut file)?;
        while let Some(chunk) = receiver.blocking_recv() {
            file.write_all(&chunk)?;
        }
        file.sync_all()
    });
    let reading = async move {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| RequestError::Truncated(e.to_string()))?;
            let Ok(chunk) = frame.into_data() else { continue };
            // The writer has failed, and reports the error.
            if sender.send(chunk).await.is_err() {
                break;
            }
        }
        Ok(())
    };
    let (read, written) = tokio::join!(reading, writing);
    written?.map_err(RequestError::File)?;
    read
}
