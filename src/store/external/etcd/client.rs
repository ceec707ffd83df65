//! Requests to etcd: bounded in time; reads are retried on any member, writes are sent once.

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

use super::connection::{Connection, Connections};
use super::error::EtcdError;

/// Key of the lock that a server holds; outside of the keys of Kubernetes below `/registry/`.
pub(super) const LOCK_KEY: &str = "/kube-lite/server";
/// Timeout of a request including retries; etcd's own timeout is 7 s.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// Maximum size of a response, for pages of large values.
const MESSAGE_MAX: usize = i32::MAX as usize;
/// First and longest wait before a retry.
const WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Whether a request may be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// The request is idempotent.
    Allowed,
    /// A request that may have arrived is not sent again.
    Never,
}

/// State of etcd as of its latest responses.
#[derive(Debug, Default)]
pub(super) struct ObservedState {
    pub(super) revision: AtomicI64,
    pub(super) term: AtomicU64,
}

/// The client of an etcd.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) connections: Arc<Connections>,
    pub(super) observed: Arc<ObservedState>,
    pub(super) shutdown: Shutdown,
}

impl Connection {
    pub(super) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Starts a watch on a stream of its own.
    ///
    /// # Errors
    /// The reason why the stream did not start.
    pub(super) async fn watch(
        &self,
        create: pb::WatchCreateRequest,
    ) -> Result<Streaming<pb::WatchResponse>, EtcdError> {
        let create = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The end of the request stream would end the watch.
        let requests = stream::iter([create]).chain(stream::pending());
        let client = WatchClient::new(self.channel.clone());
        let mut client = client.max_decoding_message_size(MESSAGE_MAX);
        into_message(client.watch(with_leader(requests)).await)
    }

    pub(super) fn leases(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    pub(super) fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }
}

/// Makes a member without a leader refuse the request at once.
pub(super) fn with_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
    request
}

