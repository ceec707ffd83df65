//! Connections that are passed on as they are.

use std::sync::Arc;
use std::time::Duration;

use base::Tasks;

use super::stream::Stream;
use crate::backend::{ActiveRequest, Split};

/// Endpoints that are tried for one connection.
const ATTEMPTS_MAX: usize = 3;
/// Time for a connection to an endpoint.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a connection cannot be passed on.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoEndpoint {
    #[error("no route is attached to the listener")]
    NoRoute,
    #[error("the backend does not exist or may not be used")]
    NoBackend,
    #[error("no endpoint of {0} accepts connections")]
    NotReady(Arc<str>),
}

/// A connection to an endpoint of the next backend.
async fn connect(split: Option<&Split>) -> Result<(Stream, ActiveRequest), NoEndpoint> {
    let chosen = split.ok_or(NoEndpoint::NoRoute)?.choose().ok_or(NoEndpoint::NoBackend)?;
    let backend = chosen.backend.as_ref().ok_or(NoEndpoint::NoBackend)?;
    let mut tried = Vec::new();
    while tried.len() < ATTEMPTS_MAX {
        let Some(endpoint) = backend.choose(&tried) else { break };
        let opening = endpoint.pool.open(endpoint.address);
        match tokio::time::timeout(CONNECT_TIMEOUT, opening).await {
            Ok(Ok(stream)) => {
                endpoint.works();
                return Ok((stream, endpoint.begin()));
            }
            Ok(Err(error)) => {
                tracing::debug!(address = %endpoint.address, %error, "gateway: cannot connect");
            }
            Err(_) => tracing::debug!(address = %endpoint.address, "gateway: connect timed out"),
        }
        endpoint.failed();
        tried.push(endpoint.address);
    }
    Err(NoEndpoint::NotReady(Arc::clone(&backend.name)))
}

/// Copies bytes between a client and an endpoint until both have closed or the listener stops.
pub(super) async fn forward(
    mut client: Stream,
    split: Option<&Split>,
    tasks: &Tasks,
) -> Result<(), NoEndpoint> {
    let (mut endpoint, active) = connect(split).await?;
    let copying = tokio::io::copy_bidirectional(&mut client, &mut endpoint);
    tokio::select! {
        // The end of either side ends both.
        _ = copying => {}
        () = tasks.shutdown().requested() => {}
    }
    drop(active);
    Ok(())
}
