//! Builds a state from a checkpoint or a snapshot, key by key.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::cluster_data::ClusterData;
use super::history::{History, Version};
use super::key::Key;
use super::state::{Change, Gap, LeaseKeys, State};

/// A state under construction.
#[derive(Debug)]
pub(crate) struct Import {
    state: State,
    keys: Vec<(Key, Box<History>)>,
    /// Changes with their index within the revision.
    changes: Vec<(u32, Change)>,
    attached: Vec<(i64, Key)>,
}

impl Import {
    /// Starts with everything but the keys.
    pub(crate) fn new(
        revision: i64,
        compacted: i64,
        gaps: Vec<Gap>,
        cluster_data: ClusterData,
        leases: impl Iterator<Item = (i64, i64)>,
    ) -> Self {
        let mut state = State::at(revision, compacted);
        (state.gaps, state.cluster_data) = (gaps, cluster_data);
        let lease = |(id, ttl)| (id, LeaseKeys { ttl, keys: BTreeSet::new() });
        state.leases = leases.map(lease).collect();
        Self { state, keys: Vec::new(), changes: Vec::new(), attached: Vec::new() }
    }

    /// Number of keys so far.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Adds a key after the last one; its versions are not empty, oldest first.
    pub(crate) fn add(&mut self, key: &[u8], versions: Vec<Version>) {
        let key = Key::new(key);
        let mut bytes = key.len();
        for version in &versions {
            bytes += version.value.len();
            if version.modified >= self.state.compacted {
                let change = Change { revision: version.modified, key: key.clone() };
                self.changes.push((version.sub, change));
            }
        }
        let mut versions = versions.into_iter();
        let Some(first) = versions.next() else { return };
        let mut history = History::new(first);
        versions.for_each(|version| history.push(version));
        let live = history.live();
        self.state.count_imported(usize::from(live.is_some()), bytes);
        if let Some(version) = live.filter(|version| version.lease != 0) {
            self.attached.push((version.lease, key.clone()));
        }
        self.keys.push((key, Box::new(history)));
    }

    /// Finishes the state.
    pub(crate) fn finish(mut self) -> State {
        // Inserted in key order, so that the nodes of the tree are full.
        self.state.keys = self.keys.into_iter().collect();
        for (lease, key) in self.attached {
            if let Some(entry) = self.state.leases.get_mut(&lease) {
                entry.keys.insert(key);
            }
        }
        self.changes.sort_unstable_by_key(|(sub, change)| (change.revision, *sub));
        self.state.changes = self.changes.into_iter().map(|(_, change)| change).collect();
        self.state
    }
}

impl State {
    /// Builds a state; `keys` in key order, their versions oldest first and not empty.
    pub(crate) fn import(
        revision: i64,
        compacted: i64,
        gaps: Vec<Gap>,
        cluster_data: ClusterData,
        leases: impl Iterator<Item = (i64, i64)>,
        keys: impl Iterator<Item = (Bytes, Vec<Version>)>,
    ) -> Self {
        let mut import = Import::new(revision, compacted, gaps, cluster_data, leases);
        keys.for_each(|(key, versions)| import.add(&key, versions));
        import.finish()
    }
}
