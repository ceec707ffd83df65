//! Recovery from a panic while a request is answered.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use http::{Response, StatusCode};

use super::exchange::{Exchange, Next};
use crate::audit;
use crate::request::body::Body;
use crate::response::status;

/// Answers 500 with upstream's text when the rest of the chain panics (upstream's
/// `WithPanicRecovery`).
pub(crate) async fn recover(exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let server = Arc::clone(&exchange.server);
    let outcome = AssertUnwindSafe(next.run(exchange)).catch_unwind().await;
    outcome.unwrap_or_else(|panic| {
        tracing::error!("a request panicked");
        audit::with(|trail| trail.panicked(&text_of(&*panic)));
        server.metrics.panicked();
        let text = "This request caused apiserver to panic. Look in the logs for details.";
        status::text(StatusCode::INTERNAL_SERVER_ERROR, text)
    })
}

/// The message of a panic.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
