//! Maps errors of the store to gRPC codes and etcd's texts; the only place that does so.

use proto::etcdserverpb as pb;
use store::{Alarm, StoreError};
use tonic::{Code, Status};

pub(crate) const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

/// The status of etcd for an error of the store (`api/v3rpc/rpctypes`).
pub(crate) fn status(error: StoreError) -> Status {
    let (code, text) = match &error {
        StoreError::Compacted { .. } => (Code::OutOfRange, COMPACTED),
        StoreError::Future { .. } => {
            (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision")
        }
        StoreError::LeaseNotFound => (Code::NotFound, "etcdserver: requested lease not found"),
        StoreError::LeaseExists => (Code::FailedPrecondition, "etcdserver: lease already exists"),
        StoreError::LeaseTtlTooLarge => (Code::OutOfRange, "etcdserver: too large lease TTL"),
        StoreError::DuplicateKey => {
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request")
        }
        StoreError::KeyNotFound => return key_not_found(),
        StoreError::Corrupt => (Code::DataLoss, "etcdserver: corrupt cluster"),
        StoreError::NotCaughtUp(_) => (
            Code::FailedPrecondition,
            "etcdserver: can only promote a learner member which is in sync with leader",
        ),
        StoreError::TooLarge { .. } => (Code::InvalidArgument, "etcdserver: request is too large"),
        StoreError::Unavailable(_) => (Code::Unavailable, "etcdserver: no leader"),
        StoreError::Unknown(_) => (Code::Unavailable, "etcdserver: request timed out"),
        StoreError::NoSpace(_) => {
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded")
        }
        StoreError::Stopped(_) => (Code::Unavailable, "etcdserver: server stopped"),
        // etcd has no text for these: the first cannot reach a client, the second is an invalid
        // request.
        StoreError::Overrun | StoreError::Invalid(_) => {
            return Status::invalid_argument(format!("etcdserver: {error}"));
        }
    };
    Status::new(code, text)
}

pub(crate) fn empty_key() -> Status {
    Status::invalid_argument("etcdserver: key is not provided")
}

pub(crate) fn key_not_found() -> Status {
    Status::invalid_argument("etcdserver: key not found")
}

pub(crate) fn invalid_sort() -> Status {
    Status::invalid_argument("etcdserver: invalid sort option")
}

/// etcd's name of an alarm, or its number.
pub(crate) fn alarm_name(alarm: Alarm) -> String {
    pb::AlarmType::try_from(alarm.0)
        .map_or(alarm.0.to_string(), |name| name.as_str_name().to_owned())
}
