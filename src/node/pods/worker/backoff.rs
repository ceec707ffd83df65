//! The delay before an exited container is restarted: 10 s, doubled up to 5 minutes, reset after 10
//! minutes of running.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::pods::observed::{ObservedContainer, ObservedPod, ObservedState};
use crate::pods::pod::Pod;

/// How long after its back-off a container is retried, so that rounding cannot prolong the
/// back-off.
pub(super) const RETRY_MARGIN: Duration = Duration::from_millis(1);
/// The kubelet's `MaxCrashLoopBackOff` and `initialNodeBackoff`.
const INITIAL: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_secs(300);

/// Tolerance for small corrections of the clock.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct RestartDelay {
    delay: Duration,
    /// Wall-clock time of the last start.
    updated: Duration,
}

/// Delays by container name and hash.
#[derive(Debug, Default)]
pub(super) struct CrashBackoff(HashMap<String, RestartDelay>);

fn key(container: &ObservedContainer) -> String {
    format!("{} {}", container.name, container.hash)
}

/// Returns the exit time. A time in the future was recorded before the clock was set back, and
/// counts as long past.
fn exit_time(container: &ObservedContainer, now: Duration) -> Duration {
    let end = Duration::from_nanos(u64::try_from(container.finished_at).unwrap_or_default());
    if end > now + CLOCK_TOLERANCE { Duration::ZERO } else { end }
}

impl CrashBackoff {
    /// Returns delay and rest of the delay of an exited container; `None` if it may start, which is
    /// then recorded as a start.
    pub(super) fn check(&mut self, container: &ObservedContainer) -> Option<(Duration, Duration)> {
        let now = base::clock::unix_time();
        let end = exit_time(container, now);
        let fresh = RestartDelay { delay: INITIAL, updated: now };
        match self.0.get_mut(&key(container)) {
            // It ran for long enough: reset the delay.
            Some(entry) if end.saturating_sub(entry.updated) > MAX * 2 => *entry = fresh,
            Some(entry) => {
                let left = (end + entry.delay).saturating_sub(now);
                if !left.is_zero() {
                    return Some((entry.delay, left));
                }
                *entry = RestartDelay { delay: (entry.delay * 2).min(MAX), updated: now };
            }
            None => {
                self.0.insert(key(container), fresh);
            }
        }
        None
    }

    /// Returns when the next of the members `start`, which are in back-off, may start. Other exited
    /// containers wait for something else. An init container that succeeded is among them if a new
    /// sandbox runs it again.
    pub(super) fn next_try(
        &self,
        pod: &Pod,
        observed: &ObservedPod,
        start: &[usize],
    ) -> Option<Instant> {
        let now = base::clock::unix_time();
        start
            .iter()
            .filter_map(|index| pod.containers.get(*index))
            .filter_map(|member| observed.container(member.name()))
            .filter(|container| container.state == ObservedState::Exited)
            .filter_map(|c| {
                Some((exit_time(c, now) + self.0.get(&key(c))?.delay).saturating_sub(now))
            })
            .map(|left| base::clock::now() + left + RETRY_MARGIN)
            .min()
    }
}
