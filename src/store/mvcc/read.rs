//! Reads: ranges at a revision, and the changes since a revision.

use std::borrow::Cow;
use std::ops::Bound;
use std::ops::Bound::{Excluded, Included, Unbounded};

use bytes::{Bytes, BytesMut};

use super::history::{History, Version};
use super::key::Key;
use super::state::{State, event_in_memory};
use crate::contract::{
    Event, KeyRange, KeyValueRef, RangeRequest, RangeResponse, RangeSummary, RangeVisitor,
    Revision, StoreError,
};

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The range as bounds of the map; `None` when it is empty.
fn bounds(range: &KeyRange) -> Option<Bounds<'_>> {
    let start = Included(range.start.as_ref());
    match range.end.as_ref() {
        [] => Some((start, Included(range.start.as_ref()))),
        [0] => Some((start, Unbounded)),
        end if end <= range.start.as_ref() => None,
        end => Some((start, Excluded(end))),
    }
}

impl State {
    /// Keys of `range` with any kept version.
    pub(super) fn histories(&self, range: &KeyRange) -> impl Iterator<Item = (&Key, &History)> {
        let keys = bounds(range).map(|bounds| self.keys.range::<[u8], _>(bounds));
        keys.into_iter().flatten().map(|(key, history)| (key, history.as_ref()))
    }

    /// Keys of `range` that exist now.
    pub(super) fn existing(&self, range: &KeyRange) -> impl Iterator<Item = (&Key, &Version)> {
        self.histories(range).filter_map(|(key, history)| Some((key, history.live()?)))
    }

    /// Checks that `revision` is readable; `newest` is the newest revision.
    pub(super) fn check_revision(
        &self,
        revision: Option<Revision>,
        newest: i64,
    ) -> Result<(), StoreError> {
        let Some(Revision(requested)) = revision.filter(|r| r.0 != 0) else { return Ok(()) };
        if requested > newest {
            return Err(StoreError::Future { requested, newest });
        }
        // etcd's oldest revision is -1 until the first compaction; revisions below 1 select the
        // newest.
        let oldest = if self.compacted == 0 { -1 } else { self.compacted };
        if requested < oldest {
            return Err(StoreError::Compacted { requested, oldest: self.compacted });
        }
        match self.gaps.iter().find(|gap| gap.from < requested && requested < gap.to) {
            Some(gap) => Err(StoreError::Compacted { requested, oldest: gap.to }),
            None => Ok(()),
        }
    }

    /// Reads a range.
    ///
    /// # Errors
    /// [`StoreError::Future`] and [`StoreError::Compacted`].
    pub(crate) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, StoreError> {
        self.check_revision(request.revision, self.revision)?;
        Ok(self.range_unchecked(request, self.revision))
    }

    /// As [`State::range`], passing each pair to a visitor.
    ///
    /// # Errors
    /// As [`State::range`]; the visitor received nothing then.
    pub(crate) fn range_each(
        &self,
        request: &RangeRequest,
        pairs: &mut dyn RangeVisitor,
    ) -> Result<RangeSummary, StoreError> {
        self.check_revision(request.revision, self.revision)?;
        pairs.begin(Revision(self.revision));
        let none = Bytes::new();
        Ok(self.walk(request, |key, version| {
            pairs.visit(KeyValueRef {
                key,
                value: if request.keys_only { &none } else { &version.value },
                create_revision: Revision(version.created),
                mod_revision: Revision(version.modified),
                version: version.version,
                lease: version.lease,
            });
        }))
    }

    /// Walks a range whose revision was checked.
    fn walk(&self, request: &RangeRequest, mut give: impl FnMut(&Key, &Version)) -> RangeSummary {
        let at = request.revision.map_or(0, |r| r.0);
        let (mut found, mut given) = (RangeSummary::default(), 0);
        for (key, history) in self.histories(&request.range) {
            let version = if at > 0 { history.at(at) } else { history.live().map(Cow::Borrowed) };
            let Some(version) = version else { continue };
            found.count += 1;
            if request.count_only {
                continue;
            }
            if request.limit == 0 || given < request.limit {
                give(key, &version);
                given += 1;
            } else {
                found.more = true;
            }
        }
        found
    }

    /// Reads a range whose revision was checked; `newest` is the revision of the response.
    pub(super) fn range_unchecked(&self, request: &RangeRequest, newest: i64) -> RangeResponse {
        let mut kvs = Vec::new();
        // One allocation for all keys of the response, which they share.
        let (mut keys, mut ends) = (BytesMut::new(), Vec::new());
        let single = request.range.end.is_empty();
        let found = self.walk(request, |key, version| {
            let key = if single {
                key.shared()
            } else {
                keys.extend_from_slice(key);
                ends.push(keys.len());
                Bytes::new()
            };
            kvs.push(version.to_kv(key, request.keys_only));
        });
        let (keys, mut begin) = (keys.freeze(), 0);
        for (kv, end) in kvs.iter_mut().zip(ends) {
            kv.key = keys.slice(begin..end);
            begin = end;
        }
        RangeResponse { kvs, count: found.count, more: found.more, revision: Revision(newest) }
    }

    /// Changes of `range` from revision `start` on, in whole revisions, stopping at the first
    /// revision after `limit` examined changes; and the revision to continue from.
    ///
    /// # Errors
    /// [`StoreError::Compacted`].
    pub(crate) fn events(
        &self,
        start: i64,
        range: &KeyRange,
        limit: usize,
    ) -> Result<(Vec<Event>, i64), StoreError> {
        if start < self.compacted {
            return Err(StoreError::Compacted { requested: start, oldest: self.compacted });
        }
        if let Some(gap) = self.gaps.iter().find(|gap| gap.from + 1 < start && start <= gap.to) {
            return Err(StoreError::Compacted { requested: start, oldest: gap.to });
        }
        let first = self.changes.partition_point(|change| change.revision < start);
        let mut events = Vec::new();
        let (mut last, mut sub) = (0, 0_u32);
        for (seen, change) in self.changes.range(first..).enumerate() {
            if seen >= limit && change.revision != last {
                return Ok((events, change.revision));
            }
            // All changes of a revision are adjacent and in order.
            sub = if change.revision == last { sub.saturating_add(1) } else { 0 };
            last = change.revision;
            if !range.contains(&change.key) {
                continue;
            }
            let history = self.keys.get(&change.key);
            let event = |history: &History| {
                event_in_memory(&change.key.shared(), history, change.revision, sub)
            };
            events.extend(history.map(AsRef::as_ref).and_then(event));
        }
        Ok((events, start.max(self.revision + 1)))
    }
}
