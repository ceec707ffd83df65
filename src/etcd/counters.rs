//! Counters of gRPC calls and health checks.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::checks::{Check, Kind};

/// All methods: service, method, type of call. Unknown methods are not counted, so that clients
/// cannot exhaust memory.
pub(crate) const METHODS: &[(&str, &str, &str)] = &[
    ("KV", "Range", "unary"),
    ("KV", "RangeStream", "server_stream"),
    ("KV", "Put", "unary"),
    ("KV", "DeleteRange", "unary"),
    ("KV", "Txn", "unary"),
    ("KV", "Compact", "unary"),
    ("Watch", "Watch", "bidi_stream"),
    ("Lease", "LeaseGrant", "unary"),
    ("Lease", "LeaseRevoke", "unary"),
    ("Lease", "LeaseKeepAlive", "bidi_stream"),
    ("Lease", "LeaseTimeToLive", "unary"),
    ("Lease", "LeaseLeases", "unary"),
    ("Cluster", "MemberAdd", "unary"),
    ("Cluster", "MemberRemove", "unary"),
    ("Cluster", "MemberUpdate", "unary"),
    ("Cluster", "MemberList", "unary"),
    ("Cluster", "MemberPromote", "unary"),
    ("Maintenance", "Alarm", "unary"),
    ("Maintenance", "Status", "unary"),
    ("Maintenance", "Defragment", "unary"),
    ("Maintenance", "Hash", "unary"),
    ("Maintenance", "HashKV", "unary"),
    ("Maintenance", "Snapshot", "server_stream"),
    ("Maintenance", "MoveLeader", "unary"),
    ("Maintenance", "Downgrade", "unary"),
    ("Auth", "AuthStatus", "unary"),
    ("Auth", "Authenticate", "unary"),
];

/// Index in [`METHODS`].
pub(crate) type Method = usize;

/// Number of gRPC codes, from OK to unauthenticated.
pub(crate) const CODES: usize = Code::Unauthenticated as usize + 1;

/// Result of the last run of a check, number of runs, number of failures.
type Results = (bool, u64, u64);

/// Counters of requests.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) started: [AtomicU64; METHODS.len()],
    /// By code.
    pub(crate) handled: [[AtomicU64; CODES]; METHODS.len()],
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) healthy: AtomicU64,
    pub(crate) unhealthy: AtomicU64,
    /// Results per check.
    pub(crate) checks: Mutex<BTreeMap<(Kind, Check), Results>>,
}

impl Counters {
    /// Counts a response of `/health`.
    pub(crate) fn health(&self, healthy: bool) {
        if healthy { &self.healthy } else { &self.unhealthy }.fetch_add(1, Relaxed);
    }

    /// Counts a run of a check.
    pub(crate) fn checked(&self, kind: Kind, check: Check, good: bool) {
        let mut checks = self.checks.lock();
        let (last, times, failures) = checks.entry((kind, check)).or_default();
        *last = good;
        if good { *times += 1 } else { *failures += 1 }
    }
}

/// A call, counted when it ends.
#[derive(Debug)]
pub(crate) struct Call {
    counters: Arc<Counters>,
    method: Option<Method>,
}

impl Call {
    /// Counts the start of a call of `path`.
    pub(crate) fn begin(counters: &Arc<Counters>, path: &str) -> Self {
        let named = path.strip_prefix("/etcdserverpb.").and_then(|path| path.split_once('/'));
        let is = |(service, method, _): &(&str, &str, &str)| named == Some((*service, *method));
        let method = METHODS.iter().position(is);
        if let Some(count) = method.and_then(|method| counters.started.get(method)) {
            count.fetch_add(1, Relaxed);
        }
        Self { counters: Arc::clone(counters), method }
    }

    /// Counts the bytes of a request body.
    pub(crate) fn receive(&self, request: Request<Incoming>) -> Request<Body> {
        let counters = Arc::clone(&self.counters);
        request.map(|body| Body::new(Received { body: Body::new(body), counters }))
    }

    /// Counts the bytes of a response body, and the end of the call with it.
    pub(crate) fn send(self, answer: Response<Body>) -> Response<Body> {
        let mut call = self;
        if answer.headers().contains_key("grpc-status") {
            call.end(answer.headers());
        }
        answer.map(|body| Body::new(Sent { body, call }))
    }

    fn end(&mut self, trailers: &HeaderMap) {
        let code = Status::from_header_map(trailers).map_or(Code::Unknown, |status| status.code());
        self.count(code);
    }

    /// Counts bytes of a request.
    pub(crate) fn received(&self, bytes: usize) {
        self.counters.received.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts bytes of a response.
    pub(crate) fn sent(&self, bytes: usize) {
        self.counters.sent.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts the end of the call.
    pub(crate) fn count(&mut self, code: Code) {
        let codes = self.method.take().and_then(|method| self.counters.handled.get(method));
        if let Some(count) = codes.and_then(|codes| codes.get(code as usize)) {
            count.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // The client went away before the end.
        self.count(Code::Cancelled);
    }
}

struct Received {
    body: Body,
    counters: Arc<Counters>,
}

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.counters.received.fetch_add(data.len() as u64, Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Sent {
    body: Body,
    call: Call,
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            if let Some(data) = frame.data_ref() {
                self.call.counters.sent.fetch_add(data.len() as u64, Relaxed);
            }
            if let Some(trailers) = frame.trailers_ref() {
                self.call.end(trailers);
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
