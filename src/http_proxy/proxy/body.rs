//! Bodies that pass through the proxy frame by frame.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::Sleep;

use super::http1::{ChunkError, Http1};
use super::splice::{Chunk, Pipe};
use crate::backend::{ActiveRequest, Endpoint};

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The peer.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The connection to the endpoint.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The body of a request is larger than its rule allows.
    #[error("the body is larger than {0} bytes")]
    TooLarge(u64),
    /// The body of a request is longer or shorter than its head said.
    #[error("the body does not have the length that the head states")]
    Length,
    /// The endpoint closed the connection within the body.
    #[error("the connection was closed before the end of the body")]
    Incomplete,
    /// The chunks of a response.
    #[error("{0}")]
    Chunk(#[from] ChunkError),
    /// The endpoint sent nothing for too long.
    #[error("the endpoint sent nothing of the body for {0:?}")]
    Paused(Duration),
}

/// Parts of a body that a mirror may lag behind; a slower one gets no more of it.
const MIRROR_LAG_MAX: usize = 64;

/// Where the body of a request comes from.
#[derive(Debug)]
enum Source {
    /// None.
    Empty,
    /// The client.
    Client(Incoming),
    /// A copy of what another body passes on.
    Copy(mpsc::Receiver<Bytes>),
}

/// The body of a request.
#[derive(Debug)]
pub(crate) struct RequestBody {
    source: Source,
    /// Data that was read and not sent.
    first: Bytes,
    bytes: u64,
    max: u64,
    /// Counts the parts that were taken, for a reader beside the body's own.
    progress: Option<Arc<AtomicUsize>>,
    /// Get copies of the data.
    mirrors: Vec<mpsc::Sender<Bytes>>,
}

impl RequestBody {
    /// Passes a body on, up to `max` bytes.
    pub(crate) fn new(incoming: Incoming, max: u64) -> Self {
        Self { source: Source::Client(incoming), max, ..Self::empty() }
    }

    /// A body that receives what this one passes on from now on.
    pub(crate) fn mirrored(&mut self) -> Self {
        if matches!(self.source, Source::Empty) {
            return Self::empty();
        }
        let (sender, receiver) = mpsc::channel(MIRROR_LAG_MAX);
        self.mirrors.push(sender);
        Self { source: Source::Copy(receiver), max: self.max, ..Self::empty() }
    }

    /// A request without a body.
    pub(crate) fn empty() -> Self {
        let (first, mirrors) = (Bytes::new(), Vec::new());
        Self { source: Source::Empty, first, bytes: 0, max: 0, progress: None, mirrors }
    }

    /// The number of parts that were taken of the body; `None` without a body.
    pub(crate) fn progress(&mut self) -> Option<Arc<AtomicUsize>> {
        if matches!(self.source, Source::Empty) {
            return None;
        }
        Some(Arc::clone(self.progress.get_or_insert_default()))
    }

    /// Puts data that was read before the rest of the body.
    pub(crate) fn put_back(&mut self, data: Bytes) {
        self.first = data;
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if !this.first.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.first)))));
        }
        let frame = match &mut this.source {
            Source::Empty => return Poll::Ready(None),
            Source::Copy(copy) => {
                return copy.poll_recv(context).map(|data| Some(Ok(Frame::data(data?))));
            }
            Source::Client(incoming) => {
                ready!(Pin::new(incoming).poll_frame(context)).transpose()?
            }
        };
        if let Some(data) = frame.as_ref().and_then(Frame::data_ref) {
            this.bytes = this.bytes.saturating_add(data.len() as u64);
            if this.bytes > this.max {
                return Poll::Ready(Some(Err(BodyError::TooLarge(this.max))));
            }
            if let Some(progress) = &this.progress {
                progress.fetch_add(1, Ordering::Relaxed);
            }
            this.mirrors.retain(|mirror| mirror.try_send(data.clone()).is_ok());
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty()
            && match &self.source {
                Source::Empty => true,
                Source::Client(incoming) => incoming.is_end_stream(),
                Source::Copy(_) => false,
            }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Empty => SizeHint::with_exact(self.first.len() as u64),
            // hyper does not count what was read already.
            Source::Client(incoming) if self.first.is_empty() => incoming.size_hint(),
            Source::Client(_) | Source::Copy(_) => SizeHint::default(),
        }
    }
}

/// The connection of a response over HTTP/1.1; given back when its body has ended.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) connection: Box<Http1>,
    pub(crate) endpoint: Arc<Endpoint>,
}

