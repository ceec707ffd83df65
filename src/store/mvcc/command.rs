//! Commands: everything that changes the key space.

use bytes::Bytes;

use crate::contract::{Alarm, Op, Profile, Txn};

/// A change of the key space.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    /// Runs a transaction.
    Txn(Txn),
    /// Drops versions superseded before a revision.
    Compact(i64),
    /// Grants a lease.
    LeaseGrant {
        /// Id.
        id: i64,
        /// Time to live in seconds.
        ttl: i64,
    },
    /// Revokes a lease and deletes its keys.
    LeaseRevoke {
        /// Id.
        id: i64,
    },
    /// Continues at this revision: revisions up to it may have been handed out and lost.
    Raise {
        /// New revision.
        revision: i64,
    },
    /// Raises or clears an alarm.
    Alarm {
        /// Member that the alarm belongs to.
        member: u64,
        /// Alarm.
        alarm: Alarm,
        /// Whether the alarm is raised.
        raised: bool,
    },
    /// Sets the profile of a member; an empty one removes it.
    SetProfile {
        /// Member id.
        member: u64,
        /// The new profile.
        profile: Profile,
    },
}

impl Command {
    /// Calls `tell` with each key and value that the command may write, regardless of its
    /// comparisons.
    pub(crate) fn each_put<'a>(&'a self, tell: &mut impl FnMut(&'a Bytes, &'a Bytes)) {
        fn of<'a>(txn: &'a Txn, tell: &mut dyn FnMut(&'a Bytes, &'a Bytes)) {
            for op in txn.success.iter().chain(&txn.failure) {
                match op {
                    Op::Put { key, value, .. } | Op::Update { key, value: Some(value), .. } => {
                        tell(key, value);
                    }
                    Op::Txn(txn) => of(txn, tell),
                    Op::Update { value: None, .. } | Op::Delete { .. } | Op::Range(_) => {}
                }
            }
        }
        if let Self::Txn(txn) = self {
            of(txn, tell);
        }
    }

    /// Whether the command can only shrink the key space; such commands are accepted when space is
    /// short.
    pub(crate) fn frees_space(&self) -> bool {
        fn frees(txn: &Txn) -> bool {
            txn.success.iter().chain(&txn.failure).all(|op| match op {
                Op::Range(_) | Op::Delete { .. } => true,
                Op::Put { .. } | Op::Update { .. } => false,
                Op::Txn(txn) => frees(txn),
            })
        }
        match self {
            Self::Txn(txn) => frees(txn),
            Self::Compact(_) | Self::LeaseRevoke { .. } | Self::Raise { .. } => true,
            // A full store must accept raised and cleared alarms.
            Self::Alarm { .. } => true,
            Self::LeaseGrant { .. } | Self::SetProfile { .. } => false,
        }
    }
}
