//! A single HTTP request over its own connection, streaming files in both directions.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use base::io::{BoxIo, Dial, Tcp};
use base::pki;
use base::tasks::blocking;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

/// Bytes per read of an uploaded file.
const CHUNK: usize = 64 * 1024;
/// Chunks buffered between disk and network.
const CHUNKS_MAX: usize = 4;
/// Maximum size of a response in memory: a page of a list.
const ANSWER_MAX: usize = 4 << 20;

/// Request body, and destination of the response.
pub(crate) enum To<'a> {
    /// No request body, a short response.
    Memory,
    /// A file of this size.
    Upload {
        path: &'a Path,
        size: u64,
    },
    File(Arc<File>),
}

impl<'a> To<'a> {
    /// Timeout of an attempt.
    pub(crate) fn again(&mut self) -> To<'a> {
        match self {
            Self::Memory => To::Memory,
            Self::Upload { path, size } => To::Upload { path, size: *size },
            Self::File(file) => To::File(Arc::clone(file)),
        }
    }
}

/// A successful response.
pub(crate) struct Received {
    /// Its body, unless it was written to a file.
    pub(crate) text: String,
}

/// Errors of a request.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) text: String,
    /// Whether a retry may succeed.
    pub(crate) passing: bool,
}

impl Fault {
    fn passing(text: impl std::fmt::Display) -> Self {
        Self { text: text.to_string(), passing: true }
    }

    fn lasting(text: impl std::fmt::Display) -> Self {
        Self { text: text.to_string(), passing: false }
    }
}

/// Size and CRC32C of a file, the latter as in S3: base64 of its four bytes.
pub(crate) fn look(path: &Path) -> io::Result<(u64, String)> {
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

/// Opens connections.
pub(crate) struct Client {
    /// `None` for HTTP without TLS.
    tls: Option<Arc<ClientConfig>>,
}

impl Client {
    pub(crate) async fn new(tls: bool, ca: &str, unverified: bool) -> Result<Self, String> {
        if !tls {
            return Ok(Self { tls: None });
        }
        let tls = pki::external_roots::client(ca.as_bytes(), unverified, None).await;
        Ok(Self { tls: Some(tls.map_err(|e| e.to_string())?) })
    }

    async fn open(&self, url: &url::Url) -> Result<BoxIo, Fault> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = url.port_or_known_default().unwrap_or(443);
        let io = Tcp.dial(host, port).await;
        let io = io.map_err(|e| Fault::passing(format!("{host}:{port} cannot be reached: {e}")))?;
        let Some(tls) = &self.tls else { return Ok(io) };
        let name = ServerName::try_from(host.to_owned()).map_err(Fault::lasting)?;
        let io = TlsConnector::from(Arc::clone(tls)).connect(name, io).await;
        io.map(|io| Box::new(io) as BoxIo).map_err(|e| {
            // An untrusted certificate is a permanent error.
            let certificate = e.get_ref().is_some_and(|e| e.is::<rustls::Error>());
            let text = format!("TLS with {host}:{port} failed: {e}");
            if certificate { Fault::lasting(text) } else { Fault::passing(text) }
        })
    }

    /// Sends the request and reads its response.
    pub(crate) async fn exchange(
        &self,
        method: Method,
        url: &url::Url,
        headers: &[(&'static str, String)],
        to: To<'_>,
    ) -> Result<Received, Fault> {
        let io = self.open(url).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
            .await
            .map_err(Fault::passing)?;
        let authority = url.authority();
        let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
        let mut request = Request::builder().method(method).uri(target);
        request = request.header(HOST, authority).header(USER_AGENT, "kube-lite");
        for (name, value) in headers {
            let value = HeaderValue::try_from(value.as_str()).map_err(Fault::lasting)?;
            request = request.header(HeaderName::from_static(name), value);
        }
        let (body, file) = match to {
            To::Memory => (Empty::new().map_err(|never| match never {}).boxed_unsync(), None),
            To::Upload { path, size } => {
                request = request.header(CONTENT_LENGTH, size);
                (upload(path.to_owned()), None)
            }
            To::File(file) => {
                (Empty::new().map_err(|never| match never {}).boxed_unsync(), Some(file))
            }
        };
        let request = request.body(body).map_err(Fault::lasting)?;
        let talk = async move {
            let response = sender.send_request(request).await.map_err(Fault::passing)?;
            answered(response, file).await
        };
        // The result of the connection shows in the response.
        let drive = async {
            let _ = connection.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            answered = talk => answered,
            () = drive => Err(Fault::passing("the connection ended")),
        }
    }
}

async fn answered(
    response: http::Response<Incoming>,
    file: Option<Arc<File>>,
) -> Result<Received, Fault> {
    let (parts, body) = response.into_parts();
    let status = parts.status;
    if let (true, Some(file)) = (status.is_success(), file) {
        download(body, file).await?;
        return Ok(Received { text: String::new() });
    }
    let read = Limited::new(body, ANSWER_MAX).collect().await;
    let body = read.map_err(|e| Fault::passing(format!("the answer breaks off: {e}")))?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    if status.is_success() {
        return Ok(Received { text });
    }
    let region = parts.headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
    let passing = status.is_server_error() || status.as_u16() == 429;
    Err(Fault { text: error_message(status, region, &text), passing })
}

/// A file as a body; after a read error the request is aborted, and the bucket keeps nothing.
fn upload(path: std::path::PathBuf) -> UnsyncBoxBody<Bytes, io::Error> {
    let (sender, mut receiver) = mpsc::channel(CHUNKS_MAX);
    let reading = blocking(move || {
        let said = (|| {
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
        if let Err(error) = said {
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
async fn download(mut body: Incoming, file: Arc<File>) -> Result<(), Fault> {
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
            let frame = frame.map_err(|e| Fault::passing(format!("the answer breaks off: {e}")))?;
            let Ok(chunk) = frame.into_data() else { continue };
            // The writer has failed, and reports the error.
            if sender.send(chunk).await.is_err() {
                break;
            }
        }
        Ok(())
    };
    let (read, written) = tokio::join!(reading, writing);
    written.map_err(Fault::lasting)?.map_err(Fault::lasting)?;
    read
}
