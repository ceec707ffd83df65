//! Which pod has which range of ids. Pure; the caller writes the records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::id_range::IdSlots;

/// Why a pod gets no range, or not that of its record; the texts are those of upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AllocationError {
    #[error("could not find an empty slot to allocate a user namespace")]
    NoSlot,
    #[error("wrong user namespace length {0}")]
    Length(u32),
    #[error("wrong user namespace offset specified {0}")]
    Offset(u32),
    #[error("different user namespace range already used by pod {0:?}")]
    Different(String),
    #[error("id {0} is out of range")]
    OutOfRange(u32),
    #[error("range picked for pod {0:?} already taken")]
    Taken(String),
}

/// The ranges in use.
#[derive(Debug)]
pub(crate) struct Allocations {
    slots: IdSlots,
    /// Indexes of the slots in use. A node has tens of thousands of slots and about a hundred
    /// pods.
    used: BTreeSet<u32>,
    /// The slot of each pod, by uid.
    pods: BTreeMap<Arc<str>, u32>,
}

impl Allocations {
    pub(crate) fn new(slots: IdSlots) -> Self {
        Self { slots, used: BTreeSet::new(), pods: BTreeMap::new() }
    }

    pub(crate) fn ids_per_pod(&self) -> u32 {
        self.slots.ids_per_pod()
    }

    /// The first id of a pod's range.
    pub(crate) fn first_id(&self, uid: &str) -> Option<u32> {
        self.pods.get(uid).map(|index| self.slots.first_id(*index))
    }

    /// Gives a pod the first free slot from a position on, and returns its first id. `position` is
    /// a random number: a range is not used again soon. A pod whose record was lost keeps its slot.
    ///
    /// # Errors
    ///
    /// All slots are in use.
    pub(crate) fn allocate(&mut self, uid: &str, position: u64) -> Result<u32, AllocationError> {
        if let Some(first) = self.first_id(uid) {
            return Ok(first);
        }
        let count = self.slots.count();
        let start = position.checked_rem(u64::from(count)).ok_or(AllocationError::NoSlot)?;
        let start = u32::try_from(start).unwrap_or_default();
        let index = (start..count)
            .chain(0..start)
            .find(|index| !self.used.contains(index))
            .ok_or(AllocationError::NoSlot)?;
        self.used.insert(index);
        self.pods.insert(uid.into(), index);
        Ok(self.slots.first_id(index))
    }

    /// Records the range of a pod that was allocated earlier.
    ///
    /// # Errors
    ///
    /// The range is not a slot, or another one or another pod's.
    pub(crate) fn record(
        &mut self,
        uid: &str,
        first_id: u32,
        length: u32,
    ) -> Result<(), AllocationError> {
        if length != self.ids_per_pod() {
            return Err(AllocationError::Length(length));
        }
        if !first_id.is_multiple_of(length) {
            return Err(AllocationError::Offset(first_id));
        }
        let earlier = self.first_id(uid);
        if earlier.is_some_and(|earlier| earlier != first_id) {
            return Err(AllocationError::Different(uid.to_owned()));
        }
        let index = self.slots.index_of(first_id);
        let index = index.ok_or(AllocationError::OutOfRange(first_id))?;
        if earlier.is_some() {
            return Ok(());
        }
        if !self.used.insert(index) {
            return Err(AllocationError::Taken(uid.to_owned()));
        }
        self.pods.insert(uid.into(), index);
        Ok(())
    }

    /// Releases the range of a pod. Returns whether it had one.
    pub(crate) fn release(&mut self, uid: &str) -> bool {
        let index = self.pods.remove(uid);
        index.is_some_and(|index| self.used.remove(&index))
    }

