//! Replicated data besides the keys: alarms and profiles of members. They have no revisions.

use std::collections::{BTreeMap, BTreeSet};

use super::Command;
use crate::contract::{Alarm, Op, Profile, StoreError, Txn};

/// etcd's estimate of the overhead of a key (`kvOverhead`).
const KEY_OVERHEAD: usize = 256;

/// etcd's estimate of the size of a lease (`leaseOverhead`).
pub(crate) const LEASE_OVERHEAD: usize = 64;

/// Alarms and profiles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClusterData {
    /// Raised alarms, by alarm and member.
    pub(crate) alarms: BTreeSet<(Alarm, u64)>,
    /// Profiles by member.
    pub(crate) profiles: BTreeMap<u64, Profile>,
}

impl ClusterData {
    /// Refuses a command that a raised alarm forbids.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`], [`StoreError::Corrupt`].
    pub(super) fn check(&self, command: &Command) -> Result<(), StoreError> {
        match command {
            _ if self.alarms.is_empty() => Ok(()),
            Command::Txn(txn) => self.refuse(cost(txn)),
            Command::LeaseGrant { .. } => self.refuse(LEASE_OVERHEAD),
            Command::Compact(_) | Command::LeaseRevoke { .. } => self.refuse(0),
            Command::Raise { .. } | Command::Alarm { .. } | Command::SetProfile { .. } => Ok(()),
        }
    }

    /// Refuses a change that adds about `cost` bytes if a raised alarm forbids it.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`], [`StoreError::Corrupt`].
    pub(crate) fn refuse(&self, cost: usize) -> Result<(), StoreError> {
        let raised = |alarm| self.alarms.iter().any(|(raised, _)| *raised == alarm);
        if raised(Alarm::CORRUPT) {
            return Err(StoreError::Corrupt);
        }
        if cost > 0 && raised(Alarm::NOSPACE) {
            return Err(StoreError::NoSpace("the alarm NOSPACE is raised".to_owned()));
        }
        Ok(())
    }

    /// Applies an alarm or a profile.
    pub(super) fn apply(&mut self, command: &Command) {
        match command {
            Command::Alarm { member, alarm, raised: true } => {
                self.alarms.insert((*alarm, *member));
            }
            Command::Alarm { member, alarm, raised: false } => {
                self.alarms.remove(&(*alarm, *member));
            }
            Command::SetProfile { member, profile } if *profile == Profile::default() => {
                self.profiles.remove(member);
            }
            Command::SetProfile { member, profile } => {
                self.profiles.insert(*member, profile.clone());
            }
            _ => {}
        }
    }
}

/// Bytes that a transaction may add, by etcd's estimate: the maximum of both branches.
pub(crate) fn cost(txn: &Txn) -> usize {
    let of = |op: &Op| match op {
        Op::Put { key, value, .. } => KEY_OVERHEAD + key.len() + value.len(),
        Op::Update { key, value, .. } => {
            KEY_OVERHEAD + key.len() + value.as_ref().map_or(0, |value| value.len())
        }
        Op::Txn(txn) => cost(txn),
        Op::Range(_) | Op::Delete { .. } => 0,
    };
    let branch = |ops: &[Op]| ops.iter().map(of).sum::<usize>();
    branch(&txn.success).max(branch(&txn.failure))
}
