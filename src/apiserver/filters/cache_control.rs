//! `Cache-Control` of every response.

use http::{HeaderValue, Response, header};

use super::exchange::{Exchange, Next};
use crate::request::body::Body;

/// Forbids caches to share a response unless the handler allows it (upstream's `WithCacheControl`).
pub(crate) async fn forbid_shared_caches(exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let mut response = next.run(exchange).await;
    let private = HeaderValue::from_static("no-cache, private");
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(private);
    response
}
