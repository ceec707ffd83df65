//! Responses of the kubelet API.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::BoxBody};

pub(crate) type Body = BoxBody<Bytes, std::io::Error>;

/// A response with a complete body.
pub(crate) fn response(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static(content_type));
    response
}

/// A plain-text response, as the kubelet's errors are.
pub(crate) fn text_response(status: StatusCode, message: impl Into<String>) -> Response<Body> {
    response(status, "text/plain; charset=utf-8", message.into())
}
