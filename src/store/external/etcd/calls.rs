//! Requests to etcd: bounded in time, reads asked again of whoever answers, writes sent once.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use base::{Backoff, Shutdown};
use futures::{StreamExt, stream};
use proto::etcdserverpb as pb;
use proto::etcdserverpb::kv_client::KvClient;
use proto::etcdserverpb::lease_client::LeaseClient;
use proto::etcdserverpb::maintenance_client::MaintenanceClient;
use proto::etcdserverpb::watch_client::WatchClient;
use proto::etcdserverpb::watch_request::RequestUnion;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use super::connection::{Line, Lines};
use super::error::Refusal;

/// Key of the lock that a server holds; outside of the keys of Kubernetes below `/registry/`.
pub(super) const LOCK_KEY: &str = "/kube-lite/server";
/// How long a request may take, with all that is tried: etcd gives up its own after 7 s.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// Largest answer: pages of large values, and compaction keeps none of them whole.
const MESSAGE_MAX: usize = i32::MAX as usize;
/// First and longest wait before a read is asked again.
const WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Whether a request may be asked twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    /// It changes nothing, or the same again.
    Often,
    /// Once it may have arrived it is not sent again.
    Once,
}

/// What every answer told of etcd.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) revision: AtomicI64,
    pub(super) term: AtomicU64,
}

/// The way to ask.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    pub(super) lines: Arc<Lines>,
    pub(super) seen: Arc<Seen>,
    pub(super) shutdown: Shutdown,
}

impl Line {
    pub(super) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Begins one watch on a stream of its own, which it ends with.
    ///
    /// # Errors
    /// Why the stream did not begin.
    pub(super) async fn watch(
        &self,
        create: pb::WatchCreateRequest,
    ) -> Result<Streaming<pb::WatchResponse>, Refusal> {
        let create = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The end of the requests would end the watch.
        let requests = stream::iter([create]).chain(stream::pending());
        let client = WatchClient::new(self.channel.clone());
        let mut client = client.max_decoding_message_size(MESSAGE_MAX);
        plain(client.watch(with_leader(requests)).await)
    }

    pub(super) fn leases(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    pub(super) fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }
}

/// A request that a member without a leader refuses at once, instead of waiting for one.
pub(super) fn with_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
    request
}

