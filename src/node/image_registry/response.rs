//! Responses of the registry.

use std::pin::Pin;

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::BoxBody};
use parking_lot::Mutex;

use super::request::ByteRange;

/// A body; an error ends the connection, so that the client sees incomplete content.
pub(crate) type Body = BoxBody<Bytes, std::io::Error>;

/// Codes of errors (distribution-spec, "Error Codes").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorCode {
    ManifestUnknown,
    BlobUnknown,
    NameInvalid,
    Unsupported,
}

impl ErrorCode {
    fn name(self) -> &'static str {
        match self {
            Self::ManifestUnknown => "MANIFEST_UNKNOWN",
            Self::BlobUnknown => "BLOB_UNKNOWN",
            Self::NameInvalid => "NAME_INVALID",
            Self::Unsupported => "UNSUPPORTED",
        }
    }
}

pub(super) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

pub(super) fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

/// A body that arrives in parts.
pub(super) fn stream(
    parts: impl Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static,
) -> Body {
    // The body must be `Sync`, which a mutex makes of any stream that is read by one task.
    BodyExt::boxed(StreamBody::new(SyncStream(Mutex::new(Box::pin(parts.map_ok(Frame::data))))))
}

type Frames = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send>>;

/// A stream that can be shared, though only its owner reads it.
struct SyncStream(Mutex<Frames>);

impl Stream for SyncStream {
    type Item = Result<Frame<Bytes>, std::io::Error>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.get_mut().as_mut().poll_next(context)
    }
}

/// An error as registries report it.
pub(super) fn error(status: StatusCode, code: ErrorCode, message: &str) -> Response<Body> {
    let text = serde_json::json!({"errors": [{"code": code.name(), "message": message}]});
    let mut response = Response::new(full(text.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// A redirect to a URL, with the same method.
pub(super) fn redirect(url: &str) -> Response<Body> {
    let Ok(location) = HeaderValue::from_str(url) else {
        return error(StatusCode::NOT_FOUND, ErrorCode::NameInvalid, "not a name");
    };
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    response.headers_mut().insert(header::LOCATION, location);
    response
}

/// A manifest or blob.
pub(super) struct Content<'a> {
    pub(super) digest: &'a str,
    pub(super) media_type: &'a str,
    /// Size of the whole.
    pub(super) size: u64,
    /// The part in the body, if it is not the whole.
    pub(super) part: Option<ByteRange>,
}

/// The answer with content; `body` is empty for HEAD.
pub(super) fn found(content: &Content<'_>, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let mut put = |name: header::HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    };
    put(header::CONTENT_TYPE, content.media_type);
    put(header::HeaderName::from_static("docker-content-digest"), content.digest);
    put(header::ACCEPT_RANGES, "bytes");
    match content.part {
        None => put(header::CONTENT_LENGTH, &content.size.to_string()),
        Some(ByteRange { start, end }) => {
            put(header::CONTENT_LENGTH, &(end - start + 1).to_string());
            put(header::CONTENT_RANGE, &format!("bytes {start}-{end}/{}", content.size));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
    }
    response
}
