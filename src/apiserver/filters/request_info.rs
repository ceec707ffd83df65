//! Rejects requests whose URL cannot be parsed.

use api::Status;
use http::Response;

use super::exchange::{Exchange, Next};
use crate::request::body::Body;
use crate::response::status;

/// Rejects a URL that could not be parsed with 400 (upstream's `WithRequestInfo`).
pub(crate) async fn require(exchange: Box<Exchange>, next: Next) -> Response<Body> {
    match &exchange.invalid {
        Some(error) => status::response(&Status::bad_request(error.0.clone())),
        None => next.run(exchange).await,
    }
}
