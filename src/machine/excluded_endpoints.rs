//! While no server answers, the service proxy excludes pods of this node that are not ready.
//!
//! Otherwise the endpoint controllers do that. Without a server the endpoints stay as they were,
//! and a pod that fails meanwhile would receive requests until a server is back.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use base::{Kind, Tasks};
use node::NotReadyPods;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long servers must answer, or not answer, before the proxy switches: a restart of a server or
/// an agent changes no rules, and a server that is back has time to publish the endpoints.
const DELAY: Duration = Duration::from_secs(5);

/// Whether the node's own knowledge of ready pods applies.
#[derive(Debug)]
struct OfflineMode {
    is_active: bool,
    /// Since when servers answer in offline mode, or do not answer otherwise.
    contrary_since: Option<Instant>,
}

impl OfflineMode {
    /// Updates the mode with whether a server answers; the time of the next update, if one is
    /// pending.
    fn update(&mut self, answers: bool, now: Instant) -> Option<Instant> {
        if answers != self.is_active {
            self.contrary_since = None;
            return None;
        }
        let end = *self.contrary_since.get_or_insert(now) + DELAY;
        if now < end {
            return Some(end);
        }
        (self.is_active, self.contrary_since) = (!answers, None);
        None
    }
}

/// Follows pods and servers until shutdown, and sends the addresses to exclude to `left_out`.
pub(super) fn follow(
    unready: &NotReadyPods,
    mut answering: watch::Receiver<bool>,
    left_out: watch::Sender<BTreeSet<String>>,
    tasks: &Tasks,
) {
    let (mut unready, shutdown) = (unready.subscribe(), tasks.shutdown().clone());
    tasks.spawn(Kind::Critical, "excluded-endpoints", async move {
        let mut mode = OfflineMode { is_active: false, contrary_since: None };
        loop {
            let next_update = mode.update(*answering.borrow_and_update(), base::clock::now());
            let pods: BTreeSet<String> = match &*unready.borrow_and_update() {
                all if mode.is_active => all.keys().cloned().collect(),
                _ => BTreeSet::new(),
            };
            left_out.send_if_modified(|excluded| {
                let changed = *excluded != pods;
                *excluded = pods;
                changed
            });
            let timer = async {
                match next_update {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = answering.changed() => if changed.is_err() { break },
                changed = unready.changed() => if changed.is_err() { break },
                () = timer => {}
                () = shutdown.requested() => break,
            }
        }
        shutdown.requested().await;
        Ok::<(), Infallible>(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offline_mode_switches_only_after_the_delay() {
        let start = base::clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut mode = OfflineMode { is_active: false, contrary_since: None };
        // An agent starts, and a server restarts.
        assert_eq!(mode.update(false, at(0)), Some(at(5)));
        assert_eq!((mode.update(true, at(1)), mode.is_active), (None, false));
        assert_eq!(mode.update(false, at(100)), Some(at(105)));
        assert_eq!(mode.update(false, at(103)), Some(at(105)));
        assert_eq!((mode.update(false, at(105)), mode.is_active), (None, true));
        // The server is back, and needs some time to publish endpoints.
        assert_eq!((mode.update(true, at(200)), mode.is_active), (Some(at(205)), true));
        assert_eq!((mode.update(false, at(202)), mode.is_active), (None, true));
        assert_eq!(
            (mode.update(true, at(300)), mode.update(true, at(305)), mode.is_active),
            (Some(at(305)), None, false)
        );
    }
}
