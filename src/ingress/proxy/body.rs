//! Bodies that pass through the proxy frame by frame.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

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

/// The body of a request.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Option<Incoming>,
    bytes: u64,
    max: u64,
}

impl RequestBody {
    /// Passes a body on, up to `max` bytes.
    pub(crate) fn new(incoming: Incoming, max: u64) -> Self {
        Self { incoming: Some(incoming), bytes: 0, max }
    }

    /// A request without a body.
    pub(crate) fn empty() -> Self {
        Self { incoming: None, bytes: 0, max: 0 }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(incoming) = self.incoming.as_mut() else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(incoming).poll_frame(context)).transpose()?;
        if let Some(data) = frame.as_ref().and_then(Frame::data_ref) {
            self.bytes = self.bytes.saturating_add(data.len() as u64);
            if self.bytes > self.max {
                return Poll::Ready(Some(Err(BodyError::TooLarge(self.max))));
            }
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
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
