//! The delay before a container that ended starts again: 10 s, doubled up to 5 minutes, forgotten after 10 good minutes.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::pods::observed::{Container, Observed, State};
use crate::pods::pod::Pod;

/// How long after its back-off a container is tried: then it is over by any rounding.
pub(super) const TRY_AFTER: Duration = Duration::from_millis(1);
/// The kubelet's `MaxCrashLoopBackOff` and `initialNodeBackoff`.
const INITIAL: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_secs(300);

/// What small corrections of the clock may make of an end that is just seen.
const CLOCK_SLACK: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Entry {
    delay: Duration,
    /// Wall-clock time of the last start.
    updated: Duration,
}

/// Delays by container name and hash.
#[derive(Debug, Default)]
pub(super) struct CrashBackoff(HashMap<String, Entry>);

fn key(container: &Container) -> String {
    format!("{} {}", container.name, container.hash)
}

/// When it ended. An end in the future is of a clock that was set back since, and says nothing: it is long over.
fn ended(container: &Container, now: Duration) -> Duration {
    let end = Duration::from_nanos(u64::try_from(container.finished_at).unwrap_or_default());
    if end > now + CLOCK_SLACK { Duration::ZERO } else { end }
}

impl CrashBackoff {
    /// How much of the delay is left for a container that ended; `None` when it may start. A start is then assumed.
    pub(super) fn check(&mut self, container: &Container) -> Option<(Duration, Duration)> {
        let now = base::clock::unix_time();
        let end = ended(container, now);
        let fresh = Entry { delay: INITIAL, updated: now };
        match self.0.get_mut(&key(container)) {
            // It ran well for long: begin again.
            Some(entry) if end.saturating_sub(entry.updated) > MAX * 2 => *entry = fresh,
            Some(entry) => {
                let left = (end + entry.delay).saturating_sub(now);
                if !left.is_zero() {
                    return Some((entry.delay, left));
                }
                *entry = Entry { delay: (entry.delay * 2).min(MAX), updated: now };
            }
            None => {
                self.0.insert(key(container), fresh);
            }
        }
        None
    }

    /// When the next of the members `start` may start, which the plan starts and a back-off keeps. Others that ended wait
    /// for more than that. An init container that succeeded is among them when a new sandbox wants it once more.
    pub(super) fn next_try(
        &self,
        pod: &Pod,
        observed: &Observed,
        start: &[usize],
    ) -> Option<Instant> {
        let now = base::clock::unix_time();
        start
            .iter()
            .filter_map(|index| pod.members.get(*index))
            .filter_map(|member| observed.container(member.name()))
            .filter(|container| container.state == State::Exited)
            .filter_map(|c| Some((ended(c, now) + self.0.get(&key(c))?.delay).saturating_sub(now)))
            .map(|left| base::clock::now() + left + TRY_AFTER)
            .min()
    }
}
