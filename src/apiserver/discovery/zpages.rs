//! Serves `/statusz` and `/flagz` of the API server.

use api::zpages::{Page, PageContent, PageRequest};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, WARNING};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::request::body::{self, Body};
use crate::request::{Query, negotiate};

/// The name of the API server on its pages.
const COMPONENT: &str = "apiserver";

/// The page with this content in the form that the client accepts.
pub(crate) fn respond(
    content: PageContent<'_>,
    headers: &HeaderMap,
    query: &Query,
) -> Response<Body> {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let pretty = negotiate::wants_pretty(headers, query);
    let request = PageRequest { accept, pretty, random: base::clock::random_u64() };
    let Page { code, content_type, warning, body } = api::zpages::page(COMPONENT, content, request);
    let mut response = Response::new(body::full(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    for (name, value) in [(CONTENT_TYPE, Some(content_type)), (WARNING, warning)] {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
