//! Plans reads: the request to the store, and sorting, filters and limits as etcd applies them to
//! the result.

use bytes::Bytes;
use proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use proto::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use proto::mvccpb;
use sorting::CompactSort as _;
use store::{KeyRange, KeyValue, Revision};
use tonic::Status;

use crate::errors::{empty_key, invalid_sort};

/// The range of a request: etcd's `range_end` has the same meaning as that of [`KeyRange`].
pub(crate) fn keys(key: &Bytes, range_end: &Bytes) -> KeyRange {
    KeyRange { start: key.clone(), end: range_end.clone() }
}

/// A version in etcd's form.
pub(crate) fn key_value(kv: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key,
        value: kv.value,
        create_revision: kv.create_revision.0,
        mod_revision: kv.mod_revision.0,
        version: kv.version,
        lease: kv.lease,
    }
}

/// A validated read.
pub(crate) struct RangePlan {
    /// The order in the request.
    requested_order: SortOrder,
    order: SortOrder,
    target: SortTarget,
    limit: usize,
    keys_only: bool,
    /// Minimum and maximum modification and creation revisions; 0 is no bound.
    modified: (i64, i64),
    created: (i64, i64),
    /// The request to the store.
    pub(crate) request: store::RangeRequest,
}

impl RangePlan {
    /// # Errors
    /// The key is missing, or the sort order or target is unknown.
    pub(crate) fn of(request: &RangeRequest) -> Result<Self, Status> {
        if request.key.is_empty() {
            return Err(empty_key());
        }
        let requested_order =
            SortOrder::try_from(request.sort_order).map_err(|_| invalid_sort())?;
        let target = SortTarget::try_from(request.sort_target).map_err(|_| invalid_sort())?;
        // A target without an order means ascending.
        let order = match (requested_order, target) {
            (SortOrder::None, SortTarget::Key) => SortOrder::None,
            (SortOrder::None, _) => SortOrder::Ascend,
            (order, _) => order,
        };
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let mut plan = Self {
            requested_order,
            order,
            target,
            limit,
            keys_only: request.keys_only,
            modified: (request.min_mod_revision, request.max_mod_revision),
            created: (request.min_create_revision, request.max_create_revision),
            request: store::RangeRequest {
                range: keys(&request.key, &request.range_end),
                revision: Some(Revision(request.revision)).filter(|r| r.0 > 0),
                limit: 0,
                keys_only: request.keys_only && target != SortTarget::Value,
                count_only: request.count_only,
            },
        };
        if plan.is_default_order() && !plan.is_filtered() {
            // With a target and no order etcd sorts one key more than the limit, in key order.
            let more = usize::from(limit > 0 && !plan.is_in_order());
            plan.request.limit = limit.saturating_add(more);
        }
        Ok(plan)
    }

    /// Whether the store returns the keys in the requested order.
    pub(crate) fn is_in_order(&self) -> bool {
        self.order == SortOrder::None
            || (self.target == SortTarget::Key && self.order == SortOrder::Ascend)
    }

    /// Whether the request has no order, whatever its target, or orders by key.
    pub(crate) fn is_default_order(&self) -> bool {
        self.requested_order == SortOrder::None || self.is_in_order()
    }

    /// Whether the read filters by revision.
    pub(crate) fn is_filtered(&self) -> bool {
        (self.modified, self.created) != ((0, 0), (0, 0))
    }

    fn wants(&self, kv: &KeyValue) -> bool {
        let within = |(low, high): (i64, i64), revision: Revision| {
            (high == 0 || revision.0 <= high) && (low == 0 || revision.0 >= low)
        };
        within(self.modified, kv.mod_revision) && within(self.created, kv.create_revision)
    }

    /// Whether the response equals the result of the store.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_in_order() && !self.is_filtered() && !self.keys_only
    }

    /// The response for a result of the store.
    pub(crate) fn answer(
        &self,
        found: store::RangeResponse,
        header: Option<ResponseHeader>,
    ) -> RangeResponse {
        let mut kvs = found.kvs;
        if self.is_filtered() {
            kvs.retain(|kv| self.wants(kv));
        }
        if !self.is_in_order() {
            let compare = |a: &KeyValue, b: &KeyValue| match self.target {
                SortTarget::Key => a.key.cmp(&b.key),
                SortTarget::Version => a.version.cmp(&b.version),
                SortTarget::Create => a.create_revision.cmp(&b.create_revision),
                SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
                SortTarget::Value => a.value.cmp(&b.value),
            };
            // Equal keys stay in key order in both directions.
            if self.order == SortOrder::Descend {
                kvs.compact_sort_by(|a, b| compare(b, a));
            } else {
                kvs.compact_sort_by(compare);
            }
        }
        let cut = self.limit > 0 && kvs.len() > self.limit;
        if cut {
            kvs.truncate(self.limit);
        }
        let kvs = kvs.into_iter().map(|kv| {
            let mut kv = key_value(kv);
            if self.keys_only {
                kv.value = Bytes::new();
                // Key-only reads are served from etcd's index, which has no leases.
                if self.target != SortTarget::Value {
                    kv.lease = 0;
                }
            }
            kv
        });
        RangeResponse {
            header,
            kvs: kvs.collect(),
            more: found.more || cut,
            count: i64::try_from(found.count).unwrap_or(i64::MAX),
        }
    }
}
