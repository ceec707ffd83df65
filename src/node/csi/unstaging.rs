//! The volumes that are to be unstaged: one task works on each, and the volume is in use until it
//! ends.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::record::StagedVolume;

/// The volumes that are to be unstaged; `V` identifies one.
#[derive(Debug)]
pub(crate) struct UnstagingVolumes<V = StagedVolume>(Mutex<HashMap<V, UnstagingVolume>>);

impl<V> Default for UnstagingVolumes<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[derive(Debug, Default)]
struct UnstagingVolume {
    /// It was requested after the last attempt began.
    is_requested: bool,
    /// It is attached: `status.volumesInUse` lists it.
    is_in_use: bool,
    /// Ends the delay before the next attempt.
    wake: Arc<Notify>,
}

impl<V: Clone + Eq + Hash> UnstagingVolumes<V> {
    /// Requests that a volume is unstaged. Returns how its task is woken if the caller has to start
    /// one; otherwise the running task makes another attempt.
    pub(crate) fn request(&self, volume: &V, is_in_use: bool) -> Option<Arc<Notify>> {
        let mut volumes = self.0.lock();
        let is_new = !volumes.contains_key(volume);
        let state = volumes.entry(volume.clone()).or_default();
        state.is_requested = true;
        state.is_in_use |= is_in_use;
        if is_new {
            return Some(Arc::clone(&state.wake));
        }
        state.wake.notify_one();
        None
    }

    /// Begins an attempt; returns whether there was a request since the last one.
    pub(crate) fn begin_attempt(&self, volume: &V) -> bool {
        let mut volumes = self.0.lock();
        volumes.get_mut(volume).is_some_and(|state| std::mem::take(&mut state.is_requested))
    }

    /// Ends the work on a volume that is unstaged or used again; returns whether the task ends,
    /// which it does unless there was a request since the attempt began.
    pub(crate) fn end(&self, volume: &V) -> bool {
        let mut volumes = self.0.lock();
        if volumes.get(volume).is_some_and(|state| state.is_requested) {
            return false;
        }
        volumes.remove(volume);
        true
    }
}

impl UnstagingVolumes {
    /// Returns the unique names of those that are attached.
    pub(crate) fn in_use(&self) -> BTreeSet<String> {
        let volumes = self.0.lock();
        let in_use = volumes.iter().filter(|(_, state)| state.is_in_use);
        in_use.map(|(volume, _)| volume.unique_name()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_works_on_a_volume_until_nothing_is_requested() {
        let volume = StagedVolume { driver: "d".to_owned(), handle: "h".to_owned(), device: None };
        let volumes = UnstagingVolumes::default();
        assert!(volumes.request(&volume, false).is_some());
        assert!(volumes.in_use().is_empty());
        assert!(volumes.begin_attempt(&volume));
        assert!(!volumes.begin_attempt(&volume), "a retry");
        assert!(volumes.request(&volume, true).is_none(), "another pod is torn down");
        assert_eq!(volumes.in_use(), ["kubernetes.io/csi/d^h".to_owned()].into());
        assert!(!volumes.end(&volume), "requested since the attempt began");
        assert!(volumes.begin_attempt(&volume));
        assert!(volumes.end(&volume));
        assert!(volumes.in_use().is_empty());
        assert!(volumes.request(&volume, false).is_some());
    }
}
