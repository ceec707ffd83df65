//! Checksums taken at compactions: `HashKV` returns them for exactly the compacted revisions, until
//! the next start (`hashStorage` of etcd's `mvcc/hash.go`). They include versions that the
//! compaction dropped.

use std::collections::VecDeque;

use parking_lot::Mutex;
use store::{KvHash, Revision};

/// Number of checksums kept (`hashStorageMaxSize`).
const KEPT: usize = 10;

/// The newest checksums, ordered by revision.
#[derive(Debug, Default)]
pub(crate) struct CompactHashes(Mutex<VecDeque<KvHash>>);

impl CompactHashes {
    /// Stores the checksum of a compacted revision, taken before the compaction.
    pub(crate) fn insert(&self, sum: KvHash) {
        let sum = KvHash { keys: sum.compacting, ..sum };
        let mut kept = self.0.lock();
        // Concurrent compactions may end in either order.
        let at = kept.partition_point(|other| other.revision < sum.revision);
        kept.insert(at, sum);
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }

    /// The checksum taken when this revision was compacted.
    pub(crate) fn get(&self, revision: Revision) -> Option<KvHash> {
        self.0.lock().iter().find(|sum| sum.revision == revision).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_ten_are_kept() {
        let sums = CompactHashes::default();
        for revision in [3, 1, 2].into_iter().chain(4..=12).map(Revision) {
            let (compacted, newest) = (Revision(0), revision);
            sums.insert(KvHash { keys: 7, compacting: 7, all: 7, revision, compacted, newest });
        }
        let kept = |n| sums.get(Revision(n)).is_some();
        assert_eq!((kept(2), kept(3), kept(12), kept(13)), (false, true, true, false));
    }
}
