//! Converts between the contract and etcd's messages.

use bytes::Bytes;
use proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use proto::etcdserverpb::request_op::Request as Step;
use proto::etcdserverpb::response_op::Response as StepAnswer;
use proto::{etcdserverpb as pb, mvccpb};

use crate::contract::{
    Compare, Event, KeyRange, KeyValue, Op, OpResponse, Ordering, RangeRequest, RangeResponse,
    Revision, StoreError, Target, Txn, TxnResponse,
};

/// First key and end in etcd's form, which does not allow an empty first key.
pub(super) fn keys(range: &KeyRange) -> (Bytes, Bytes) {
    let start = match range.start.is_empty() && !range.end.is_empty() {
        true => Bytes::from_static(&[0]),
        false => range.start.clone(),
    };
    (start, range.end.clone())
}

pub(super) fn range(request: &RangeRequest) -> pb::RangeRequest {
    let (key, range_end) = keys(&request.range);
    pb::RangeRequest {
        key,
        range_end,
        limit: i64::try_from(request.limit).unwrap_or(i64::MAX),
        revision: request.revision.map_or(0, |revision| revision.0),
        keys_only: request.keys_only,
        count_only: request.count_only,
        ..Default::default()
    }
}

pub(super) fn txn(txn: &Txn) -> pb::TxnRequest {
    pb::TxnRequest {
        compare: txn.compare.iter().map(compare).collect(),
        success: txn.success.iter().map(step).collect(),
        failure: txn.failure.iter().map(step).collect(),
    }
}

fn step(op: &Op) -> pb::RequestOp {
    let request = match op {
        Op::Range(request) => Step::RequestRange(range(request)),
        Op::Put { key, value, lease, prev_kv } => Step::RequestPut(pb::PutRequest {
            key: key.clone(),
            value: value.clone(),
            lease: *lease,
            prev_kv: *prev_kv,
            ..Default::default()
        }),
        Op::Update { key, value, lease, prev_kv } => Step::RequestPut(pb::PutRequest {
            key: key.clone(),
            value: value.clone().unwrap_or_default(),
            lease: lease.unwrap_or_default(),
            prev_kv: *prev_kv,
            ignore_value: value.is_none(),
            ignore_lease: lease.is_none(),
        }),
        Op::Delete { range, prev_kv } => {
            let (key, range_end) = keys(range);
            Step::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end, prev_kv: *prev_kv })
        }
        Op::Txn(inner) => Step::RequestTxn(txn(inner)),
    };
    pb::RequestOp { request: Some(request) }
}

fn compare(compare: &Compare) -> pb::Compare {
    let (key, range_end) = keys(&compare.range);
    let result = match compare.ordering {
        Ordering::Equal => CompareResult::Equal,
        Ordering::NotEqual => CompareResult::NotEqual,
        Ordering::Greater => CompareResult::Greater,
        Ordering::Less => CompareResult::Less,
    };
    let (target, union) = match &compare.target {
        Target::ModRevision(n) => (CompareTarget::Mod, TargetUnion::ModRevision(*n)),
        Target::CreateRevision(n) => (CompareTarget::Create, TargetUnion::CreateRevision(*n)),
        Target::Version(n) => (CompareTarget::Version, TargetUnion::Version(*n)),
        Target::Lease(n) => (CompareTarget::Lease, TargetUnion::Lease(*n)),
        Target::Value(value) => (CompareTarget::Value, TargetUnion::Value(value.clone())),
    };
    let target_union = Some(union);
    pb::Compare { result: result.into(), target: target.into(), key, range_end, target_union }
}

/// The oldest revision that a transaction reads; 0 if it reads the newest only.
pub(super) fn reads_at(txn: &Txn) -> i64 {
    let ops = txn.success.iter().chain(&txn.failure);
    let revisions = ops.filter_map(|op| match op {
        Op::Range(request) => request.revision.map(|revision| revision.0),
        Op::Txn(inner) => Some(reads_at(inner)).filter(|revision| *revision != 0),
        Op::Put { .. } | Op::Update { .. } | Op::Delete { .. } => None,
    });
    revisions.min().unwrap_or_default()
}

pub(super) fn key_value(kv: mvccpb::KeyValue) -> KeyValue {
    KeyValue {
        key: kv.key,
        value: kv.value,
        create_revision: Revision(kv.create_revision),
        mod_revision: Revision(kv.mod_revision),
        version: kv.version,
        lease: kv.lease,
    }
}

pub(super) fn range_response(answer: pb::RangeResponse, revision: i64) -> RangeResponse {
    RangeResponse {
        kvs: answer.kvs.into_iter().map(key_value).collect(),
        count: usize::try_from(answer.count).unwrap_or_default(),
        more: answer.more,
        revision: Revision(revision),
    }
}

/// The response to a transaction. `revision` is that of the outermost response, because etcd sets
/// only that one.
pub(super) fn txn_response(
    received: &Txn,
    answer: pb::TxnResponse,
    revision: i64,
) -> Result<TxnResponse, StoreError> {
    let branch = if answer.succeeded { &received.success } else { &received.failure };
    if branch.len() != answer.responses.len() {
        return Err(unexpected_response());
    }
    let steps = branch.iter().zip(answer.responses);
    let responses = steps
        .map(|(op, answer)| op_response(op, answer.response, revision))
        .collect::<Result<_, _>>()?;
    Ok(TxnResponse { succeeded: answer.succeeded, responses, revision: Revision(revision) })
}

fn op_response(
    op: &Op,
    answer: Option<StepAnswer>,
    revision: i64,
) -> Result<OpResponse, StoreError> {
    Ok(match (op, answer) {
        (Op::Range(_), Some(StepAnswer::ResponseRange(answer))) => {
            OpResponse::Range(range_response(answer, revision))
        }
        (Op::Put { .. } | Op::Update { .. }, Some(StepAnswer::ResponsePut(answer))) => {
            OpResponse::Put(answer.prev_kv.map(key_value))
        }
        (Op::Delete { .. }, Some(StepAnswer::ResponseDeleteRange(answer))) => OpResponse::Delete(
            usize::try_from(answer.deleted).unwrap_or_default(),
            answer.prev_kvs.into_iter().map(key_value).collect(),
        ),
        (Op::Txn(inner), Some(StepAnswer::ResponseTxn(answer))) => {
            OpResponse::Txn(txn_response(inner, answer, revision)?)
        }
        _ => return Err(unexpected_response()),
    })
}

/// The error for a response that does not match its request; whether the request was executed is
/// unknown.
fn unexpected_response() -> StoreError {
    StoreError::Unknown("etcd answered a transaction with something else".to_owned())
}

/// An event of a watch; `None` if etcd omitted a required field.
pub(super) fn event(event: mvccpb::Event) -> Option<Event> {
    let deleted = event.r#type == i32::from(mvccpb::event::EventType::Delete);
    let kv = key_value(event.kv?);
    Some(Event { kv, prev: event.prev_kv.map(key_value), deleted })
}
