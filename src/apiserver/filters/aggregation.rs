//! Aggregation: proxies requests for the group versions that other API servers serve.

use http::Response;

use super::exchange::{Exchange, Next};
use crate::audit;
use crate::request::body::Body;

/// Proxies the request to the API server that an APIService names for its path (upstream's
/// kube-aggregator).
pub(crate) async fn delegate(mut exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let Some(remote) = exchange.server.aggregator.of_path(&exchange.info.path) else {
        return next.run(exchange).await;
    };
    // Releases the seat of a watch: this server cannot observe when the remote watch has begun.
    exchange.watching = None;
    let Exchange { user, request, .. } = *exchange;
    // `marked` passes the audit id on to the remote server.
    remote.serve(&user, audit::marked(request)).await
}
