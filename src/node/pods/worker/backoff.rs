//! The delay before an exited container is restarted: 10 s, doubled up to 5 minutes or a shorter
//! limit, reset after 10 minutes of running.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::pods::observed::{ObservedContainer, ObservedPod, ObservedState};
use crate::pods::pod::{Pod, PodContainer};

/// How long after its back-off a container is retried, so that rounding cannot prolong the
/// back-off.
pub(super) const RETRY_MARGIN: Duration = Duration::from_millis(1);
/// The first delay; `initialCrashLoopBackOff` of the kubelet.
const INITIAL: Duration = Duration::from_secs(10);
/// A container that ran for longer than this starts with the first delay again.
const RESET_AFTER: Duration = Duration::from_secs(600);

/// Tolerance for small corrections of the clock.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct RestartDelay {
    delay: Duration,
    /// Wall-clock time of the last start.
    updated: Duration,
}

/// Delays by container name and hash.
#[derive(Debug)]
pub(super) struct CrashBackoff {
    delays: HashMap<String, RestartDelay>,
    /// The longest delay.
    max: Duration,
}

/// A container whose image changes starts at once (`GetBackoffKey`).
fn key(name: &str, hash: &str) -> String {
    format!("{name} {hash}")
}

fn key_of(member: &PodContainer) -> String {
    key(member.name(), &member.hash())
}

/// Returns the exit time. A time in the future was recorded before the clock was set back, and
/// counts as long past.
fn exit_time(container: &ObservedContainer, now: Duration) -> Duration {
    let end = Duration::from_nanos(u64::try_from(container.finished_at).unwrap_or_default());
    if end > now + CLOCK_TOLERANCE { Duration::ZERO } else { end }
}

impl CrashBackoff {
    /// Delays of at most `max`, the first one included.
    pub(super) fn new(max: Duration) -> Self {
        Self { delays: HashMap::new(), max }
    }

    /// Returns delay and rest of the delay of an exited container that starts as `member`; `None`
    /// if it may start, which is then recorded as a start.
    pub(super) fn check(
        &mut self,
        member: &PodContainer,
        container: &ObservedContainer,
    ) -> Option<(Duration, Duration)> {
        self.check_key(key_of(member), container)
    }

    fn check_key(
        &mut self,
        key: String,
        container: &ObservedContainer,
    ) -> Option<(Duration, Duration)> {
        let now = base::clock::unix_time();
        let end = exit_time(container, now);
        let fresh = RestartDelay { delay: INITIAL.min(self.max), updated: now };
        match self.delays.get_mut(&key) {
            // It ran for long enough: reset the delay.
            Some(entry) if end.saturating_sub(entry.updated) > RESET_AFTER => *entry = fresh,
            Some(entry) => {
                let left = (end + entry.delay).saturating_sub(now);
                if !left.is_zero() {
                    return Some((entry.delay, left));
                }
                *entry = RestartDelay { delay: (entry.delay * 2).min(self.max), updated: now };
            }
            None => {
                self.delays.insert(key, fresh);
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
            .filter_map(|member| Some((member, observed.container(member.name())?)))
            .filter(|(_, container)| container.state == ObservedState::Exited)
            .filter_map(|(member, container)| {
                let delay = self.delays.get(&key_of(member))?.delay;
                Some((exit_time(container, now) + delay).saturating_sub(now))
            })
            .map(|left| base::clock::now() + left + RETRY_MARGIN)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::observed::tests::container as exited;

    /// The delays of a container that exits as soon as it has started.
    fn delays(max: u64, count: usize) -> Vec<u64> {
        let mut backoff = CrashBackoff::new(Duration::from_secs(max));
        let mut container = exited("a", ObservedState::Exited);
        let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap();
        let mut delays = Vec::new();
        for _ in 0..count {
            container.finished_at = 0;
            assert_eq!(backoff.check_key(key("a", "1"), &container), None, "it may start");
            container.finished_at = nanoseconds(base::clock::unix_time());
            delays.push(backoff.check_key(key("a", "1"), &container).unwrap().0.as_secs());
        }
        delays
    }

    #[test]
    fn the_delay_doubles_up_to_the_limit() {
        assert_eq!(delays(300, 7), [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(delays(30, 4), [10, 20, 30, 30]);
        assert_eq!(delays(1, 3), [1, 1, 1]);
    }

    #[test]
    fn ten_minutes_of_running_reset_the_delay() {
        let mut backoff = CrashBackoff::new(Duration::from_secs(300));
        let mut container = exited("a", ObservedState::Exited);
        container.finished_at = 0;
        for _ in 0..4 {
            assert_eq!(backoff.check_key(key("a", "1"), &container), None);
        }
        backoff.delays.values_mut().for_each(|entry| entry.updated -= Duration::from_secs(700));
        let exit = base::clock::unix_time() - Duration::from_secs(1);
        container.finished_at = i64::try_from(exit.as_nanos()).unwrap();
        assert_eq!(backoff.check_key(key("a", "1"), &container), None);
        assert_eq!(
            backoff.check_key(key("a", "1"), &container).unwrap().0,
            Duration::from_secs(10)
        );
    }

    #[test]
    fn a_container_that_changes_starts_at_once() {
        let mut backoff = CrashBackoff::new(Duration::from_secs(300));
        let mut container = exited("a", ObservedState::Exited);
        let exit = base::clock::unix_time();
        container.finished_at = i64::try_from(exit.as_nanos()).unwrap();
        assert_eq!(backoff.check_key(key("a", "1"), &container), None);
        assert!(backoff.check_key(key("a", "1"), &container).is_some());
        assert_eq!(backoff.check_key(key("a", "2"), &container), None);
    }
}
