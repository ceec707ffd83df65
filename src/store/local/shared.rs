//! The applied state of a store, with its watchers and the deadlines of its leases.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use tokio::sync::Notify;

use super::lease_deadlines::Deadlines;
use crate::contract::StoreError;
use crate::mvcc::{Command, Outcome, State};
use crate::watchers::Hub;

/// Maximum wait for the revocation of an expired lease, as etcd's request timeout.
const LEASE_END_WAIT: std::time::Duration = std::time::Duration::from_secs(7);

/// The applied state, its watchers and the deadlines of its leases.
#[derive(Debug, Default)]
pub(crate) struct SharedState {
    pub(crate) state: RwLock<State>,
    pub(super) hub: Mutex<Hub>,
    pub(super) deadlines: Mutex<Deadlines>,
    pub(super) lease_changed: Notify,
    /// Notified when a lease has ended, or when all leases got their full time again.
    pub(super) lease_ended: Notify,
    pub(super) counts: OperationCounters,
}

/// Counters outside of the state.
#[derive(Debug, Default)]
pub(super) struct OperationCounters {
    pub(super) ranges: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) granted: AtomicU64,
    pub(super) revoked: AtomicU64,
    pub(super) renewed: AtomicU64,
    pub(super) expired: AtomicU64,
}

impl SharedState {
    /// A key space that starts as `state`; its leases get their full time.
    pub(crate) fn new(state: State) -> Self {
        let deadlines = Mutex::new(Deadlines::of(&state));
        Self { state: RwLock::new(state), deadlines, ..Self::default() }
    }

    /// Applies commands in order and notifies the watchers before any response. `place` runs
    /// atomically with the commands, as seen by readers of the state.
    pub(crate) fn apply<'a>(
        &self,
        commands: impl Iterator<Item = &'a Command>,
        place: impl FnOnce(),
    ) -> Vec<Result<Outcome, StoreError>> {
        let mut events = Vec::new();
        let mut state = self.state.write();
        let mut outcomes = Vec::new();
        for command in commands {
            let outcome = state.apply(command, &mut events);
            if outcome.is_ok() {
                self.track_lease(command);
            }
            outcomes.push(outcome);
        }
        place();
        // Readers may continue while the watchers are served. The hub is locked first: otherwise a
        // reader could send progress for a revision whose events are not published yet.
        let mut hub = self.hub.lock();
        let state = RwLockWriteGuard::downgrade(state);
        self.counts.events.fetch_add(events.len() as u64, Relaxed);
        hub.publish(&events, state.revision());
        outcomes
    }

    /// Replaces the state atomically; the caller must end the watches.
    pub(crate) fn replace(&self, new: State, place: impl FnOnce()) {
        let mut state = self.state.write();
        *self.deadlines.lock() = Deadlines::of(&new);
        *state = new;
        place();
        drop(state);
        self.lease_changed.notify_one();
        self.lease_ended.notify_waiters();
    }

    fn track_lease(&self, command: &Command) {
        match command {
            Command::LeaseGrant { id, ttl } => {
                self.counts.granted.fetch_add(1, Relaxed);
                self.deadlines.lock().start(*id, *ttl, base::clock::now())
            }
            Command::LeaseRevoke { id } => {
                self.counts.revoked.fetch_add(1, Relaxed);
                self.deadlines.lock().stop(*id);
                self.lease_ended.notify_waiters();
            }
            Command::Txn(_)
            | Command::Compact(_)
            | Command::Raise { .. }
            | Command::Alarm { .. }
            | Command::SetProfile { .. } => return,
        }
        self.lease_changed.notify_one();
    }

    /// Renews a lease and returns its granted seconds. If the lease has expired, this waits for the
    /// pending revocation, as etcd does.
    ///
    /// # Errors
    /// [`StoreError::LeaseNotFound`]; [`StoreError::Unavailable`] if the revocation is not
    /// committed in time.
    pub(crate) async fn renew(&self, lease: i64) -> Result<i64, StoreError> {
        self.counts.renewed.fetch_add(1, Relaxed);
        let renewed = async {
            loop {
                let ended = self.lease_ended.notified();
                {
                    let (mut deadlines, now) = (self.deadlines.lock(), base::clock::now());
                    if !deadlines.has_run_out(lease, now) {
                        return deadlines.renew(lease, now).ok_or(StoreError::LeaseNotFound);
                    }
                }
                ended.await;
            }
        };
        tokio::time::timeout(LEASE_END_WAIT, renewed).await.unwrap_or_else(|_| {
            let text =
                "the lease has expired, and its revocation was not committed in time: try again";
            Err(StoreError::Unavailable(text.to_owned()))
        })
    }

    /// Granted and remaining seconds of a lease.
    pub(crate) fn remaining(&self, lease: i64) -> Option<(i64, i64)> {
        self.deadlines.lock().remaining(lease, base::clock::now())
    }

    /// Ends every watch with `error`.
    pub(crate) fn end_watches(&self, error: &StoreError) {
        self.hub.lock().end_all(error);
    }
}
