//! Revokes expired leases on the leader.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::tasks::Tasks;

use super::engine::Engine;
use super::lease_deadlines::Deadlines;
use super::shared::SharedState;
use crate::contract::StoreError;
use crate::mvcc::Command;

pub(super) async fn expire_leases<E: Engine>(
    shared: Arc<SharedState>,
    engine: Arc<E>,
    tasks: Tasks,
) -> Result<(), StoreError> {
    let mut backoff = base::Backoff::new(
        std::time::Duration::from_millis(100),
        std::time::Duration::from_secs(30),
    );
    let mut leads = engine.leads();
    let mut led = true;
    while !tasks.shutdown().is_requested() {
        let lead = leads.borrow_and_update().leads;
        if lead && !led {
            // Renewals are known to the previous leader alone: every lease gets its full time
            // again.
            let deadlines = Deadlines::of(&shared.state.read());
            *shared.deadlines.lock() = deadlines;
            shared.lease_ended.notify_waiters();
        }
        led = lead;
        if !lead {
            tokio::select! {
                biased;
                changed = leads.changed() => if changed.is_err() { return Ok(()) },
                () = tasks.shutdown().requested() => {}
            }
            continue;
        }
        let now = base::clock::now();
        let (expired, wait) = {
            let deadlines = shared.deadlines.lock();
            (deadlines.expired(now), deadlines.wait(now))
        };
        if let Some(id) = expired {
            match engine.submit_as_leader(Command::LeaseRevoke { id }).await {
                Ok(_) => {
                    shared.counts.expired.fetch_add(1, Relaxed);
                    backoff.reset();
                }
                Err(StoreError::LeaseNotFound) => shared.deadlines.lock().stop(id),
                Err(error @ StoreError::Stopped(_)) => {
                    return if tasks.shutdown().is_requested() { Ok(()) } else { Err(error) };
                }
                Err(error) => {
                    tracing::warn!(lease = id, %error, "cannot revoke an expired lease, retrying");
                    backoff.wait(tasks.shutdown()).await;
                }
            }
            continue;
        }
        let deadline = async {
            match wait {
                Some(wait) => base::clock::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = deadline => {}
            () = shared.lease_changed.notified() => {}
            changed = leads.changed() => if changed.is_err() { return Ok(()) },
            () = tasks.shutdown().requested() => {}
        }
    }
    Ok(())
}
