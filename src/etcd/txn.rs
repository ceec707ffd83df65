//! Transactions: validates them as etcd does, converts them to the store's form, and builds the
//! responses.

use bytes::Bytes;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use proto::etcdserverpb::request_op::Request as Step;
use proto::etcdserverpb::response_op::Response as StepResponse;
use store::{Compare, Op, OpResponse, Ordering, Revision, Target, Txn, TxnResponse};
use tonic::Status;

use crate::errors::{empty_key, key_not_found};
use crate::range_plan::{RangePlan, key_value, keys};

/// Maximum number of comparisons or of operations of one branch, whichever is larger, along a path
/// of nested transactions: etcd's default of `--max-txn-ops`.
const OPS_MAX: usize = 128;

/// Validates a transaction as etcd does before it reads its state.
///
/// # Errors
/// Too many operations, a missing key or operation, an invalid range, or a put with a value or
/// lease although it must keep the existing one.
pub(crate) fn check(request: &pb::TxnRequest) -> Result<(), Status> {
    check_within(request, OPS_MAX)
}

/// Validates a transaction that may have at most `ops_max` comparisons and operations. What it does
/// not use is the maximum of nested transactions.
fn check_within(request: &pb::TxnRequest, ops_max: usize) -> Result<(), Status> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    let Some(left) = ops_max.checked_sub(ops) else {
        return Err(Status::invalid_argument("etcdserver: too many operations in txn request"));
    };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(empty_key());
    }
    for step in request.success.iter().chain(&request.failure) {
        match &step.request {
            Some(Step::RequestRange(range)) => RangePlan::of(range).map(|_| ())?,
            Some(Step::RequestPut(put)) => check_put(put)?,
            Some(Step::RequestDeleteRange(delete)) if delete.key.is_empty() => {
                return Err(empty_key());
            }
            Some(Step::RequestDeleteRange(_)) => {}
            Some(Step::RequestTxn(txn)) => check_within(txn, left)?,
            None => return Err(key_not_found()),
        }
    }
    Ok(())
}

/// Validates a put.
fn check_put(put: &pb::PutRequest) -> Result<(), Status> {
    if put.key.is_empty() {
        return Err(empty_key());
    }
    if put.ignore_value && !put.value.is_empty() {
        return Err(Status::invalid_argument("etcdserver: value is provided"));
    }
    if put.ignore_lease && put.lease != 0 {
        return Err(Status::invalid_argument("etcdserver: lease is provided"));
    }
    Ok(())
}

/// The operations of both branches.
fn steps(request: &pb::TxnRequest) -> impl Iterator<Item = &Step> {
    request.success.iter().chain(&request.failure).filter_map(|step| step.request.as_ref())
}

/// Whether a transaction changes nothing, whichever branch runs.
pub(crate) fn only_reads(request: &pb::TxnRequest) -> bool {
    steps(request).all(|step| match step {
        Step::RequestRange(_) => true,
        Step::RequestPut(_) | Step::RequestDeleteRange(_) => false,
        Step::RequestTxn(txn) => only_reads(txn),
    })
}

/// Whether all reads of a transaction may be served from the member's own state.
pub(crate) fn is_serializable(request: &pb::TxnRequest) -> bool {
    steps(request).all(|step| match step {
        Step::RequestRange(range) => range.serializable,
        Step::RequestPut(_) | Step::RequestDeleteRange(_) => true,
        Step::RequestTxn(txn) => is_serializable(txn),
    })
}

/// Converts a validated transaction to the store's form.
///
/// # Errors
/// A comparison has an unknown operator or target.
pub(crate) fn translate(request: &pb::TxnRequest) -> Result<Txn, Status> {
    let branch = |steps: &[pb::RequestOp]| -> Result<Vec<Op>, Status> {
        steps.iter().filter_map(|step| step.request.as_ref()).map(op).collect()
    };
    Ok(Txn {
        compare: request.compare.iter().map(compare).collect::<Result<_, _>>()?,
        success: branch(&request.success)?,
        failure: branch(&request.failure)?,
        ..Txn::default()
    })
}

/// Converts an operation.
fn op(step: &Step) -> Result<Op, Status> {
    Ok(match step {
        Step::RequestRange(range) => {
            let mut request = RangePlan::of(range)?.request;
            // `RangePlan` converts a negative revision to the newest. In a transaction, etcd fails
            // with the error of a compacted revision instead.
            request.revision = Some(Revision(range.revision)).filter(|revision| revision.0 != 0);
            Op::Range(request)
        }
        Step::RequestPut(put) if put.ignore_value || put.ignore_lease => Op::Update {
            key: put.key.clone(),
            value: (!put.ignore_value).then(|| put.value.clone()),
            lease: (!put.ignore_lease).then_some(put.lease),
            prev_kv: put.prev_kv,
        },
        Step::RequestPut(put) => {
            let (key, value) = (put.key.clone(), put.value.clone());
            Op::Put { key, value, lease: put.lease, prev_kv: put.prev_kv }
        }
        Step::RequestDeleteRange(delete) => {
            Op::Delete { range: keys(&delete.key, &delete.range_end), prev_kv: delete.prev_kv }
        }
        Step::RequestTxn(txn) => Op::Txn(translate(txn)?),
    })
}

