//! Connections to endpoints over HTTP/1.1.
//!
//! One exchange uses a connection at a time, and the task of its request reads and writes it: there
//! is no task and no queue between them. `request` writes heads, `response` and `chunked` read
//! responses; all of them are free of I/O.

mod chunked;
mod request;
mod response;

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body as _, Frame};
use tokio::io::{AsyncRead as _, AsyncReadExt as _, AsyncWrite as _, ReadBuf};

use super::body::{BodyError, RequestBody};
use super::splice::{Chunk, Pipe};
use super::stream::Stream;
use chunked::{Decoder, Part};
use request::Framing;
use response::{End, Head};

pub(crate) use chunked::ChunkError;
pub(crate) use response::HeadError;

/// Bytes that the first read of a response makes space for. Idle connections keep no more.
const READ_BYTES_MIN: usize = 8 * 1024;
/// Bytes of a response that are read at once. The kernel's work for a large body is the same with
/// more.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a body from which on the kernel moves it to the client. A smaller one costs more system
/// calls than copies.
const SPLICE_BYTES_MIN: u64 = 64 * 1024;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// The connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The endpoint closed the connection before its response.
    #[error("the connection was closed before the response")]
    Closed,
    /// The head of the response.
    #[error("{0}")]
    Head(#[from] HeadError),
    /// The body of the request ended early.
    #[error("the body of the request: {0}")]
    Body(#[from] BodyError),
}

/// The part of a request that is not written yet.
#[derive(Debug, Default)]
struct Outgoing {
    /// Bytes to write before `data`: the head, or the line of a chunk.
    before: Vec<u8>,
    /// Bytes of `before` that are written.
    before_written: usize,
    /// A part of the body.
    data: Bytes,
    /// Bytes to write after `data`.
    after: &'static [u8],
    /// The rest of the body.
    body: Option<(RequestBody, Framing)>,
    /// Bytes were written.
    begun: bool,
    /// All is written; the stream may hold some of it.
    unflushed: bool,
}

impl Outgoing {
    /// The unwritten part of the bytes before the data.
    fn before(&self) -> &[u8] {
        self.before.get(self.before_written..).unwrap_or_default()
    }

    /// Whether all that was taken of the body is written.
    fn is_written(&self) -> bool {
        self.before().is_empty() && self.data.is_empty() && self.after.is_empty()
    }

    fn is_done(&self) -> bool {
        self.is_written() && self.body.is_none() && !self.unflushed
    }

    /// Writes as much as possible.
    fn poll(
        &mut self,
        stream: &mut Stream,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ExchangeError>> {
        loop {
            // The first part of a body leaves together with the head.
            if self.data.is_empty() && self.after.is_empty() {
                match self.poll_body(context) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending if self.before().is_empty() => {
                        ready!(Pin::new(&mut *stream).poll_flush(context))?;
                        self.unflushed = false;
                        return Poll::Pending;
                    }
                    Poll::Pending => {}
                }
            }
            if self.is_written() {
                ready!(Pin::new(&mut *stream).poll_flush(context))?;
                self.unflushed = false;
                return Poll::Ready(Ok(()));
            }
            let slices = [self.before(), &self.data[..], self.after].map(io::IoSlice::new);
            let writing = match self.data.is_empty() && self.after.is_empty() {
                true => Pin::new(&mut *stream).poll_write(context, self.before()),
                false => Pin::new(&mut *stream).poll_write_vectored(context, &slices),
            };
            let written = ready!(writing)?;
            if written == 0 {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into()));
            }
            (self.begun, self.unflushed) = (true, true);
            self.advance(written);
        }
    }

    fn advance(&mut self, mut count: usize) {
        let before = count.min(self.before().len());
        self.before_written += before;
        count -= before;
        let data = count.min(self.data.len());
        self.data.advance(data);
        count -= data;
        self.after = self.after.get(count..).unwrap_or_default();
    }

    /// Takes the next part of the body.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        let Some((body, framing)) = &mut self.body else { return Poll::Ready(Ok(())) };
        // A frame may be empty.
        let frame = loop {
            match ready!(Pin::new(&mut *body).poll_frame(context)).transpose()? {
                Some(frame) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
                frame => break frame,
            }
        };
        let (data, trailers) = match frame.map(Frame::into_data) {
            Some(Ok(data)) => (Some(data), None),
            Some(Err(frame)) => (None, frame.into_trailers().ok()),
            None => (None, None),
        };
        let end = match (data, framing) {
            (Some(data), Framing::Length(left)) => {
                // A body that is longer than it said would be taken for the next request.
                *left = left.checked_sub(data.len() as u64).ok_or(BodyError::Length)?;
                if *left == 0 {
                    self.body = None;
                }
                self.data = data;
                return Poll::Ready(Ok(()));
            }
            (Some(data), _) => {
                self.put_before(request::chunk_line(data.len()));
                (self.data, self.after) = (data, b"\r\n");
                return Poll::Ready(Ok(()));
            }
            (None, Framing::Length(1..)) => return Poll::Ready(Err(BodyError::Length.into())),
            (None, Framing::Chunked) => request::last_chunk(trailers.as_ref()),
            (None, _) => Vec::new(),
        };
        self.put_before(end);
        self.body = None;
        Poll::Ready(Ok(()))
    }

    /// Appends bytes that go before the next part of the body.
    fn put_before(&mut self, mut bytes: Vec<u8>) {
        if self.before().is_empty() {
            (self.before, self.before_written) = (bytes, 0);
        } else {
            self.before.append(&mut bytes);
        }
    }
}

