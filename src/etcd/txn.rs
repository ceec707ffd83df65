//! Transactions: etcd's checks, their form in the store's terms, and the answers.
//!
//! The store has no puts that keep the value or the lease there is (`ignore_value`, `ignore_lease`). What they keep is read
//! before, and the transaction runs inside one that compares the keys' revisions: when they changed, it is read again.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use proto::etcdserverpb::request_op::Request as Step;
use proto::etcdserverpb::response_op::Response as StepResponse;
use store::{
    Backend, Compare, KeyRange, KeyValue, Op, OpResponse, Ordering, RangeRequest, Revision,
    StoreError, Target, Txn, TxnResponse,
};
use tonic::Status;

use crate::answer::{empty_key, key_not_found, status};
use crate::range::{Plan, key_value, keys};

/// Most comparisons and steps of one transaction with those inside it: etcd's default `--max-txn-ops`.
const MAX_OPS: usize = 128;

/// Refuses what etcd refuses before it looks at its state.
///
/// # Errors
/// Too many operations, a missing key, a put that keeps a value and has one.
pub(crate) fn check(request: &pb::TxnRequest) -> Result<(), Status> {
    check_within(request, MAX_OPS)
}

fn check_within(request: &pb::TxnRequest, most: usize) -> Result<(), Status> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    let Some(left) = most.checked_sub(ops) else {
        return Err(Status::invalid_argument("etcdserver: too many operations in txn request"));
    };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(empty_key());
    }
    for step in request.success.iter().chain(&request.failure) {
        match &step.request {
            Some(Step::RequestRange(range)) => Plan::of(range).map(|_| ())?,
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

/// Whether all reads of a transaction are content with what this member knows.
pub(crate) fn is_serializable(request: &pb::TxnRequest) -> bool {
    steps(request).all(|step| match step {
        Step::RequestRange(range) => range.serializable,
        Step::RequestPut(_) | Step::RequestDeleteRange(_) => true,
        Step::RequestTxn(txn) => is_serializable(txn),
    })
}

/// What the puts of a transaction keep, as it was read; `None` is a key that was not there.
type Kept = BTreeMap<Bytes, Option<KeyValue>>;

fn kept_keys(request: &pb::TxnRequest, kept: &mut Kept) {
    for step in steps(request) {
        match step {
            Step::RequestPut(put) if put.ignore_value || put.ignore_lease => {
                kept.insert(put.key.clone(), None);
            }
            Step::RequestTxn(txn) => kept_keys(txn, kept),
            _ => {}
        }
    }
}

/// A transaction in the store's terms.
pub(crate) struct Asked {
    txn: Txn,
    kept: Kept,
}

/// A lease that nobody is granted. A put that keeps what is not there names it, so that the store refuses the whole
/// transaction where such a put would run, and only there.
const NOBODYS_LEASE: i64 = i64::MIN;

impl Asked {
    /// Translates a checked request, with what its puts keep.
    ///
    /// # Errors
    /// A comparison that does not exist.
    pub(crate) async fn of(
        request: &pb::TxnRequest,
        backend: &dyn Backend,
    ) -> Result<Self, Status> {
        let mut kept = Kept::new();
        kept_keys(request, &mut kept);
        for (key, kv) in &mut kept {
            let found = backend.range(RangeRequest::new(KeyRange::key(key.clone()))).await;
            *kv = found.map_err(status)?.kvs.pop();
        }
        Ok(Self { txn: translate(request, &kept)?, kept })
    }

    /// What the store is asked.
    pub(crate) fn txn(&self) -> Txn {
        if self.kept.is_empty() {
            return self.txn.clone();
        }
        let unchanged = self.kept.iter().map(|(key, kv)| Compare {
            range: KeyRange::key(key.clone()),
            target: Target::ModRevision(kv.as_ref().map_or(0, |kv| kv.mod_revision.0)),
            ordering: Ordering::Equal,
        });
        Txn {
            compare: unchanged.collect(),
            success: vec![Op::Txn(self.txn.clone())],
            ..Txn::default()
        }
    }

    /// What the transaction itself answered; `None` when what it keeps has changed.
    pub(crate) fn outcome(&self, mut done: TxnResponse) -> Option<TxnResponse> {
        if self.kept.is_empty() {
            return Some(done);
        }
        match done.responses.pop() {
            Some(OpResponse::Txn(inner)) if done.succeeded => Some(inner),
            _ => None,
        }
    }

    /// etcd's answer to the store's refusal: a lease that is not there may be nobody's.
    pub(crate) fn refusal(
        &self,
        request: &pb::TxnRequest,
        error: StoreError,
        backend: &dyn Backend,
    ) -> Status {
        let misses_key = self.kept.values().any(Option::is_none);
        match error {
            StoreError::LeaseNotFound if misses_key && !misses_lease(request, backend) => {
                key_not_found()
            }
            error => status(error),
        }
    }
}

fn misses_lease(request: &pb::TxnRequest, backend: &dyn Backend) -> bool {
    steps(request).any(|step| match step {
        Step::RequestPut(put) => put.lease != 0 && backend.lease(put.lease).is_err(),
        Step::RequestTxn(txn) => misses_lease(txn, backend),
        _ => false,
    })
}

fn translate(request: &pb::TxnRequest, kept: &Kept) -> Result<Txn, Status> {
    let branch = |steps: &[pb::RequestOp]| -> Result<Vec<Op>, Status> {
        steps.iter().filter_map(|step| step.request.as_ref()).map(|step| op(step, kept)).collect()
    };
    Ok(Txn {
        compare: request.compare.iter().map(compare).collect::<Result<_, _>>()?,
        success: branch(&request.success)?,
        failure: branch(&request.failure)?,
        ..Txn::default()
    })
}

fn op(step: &Step, kept: &Kept) -> Result<Op, Status> {
    Ok(match step {
        Step::RequestRange(range) => {
            let mut request = Plan::of(range)?.request;
            // A read alone takes a negative revision for the newest, one in a transaction for one that is compacted.
            request.revision = Some(Revision(range.revision)).filter(|revision| revision.0 != 0);
            Op::Range(request)
        }
        Step::RequestPut(put) => {
            let before = kept.get(&put.key).and_then(Option::as_ref);
            let value = before.filter(|_| put.ignore_value).map_or(&put.value, |kv| &kv.value);
            let lease = match before {
                None if put.ignore_value || put.ignore_lease => NOBODYS_LEASE,
                Some(kv) if put.ignore_lease => kv.lease,
                _ => put.lease,
            };
            let (key, value) = (put.key.clone(), value.clone());
            Op::Put { key, value, lease, prev_kv: put.prev_kv }
        }
        Step::RequestDeleteRange(delete) => {
            Op::Delete { range: keys(&delete.key, &delete.range_end), prev_kv: delete.prev_kv }
        }
        Step::RequestTxn(txn) => Op::Txn(translate(txn, kept)?),
    })
}

fn compare(compare: &pb::Compare) -> Result<Compare, Status> {
    let unknown = || Status::invalid_argument("etcdserver: the comparison is not known");
    let ordering = match CompareResult::try_from(compare.result).map_err(|_| unknown())? {
        CompareResult::Equal => Ordering::Equal,
        CompareResult::NotEqual => Ordering::NotEqual,
        CompareResult::Greater => Ordering::Greater,
        CompareResult::Less => Ordering::Less,
    };
    // A target without its value, or with another's, is compared with the zero value, as etcd's getters give it.
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

/// The answer to a deletion.
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

/// The answer to a transaction. Headers of the steps have the revision alone, as etcd's: the new one from the first change on.
///
/// # Errors
/// A step was answered as something else: a fault of the store.
pub(crate) fn answer(
    request: &pb::TxnRequest,
    done: TxnResponse,
    header: Option<pb::ResponseHeader>,
) -> Result<pb::TxnResponse, Status> {
    let before = done.revision.0 - i64::from(changes(&done));
    shape(request, done, header, &mut { before })
}

fn changes(done: &TxnResponse) -> bool {
    done.responses.iter().any(|response| match response {
        OpResponse::Range(_) => false,
        OpResponse::Put(_) => true,
        OpResponse::Delete(count, _) => *count > 0,
        OpResponse::Txn(done) => changes(done),
    })
}

fn shape(
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
                StepResponse::ResponseRange(Plan::of(range)?.answer(found, header))
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
                StepResponse::ResponseTxn(shape(txn, done, header, revision)?)
            }
            _ => return Err(Status::internal("kube-lite: a step was answered as another")),
        };
        responses.push(pb::ResponseOp { response: Some(response) });
    }
    Ok(pb::TxnResponse { header, succeeded: done.succeeded, responses })
}