/// Converts a comparison.
fn compare(compare: &pb::Compare) -> Result<Compare, Status> {
    let unknown = || Status::invalid_argument("etcdserver: the comparison is not known");
    let ordering = match CompareResult::try_from(compare.result).map_err(|_| unknown())? {
        CompareResult::Equal => Ordering::Equal,
        CompareResult::NotEqual => Ordering::NotEqual,
        CompareResult::Greater => Ordering::Greater,
        CompareResult::Less => Ordering::Less,
    };
    // If the target value is missing or of another target, it is zero, as in etcd, whose getters of
    // protobuf messages return the zero value.
    let union = compare.target_union.as_ref();
    let target = match CompareTarget::try_from(compare.target).map_err(|_| unknown())? {
        CompareTarget::Version => Target::Version(match union {
            Some(TargetUnion::Version(version)) => *version,
            _ => 0,
        }),
        CompareTarget::Create => Target::CreateRevision(match union {
            Some(TargetUnion::CreateRevision(revision)) => *revision,
            _ => 0,
        }),
        CompareTarget::Mod => Target::ModRevision(match union {
            Some(TargetUnion::ModRevision(revision)) => *revision,
            _ => 0,
        }),
        CompareTarget::Value => Target::Value(match union {
            Some(TargetUnion::Value(value)) => value.clone(),
            _ => Bytes::new(),
        }),
        CompareTarget::Lease => Target::Lease(match union {
            Some(TargetUnion::Lease(lease)) => *lease,
            _ => 0,
        }),
    };
    Ok(Compare { range: keys(&compare.key, &compare.range_end), target, ordering })
}

/// The response to a deletion.
pub(crate) fn deleted(
    response: OpResponse,
    header: Option<pb::ResponseHeader>,
) -> pb::DeleteRangeResponse {
    let (count, prev) = if let OpResponse::Delete(count, prev) = response {
        (count, prev)
    } else {
        (0, Vec::new())
    };
    pb::DeleteRangeResponse {
        header,
        deleted: i64::try_from(count).unwrap_or(i64::MAX),
        prev_kvs: prev.into_iter().map(key_value).collect(),
    }
}

/// The response to a transaction. As in etcd, the headers of its operations have only a revision:
/// the one before the transaction, and the new one from the first operation that changes a key on.
///
/// # Errors
/// The store returned a response of another type than the operation, which is a bug.
pub(crate) fn answer(
    request: &pb::TxnRequest,
    done: TxnResponse,
    header: Option<pb::ResponseHeader>,
) -> Result<pb::TxnResponse, Status> {
    let before = done.revision.0 - i64::from(has_changes(&done));
    build_response(request, done, header, &mut { before })
}

/// Whether the transaction changed a key, and so used a revision.
fn has_changes(done: &TxnResponse) -> bool {
    done.responses.iter().any(|response| match response {
        OpResponse::Range(_) => false,
        OpResponse::Put(_) => true,
        OpResponse::Delete(count, _) => *count > 0,
        OpResponse::Txn(done) => has_changes(done),
    })
}

/// Builds the response to a transaction or a nested one. `revision` is that of the next operation's
/// header.
fn build_response(
    request: &pb::TxnRequest,
    done: TxnResponse,
    header: Option<pb::ResponseHeader>,
    revision: &mut i64,
) -> Result<pb::TxnResponse, Status> {
    let branch = if done.succeeded { &request.success } else { &request.failure };
    let mut responses = Vec::with_capacity(branch.len());
    for (step, response) in branch.iter().zip(done.responses) {
        if let OpResponse::Put(_) | OpResponse::Delete(1.., _) = response {
            *revision = done.revision.0;
        }
        let header = Some(pb::ResponseHeader { revision: *revision, ..Default::default() });
        let response = match (&step.request, response) {
            (Some(Step::RequestRange(range)), OpResponse::Range(found)) => {
                StepResponse::ResponseRange(RangePlan::of(range)?.answer(found, header))
            }
            (Some(Step::RequestPut(_)), OpResponse::Put(prev)) => {
                let prev_kv = prev.map(key_value);
                StepResponse::ResponsePut(pb::PutResponse { header, prev_kv })
            }
            (Some(Step::RequestDeleteRange(_)), response @ OpResponse::Delete(..)) => {
                StepResponse::ResponseDeleteRange(deleted(response, header))
            }
            (Some(Step::RequestTxn(txn)), OpResponse::Txn(done)) => {
                let header = Some(pb::ResponseHeader::default());
                StepResponse::ResponseTxn(build_response(txn, done, header, revision)?)
            }
            _ => {
                return Err(Status::internal(
                    "kube-lite: the store returned a response of another type",
                ));
            }
        };
        responses.push(pb::ResponseOp { response: Some(response) });
    }
    Ok(pb::TxnResponse { header, succeeded: done.succeeded, responses })
}
