//! The ids of the host from which pods get the ranges of their user namespaces, and the checks of
//! its start and length.

/// Ids of a pod unless the configuration sets another number
/// (`DefaultKubeletUserNamespacesIDsPerPod`).
pub const IDS_PER_POD: u32 = 65536;

/// Number of all ids of the kernel.
const ALL_IDS: u64 = 1 << 32;

/// Why pods cannot get ranges; the texts are those of upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IdRangeError {
    #[error("kubelet user namespace length {0} is not a multiple of {IDS_PER_POD}")]
    IdsPerPod(u32),
    #[error("kubelet user assigned ID {first} is not a multiple of {ids_per_pod}")]
    FirstNotMultiple { first: u32, ids_per_pod: u32 },
    /// The first range would contain the root user of the host.
    #[error("kubelet user assigned ID {first} must be greater or equal to {ids_per_pod}")]
    FirstTooSmall { first: u32, ids_per_pod: u32 },
    #[error("kubelet user assigned IDs length {length} is not a multiple of {ids_per_pod}")]
    LengthNotMultiple { length: u32, ids_per_pod: u32 },
    #[error("kubelet user assigned IDs are not enough to support {0} pods")]
    TooFewPods(u32),
}

/// Successive ids of the host, for users and groups alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostIds {
    pub(crate) first: u32,
    pub(crate) length: u32,
}

impl HostIds {
    /// All ids except those of the first slot, which contains the users of the host.
    pub(crate) fn all(ids_per_pod: u32) -> Self {
        let length = ALL_IDS - u64::from(ids_per_pod);
        Self { first: ids_per_pod, length: u32::try_from(length).unwrap_or(u32::MAX) }
    }
}

/// The ids of the host as slots of equal length, one for each pod: slot `n` has the ids from
/// `n * ids_per_pod`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdSlots {
    ids_per_pod: u32,
    first_slot: u32,
    count: u32,
}

impl IdSlots {
    /// Divides ids of the host into slots.
    ///
    /// # Errors
    ///
    /// The ids do not begin and end with a slot, begin with id 0, or do not suffice for
    /// `max_pods`.
    pub(crate) fn new(ids: HostIds, ids_per_pod: u32, max_pods: u32) -> Result<Self, IdRangeError> {
        let HostIds { first, length } = ids;
        if ids_per_pod == 0 || !ids_per_pod.is_multiple_of(IDS_PER_POD) {
            return Err(IdRangeError::IdsPerPod(ids_per_pod));
        }
        if !first.is_multiple_of(ids_per_pod) {
            return Err(IdRangeError::FirstNotMultiple { first, ids_per_pod });
        }
        if first < ids_per_pod {
            return Err(IdRangeError::FirstTooSmall { first, ids_per_pod });
        }
        if !length.is_multiple_of(ids_per_pod) {
            return Err(IdRangeError::LengthNotMultiple { length, ids_per_pod });
        }
        let count = length / ids_per_pod;
        if count < max_pods {
            return Err(IdRangeError::TooFewPods(max_pods));
        }
        Ok(Self { ids_per_pod, first_slot: first / ids_per_pod, count })
    }

    pub(crate) fn ids_per_pod(&self) -> u32 {
        self.ids_per_pod
    }

    /// Number of slots.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The first id of the slot at `index`, which is below [`Self::count`].
    pub(crate) fn first_id(&self, index: u32) -> u32 {
        // The end of the ids is at most 2^32, which `subordinate_ids` and `HostIds::all` hold.
        self.first_slot.saturating_add(index).saturating_mul(self.ids_per_pod)
    }

    /// The index of the slot that begins with this id; `None` if the id is out of the range.
    pub(crate) fn index_of(&self, first_id: u32) -> Option<u32> {
        let index = (first_id / self.ids_per_pod).checked_sub(self.first_slot)?;
        (index < self.count).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(first: u32, length: u32, ids_per_pod: u32, pods: u32) -> Result<IdSlots, String> {
        IdSlots::new(HostIds { first, length }, ids_per_pod, pods).map_err(|e| e.to_string())
    }

    #[test]
    fn the_default_leaves_out_the_users_of_the_host() {
        let all = HostIds::all(IDS_PER_POD);
        assert_eq!(all, HostIds { first: 65536, length: 4_294_901_760 });
        let slots = IdSlots::new(all, IDS_PER_POD, 110).unwrap();
        assert_eq!(slots.count(), 65535);
        assert_eq!(slots.first_id(0), 65536);
        assert_eq!(slots.first_id(65534), 4_294_901_760);
        assert_eq!(slots.index_of(65536 * 3), Some(2));
        assert_eq!(slots.index_of(0), None);
    }

    #[test]
    fn a_range_that_does_not_fit_is_refused_as_upstream() {
        assert!(slots(65536, 65536 * 2, 65536, 2).is_ok());
        for (range, want) in [
            (
                slots(65537, 65536 * 500, 65536, 110),
                "kubelet user assigned ID 65537 is not a multiple of 65536",
            ),
            (
                slots(1, 65536 * 500, 65536, 110),
                "kubelet user assigned ID 1 is not a multiple of 65536",
            ),
            (
                slots(0, 65536 * 500, 65536, 110),
                "kubelet user assigned ID 0 must be greater or equal to 65536",
            ),
            (
                slots(65536, 65537, 65536, 1),
                "kubelet user assigned IDs length 65537 is not a multiple of 65536",
            ),
            (
                slots(65536, 65536, 65536, 2),
                "kubelet user assigned IDs are not enough to support 2 pods",
            ),
            (
                slots(65536, 65536 * 500, 70000, 110),
                "kubelet user namespace length 70000 is not a multiple of 65536",
            ),
        ] {
            assert_eq!(range, Err(want.to_owned()));
        }
    }

    #[test]
    fn the_number_of_ids_of_a_pod_can_be_larger() {
        let slots = slots(1_048_576, 1_048_576 * 2000, 1_048_576, 1024).unwrap();
        assert_eq!(slots.first_id(0), 1_048_576);
        assert_eq!(slots.first_id(1999), 1_048_576 * 2000);
        assert_eq!(slots.index_of(1_048_576 * 2001), None);
    }
}
