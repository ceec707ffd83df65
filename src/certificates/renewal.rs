//! Renews certificates while the process runs: before they expire, after the clock was set, and
//! when the addresses of the machine change.

use std::time::Duration;

use async_trait::async_trait;
use base::pki;
use base::{Backoff, Kind, Tasks};

/// Interval of the check for expiring certificates. A machine without a hardware clock sets its
/// time some while after the start.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// First and longest delay before a failed renewal (full disk, no server) is repeated.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60 * 60));

/// Why certificates were not renewed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct RenewalError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl RenewalError {
    /// A failed renewal, with its cause.
    pub(crate) fn new(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(source.into())
    }
}

/// Certificates that expire.
#[async_trait]
pub(crate) trait Renew: Send + Sync {
    /// Whether a renewal is due at `now`, in seconds since the epoch. Called often, so it must be
    /// cheap.
    fn is_due(&self, now: u64) -> bool;

    /// Resolves once a renewal is needed before the certificates expire.
    async fn renewal_requested(&self);

    /// Renews certificates that are due or requested.
    ///
    /// # Errors
    /// Why not; the existing certificates stay in use.
    async fn renew(&self, now: u64) -> Result<(), RenewalError>;
}

/// Starts the renewal task.
pub(crate) fn start(certificates: impl Renew + 'static, tasks: &Tasks) {
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "certificates", async move {
        loop {
            let is_requested = tokio::select! {
                () = base::clock::sleep(CHECK_INTERVAL) => false,
                () = certificates.renewal_requested() => true,
                () = shutdown.requested() => return Ok::<(), std::convert::Infallible>(()),
            };
            if !is_requested && !certificates.is_due(pki::now()) {
                continue;
            }
            let mut backoff = Backoff::new(RETRY.0, RETRY.1);
            loop {
                let renewed = tokio::select! {
                    renewed = certificates.renew(pki::now()) => renewed,
                    () = shutdown.requested() => return Ok(()),
                };
                let Err(error) = renewed else { break };
                tracing::error!(%error, "certificates: cannot renew, retrying later");
                if !backoff.wait(&shutdown).await {
                    return Ok(());
                }
            }
            tracing::info!("certificates: renewed, new connections use them");
        }
    });
}

/// The current addresses of the node.
pub(crate) type Addresses = tokio::sync::watch::Receiver<Vec<std::net::IpAddr>>;

/// Resolves once the addresses differ from `known`; never if their sender is dropped.
pub(crate) async fn addresses_changed(addresses: &Addresses, known: &[std::net::IpAddr]) {
    let mut addresses = addresses.clone();
    if addresses.wait_for(|now| now != known).await.is_err() {
        std::future::pending().await
    }
}
