//! Bodies that pass through the proxy frame by frame.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::pool::Http1;
use crate::backend::{ActiveRequest, Endpoint};

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The peer.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The body of a request is larger than its rule allows.
    #[error("the body is larger than {0} bytes")]
    TooLarge(u64),
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
    bytes: u64,
    max: u64,
    /// Get copies of the data.
    mirrors: Vec<mpsc::Sender<Bytes>>,
}

impl RequestBody {
    /// Passes a body on, up to `max` bytes.
    pub(crate) fn new(incoming: Incoming, max: u64) -> Self {
        Self { source: Source::Client(incoming), bytes: 0, max, mirrors: Vec::new() }
    }

    /// A body that receives what this one passes on from now on.
    pub(crate) fn mirrored(&mut self) -> Self {
        if matches!(self.source, Source::Empty) {
            return Self::empty();
        }
        let (sender, receiver) = mpsc::channel(MIRROR_LAG_MAX);
        self.mirrors.push(sender);
        Self { source: Source::Copy(receiver), bytes: 0, max: self.max, mirrors: Vec::new() }
    }

    /// A request without a body.
    pub(crate) fn empty() -> Self {
        Self { source: Source::Empty, bytes: 0, max: 0, mirrors: Vec::new() }
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
            this.mirrors.retain(|mirror| mirror.try_send(data.clone()).is_ok());
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Empty => true,
            Source::Client(incoming) => incoming.is_end_stream(),
            Source::Copy(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Empty => SizeHint::with_exact(0),
            Source::Client(incoming) => incoming.size_hint(),
            Source::Copy(_) => SizeHint::default(),
        }
    }
}

/// The connection of a response over HTTP/1.1; given back when its body has ended.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) connection: Http1,
    pub(crate) endpoint: Arc<Endpoint>,
}

/// The body of a response.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// That of an endpoint.
    Endpoint {
        incoming: Incoming,
        lease: Option<Lease>,
        /// The request counts as in progress until the body is dropped.
        _active: ActiveRequest,
    },
    /// A text of the proxy.
    Text(Option<Bytes>),
}

/// The next frame of a response. The connection has no task of its own: it is driven here.
fn poll_incoming(
    mut incoming: Pin<&mut Incoming>,
    lease: Option<&mut Lease>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
    let polled = incoming.as_mut().poll_frame(context);
    match lease {
        Some(lease) if polled.is_pending() => {
            // An early end is an error of the body.
            lease.connection.is_ended(context);
            incoming.poll_frame(context)
        }
        _ => polled,
    }
}

impl ResponseBody {
    /// Takes the connection from a response that changes the protocol.
    pub(crate) fn take_connection(&mut self) -> Option<Http1> {
        match self {
            Self::Endpoint { lease, .. } => lease.take().map(|lease| lease.connection),
            Self::Text(_) => None,
        }
    }

    fn ended(&mut self) {
        if let Self::Endpoint { lease, .. } = self
            && let Some(Lease { connection, endpoint }) = lease.take()
        {
            endpoint.pool.give_back(connection);
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Endpoint { incoming, lease, .. } => {
                match ready!(poll_incoming(Pin::new(&mut *incoming), lease.as_mut(), context)) {
                    Some(Ok(frame)) => {
                        // hyper does not poll a body to its end once it knows that it has ended.
                        if incoming.is_end_stream() {
                            self.ended();
                        }
                        Poll::Ready(Some(Ok(frame)))
                    }
                    Some(Err(error)) => {
                        *lease = None;
                        Poll::Ready(Some(Err(error.into())))
                    }
                    None => {
                        self.ended();
                        Poll::Ready(None)
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Endpoint { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
            Self::Endpoint { incoming, .. } => incoming.size_hint(),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // A response without a body, or one of which hyper has taken the last frame.
        if let Self::Endpoint { incoming, .. } = self
            && incoming.is_end_stream()
        {
            self.ended();
        }
    }
}