/// Where the body of an endpoint's response comes from.
#[derive(Debug)]
pub(crate) enum EndpointBody {
    /// A connection over HTTP/1.1, until the body has ended.
    Http1(Option<Lease>),
    /// A stream of HTTP/2.
    Http2(Incoming),
}

impl EndpointBody {
    fn poll_frame(
        &mut self,
        pipe: Option<&Pipe>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, BodyError>>> {
        match self {
            Self::Http2(incoming) => {
                let frame = ready!(Pin::new(incoming).poll_frame(context));
                Poll::Ready(frame.map(|frame| Ok(frame?.map_data(Chunk::Bytes))))
            }
            Self::Http1(lease) => {
                let Some(Lease { connection, .. }) = lease else { return Poll::Ready(None) };
                let frame = ready!(connection.poll_frame(pipe, context));
                match &frame {
                    Some(Err(_)) => *lease = None,
                    // hyper does not poll a body to its end once it knows that it has ended.
                    Some(Ok(_)) | None => give_back(lease),
                }
                Poll::Ready(frame)
            }
        }
    }
}

/// Ends a body whose endpoint pauses for too long.
#[derive(Debug)]
pub(crate) struct PauseLimit {
    limit: Duration,
    /// Runs while nothing comes.
    timer: Option<Pin<Box<Sleep>>>,
}

impl PauseLimit {
    /// Completes once nothing has come for the time of the limit.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<BodyError> {
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(BodyError::Paused(limit))
    }
}

/// The body of a response.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// That of an endpoint.
    Endpoint {
        body: EndpointBody,
        /// The pipe of the client's connection, where the kernel may move the body.
        pipe: Option<Pipe>,
        /// How long the endpoint may pause.
        pause: Option<PauseLimit>,
        /// The request counts as in progress until the body is dropped.
        _active: ActiveRequest,
    },
    /// A text of the proxy.
    Text(Option<Bytes>),
}

impl ResponseBody {
    /// The body of an endpoint's response, which may pause for the time of `limit`.
    pub(crate) fn new(body: EndpointBody, active: ActiveRequest, limit: Option<Duration>) -> Self {
        let pause = limit.map(|limit| PauseLimit { limit, timer: None });
        Self::Endpoint { body, pipe: None, pause, _active: active }
    }

    /// Takes the connection from a response that changes the protocol.
    pub(crate) fn take_connection(&mut self) -> Option<Box<Http1>> {
        match self {
            Self::Endpoint { body: EndpointBody::Http1(lease), .. } => {
                lease.take().map(|lease| lease.connection)
            }
            _ => None,
        }
    }

    /// Lets the kernel move the body to a client over HTTP/1.1 without TLS.
    pub(crate) fn set_pipe(&mut self, own: &Pipe) {
        if let Self::Endpoint { pipe, .. } = self {
            *pipe = Some(own.clone());
        }
    }
}

/// Gives a connection back once the body has ended.
fn give_back(lease: &mut Option<Lease>) {
    let ended = lease.take_if(|lease| lease.connection.is_body_ended());
    if let Some(Lease { connection, endpoint }) = ended {
        endpoint.pool.give_back(connection);
    }
}

impl Body for ResponseBody {
    type Data = Chunk;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, BodyError>>> {
        match &mut *self {
            Self::Text(text) => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(Chunk::Bytes(text)))))
            }
            Self::Endpoint { body, pipe, pause, .. } => {
                let frame = body.poll_frame(pipe.as_ref(), context);
                let Some(pause) = pause else { return frame };
                // While the client has not read what is in the pipe, the endpoint may send nothing.
                if frame.is_ready() || pipe.as_ref().is_some_and(Pipe::is_held) {
                    pause.timer = None;
                    return frame;
                }
                let error = ready!(pause.poll(context));
                // The connection cannot serve another request.
                if let EndpointBody::Http1(lease) = body {
                    *lease = None;
                }
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Endpoint { body: EndpointBody::Http2(incoming), .. } => incoming.is_end_stream(),
            Self::Endpoint { body: EndpointBody::Http1(lease), .. } => {
                lease.as_ref().is_none_or(|lease| lease.connection.is_body_ended())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        let length = match self {
            Self::Text(text) => Some(text.as_ref().map_or(0, |text| text.len() as u64)),
            Self::Endpoint { body: EndpointBody::Http2(incoming), .. } => {
                return incoming.size_hint();
            }
            Self::Endpoint { body: EndpointBody::Http1(lease), .. } => {
                lease.as_ref().map_or(Some(0), |lease| lease.connection.body_length())
            }
        };
        length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // A response without a body is not polled.
        if let Self::Endpoint { body: EndpointBody::Http1(lease), .. } = self {
            give_back(lease);
        }
    }
}