/// The position in the body of a response.
#[derive(Debug, Default)]
enum Incoming {
    /// It has ended.
    #[default]
    Ended,
    /// As many bytes are left.
    Length(u64),
    /// Chunks.
    Chunked(Decoder),
    /// Up to the end of the connection.
    Close,
}

/// A connection over HTTP/1.1 that one exchange uses at a time.
pub(crate) struct Http1 {
    stream: Stream,
    /// Bytes that were read and not used.
    buffer: BytesMut,
    /// Bytes of the buffer in which no end of a head was found.
    searched: usize,
    /// Bytes that the next read makes space for.
    read_bytes: usize,
    outgoing: Outgoing,
    incoming: Incoming,
    /// The last response allows another request.
    keeps: bool,
    /// The connection has served a request.
    reused: bool,
}

impl fmt::Debug for Http1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http1").field("reused", &self.reused).finish_non_exhaustive()
    }
}

/// Why a request got no response.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The request may be sent over another connection: nothing of it was written, or it may be
    /// repeated and the endpoint closed a connection that was kept in the same moment (RFC 9112,
    /// 9.3.1).
    Unsent(Box<Request<RequestBody>>),
    /// The exchange failed.
    Failed(ExchangeError),
}

impl Http1 {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream,
            buffer: BytesMut::new(),
            searched: 0,
            read_bytes: READ_BYTES_MIN,
            outgoing: Outgoing::default(),
            incoming: Incoming::Ended,
            keeps: true,
            reused: false,
        }
    }

    /// Whether a connection between two requests has ended, or carries bytes that no request asked
    /// for.
    pub(crate) fn is_ended(&mut self, context: &mut Context<'_>) -> bool {
        let mut byte = [0];
        let mut read = ReadBuf::new(&mut byte);
        !self.buffer.is_empty()
            || Pin::new(&mut self.stream).poll_read(context, &mut read).is_ready()
    }

    /// Whether the connection can take the next request, as far as the process knows.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.keeps
            && matches!(self.incoming, Incoming::Ended)
            && self.outgoing.is_done()
            && !self.is_ended(&mut Context::from_waker(Waker::noop()))
    }

    /// Prepares a connection that is kept without a request.
    pub(crate) fn rest(&mut self) {
        self.reused = true;
        if self.read_bytes > READ_BYTES_MIN {
            (self.buffer, self.read_bytes) = (BytesMut::new(), READ_BYTES_MIN);
        }
    }

    /// The stream and what was read of it, for a response that changed the protocol.
    pub(crate) fn into_parts(self) -> (Stream, Bytes) {
        (self.stream, self.buffer.freeze())
    }

    /// Sends a request and returns the head of its response; the rest of the request is written
    /// while the body of the response is read.
    ///
    /// # Errors
    /// The request may be sent over another connection, or the exchange failed.
    pub(crate) async fn send(
        &mut self,
        mut request: Box<Request<RequestBody>>,
    ) -> Result<Response<()>, Unanswered> {
        let framing = Framing::set(&mut request);
        let head = request::head(&request);
        let (parts, body) = request.into_parts();
        let is_bodiless = framing == Framing::Empty;
        let body = (!is_bodiless).then_some((body, framing));
        self.outgoing = Outgoing { before: head, body, ..Outgoing::default() };
        match poll_fn(|context| self.poll_exchange(&parts.method, context)).await {
            Ok(response) => Ok(response),
            Err(ExchangeError::Io(_) | ExchangeError::Closed)
                if !self.outgoing.begun || (self.may_repeat(&parts.method) && is_bodiless) =>
            {
                let Outgoing { data, body, .. } = std::mem::take(&mut self.outgoing);
                let mut body = body.map_or_else(RequestBody::empty, |(body, _)| body);
                body.put_back(data);
                Err(Unanswered::Unsent(Box::new(Request::from_parts(parts, body))))
            }
            Err(error) => Err(Unanswered::Failed(error)),
        }
    }

    /// Whether a request without a body may be written again after the connection has ended without
    /// a byte of the response.
    fn may_repeat(&self, method: &Method) -> bool {
        self.reused && self.buffer.is_empty() && method.is_idempotent()
    }

    /// Writes the request until the head of the final response has come.
    fn poll_exchange(
        &mut self,
        method: &Method,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<()>, ExchangeError>> {
        let mut failed = None;
        if !self.outgoing.is_done()
            && let Poll::Ready(Err(error)) = self.outgoing.poll(&mut self.stream, context)
        {
            // An endpoint that refuses a body may answer and close before it has read it.
            match error {
                ExchangeError::Io(_) if self.outgoing.begun => failed = Some(error),
                error => return Poll::Ready(Err(error)),
            }
        }
        loop {
            let head = response::take_head(&mut self.buffer, &mut self.searched, method)?;
            match head {
                // Interim responses (RFC 9110, 15.2) concern this connection alone.
                Some(Head { response, .. })
                    if response.status().is_informational()
                        && response.status() != StatusCode::SWITCHING_PROTOCOLS => {}
                Some(head) => return Poll::Ready(Ok(self.begin_body(head, failed.is_some()))),
                None => match self.poll_read(context) {
                    Poll::Ready(Ok(0)) => {
                        return Poll::Ready(Err(failed.unwrap_or(ExchangeError::Closed)));
                    }
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(error)) => {
                        return Poll::Ready(Err(failed.unwrap_or(error.into())));
                    }
                    Poll::Pending => match failed {
                        Some(error) => return Poll::Ready(Err(error)),
                        None => return Poll::Pending,
                    },
                },
            }
        }
    }

    fn begin_body(&mut self, head: Head, failed: bool) -> Response<()> {
        self.keeps = head.keeps && !failed;
        if failed {
            self.outgoing = Outgoing::default();
        }
        self.incoming = match head.end {
            End::Empty => Incoming::Ended,
            End::Length(length) => Incoming::Length(length),
            End::Chunked => Incoming::Chunked(Decoder::default()),
            End::Close => Incoming::Close,
        };
        // A proxy answers in its own version (RFC 9110, 2.5).
        let mut response = head.response;
        *response.version_mut() = Version::HTTP_11;
        response
    }

    /// Reads into the buffer; 0 at the end of the stream.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(self.read_bytes);
        let space = self.buffer.capacity() - self.buffer.len();
        let count = ready!(pin!(self.stream.read_buf(&mut self.buffer)).poll(context))?;
        if count == space {
            self.read_bytes = self.read_bytes.saturating_mul(4).min(READ_BYTES_MAX);
        }
        Poll::Ready(Ok(count))
    }

    /// Whether the body of the response has ended.
    pub(crate) fn is_body_ended(&self) -> bool {
        matches!(self.incoming, Incoming::Ended)
    }

    /// Bytes that the body of the response still has, if its head said how many.
    pub(crate) fn body_length(&self) -> Option<u64> {
        match &self.incoming {
            Incoming::Ended => Some(0),
            Incoming::Length(left) => Some(*left),
            Incoming::Chunked(_) | Incoming::Close => None,
        }
    }

    /// The next part of the body of a response. With a pipe, parts of large bodies go through it.
    pub(crate) fn poll_frame(
        &mut self,
        pipe: Option<&Pipe>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, BodyError>>> {
        if !self.outgoing.is_done()
            && let Poll::Ready(Err(error)) = self.outgoing.poll(&mut self.stream, context)
        {
            // The endpoint may answer without the rest of the request, unless the client broke off.
            (self.outgoing, self.keeps) = (Outgoing::default(), false);
            if let ExchangeError::Body(error) = error {
                return Poll::Ready(Some(Err(error)));
            }
        }
        loop {
            let frame = match &mut self.incoming {
                Incoming::Ended => return Poll::Ready(None),
                Incoming::Length(left) => {
                    if !self.buffer.is_empty() {
                        let now = usize::try_from(*left).unwrap_or(usize::MAX);
                        let count = now.min(self.buffer.len());
                        let data = response::take_bytes(&mut self.buffer, count);
                        *left = left.saturating_sub(data.len() as u64);
                        Some(Frame::data(Chunk::Bytes(data)))
                    } else if let (Some(pipe), Some(socket)) = (pipe, self.stream.socket())
                        && *left >= SPLICE_BYTES_MIN
                    {
                        let max = usize::try_from(*left).unwrap_or(usize::MAX);
                        match ready!(pipe.poll_fill(socket, context, max))? {
                            0 => return Poll::Ready(Some(Err(BodyError::Incomplete))),
                            moved => {
                                *left = left.saturating_sub(moved as u64);
                                Some(Frame::data(Chunk::Piped(moved)))
                            }
                        }
                    } else {
                        None
                    }
                }
                Incoming::Chunked(decoder) => match decoder.take(&mut self.buffer)? {
                    Some(Part::Data(data)) => Some(Frame::data(Chunk::Bytes(data))),
                    Some(Part::Trailers(fields)) => {
                        self.incoming = Incoming::Ended;
                        Some(Frame::trailers(fields))
                    }
                    Some(Part::End) => {
                        self.incoming = Incoming::Ended;
                        return Poll::Ready(None);
                    }
                    None => None,
                },
                Incoming::Close if self.buffer.is_empty() => None,
                Incoming::Close => Some(Frame::data(Chunk::Bytes(self.buffer.split().freeze()))),
            };
            if let Some(frame) = frame {
                if matches!(self.incoming, Incoming::Length(0)) {
                    self.incoming = Incoming::Ended;
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            if ready!(self.poll_read(context))? == 0 {
                if !matches!(self.incoming, Incoming::Close) {
                    return Poll::Ready(Some(Err(BodyError::Incomplete)));
                }
                self.incoming = Incoming::Ended;
            }
        }
    }
}
