//! Unstages volumes that no pod uses any more, and tries again until that succeeds or a pod uses
//! them again. No pod waits for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Kind, Tasks};
use tokio::sync::Notify;

use super::{block, mount};
use crate::csi::Csi;
use crate::csi::error::CsiError;
use crate::csi::record::{self, StagedVolume};

/// First delay between two attempts (`initialDurationBeforeRetry`).
const DELAY: Duration = Duration::from_millis(500);
/// Longest delay between two attempts (`maxDurationBeforeRetry`).
const DELAY_MAX: Duration = Duration::from_secs(122);

/// Requests that a volume is unstaged. Until it is, it stays in `status.volumesInUse` if it is in
/// use.
pub(in crate::volumes) fn request(
    csi: &Arc<Csi>,
    tasks: &Tasks,
    volume: StagedVolume,
    is_in_use: bool,
) {
    let Some(wake) = csi.unstaging.request(&volume, is_in_use) else { return };
    let unstage = unstage(Arc::clone(csi), tasks.clone(), volume, wake);
    tasks.spawn(Kind::Request, "csi-unstage", unstage);
}

/// Unstages a volume; ends when it is unstaged, when a pod uses it, or at shutdown.
async fn unstage(
    csi: Arc<Csi>,
    tasks: Tasks,
    volume: StagedVolume,
    wake: Arc<Notify>,
) -> Result<(), Infallible> {
    let (shutdown, problems) = (tasks.shutdown(), tasks.problems());
    let key: Arc<str> = format!("unstage/{}", volume.unique_name()).into();
    let mut backoff = Backoff::new(DELAY, DELAY_MAX);
    loop {
        if csi.unstaging.begin_attempt(&volume) {
            backoff.reset();
        }
        match csi.unstage_unless_used(&volume).await {
            Ok(()) => {
                if csi.unstaging.end(&volume) {
                    break;
                }
            }
            Err(error) => {
                let name = volume.unique_name();
                tracing::debug!(volume = name, %error, "cannot unstage CSI volume");
                let what = format!("the volume {name} is not unstaged: {error}");
                let fix = "check that the CSI driver runs on this node; kube-lite retries";
                problems.put(&key, what, fix);
                if error.is_not_registered() {
                    csi.wait(&key, Some(&wake));
                }
            }
        }
        // A request ends the delay.
        if !backoff.wait_or(shutdown, wake.notified()).await {
            return Ok(());
        }
    }
    problems.clear(&key);
    csi.stop_following(&key);
    csi.status_changed.notify_one();
    Ok(())
}

impl Csi {
    /// Unstages a volume. A pod that begins to use it meanwhile waits for the attempt, and stages
    /// the volume again whatever its outcome.
    async fn unstage_unless_used(&self, volume: &StagedVolume) -> Result<(), CsiError> {
        let _volume = self.locks.lock(volume.unique_name()).await;
        let (root, of) = (self.root.clone(), volume.clone());
        if base::tasks::blocking(move || record::is_used(&root, &of)).await?? {
            return Ok(());
        }
        match &volume.device {
            Some(spec_name) => block::unstage(self, volume, spec_name).await,
            None => mount::unstage(self, volume).await,
        }
    }
}
