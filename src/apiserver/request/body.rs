//! The boxed body type of requests and responses, and size-limited reading.

use std::pin::Pin;
use std::task::{self, Poll};

use api::Status;
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

/// The error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request or response body.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Bytes as a body.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// An empty body.
pub fn empty() -> Body {
    full(Bytes::new())
}

/// Bytes decompressed per frame.
const CHUNK_BYTES: usize = 32 * 1024;

/// A body that decompresses `gzip` to `length` bytes frame by frame while it is sent, so that a
/// slow client does not hold a decompressed copy.
pub(crate) fn expanding(gzip: Bytes, length: usize) -> Body {
    let decoder = flate2::bufread::GzDecoder::new(std::io::Cursor::new(gzip));
    Expanding { decoder, left: length }.boxed_unsync()
}

struct Expanding {
    decoder: flate2::bufread::GzDecoder<std::io::Cursor<Bytes>>,
    left: usize,
}

impl http_body::Body for Expanding {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let mut chunk = BytesMut::zeroed(CHUNK_BYTES.min(self.left));
        let read = std::io::Read::read_exact(&mut self.decoder, &mut chunk);
        self.left -= chunk.len();
        Poll::Ready(Some(read.map(|()| Frame::data(chunk.freeze())).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.left as u64)
    }
}

/// A body that holds `guard` until the body ends or is dropped.
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

/// 413 for a body above the limit.
fn too_large(limit: usize) -> Status {
    Status::failure(
        413,
        "RequestEntityTooLarge",
        format!("Request entity too large: limit is {limit}"),
    )
}

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
            return Err(too_large(REQUEST_BYTES_MAX));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn compressed_bytes_are_decompressed_chunk_by_chunk() {
        let plain: Vec<u8> = (0..100_000_u32).flat_map(u32::to_be_bytes).collect();
        let gzip = Bytes::from(crate::request::negotiate::compress(&plain).unwrap());
        let mut body = expanding(gzip.clone(), plain.len());
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(400_000));
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, plain[..CHUNK_BYTES]);
        assert_eq!(collect(body).await.unwrap(), plain[CHUNK_BYTES..]);
        // Truncated input is an error.
        assert!(collect(expanding(gzip.slice(..gzip.len() / 2), plain.len())).await.is_err());
    }
}
