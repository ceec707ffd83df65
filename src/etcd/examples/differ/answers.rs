//! Answers without the parts that differ between servers.

use proto::etcdserverpb as pb;
use tonic::{Response, Status};

/// The comparable part of an answer.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Range(pb::RangeResponse),
    Put(pb::PutResponse),
    Delete(pb::DeleteRangeResponse),
    Txn(pb::TxnResponse),
    Compact(pb::CompactionResponse),
    Grant(pb::LeaseGrantResponse),
    Revoke(pb::LeaseRevokeResponse),
    Live(pb::LeaseTimeToLiveResponse),
    Leases(pb::LeaseLeasesResponse),
    KeepAlive(pb::LeaseKeepAliveResponse),
    Hash(pb::HashKvResponse),
    Alarm(pb::AlarmResponse),
    Defragment(pb::DefragmentResponse),
    /// Status code and message.
    Refused(tonic::Code, String),
}

impl Answer {
    /// The revision in the header.
    pub(crate) fn revision(&self) -> Option<i64> {
        let header = match self {
            Self::Range(answer) => &answer.header,
            Self::Put(answer) => &answer.header,
            Self::Delete(answer) => &answer.header,
            Self::Txn(answer) => &answer.header,
            Self::Compact(answer) => &answer.header,
            Self::Grant(answer) => &answer.header,
            Self::Revoke(answer) => &answer.header,
            Self::Live(answer) => &answer.header,
            Self::Leases(answer) => &answer.header,
            Self::KeepAlive(answer) => &answer.header,
            Self::Hash(answer) => &answer.header,
            Self::Alarm(answer) => &answer.header,
            Self::Defragment(answer) => &answer.header,
            Self::Refused(..) => &None,
        };
        header.as_ref().map(|header| header.revision)
    }

    /// Whether the answer is not an error.
    pub(crate) fn is_done(&self) -> bool {
        !matches!(self, Self::Refused(..))
    }
}

/// An answer with a header.
pub(crate) trait Headed {
    fn header(&mut self) -> &mut Option<pb::ResponseHeader>;

    fn forget_header(&mut self) {
        *self.header() = None;
    }
}

macro_rules! headed {
    ($($name:ident),*) => {
        $(impl Headed for pb::$name {
            fn header(&mut self) -> &mut Option<pb::ResponseHeader> {
                &mut self.header
            }
        })*
    };
}

headed!(
    RangeResponse,
    PutResponse,
    DeleteRangeResponse,
    TxnResponse,
    CompactionResponse,
    LeaseGrantResponse,
    LeaseRevokeResponse,
    LeaseTimeToLiveResponse,
    LeaseLeasesResponse,
    LeaseKeepAliveResponse,
    HashKvResponse,
    AlarmResponse,
    DefragmentResponse,
    WatchResponse
);

/// Clears ids and terms, which differ between servers.
pub(crate) fn strip(answer: &mut impl Headed) {
    if let Some(header) = answer.header() {
        (header.cluster_id, header.member_id, header.raft_term) = (0, 0, 0);
    }
}

/// An answer or an error, without the parts that differ between servers.
pub(crate) fn comparable<T: Headed>(
    answer: Result<Response<T>, Status>,
    kind: impl FnOnce(T) -> Answer,
) -> Answer {
    match answer {
        Ok(answer) => {
            let mut answer = answer.into_inner();
            strip(&mut answer);
            kind(answer)
        }
        Err(status) => Answer::Refused(status.code(), status.message().to_owned()),
    }
}
