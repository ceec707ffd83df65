//! Certificates are renewed while a process runs: nothing has to be restarted, once a year or after a jump of the clock.

use std::time::Duration;

use async_trait::async_trait;
use base::pki;
use base::{Kind, Tasks};

/// Time between two looks at the clock; a machine without a clock of its own gets the time some while after its start.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Time until a renewal that failed (a full disk, no server) is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Certificates that end some day.
#[async_trait]
pub(crate) trait Renew: Send + Sync {
    /// Whether something is to be renewed at `now`, in seconds since the epoch. Costs nothing.
    fn is_due(&self, now: u64) -> bool;

    /// Renews it.
    ///
    /// # Errors
    /// Why not; what is there goes on serving.
    async fn renew(&self, now: u64) -> Result<(), String>;
}

/// Starts the task.
pub(crate) fn start(certificates: impl Renew + 'static, tasks: &Tasks) {
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "certificates", async move {
        let mut wait = LOOK_INTERVAL;
        loop {
            tokio::select! {
                () = base::clock::sleep(wait) => {}
                () = shutdown.requested() => return Ok::<(), std::convert::Infallible>(()),
            }
            wait = LOOK_INTERVAL;
            let now = pki::now();
            if !certificates.is_due(now) {
                continue;
            }
            match certificates.renew(now).await {
                Ok(()) => tracing::info!("certificates renewed, new connections use them"),
                Err(error) => {
                    tracing::error!(error, "certificates are not renewed, tried again in an hour");
                    wait = RETRY_INTERVAL;
                }
            }
        }
    });
}