/// The revision in a response header; 0 if it has none.
pub(super) fn revision_of(header: Option<&pb::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

/// The message of a response.
pub(super) fn into_message<T>(answered: Result<Response<T>, Status>) -> Result<T, EtcdError> {
    answered.map(Response::into_inner).map_err(EtcdError::of)
}

impl Client {
    /// Sends a request until it is answered, at most for `limit`.
    ///
    /// # Errors
    /// [`EtcdError::Unknown`] only if retries are not allowed.
    pub(super) async fn call<T, F>(
        &self,
        requests: Retry,
        limit: Duration,
        call: impl Fn(Connection) -> F,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let mut backoff = Backoff::new(WAIT.0, WAIT.1);
        let mut failed = None;
        let deadline = base::clock::now() + limit;
        loop {
            let connection =
                match tokio::time::timeout_at(deadline, self.connections.current()).await {
                    Ok(connection) => connection,
                    Err(_) => return Err(failed.unwrap_or_else(|| self.unreachable())),
                };
            let number = connection.number;
            let late = || {
                let text = format!(
                    "no answer from {} for {} s",
                    self.connections.endpoints,
                    limit.as_secs()
                );
                Err(EtcdError::Unknown(text))
            };
            let answered = tokio::time::timeout_at(deadline, call(connection)).await;
            let error = match answered.unwrap_or_else(|_| late()) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let error = match requests {
                Retry::Allowed => error.idempotent(),
                Retry::Never => error,
            };
            match &error {
                EtcdError::Answered(_) | EtcdError::Compacted(_) => return Err(error),
                EtcdError::Unknown(reason) => {
                    self.connections.lost(number, reason);
                    return Err(error);
                }
                EtcdError::NotApplied(reason) => self.connections.lost(number, reason),
            }
            failed = Some(error);
            if base::clock::now() >= deadline || !backoff.wait(&self.shutdown).await {
                return Err(failed.unwrap_or_else(|| self.unreachable()));
            }
        }
    }

    fn unreachable(&self) -> EtcdError {
        EtcdError::NotApplied(format!(
            "{} cannot be reached: {}",
            self.connections.endpoints,
            self.connections.last_error()
        ))
    }

    /// Records the header of a response; returns its revision.
    pub(super) fn observe(&self, header: Option<&pb::ResponseHeader>) -> i64 {
        let Some(header) = header else { return 0 };
        self.observed.revision.fetch_max(header.revision, Relaxed);
        self.observed.term.fetch_max(header.raft_term, Relaxed);
        header.revision
    }

    /// Reads a range, linearizable.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub(super) async fn range(
        &self,
        request: &pb::RangeRequest,
    ) -> Result<pb::RangeResponse, EtcdError> {
        let call = |connection: Connection| async move {
            into_message(connection.kv().range(with_leader(request.clone())).await)
        };
        let answer = self.call(Retry::Allowed, ANSWER, call).await?;
        self.observe(answer.header.as_ref());
        Ok(answer)
    }

    /// The newest revision.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub(super) async fn newest(&self) -> Result<i64, EtcdError> {
        let key = bytes::Bytes::from_static(LOCK_KEY.as_bytes());
        let request = pb::RangeRequest { key, count_only: true, ..Default::default() };
        Ok(revision_of(self.range(&request).await?.header.as_ref()))
    }

    /// Runs a transaction.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub(super) async fn txn(
        &self,
        requests: Retry,
        request: &pb::TxnRequest,
    ) -> Result<pb::TxnResponse, EtcdError> {
        let call = |connection: Connection| async move {
            into_message(connection.kv().txn(with_leader(request.clone())).await)
        };
        let answer = self.call(requests, ANSWER, call).await?;
        self.observe(answer.header.as_ref());
        Ok(answer)
    }

    /// Grants a lease; `id` 0 lets etcd choose.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub(super) async fn grant(
        &self,
        id: i64,
        ttl: i64,
    ) -> Result<pb::LeaseGrantResponse, EtcdError> {
        let request = pb::LeaseGrantRequest { id, ttl };
        let call = |connection: Connection| async move {
            into_message(connection.leases().lease_grant(with_leader(request)).await)
        };
        self.call(Retry::Never, ANSWER, call).await
    }

    /// Revokes a lease; returns the revision.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub(super) async fn revoke(&self, id: i64) -> Result<i64, EtcdError> {
        let request = pb::LeaseRevokeRequest { id };
        let call = |connection: Connection| async move {
            into_message(connection.leases().lease_revoke(with_leader(request)).await)
        };
        let answer = self.call(Retry::Never, ANSWER, call).await?;
        Ok(self.observe(answer.header.as_ref()))
    }

    /// Renews a lease; returns its seconds, 0 if the lease does not exist.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub(super) async fn renew(&self, id: i64) -> Result<i64, EtcdError> {
        let call = |connection: Connection| async move {
            let requests = stream::iter([pb::LeaseKeepAliveRequest { id }]);
            let mut client = connection.leases();
            let mut answers = into_message(client.lease_keep_alive(with_leader(requests)).await)?;
            answers.message().await.map_err(EtcdError::of)
        };
        let answer = self.call(Retry::Allowed, ANSWER, call).await?;
        let answer = answer
            .ok_or_else(|| EtcdError::NotApplied("no response to the lease renewal".to_owned()))?;
        Ok(answer.ttl)
    }

    /// The status of the connected member.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub(super) async fn status(&self) -> Result<pb::StatusResponse, EtcdError> {
        let call = |connection: Connection| async move {
            let mut client = connection.maintenance();
            into_message(client.status(Request::new(pb::StatusRequest {})).await)
        };
        let answer = self.call(Retry::Allowed, ANSWER, call).await?;
        self.observe(answer.header.as_ref());
        Ok(answer)
    }

    /// Lists, raises or clears alarms.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub(super) async fn alarm(
        &self,
        request: pb::AlarmRequest,
    ) -> Result<Vec<pb::AlarmMember>, EtcdError> {
        let call = |connection: Connection| async move {
            let mut client = connection.maintenance();
            into_message(client.alarm(Request::new(request)).await)
        };
        Ok(self.call(Retry::Allowed, ANSWER, call).await?.alarms)
    }
}
