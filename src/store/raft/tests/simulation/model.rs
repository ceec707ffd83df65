//! The specification of the store for sequential calls, which histories are checked against.

use std::collections::BTreeMap;
use std::ops::Range;

/// A key as the contract shows it. Values are the numbers of the calls that wrote them, so each
/// value is written once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Item {
    pub(super) value: u64,
    pub(super) create: i64,
    pub(super) modified: i64,
    pub(super) version: i64,
    pub(super) lease: i64,
}

pub(super) type Items = BTreeMap<u8, Item>;

/// A call of a client; keys are numbers below ten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    Put {
        key: u8,
        value: u64,
        lease: i64,
    },
    /// Puts if the key was last changed at `expected`, otherwise reads it.
    Cas {
        key: u8,
        expected: i64,
        value: u64,
    },
    /// Deletes the keys of the range and puts another one, in one transaction.
    Move {
        from: Range<u8>,
        key: u8,
        value: u64,
    },
    Delete {
        keys: Range<u8>,
    },
    Read {
        keys: Range<u8>,
        consistent: bool,
    },
    /// Reads the keys at a revision.
    ReadAt {
        keys: Range<u8>,
        revision: i64,
    },
    Grant {
        lease: i64,
        ttl: i64,
    },
    Renew {
        lease: i64,
    },
    Revoke {
        lease: i64,
    },
    Compact {
        revision: i64,
    },
}

impl Call {
    /// The unique value that it writes.
    pub(super) fn value(&self) -> Option<u64> {
        match self {
            Self::Put { value, .. } | Self::Cas { value, .. } | Self::Move { value, .. } => {
                Some(*value)
            }
            _ => None,
        }
    }

    /// Whether its response contains the keys at a time between its begin and its end.
    pub(super) fn is_linear(&self) -> bool {
        match self {
            Self::Read { consistent, .. } => *consistent,
            Self::ReadAt { .. }
            | Self::Grant { .. }
            | Self::Renew { .. }
            | Self::Compact { .. } => false,
            _ => true,
        }
    }
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) revision: i64,
    pub(super) answer: Response,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Response {
    /// Of a put: the previous value.
    Put(Option<Item>),
    /// The comparison failed: the current value.
    Differs(Option<Item>),
    /// Of a deletion: the deleted keys.
    Deleted(Items),
    /// Of both in one transaction.
    Moved(Items, Option<Item>),
    Found(Items),
    Done,
}

/// The keys at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Model {
    pub(super) revision: i64,
    pub(super) items: Items,
}

impl Default for Model {
    fn default() -> Self {
        Self { revision: 1, items: Items::new() }
    }
}

impl Model {
    pub(super) fn found(&self, keys: &Range<u8>) -> Items {
        self.items.range(keys.clone()).map(|(key, item)| (*key, item.clone())).collect()
    }

    /// Keys that are attached to a lease.
    pub(super) fn leased(&self, lease: i64) -> Vec<u8> {
        let leased = self.items.iter().filter(|(_, item)| item.lease == lease);
        leased.map(|(key, _)| *key).collect()
    }

    pub(super) fn put(&mut self, key: u8, value: u64, lease: i64) -> Option<Item> {
        let before = self.items.get(&key).cloned();
        let modified = self.revision;
        let (create, version) =
            before.as_ref().map_or((modified, 1), |item| (item.create, item.version + 1));
        self.items.insert(key, Item { value, create, modified, version, lease });
        before
    }

    fn remove(&mut self, keys: &Range<u8>) -> Items {
        let found = self.found(keys);
        for key in found.keys() {
            self.items.remove(key);
        }
        found
    }

    /// The keys after `call`, and its response.
    pub(super) fn apply(&self, call: &Call) -> (Self, Reply) {
        let mut next = self.clone();
        next.revision += 1;
        let answer = match call {
            Call::Put { key, value, lease } => Response::Put(next.put(*key, *value, *lease)),
            Call::Cas { key, expected, value } => {
                let found = self.items.get(key).cloned();
                if found.as_ref().map_or(0, |item| item.modified) == *expected {
                    Response::Put(next.put(*key, *value, 0))
                } else {
                    Response::Differs(found)
                }
            }
            Call::Move { from, key, value } => {
                let gone = next.remove(from);
                Response::Moved(gone, next.put(*key, *value, 0))
            }
            Call::Delete { keys } => Response::Deleted(next.remove(keys)),
            Call::Revoke { lease } => {
                for key in self.leased(*lease) {
                    next.items.remove(&key);
                }
                Response::Done
            }
            Call::Read { keys, .. } | Call::ReadAt { keys, .. } => {
                Response::Found(self.found(keys))
            }
            Call::Grant { .. } | Call::Renew { .. } | Call::Compact { .. } => Response::Done,
        };
        if next.items == self.items {
            next.revision = self.revision;
        }
        let revision = next.revision;
        (next, Reply { revision, answer })
    }
}
