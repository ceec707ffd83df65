//! Reads: what the store is asked for, and sorting, filters and limits as etcd applies them to what it found.

use bytes::Bytes;
use proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use proto::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use proto::mvccpb;
use store::{KeyRange, KeyValue, Revision};
use tonic::Status;

use crate::errors::{empty_key, invalid_sort};

/// Keys of a request: etcd's `range_end` is that of [`KeyRange`].
pub(crate) fn keys(key: &Bytes, range_end: &Bytes) -> KeyRange {
    KeyRange { start: key.clone(), end: range_end.clone() }
}

/// One version in etcd's form.
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

/// A checked read.
pub(crate) struct RangePlan {
    /// The order that the request names.
    asked: SortOrder,
    order: SortOrder,
    target: SortTarget,
    limit: usize,
    keys_only: bool,
    /// Lowest and highest modification and creation revisions; 0 is no bound.
    modified: (i64, i64),
    created: (i64, i64),
    /// What the store is asked.
    pub(crate) request: store::RangeRequest,
}

impl RangePlan {
    /// # Errors
    /// No key, or a sort order or target that does not exist.
    pub(crate) fn of(request: &RangeRequest) -> Result<Self, Status> {
        if request.key.is_empty() {
            return Err(empty_key());
        }
        let asked = SortOrder::try_from(request.sort_order).map_err(|_| invalid_sort())?;
        let target = SortTarget::try_from(request.sort_target).map_err(|_| invalid_sort())?;
        // Who names a target and no order means the smallest first.
        let order = match (asked, target) {
            (SortOrder::None, SortTarget::Key) => SortOrder::None,
            (SortOrder::None, _) => SortOrder::Ascend,
            (order, _) => order,
        };
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let mut plan = Self {
            asked,
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
            // With a target and no order etcd sorts one more than the limit, which it has in the order of the keys.
            let more = usize::from(limit > 0 && !plan.is_in_order());
            plan.request.limit = limit.saturating_add(more);
        }
        Ok(plan)
    }

    /// Whether what the store answers is in order already.
    pub(crate) fn is_in_order(&self) -> bool {
        self.order == SortOrder::None
            || (self.target == SortTarget::Key && self.order == SortOrder::Ascend)
    }

    /// Whether the request names no order, whatever its target, or that of the keys.
    pub(crate) fn is_default_order(&self) -> bool {
        self.asked == SortOrder::None || self.is_in_order()
    }

    /// Whether the read leaves out revisions.
    pub(crate) fn is_filtered(&self) -> bool {
        (self.modified, self.created) != ((0, 0), (0, 0))
    }

    fn wants(&self, kv: &KeyValue) -> bool {
        let within = |(low, high): (i64, i64), revision: Revision| {
            (high == 0 || revision.0 <= high) && (low == 0 || revision.0 >= low)
        };
        within(self.modified, kv.mod_revision) && within(self.created, kv.create_revision)
    }

    /// Whether the answer is what the store finds, as it stands.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_in_order() && !self.is_filtered() && !self.keys_only
    }

    /// The answer to what the store found.
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
            // What is equal stays in the order of its keys either way.
            if self.order == SortOrder::Descend {
                kvs.sort_by(|a, b| compare(b, a));
            } else {
                kvs.sort_by(compare);
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
                // Names alone come from etcd's index, which knows no leases.
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
