//! Certificates are renewed while a process runs: nothing has to be restarted, once a year, after a jump of the clock, or
//! when the machine has other addresses.

use std::time::Duration;

use async_trait::async_trait;
use base::pki;
use base::{Backoff, Kind, Tasks};

/// Time between two looks at the clock; a machine without a clock of its own gets the time some while after its start.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// First and longest time until a renewal that failed (a full disk, no server) is tried again.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60 * 60));

/// Certificates that end some day.
#[async_trait]
pub(crate) trait Renew: Send + Sync {
    /// Whether something is to be renewed at `now`, in seconds since the epoch. Costs nothing.
    fn is_due(&self, now: u64) -> bool;

    /// Resolves while something else than time asks for a renewal.
    async fn asked(&self);

    /// Renews what is due or asked for.
    ///
    /// # Errors
    /// Why not; what is there goes on serving.
    async fn renew(&self, now: u64) -> Result<(), String>;
}

/// Starts the task.
pub(crate) fn start(certificates: impl Renew + 'static, tasks: &Tasks) {
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "certificates", async move {
        loop {
            let asked = tokio::select! {
                () = base::clock::sleep(LOOK_INTERVAL) => false,
                () = certificates.asked() => true,
                () = shutdown.requested() => return Ok::<(), std::convert::Infallible>(()),
            };
            if !asked && !certificates.is_due(pki::now()) {
                continue;
            }
            let mut backoff = Backoff::new(RETRY.0, RETRY.1);
            loop {
                let renewed = tokio::select! {
                    renewed = certificates.renew(pki::now()) => renewed,
                    () = shutdown.requested() => return Ok(()),
                };
                let Err(error) = renewed else { break };
                tracing::error!(error, "certificates are not renewed, tried again later");
                if !backoff.wait(&shutdown).await {
                    return Ok(());
                }
            }
            tracing::info!("certificates renewed, new connections use them");
        }
    });
}

/// The addresses of the node as they are now.
pub(crate) type Addresses = tokio::sync::watch::Receiver<Vec<std::net::IpAddr>>;

/// Resolves while they are others than `known`; never, once nobody tells of them any more.
pub(crate) async fn moved(addresses: &Addresses, known: &[std::net::IpAddr]) {
    let mut addresses = addresses.clone();
    if addresses.wait_for(|now| now != known).await.is_err() {
        std::future::pending().await
    }
}
