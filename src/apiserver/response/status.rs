//! Converts errors of the store to a Status, and a Status to a response.

use std::sync::Arc;

use api::Status;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use store::StoreError;

use crate::Body;
use crate::request::body;

/// Upstream's `OptimisticLockErrorMsg`.
pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// A `Failure` with an empty reason and no details, as upstream reports errors without a Status.
pub(crate) fn unmapped(code: u16, message: impl Into<String>) -> Status {
    Status::failure(code, "", message)
}

/// 404 for a path under a served group that is not a resource.
pub(crate) fn no_resource() -> Status {
    let mut status =
        Status::failure(404, "NotFound", "the server could not find the requested resource");
    status.details = Some(api::status::Details::default());
    status
}

/// 405 for a method that a path does not have.
pub(crate) fn no_method() -> Status {
    let mut status = Status::failure(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    );
    status.details = Some(api::status::Details::default());
    status
}

/// 501 for a known feature that this server does not implement.
pub(crate) fn not_implemented(what: &str) -> Status {
    Status::failure(501, "NotImplemented", format!("{what} is not available on this server"))
}

/// 504 when a resource version lies in the future.
pub(crate) fn too_large_resource_version(wanted: i64, current: i64) -> Status {
    let mut status = Status::failure(
        504,
        "Timeout",
        format!("Timeout: Too large resource version: {wanted}, current: {current}"),
    );
    let cause = api::status::Cause {
        reason: "ResourceVersionTooLarge".into(),
        message: "Too large resource version".into(),
        field: String::new(),
    };
    status.details = Some(api::status::Details {
        causes: vec![cause],
        retry_after_seconds: 1,
        ..Default::default()
    });
    status
}

/// 429 while the served form of a resource changes (upstream's cacher).
pub(crate) fn initializing() -> Status {
    let mut status = Status::failure(429, "TooManyRequests", "storage is (re)initializing");
    status.details = Some(api::status::Details { retry_after_seconds: 1, ..Default::default() });
    status
}

/// The Status of a store error, in the form in which upstream reports etcd's errors.
pub(crate) fn of_store(error: &StoreError) -> Status {
    match error {
        StoreError::Compacted { .. } => {
            Status::expired("The resourceVersion for the provided list is too old.")
        }
        StoreError::Future { requested, newest } => too_large_resource_version(*requested, *newest),
        StoreError::TooLarge { .. } => unmapped(500, "etcdserver: request is too large"),
        StoreError::Unavailable(_) | StoreError::Unknown(_) | StoreError::Overrun => {
            let mut status = Status::failure(500, "ServerTimeout", error.to_string());
            status.details =
                Some(api::status::Details { retry_after_seconds: 2, ..Default::default() });
            status
        }
        StoreError::NoSpace(_) => unmapped(500, error.to_string()),
        _ => Status::internal(&error.to_string()),
    }
}

/// The JSON of a Status.
pub(crate) fn json(status: &Status) -> Vec<u8> {
    serde_json::to_vec(status).unwrap_or_default()
}

/// The Status of a response as an extension, which the audit filter records.
#[derive(Debug, Clone)]
pub(crate) struct ResponseStatus(pub(crate) Arc<Status>);

/// A Status as JSON response.
pub(crate) fn response(status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = Response::new(body::full(json(status)));
    *response.status_mut() = code;
    response.extensions_mut().insert(ResponseStatus(Arc::new(status.clone())));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = status.details.as_ref().map(|d| d.retry_after_seconds).filter(|s| *s > 0)
        && let Ok(value) = HeaderValue::from_str(&seconds.to_string())
    {
        headers.insert(header::RETRY_AFTER, value);
    }
    response
}

/// Replaces the characters of HTML in a text, as upstream does in its error responses.
pub(crate) fn without_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A plain-text response.
pub(crate) fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(body::full(text.into()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A plain text response with the content type that Go's `net/http` detects.
pub(crate) fn plain(text: impl Into<Bytes>) -> Response<Body> {
    let mut response = self::text(StatusCode::OK, text);
    response.headers_mut().remove(header::X_CONTENT_TYPE_OPTIONS);
    response
}

/// `404 page not found`, as Go's mux answers.
pub(crate) fn page_not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}
