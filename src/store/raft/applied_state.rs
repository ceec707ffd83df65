//! The applied state of a member with its position in the log.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use parking_lot::Mutex;

use crate::local::shared::SharedState;
use crate::log::Applied;

/// The applied state with its place in the log. The place changes only while the state is locked for writing.
#[derive(Debug)]
pub(crate) struct AppliedState {
    pub(crate) shared: Arc<SharedState>,
    pub(crate) applied: Mutex<Applied>,
    me: u64,
    members: AtomicUsize,
    only_voter: AtomicBool,
}

impl AppliedState {
    /// `shared` after `applied`, at the member `me`.
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

    /// Members after the applied entries.
    pub(crate) fn members(&self) -> usize {
        self.members.load(Relaxed)
    }

    /// Whether this member alone decides, after the applied entries: others decide with it only after it has applied that.
    pub(crate) fn is_only_voter(&self) -> bool {
        self.only_voter.load(Relaxed)
    }

    /// Moves on; call it while the state is locked for writing.
    pub(crate) fn set(&self, applied: Applied) {
        let only = applied.membership.voter_ids().eq([self.me]);
        self.only_voter.store(only, Relaxed);
        self.members.store(applied.membership.nodes().count(), Relaxed);
        *self.applied.lock() = applied;
    }
}