    /// Returns the pods with a range that do not exist any more or have no directory.
    pub(crate) fn orphans(
        &self,
        exists: impl Fn(&str) -> bool,
        has_directory: impl Fn(&str) -> bool,
    ) -> Vec<Arc<str>> {
        let is_orphan = |uid: &&Arc<str>| !exists(uid) || !has_directory(uid);
        self.pods.keys().filter(is_orphan).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::id_range::{HostIds, IDS_PER_POD};
    use super::*;

    fn allocations(ids_per_pod: u32, slots: u32) -> Allocations {
        let ids = HostIds { first: ids_per_pod, length: ids_per_pod * slots };
        Allocations::new(IdSlots::new(ids, ids_per_pod, 1).unwrap())
    }

    #[test]
    fn each_pod_gets_a_slot_that_is_free_after_its_release() {
        for ids_per_pod in [IDS_PER_POD, 1_048_576] {
            let slots = 2000;
            let mut all = allocations(ids_per_pod, slots);
            let one = all.allocate("one", 7).unwrap();
            let two = all.allocate("two", 7).unwrap();
            assert_eq!(all.allocate("two", 0), Ok(two));
            assert_eq!((one, two), (ids_per_pod * 8, ids_per_pod * 9));
            assert_eq!(all.record("two", two, ids_per_pod), Ok(()));
            assert_eq!(
                all.record("two", two + 1, ids_per_pod),
                Err(AllocationError::Offset(two + 1))
            );
            assert!(all.release("one") && all.release("two"));
            assert!(!all.release("one"));
            let mut firsts = BTreeSet::new();
            for pod in 0..1000_u64 {
                let first = all.allocate(&pod.to_string(), pod * 37).unwrap();
                assert!(first.is_multiple_of(ids_per_pod));
                assert!(first >= ids_per_pod && first <= ids_per_pod * slots);
                assert!(firsts.insert(first), "{first} is used twice");
            }
            for pod in 0..1000 {
                let (uid, first) = (pod.to_string(), all.first_id(&pod.to_string()).unwrap());
                assert!(all.release(&uid));
                assert_eq!(all.record(&uid, first, ids_per_pod), Ok(()));
                assert!(all.release(&uid));
            }
            assert!(all.used.is_empty());
        }
    }

    #[test]
    fn the_search_continues_at_the_first_slot() {
        let mut all = allocations(IDS_PER_POD, 2);
        assert_eq!(all.allocate("a", 1), Ok(IDS_PER_POD * 2));
        assert_eq!(all.allocate("b", 1), Ok(IDS_PER_POD));
        assert_eq!(all.allocate("c", 0), Err(AllocationError::NoSlot));
    }

    #[test]
    fn records_are_checked() {
        let mut all = allocations(IDS_PER_POD, 2);
        assert_eq!(all.record("0", 65536, 65536), Ok(()));
        for (uid, first, length, want) in [
            ("2", 65536 * 3, 65536, "id 196608 is out of range"),
            ("2", 0, 65536, "id 0 is out of range"),
            ("2", 65536, 0, "wrong user namespace length 0"),
            ("2", 1, 65536, "wrong user namespace offset specified 1"),
            ("2", 65536, 65536, "range picked for pod \"2\" already taken"),
            ("0", 131_072, 65536, "different user namespace range already used by pod \"0\""),
        ] {
            assert_eq!(all.record(uid, first, length).unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn orphans_are_pods_that_do_not_exist_or_have_no_directory() {
        let orphans = |recorded: &[&str], exists: &[&str], listed: &[&str]| {
            let mut all = allocations(IDS_PER_POD, 500);
            for (index, uid) in (1..).zip(recorded) {
                all.record(uid, index * IDS_PER_POD, IDS_PER_POD).unwrap();
            }
            let found = all.orphans(|uid| exists.contains(&uid), |uid| listed.contains(&uid));
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let both = ["pod-1", "pod-2"];
        assert_eq!(orphans(&[], &[], &both), Vec::<String>::new());
        assert_eq!(orphans(&both, &[], &both), both);
        assert_eq!(orphans(&both, &["pod-1"], &both), ["pod-2"]);
        assert_eq!(orphans(&both, &["pod-1"], &[]), both);
        assert_eq!(orphans(&both, &[], &[]), both);
    }
}
