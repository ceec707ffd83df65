//! Reads and writes of the key space.

use async_trait::async_trait;

use super::error::StoreError;
use super::key::Revision;
use super::range::{KeyValueRef, RangeRequest, RangeResponse, RangeSummary, RangeVisitor};
use super::txn::{Txn, TxnResponse};

/// Reads and writes.
#[async_trait]
pub trait Kv: Send + Sync {
    /// Resolves once `range` sees every write acknowledged before the call; returns the revision
    /// reached. Lagging watchers receive a progress batch.
    async fn read_barrier(&self) -> Result<Revision, StoreError>;

    /// As [`Kv::read_barrier`], without the progress batches: a caller that only reads does not
    /// wake the watchers.
    async fn read_index(&self) -> Result<Revision, StoreError>;

    /// Reads the locally applied state; for a linearizable read await `read_barrier` first.
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError>;

    /// As [`Kv::range`], passing each pair to `pairs` without a copy. After an error `pairs` may
    /// have received nothing.
    async fn range_each(
        &self,
        request: RangeRequest,
        pairs: &mut dyn RangeVisitor,
    ) -> Result<RangeSummary, StoreError> {
        let found = self.range(request).await?;
        pairs.begin(found.revision);
        found.kvs.iter().for_each(|kv| pairs.visit(KeyValueRef::of(kv)));
        Ok(RangeSummary { count: found.count, more: found.more })
    }

    /// Runs a transaction; resolves once it is as durable as requested.
    async fn txn(&self, txn: Txn) -> Result<TxnResponse, StoreError>;

    /// Newest applied revision.
    fn revision(&self) -> Revision;
}