/// The revision that an answer was given at; 0 where it says none.
pub(super) fn revision_of(header: Option<&pb::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

/// An answer without what stands around it.
pub(super) fn plain<T>(answered: Result<Response<T>, Status>) -> Result<T, Refusal> {
    answered.map(Response::into_inner).map_err(Refusal::of)
}

impl Calls {
    /// Asks until there is an answer, at most for `limit`.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] is only of what is asked once.
    pub(super) async fn ask<T, F>(
        &self,
        asks: Asks,
        limit: Duration,
        call: impl Fn(Line) -> F,
    ) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        let mut backoff = Backoff::new(WAIT.0, WAIT.1);
        let mut failed = None;
        let deadline = base::clock::now() + limit;
        loop {
            let line = match tokio::time::timeout_at(deadline, self.lines.line()).await {
                Ok(line) => line,
                Err(_) => return Err(failed.unwrap_or_else(|| self.away())),
            };
            let number = line.number;
            let late = || {
                let text = format!("no answer from {} for {} s", self.lines.place, limit.as_secs());
                Err(Refusal::Unknown(text))
            };
            let answered = tokio::time::timeout_at(deadline, call(line)).await;
            let refusal = match answered.unwrap_or_else(|_| late()) {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            let refusal = match asks {
                Asks::Often => refusal.harmless(),
                Asks::Once => refusal,
            };
            match &refusal {
                Refusal::Answered(_) | Refusal::Compacted(_) => return Err(refusal),
                Refusal::Unknown(why) => {
                    self.lines.lost(number, why);
                    return Err(refusal);
                }
                Refusal::Untouched(why) => self.lines.lost(number, why),
            }
            failed = Some(refusal);
            if base::clock::now() >= deadline || !backoff.wait(&self.shutdown).await {
                return Err(failed.unwrap_or_else(|| self.away()));
            }
        }
    }

    fn away(&self) -> Refusal {
        Refusal::Untouched(format!("{} cannot be reached: {}", self.lines.place, self.lines.why()))
    }

    /// Notes what an answer says beside itself; the revision.
    pub(super) fn note(&self, header: Option<&pb::ResponseHeader>) -> i64 {
        let Some(header) = header else { return 0 };
        self.seen.revision.fetch_max(header.revision, Relaxed);
        self.seen.term.fetch_max(header.raft_term, Relaxed);
        header.revision
    }

    /// Reads a range, consistent with everything acknowledged before.
    ///
    /// # Errors
    /// See [`Calls::ask`].
    pub(super) async fn range(
        &self,
        request: &pb::RangeRequest,
    ) -> Result<pb::RangeResponse, Refusal> {
        let ask =
            |line: Line| async move { plain(line.kv().range(with_leader(request.clone())).await) };
        let answer = self.ask(Asks::Often, ANSWER, ask).await?;
        self.note(answer.header.as_ref());
        Ok(answer)
    }

    /// The newest revision.
    ///
    /// # Errors
    /// See [`Calls::ask`].
    pub(super) async fn newest(&self) -> Result<i64, Refusal> {
        let key = bytes::Bytes::from_static(LOCK_KEY.as_bytes());
        let request = pb::RangeRequest { key, count_only: true, ..Default::default() };
        Ok(revision_of(self.range(&request).await?.header.as_ref()))
    }

    /// Compares and writes.
    ///
    /// # Errors
    /// See [`Calls::ask`].
    pub(super) async fn txn(
        &self,
        asks: Asks,
        request: &pb::TxnRequest,
    ) -> Result<pb::TxnResponse, Refusal> {
        let ask =
            |line: Line| async move { plain(line.kv().txn(with_leader(request.clone())).await) };
        let answer = self.ask(asks, ANSWER, ask).await?;
        self.note(answer.header.as_ref());
        Ok(answer)
    }

    /// Grants a lease; `id` 0 lets etcd choose.
    ///
    /// # Errors
    /// See [`Calls::ask`].
    pub(super) async fn grant(&self, id: i64, ttl: i64) -> Result<pb::LeaseGrantResponse, Refusal> {
        let request = pb::LeaseGrantRequest { id, ttl };
        let ask = |line: Line| async move {
            plain(line.leases().lease_grant(with_leader(request)).await)
        };
        self.ask(Asks::Once, ANSWER, ask).await
    }

    /// Ends a lease; the revision then.
    ///
    /// # Errors
    /// See [`Calls::ask`].
    pub(super) async fn revoke(&self, id: i64) -> Result<i64, Refusal> {
        let request = pb::LeaseRevokeRequest { id };
        let ask = |line: Line| async move {
            plain(line.leases().lease_revoke(with_leader(request)).await)
        };
        let answer = self.ask(Asks::Once, ANSWER, ask).await?;
        Ok(self.note(answer.header.as_ref()))
    }

    /// Starts a lease's time again; its seconds, 0 when there is no such lease.
    ///
    /// # Errors
    /// See [`Calls::ask`].
    pub(super) async fn renew(&self, id: i64) -> Result<i64, Refusal> {
        let ask = |line: Line| async move {
            let requests = stream::iter([pb::LeaseKeepAliveRequest { id }]);
            let mut client = line.leases();
            let mut answers = plain(client.lease_keep_alive(with_leader(requests)).await)?;
            answers.message().await.map_err(Refusal::of)
        };
        let answer = self.ask(Asks::Often, ANSWER, ask).await?;
        let answer =
            answer.ok_or_else(|| Refusal::Untouched("a lease was not renewed".to_owned()))?;
        Ok(answer.ttl)
    }

    /// What the connected member says of itself.
    ///
    /// # Errors
    /// See [`Calls::ask`].
    pub(super) async fn status(&self) -> Result<pb::StatusResponse, Refusal> {
        let ask = |line: Line| async move {
            let mut client = line.maintenance();
            plain(client.status(Request::new(pb::StatusRequest {})).await)
        };
        let answer = self.ask(Asks::Often, ANSWER, ask).await?;
        self.note(answer.header.as_ref());
        Ok(answer)
    }

    /// Alarms: asked for, raised or ended.
    ///
    /// # Errors
    /// See [`Calls::ask`].
    pub(super) async fn alarm(
        &self,
        request: pb::AlarmRequest,
    ) -> Result<Vec<pb::AlarmMember>, Refusal> {
        let ask = |line: Line| async move {
            let mut client = line.maintenance();
            plain(client.alarm(Request::new(request)).await)
        };
        Ok(self.ask(Asks::Often, ANSWER, ask).await?.alarms)
    }
}
