//! Deadlines of leases on the monotonic clock, outside of the replicated state.
//!
//! Deadlines are not logged: after a start every lease has its full time again, as in etcd after a
//! leader change.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::mvcc::State;

/// Maximum timer duration; longer leases are checked again then.
const MAX_WAIT: Duration = Duration::from_secs(86_400 * 365);

#[derive(Debug, Clone, Copy)]
struct Running {
    ttl: i64,
    /// End of the current period; `None` overflows the clock and never expires.
    deadline: Option<Instant>,
}

/// The deadlines of all leases.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    leases: HashMap<i64, Running>,
    order: BTreeSet<(Instant, i64)>,
}

impl Deadlines {
    /// Deadlines of a state's leases, each with its full time.
    pub(crate) fn of(state: &State) -> Self {
        let mut deadlines = Self::default();
        let now = base::clock::now();
        state.leases().for_each(|(id, ttl)| deadlines.start(id, ttl, now));
        deadlines
    }

    /// Starts or restarts the period of a lease.
    pub(crate) fn start(&mut self, id: i64, ttl: i64, now: Instant) {
        self.stop(id);
        let deadline = now.checked_add(Duration::from_secs(ttl.max(0).cast_unsigned()));
        if let Some(deadline) = deadline {
            self.order.insert((deadline, id));
        }
        self.leases.insert(id, Running { ttl, deadline });
    }

    /// Removes a lease.
    pub(crate) fn stop(&mut self, id: i64) {
        if let Some(Running { deadline: Some(deadline), .. }) = self.leases.remove(&id) {
            self.order.remove(&(deadline, id));
        }
    }

    /// Restarts the period of a lease; returns its granted seconds, or `None` if it is unknown.
    pub(crate) fn renew(&mut self, id: i64, now: Instant) -> Option<i64> {
        let ttl = self.leases.get(&id)?.ttl;
        self.start(id, ttl, now);
        Some(ttl)
    }

    /// Whether a lease is past its deadline.
    pub(crate) fn has_run_out(&self, id: i64, now: Instant) -> bool {
        let deadline = self.leases.get(&id).and_then(|lease| lease.deadline);
        deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Granted and remaining seconds of a lease, rounded down; `None` if it is unknown.
    pub(crate) fn remaining(&self, id: i64, now: Instant) -> Option<(i64, i64)> {
        let lease = self.leases.get(&id)?;
        let left = lease.deadline.map(|deadline| deadline.saturating_duration_since(now).as_secs());
        Some((lease.ttl, left.and_then(|left| i64::try_from(left).ok()).unwrap_or(lease.ttl)))
    }

    /// A lease past its deadline, if any.
    pub(crate) fn expired(&self, now: Instant) -> Option<i64> {
        self.order.first().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| *id)
    }

    /// Time until the next deadline.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        self.order
            .first()
            .map(|(deadline, _)| deadline.saturating_duration_since(now).min(MAX_WAIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::MAX_TTL;

    #[test]
    fn the_earliest_runs_out_first_and_renewing_starts_again() {
        let now = base::clock::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.wait(now), None);
        deadlines.start(1, 10, now);
        deadlines.start(2, 5, now);
        deadlines.start(3, MAX_TTL, now);
        assert_eq!(
            (deadlines.expired(after(4)), deadlines.wait(after(4))),
            (None, Some(Duration::from_secs(1)))
        );
        assert_eq!(deadlines.remaining(2, after(4)), Some((5, 1)));
        assert_eq!(deadlines.renew(2, after(4)), Some(5));
        assert_eq!((deadlines.expired(after(8)), deadlines.expired(after(9))), (None, Some(2)));
        let run_out = |seconds| deadlines.has_run_out(2, after(seconds));
        assert_eq!((run_out(8), run_out(9)), (false, true));
        deadlines.stop(2);
        assert_eq!((deadlines.expired(after(9)), deadlines.expired(after(10))), (None, Some(1)));
        assert_eq!((deadlines.renew(2, now), deadlines.has_run_out(2, after(9))), (None, false));
    }
}
