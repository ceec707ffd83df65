//! Compacts a store that several API servers may share; one of them compacts in each round
//! (upstream's `storage/etcd3/compact.go`).

use bytes::Bytes;
use store::{
    Backend, Compare, KeyRange, Op, OpResponse, Ordering, RangeRequest, Revision, StoreError,
    Target, Txn,
};

/// Upstream's `compactRevKey` (`k8s.io/apiserver/pkg/storage/etcd3/compact.go`): its version counts
/// the rounds, its value is the revision at which a round began.
const KEY: &str = "compact_rev_key";

/// The state of the last round: its number, and the newest revision at that time.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    number: i64,
    revision: i64,
}

impl Compaction {
    /// Runs one round: the first server to increment the counter compacts to the revision of the
    /// previous round; the others record the current revision.
    ///
    /// # Errors
    /// The error of the store.
    pub(crate) async fn round(&mut self, store: &dyn Backend) -> Result<(), StoreError> {
        let (key, range) = (Bytes::from_static(KEY.as_bytes()), KeyRange::key(KEY));
        let compare = Compare {
            range: range.clone(),
            target: Target::Version(self.number),
            ordering: Ordering::Equal,
        };
        let value = Bytes::from(self.revision.to_string());
        let txn = Txn {
            compare: vec![compare],
            success: vec![Op::Put { key, value, lease: 0, prev_kv: false }],
            failure: vec![Op::Range(RangeRequest::new(range))],
            ..Txn::default()
        };
        let answer = store.txn(txn).await?;
        let compacts_to = std::mem::replace(&mut self.revision, answer.revision.0);
        if !answer.succeeded {
            let there = answer.responses.first().and_then(|found| match found {
                OpResponse::Range(found) => found.kvs.first(),
                _ => None,
            });
            self.number = there.map_or(0, |kv| kv.version);
            return Ok(());
        }
        self.number += 1;
        if compacts_to == 0 {
            return Ok(());
        }
        store.compact(Revision(compacts_to)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rounds of upstream's `TestCompact`: each compacts to the revision of the previous round,
    /// on either server.
    #[tokio::test]
    async fn one_of_two_servers_compacts_in_each_round() {
        let store = store::open_memory();
        let put = |value: &'static str| {
            let put = Op::Put { key: "k".into(), value: value.into(), lease: 0, prev_kv: false };
            store.txn(Txn { success: vec![put], ..Txn::default() })
        };
        let (mut one, mut other) = (Compaction::default(), Compaction::default());
        put("1").await.unwrap();
        // Writing the key has created revision 3.
        one.round(&*store).await.unwrap();
        other.round(&*store).await.unwrap();
        assert_eq!((store.revision(), store.compacted()), (Revision(3), Revision(0)));
        put("2").await.unwrap();
        put("3").await.unwrap();
        other.round(&*store).await.unwrap();
        assert_eq!((store.revision(), store.compacted()), (Revision(6), Revision(3)));
        one.round(&*store).await.unwrap();
        assert_eq!((store.revision(), store.compacted()), (Revision(6), Revision(3)));
        put("4").await.unwrap();
        one.round(&*store).await.unwrap();
        assert_eq!((store.revision(), store.compacted()), (Revision(8), Revision(6)));
    }
}
