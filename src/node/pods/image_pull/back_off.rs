//! The back-off between failed pulls of an image.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Back-off between failed pulls of an image, as between restarts of failing containers.
const BACKOFF_INITIAL: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// How long the reason of a failed pull is shown before that of the back-off. The kubelet shows it
/// until the next sync of the pod.
const FAILURE_SHOWN: Duration = Duration::from_secs(1);

/// Failed pulls of one pod, by image name.
#[derive(Debug, Default)]
pub(crate) struct PullState {
    failed: HashMap<String, PullFailure>,
}

#[derive(Debug)]
struct PullFailure {
    delay: Duration,
    at: Instant,
    /// Reason and message of the failure, which the back-off shows.
    message: String,
    /// A container waits for this image in the current round of starts.
    waiting: bool,
    /// The back-off was shown since the pull failed.
    backing_off: bool,
}

impl PullState {
    /// Begins a round of starts: an image that no start of it needs has no next try.
    pub(crate) fn begin_round(&mut self) {
        self.failed.values_mut().for_each(|f| f.waiting = false);
    }

    /// When a container that waits for an image is due: to show the back-off, or to pull.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        let waiting = self.failed.values().filter(|f| f.waiting);
        waiting.map(|f| f.at + if f.backing_off { f.delay } else { FAILURE_SHOWN }).min()
    }

    /// Returns the message of the failure if a pull of `name` is in back-off.
    pub(super) fn back_off(&mut self, name: &str, now: Instant) -> Option<&str> {
        let failure = self.failed.get_mut(name)?;
        if now.saturating_duration_since(failure.at) >= failure.delay {
            return None;
        }
        // Another container with the image in the same round keeps the failure's reason.
        failure.backing_off |= !failure.waiting;
        failure.waiting = true;
        Some(&failure.message)
    }

    pub(super) fn record_failure(&mut self, name: &str, message: String, now: Instant) {
        let before = self.failed.get(name).map(|f| (f.delay * 2).min(BACKOFF_MAX));
        let failure = PullFailure {
            delay: before.unwrap_or(BACKOFF_INITIAL),
            at: now,
            message,
            waiting: true,
            backing_off: false,
        };
        self.failed.insert(name.to_owned(), failure);
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.failed.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_pull_is_shown_then_its_back_off_then_the_next_pull() {
        let (mut state, start) = (PullState::default(), base::clock::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(state.back_off("a", start), None);
        state.record_failure("a", "ErrImagePull: no".to_owned(), start);
        assert_eq!(state.next_try(), Some(start + FAILURE_SHOWN));
        assert_eq!(state.back_off("a", start), Some("ErrImagePull: no"), "a second container");
        assert_eq!(state.next_try(), Some(start + FAILURE_SHOWN));
        state.begin_round();
        assert_eq!(state.back_off("a", after(1)), Some("ErrImagePull: no"));
        assert_eq!(state.next_try(), Some(after(10)));
        state.begin_round();
        assert_eq!(state.back_off("a", after(10)), None, "it is pulled again");
        state.record_failure("a", "ErrImagePull: no".to_owned(), after(11));
        state.begin_round();
        assert_eq!(state.back_off("a", after(30)), Some("ErrImagePull: no"));
        assert_eq!(state.next_try(), Some(after(31)), "the delay doubles");
    }

    #[test]
    fn an_image_that_no_container_waits_for_has_no_next_try() {
        let (mut state, start) = (PullState::default(), base::clock::now());
        // The image of a container was changed while its pull was in back-off.
        state.record_failure("old", String::new(), start);
        state.begin_round();
        assert_eq!(state.next_try(), None);
        // The image was imported.
        state.record_failure("new", String::new(), start);
        state.forget("new");
        assert_eq!(state.next_try(), None);
    }
}
