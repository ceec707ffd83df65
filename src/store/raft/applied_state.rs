//! The applied state of a member with its position in the log.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use parking_lot::Mutex;

use crate::local::shared::SharedState;
use crate::log::Applied;

/// The applied state with its position in the log. The position changes only while the state is
/// locked for writing.
#[derive(Debug)]
pub(crate) struct AppliedState {
    pub(crate) shared: Arc<SharedState>,
    pub(crate) applied: Mutex<Applied>,
    me: u64,
    members: AtomicUsize,
    only_voter: AtomicBool,
}

impl AppliedState {
    /// The state `shared` of the member `me` after `applied`.
    pub(crate) fn new(me: u64, shared: Arc<SharedState>, applied: Applied) -> Self {
        let this = Self {
            shared,
            applied: Mutex::default(),
            me,
            members: AtomicUsize::new(0),
            only_voter: AtomicBool::new(false),
        };
        this.set(applied);
        this
    }

    /// Number of members after the applied entries.
    pub(crate) fn members(&self) -> usize {
        self.members.load(Relaxed)
    }

    /// Whether this member is the only voter after the applied entries. Other voters decide only
    /// after this member has applied the entry that adds them.
    pub(crate) fn is_only_voter(&self) -> bool {
        self.only_voter.load(Relaxed)
    }

    /// Advances the position; the caller must hold the write lock of the state.
    pub(crate) fn set(&self, applied: Applied) {
        let only = applied.membership.voter_ids().eq([self.me]);
        self.only_voter.store(only, Relaxed);
        self.members.store(applied.membership.nodes().count(), Relaxed);
        *self.applied.lock() = applied;
    }
}
