//! Bodies of requests and responses: one boxed type, read with a bound.

use std::pin::Pin;
use std::task::{self, Poll};

use api::Status;
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

use crate::status;

/// The error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request or response body.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Bytes as a body.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// No bytes.
pub fn empty() -> Body {
    full(Bytes::new())
}

/// A body that keeps something until it was read or is not wanted any more.
pub(crate) fn keeping<K: Send + Unpin + 'static>(body: Body, kept: K) -> Body {
    Kept { body, kept: Some(kept) }.boxed_unsync()
}

struct Kept<K> {
    body: Body,
    kept: Option<K>,
}

impl<K: Unpin> http_body::Body for Kept<K> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.kept = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// All bytes of a response of this server, for callers in the same process.
///
/// # Errors
/// When the body ends early.
pub async fn collect(body: Body) -> Result<Bytes, BodyError> {
    body.collect().await.map(http_body_util::Collected::to_bytes)
}

/// Upstream's `MaxRequestBodyBytes`.
pub(crate) const REQUEST_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Reads a body of at most [`REQUEST_BYTES_MAX`] bytes.
///
/// # Errors
/// 413 beyond the limit, 400 when the client stops sending.
pub(crate) async fn read(mut body: Body) -> Result<Bytes, Status> {
    let mut first: Option<Bytes> = None;
    let mut rest: Option<BytesMut> = None;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|e| Status::bad_request(format!("unable to read the body: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let have =
            rest.as_ref().map_or_else(|| first.as_ref().map_or(0, Bytes::len), BytesMut::len);
        if have + data.len() > REQUEST_BYTES_MAX {
            return Err(status::too_large(REQUEST_BYTES_MAX));
        }
        match (&mut rest, &first) {
            (Some(all), _) => all.extend_from_slice(&data),
            (None, None) => first = Some(data),
            (None, Some(head)) => {
                let mut all = BytesMut::with_capacity(head.len() + data.len());
                all.extend_from_slice(head);
                all.extend_from_slice(&data);
                rest = Some(all);
            }
        }
    }
    Ok(rest.map(BytesMut::freeze).or(first).unwrap_or_default())
}
