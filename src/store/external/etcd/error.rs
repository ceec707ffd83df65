//! Classification of etcd's errors; the only place that examines their texts.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::contract::StoreError;

/// Errors of requests to etcd.
#[derive(Debug, Clone)]
pub(super) enum EtcdError {
    /// The request was not sent or not accepted: it may be retried.
    NotApplied(String),
    /// The response is lost, or etcd does not know the outcome: the change may have happened.
    Unknown(String),
    /// The requested revision is older than this one, the oldest that etcd has.
    Compacted(i64),
    /// etcd refused the request.
    Answered(Status),
}

impl std::fmt::Display for EtcdError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotApplied(reason) | Self::Unknown(reason) => f.write_str(reason),
            Self::Compacted(oldest) => write!(f, "compacted up to revision {oldest}"),
            Self::Answered(status) => f.write_str(status.message()),
        }
    }
}

/// etcd's texts for requests that it did not accept (`api/v3rpc/rpctypes`), because it has no
/// leader or too many requests. A member that stops may have proposed the request before.
const UNTOUCHED: [&str; 3] =
    ["etcdserver: no leader", "etcdserver: too many requests", "etcdserver: not capable"];

impl EtcdError {
    /// Classifies a status.
    pub(super) fn of(status: Status) -> Self {
        let text = status.message();
        if UNTOUCHED.contains(&text) {
            return Self::NotApplied(text.to_owned());
        }
        if was_not_sent(&status) {
            return Self::NotApplied(chain(&status));
        }
        match status.code() {
            // Lost connections, and timeouts of both sides.
            Code::Unavailable
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unknown
            | Code::Internal
            | Code::Aborted => Self::Unknown(chain(&status)),
            _ => Self::Answered(status),
        }
    }

    /// For idempotent requests: an unknown outcome means not applied.
    pub(super) fn idempotent(self) -> Self {
        match self {
            Self::Unknown(reason) => Self::NotApplied(reason),
            other => other,
        }
    }

    /// Converts to the contract's error; `requested` is the requested revision.
    pub(super) fn into_store_error(self, requested: i64) -> StoreError {
        let status = match self {
            Self::NotApplied(reason) => return StoreError::Unavailable(reason),
            Self::Unknown(reason) => return StoreError::Unknown(reason),
            Self::Compacted(oldest) => return StoreError::Compacted { requested, oldest },
            Self::Answered(status) => status,
        };
        match status.message() {
            // The response does not contain the oldest or the newest revision.
            "etcdserver: mvcc: required revision has been compacted" => {
                StoreError::Compacted { requested, oldest: 0 }
            }
            "etcdserver: mvcc: required revision is a future revision" => {
                StoreError::Future { requested, newest: 0 }
            }
            "etcdserver: requested lease not found" => StoreError::LeaseNotFound,
            "etcdserver: lease already exists" => StoreError::LeaseExists,
            "etcdserver: too large lease TTL" => StoreError::LeaseTtlTooLarge,
            "etcdserver: duplicate key given in txn request" => StoreError::DuplicateKey,
            "etcdserver: key not found" => StoreError::KeyNotFound,
            "etcdserver: corrupt cluster" => StoreError::Corrupt,
            text @ "etcdserver: mvcc: database space exceeded" => StoreError::NoSpace(format!(
                "{text}; compact and defragment etcd, or raise its quota, and end its alarm"
            )),
            text => StoreError::Invalid(text.to_owned()),
        }
    }
}

/// Whether not even the connection was established.
fn was_not_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A status and its causes in one line.
pub(super) fn chain(status: &Status) -> String {
    let text = if status.message().is_empty() { "no answer" } else { status.message() };
    causes(text.to_owned(), status.source())
}

/// A text and the causes that it does not mention itself.
pub(super) fn causes(
    mut text: String,
    mut cause: Option<&(dyn std::error::Error + 'static)>,
) -> String {
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Advice for a refused client certificate.
pub(super) const CERTIFICATE_REQUIRED: &str =
    "etcd wants a certificate of a CA of its own, by --datastore-certfile and --datastore-keyfile";

/// Advice for an administrator about an error that ends a start or a migration.
pub(super) fn advice(reason: &str) -> Option<&'static str> {
    let users = "etcdserver: user name is empty";
    let advice = if reason.contains(users) || reason.contains("etcdserver: invalid auth token") {
        "authentication by users is enabled on this etcd (auth enable) and not supported; use \
         client certificates, or disable its users"
    } else if reason.contains("etcdserver: permission denied") {
        "the user of the certificate lacks access to all keys: grant it etcd's role root"
    } else if reason.contains("UnknownIssuer") {
        "its certificate was not signed by the CA of --datastore-cafile"
    } else if reason.contains("CertificateRequired")
        || reason.contains("BadCertificate")
        || reason.contains("UnknownCA")
        || reason.contains("HandshakeFailure")
        || reason.contains("DecryptError")
    {
        CERTIFICATE_REQUIRED
    } else {
        return None;
    };
    Some(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes and texts of etcd 3.7.3, `api/v3rpc/rpctypes/error.go`.
    #[test]
    fn unknown_outcomes_are_distinguished_from_unapplied_requests() {
        let unavailable = |text: &str| EtcdError::of(Status::unavailable(text)).into_store_error(0);
        assert!(matches!(unavailable("etcdserver: no leader"), StoreError::Unavailable(_)));
        assert!(matches!(unavailable("etcdserver: leader changed"), StoreError::Unknown(_)));
        assert!(matches!(unavailable("etcdserver: request timed out"), StoreError::Unknown(_)));
        let lost = Status::new(Code::Unavailable, "broken pipe");
        assert!(matches!(EtcdError::of(lost.clone()).into_store_error(0), StoreError::Unknown(_)));
        assert!(matches!(
            EtcdError::of(lost).idempotent().into_store_error(0),
            StoreError::Unavailable(_)
        ));
        let compacted =
            Status::out_of_range("etcdserver: mvcc: required revision has been compacted");
        assert!(matches!(
            EtcdError::of(compacted).into_store_error(7),
            StoreError::Compacted { requested: 7, .. }
        ));
        let full = Status::resource_exhausted("etcdserver: mvcc: database space exceeded");
        assert!(matches!(EtcdError::of(full).into_store_error(0), StoreError::NoSpace(_)));
        let busy = Status::resource_exhausted("etcdserver: too many requests");
        assert!(matches!(EtcdError::of(busy).into_store_error(0), StoreError::Unavailable(_)));
        let none = Status::not_found("etcdserver: requested lease not found");
        assert!(matches!(EtcdError::of(none).into_store_error(0), StoreError::LeaseNotFound));
        let users = Status::invalid_argument("etcdserver: user name is empty");
        assert!(advice(&EtcdError::of(users).to_string()).unwrap().contains("disable its users"));
    }
}
