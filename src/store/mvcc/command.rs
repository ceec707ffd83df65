//! Commands: everything that changes the key space.

use bytes::Bytes;

use crate::contract::{Alarm, Op, Profile, Txn};

/// One change of the key space.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    /// Compare and write.
    Txn(Txn),
    /// Drop versions superseded before a revision.
    Compact(i64),
    /// Grant a lease.
    LeaseGrant {
        /// Id.
        id: i64,
        /// Seconds.
        ttl: i64,
    },
    /// End a lease and delete its keys.
    LeaseRevoke {
        /// Id.
        id: i64,
    },
    /// Go on at this revision: those up to it may have been handed out and lost.
    Raise {
        /// New revision.
        revision: i64,
    },
    /// Raise or end an alarm.
    Alarm {
        /// Member it is raised for.
        member: u64,
        /// Alarm.
        alarm: Alarm,
        /// Raised, or ended.
        raised: bool,
    },
    /// What a member says of itself; nothing at all forgets it.
    SetProfile {
        /// Id.
        member: u64,
        /// What it says.
        profile: Profile,
    },
}

impl Command {
    /// Tells each key and value that it may write, whatever its comparisons say.
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

    /// Whether it can only make the key space smaller; such are accepted when space is short.
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
            // A raised or ended alarm is what a full store has to be told.
            Self::Alarm { .. } => true,
            Self::LeaseGrant { .. } | Self::SetProfile { .. } => false,
        }
    }
}
