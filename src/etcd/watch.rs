//! The Watch service: one task per stream, shared by its watches.
//!
//! A client that reads slowly affects no other one: the store ends its watch when it lags too far,
//! and the watch continues here from history where it stopped, as etcd's unsynced watchers do.

mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::tasks::Kind;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use proto::etcdserverpb as pb;
use proto::etcdserverpb::watch_create_request::FilterType;
use proto::etcdserverpb::watch_request::RequestUnion;
use store::{GroupBatch, GroupItem, KeyRange, Revision, StoreError, WatchGroup, WatchGuard};
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tower::Service;

use crate::errors::{COMPACTED, status};
use crate::service::{Etcd, MESSAGE_BYTES};
use crate::watch::messages::{Encoded, EventFilter, Outgoing, WatchCodec, fragments, head};

/// The id that means all watches of a stream, or none.
const NO_WATCH: i64 = -1;

/// Maximum number of responses that are sent together.
const TOGETHER: usize = 256;

/// Capacity of the queue to the client in units of [`TOGETHER`].
const RESPONSES: usize = 4;

/// Size of changes above which a response is checked for its size; the other fields are much
/// smaller.
const LARGE: usize = MESSAGE_BYTES / 2;

/// Maximum number of watches per stream. etcd has no limit; a Kubernetes API server uses one per
/// kind.
const MAX_WATCHES: usize = 10_000;

/// Interval of progress notifications: etcd's default, without its jitter of a tenth.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);

type ResponseBatch = Result<Vec<Outgoing>, Status>;

/// The service, in place of the generated one, with its own codec.
#[derive(Debug, Clone)]
pub(crate) struct WatchService(pub(crate) Arc<Etcd>);

impl NamedService for WatchService {
    const NAME: &'static str = "etcdserverpb.Watch";
}

impl Service<http::Request<Body>> for WatchService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let streams = Streams(Arc::clone(&self.0));
        Box::pin(async move {
            if request.uri().path() != "/etcdserverpb.Watch/Watch" {
                return Ok(Status::unimplemented("").into_http());
            }
            let mut grpc = Grpc::new(WatchCodec).max_decoding_message_size(MESSAGE_BYTES);
            Ok(grpc.streaming(streams, request).await)
        })
    }
}

/// Starts streams.
struct Streams(Arc<Etcd>);

impl StreamingService<pb::WatchRequest> for Streams {
    type Response = Outgoing;
    type ResponseStream = BoxStream<'static, Result<Outgoing, Status>>;
    type Future = std::future::Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<pb::WatchRequest>>) -> Self::Future {
        let (responses, receiver) = mpsc::channel(RESPONSES);
        let watches = Watches {
            etcd: Etcd::clone(&self.0),
            responses,
            together: Vec::new(),
            running: BTreeMap::new(),
            ended: BTreeSet::new(),
            group: WatchGroup::default(),
            encoded: Encoded::default(),
            next_id: 0,
            notified: 0,
            due: false,
            progress_requested: None,
        };
        self.0.tasks.spawn(Kind::Request, "etcd watch", watches.run(request.into_inner()));
        std::future::ready(Ok(Response::new(outgoing(receiver).boxed())))
    }
}

/// Flattens responses that are sent together.
fn outgoing(
    mut receiver: mpsc::Receiver<ResponseBatch>,
) -> impl stream::Stream<Item = Result<Outgoing, Status>> {
    let mut together = Vec::new().into_iter();
    stream::poll_fn(move |context| {
        loop {
            if let Some(response) = together.next() {
                return Poll::Ready(Some(Ok(response)));
            }
            match std::task::ready!(receiver.poll_recv(context)) {
                Some(Ok(more)) => together = more.into_iter(),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            }
        }
    })
}

/// A watch.
struct Running {
    range: KeyRange,
    /// First revision that was not sent.
    next: i64,
    /// All changes up to this revision were examined.
    notified: i64,
    filter: EventFilter,
    fragment: bool,
    /// Requested progress notifications; and whether changes were sent since the last one.
    progress_notify: bool,
    quiet: bool,
    /// Sends progress as soon as all changes up to this revision were sent.
    due: Option<i64>,
    watching: WatchGuard,
}

impl Running {
    fn has(&self, revision: i64) -> bool {
        self.notified >= revision || self.next > revision + 1
    }
}

/// The watches of a stream.
struct Watches {
    etcd: Etcd,
    responses: mpsc::Sender<ResponseBatch>,
    /// Responses to be sent next.
    together: Vec<Outgoing>,
    running: BTreeMap<i64, Running>,
    /// Watches ended by a compaction: their ids stay in use until the client cancels them, as in
    /// etcd.
    ended: BTreeSet<i64>,
    group: WatchGroup,
    encoded: Encoded,
    next_id: i64,
    /// Number of watches with progress notifications.
    notified: usize,
    /// Some watch has pending progress.
    due: bool,
    /// The client requested progress: the revision that all watches must reach.
    progress_requested: Option<i64>,
}

/// The client is gone, or the stream has failed.
struct StreamClosed;

impl Watches {
    async fn run(mut self, mut requests: Streaming<pb::WatchRequest>) -> Result<(), Status> {
        let shutdown = self.etcd.tasks.shutdown().clone();
        let responses = self.responses.clone();
        let mut tick = base::clock::now() + PROGRESS_INTERVAL;
        let mut items = Vec::new();
        loop {
            let wait = tick.saturating_duration_since(base::clock::now());
            let done = tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => self.request(request).await,
                    // The client has finished sending and continues to listen, or is gone.
                    Ok(None) | Err(_) => Err(StreamClosed),
                },
                () = self.group.take(&mut items) => self.items(&mut items).await,
                () = base::clock::sleep(wait), if self.notified > 0 => {
                    tick = base::clock::now() + PROGRESS_INTERVAL;
                    self.tick().await
                }
                () = responses.closed() => Err(StreamClosed),
                () = shutdown.requested() => {
                    let _ = responses.try_send(Err(status(StoreError::Stopped(String::new()))));
                    Err(StreamClosed)
                }
            };
            let done = match done {
                Ok(()) => self.flush().await,
                gone => gone,
            };
            if let Err(StreamClosed) = done {
                return Ok(());
            }
        }
    }

    async fn send(&mut self, response: pb::WatchResponse) -> Result<(), StreamClosed> {
        self.put(Outgoing::Message(response)).await
    }

    /// Queues a response.
    async fn put(&mut self, response: Outgoing) -> Result<(), StreamClosed> {
        self.together.push(response);
        if self.together.len() < TOGETHER { Ok(()) } else { self.flush().await }
    }

    /// Sends the queued responses.
    async fn flush(&mut self) -> Result<(), StreamClosed> {
        if self.together.is_empty() {
            return Ok(());
        }
        let together = std::mem::take(&mut self.together);
        self.responses.send(Ok(together)).await.map_err(|_| StreamClosed)
    }

    async fn fail(&mut self, error: StoreError) -> Result<(), StreamClosed> {
        self.flush().await?;
        let _ = self.responses.send(Err(status(error))).await;
        Err(StreamClosed)
    }

    fn response(&self, watch_id: i64) -> pb::WatchResponse {
        pb::WatchResponse { header: self.etcd.header_now(), watch_id, ..Default::default() }
    }

    async fn request(&mut self, request: pb::WatchRequest) -> Result<(), StreamClosed> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => {
                if self.remove(request.watch_id) || self.ended.remove(&request.watch_id) {
                    let mut response = self.response(request.watch_id);
                    response.canceled = true;
                    self.send(response).await?;
                }
                Ok(())
            }
            Some(RequestUnion::ProgressRequest(_)) => {
                match self.etcd.backend.read_index().await {
                    Ok(revision) => self.progress_requested = Some(revision.0),
                    Err(error) => return self.fail(error).await,
                }
                for watch in self.running.values() {
                    self.etcd.backend.notify_progress(&watch.range);
                }
                self.answer_progress().await
            }
            // A request type of a newer client: etcd ignores it, too.
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: pb::WatchCreateRequest) -> Result<(), StreamClosed> {
        match self.start(&request).await {
            Ok(id) => {
                let mut response = self.response(id);
                response.created = true;
                self.send(response).await
            }
            Err(StartError::With(reason)) => {
                let mut response = self.response(NO_WATCH);
                (response.created, response.canceled) = (true, true);
                response.cancel_reason = reason.to_owned();
                self.send(response).await
            }
            Err(StartError::Compacted { id, oldest }) => {
                let mut response = self.response(id);
                response.created = true;
                self.send(response).await?;
                self.compacted(id, oldest).await
            }
            Err(StartError::Failed(error)) => self.fail(error).await,
        }
    }

    async fn compacted(&mut self, id: i64, oldest: i64) -> Result<(), StreamClosed> {
        // A client that never cancels them gets the first ids again.
        if self.ended.len() == MAX_WATCHES {
            self.ended.pop_first();
        }
        self.ended.insert(id);
        let mut response = self.response(id);
        response.canceled = true;
        response.compact_revision = oldest;
        if let Some(header) = &mut response.header {
            // etcd reports no revision for a watcher that starts too early
            // (`mvcc/watchable_store.go`).
            header.revision = 0;
        }
        self.send(response).await
    }

    fn has(&self, id: i64) -> bool {
        self.running.contains_key(&id) || self.ended.contains(&id)
    }

    fn choose_id(&mut self, wanted: i64) -> Result<i64, StartError> {
        if wanted != 0 {
            return if self.has(wanted) {
                Err(StartError::With("mvcc: duplicate watch ID provided on the WatchStream"))
            } else {
                Ok(wanted)
            };
        }
        while self.has(self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    async fn start(&mut self, request: &pb::WatchCreateRequest) -> Result<i64, StartError> {
        if request.start_revision < 0 {
            return Err(StartError::With(COMPACTED));
        }
        let (mut start, end) = (request.key.clone(), request.range_end.clone());
        if start.is_empty() {
            start = vec![0].into();
        }
        // The end `\0` means all keys from the start.
        if !end.is_empty() && *end != [0] && start >= end {
            return Err(StartError::With("mvcc: watcher range is empty"));
        }
        if self.running.len() >= MAX_WATCHES {
            return Err(StartError::With("kube-lite: too many watches on one stream"));
        }
        let id = self.choose_id(request.watch_id)?;
        let range = KeyRange { start, end };
        let first = Some(Revision(request.start_revision)).filter(|revision| revision.0 > 0);
        let newest = self.etcd.backend.revision().0;
        let begun = self.etcd.backend.watch_in(&self.group, id, range.clone(), first).await;
        let watching = match begun {
            Ok(watching) => watching,
            Err(StoreError::Compacted { oldest, .. }) => {
                return Err(StartError::Compacted { id, oldest });
            }
            Err(error) => return Err(StartError::Failed(error)),
        };
        let without = |filter: FilterType| request.filters.contains(&(filter as i32));
        let filter = EventFilter {
            puts: !without(FilterType::Noput),
            deletions: !without(FilterType::Nodelete),
            prev_kv: request.prev_kv,
        };
        let watch = Running {
            range,
            next: first.map_or(newest + 1, |revision| revision.0),
            notified: 0,
            filter,
            fragment: request.fragment,
            progress_notify: request.progress_notify,
            quiet: true,
            due: None,
            watching,
        };
        self.notified += usize::from(watch.progress_notify);
        self.running.insert(id, watch);
        Ok(id)
    }

    fn remove(&mut self, id: i64) -> bool {
        let removed = self.running.remove(&id);
        if let Some(watch) = &removed {
            self.notified -= usize::from(watch.progress_notify);
        }
        removed.is_some()
    }

    /// Handles the items of the watches: one write wakes all watches of its key together.
    async fn items(&mut self, items: &mut Vec<GroupItem>) -> Result<(), StreamClosed> {
        for item in items.drain(..) {
            self.item(item).await?;
            // Sent before changes after the reported revision.
            self.answer_progress().await?;
        }
        self.encoded.forget();
        Ok(())
    }

    async fn item(&mut self, item: GroupItem) -> Result<(), StreamClosed> {
        let id = item.watch;
        match item.batch {
            Ok(batch) => self.batch(id, batch).await,
            Err(StoreError::Overrun) => self.resume(id).await,
            Err(StoreError::Compacted { oldest, .. }) => {
                self.remove(id);
                self.compacted(id, oldest).await
            }
            Err(error) => self.fail(error).await,
        }
    }

    async fn resume(&mut self, id: i64) -> Result<(), StreamClosed> {
        let Some(watch) = self.running.get(&id) else { return Ok(()) };
        let (range, next) = (watch.range.clone(), Revision(watch.next));
        match self.etcd.backend.watch_in(&self.group, id, range, Some(next)).await {
            Ok(watching) => {
                if let Some(watch) = self.running.get_mut(&id) {
                    watch.watching = watching;
                }
                Ok(())
            }
            Err(StoreError::Compacted { oldest, .. }) => {
                self.remove(id);
                self.compacted(id, oldest).await
            }
            Err(error) => self.fail(error).await,
        }
    }

    async fn batch(&mut self, id: i64, batch: GroupBatch) -> Result<(), StreamClosed> {
        let Some(watch) = self.running.get_mut(&id) else { return Ok(()) };
        watch.notified = watch.notified.max(batch.revision.0);
        watch.next = watch.next.max(batch.revision.0 + 1);
        if batch.events.is_empty() {
            return Ok(());
        }
        let (wanted, fragment) = (watch.filter, watch.fragment);
        let events = self.encoded.of(&batch.events, wanted);
        if events.is_empty() {
            return Ok(());
        }
        watch.quiet = false;
        let head = head(self.etcd.header(batch.revision), id);
        if !fragment || events.len() < LARGE {
            return self.put(Outgoing::Events(head, events)).await;
        }
        let whole = pb::WatchResponse { events: wanted.shape(&batch.events).collect(), ..head };
        for part in fragments(whole, MESSAGE_BYTES) {
            self.send(part).await?;
        }
        Ok(())
    }

    async fn tick(&mut self) -> Result<(), StreamClosed> {
        let revision = match self.etcd.backend.read_index().await {
            Ok(revision) => revision.0,
            // The revision is unknown; progress waits.
            Err(_) => return Ok(()),
        };
        for watch in self.running.values_mut().filter(|watch| watch.progress_notify) {
            watch.due = std::mem::replace(&mut watch.quiet, true).then_some(revision);
            self.due |= watch.due.is_some();
            self.etcd.backend.notify_progress(&watch.range);
        }
        self.answer_progress().await
    }

    /// Sends progress to the watches that requested and reached it.
    async fn answer_progress(&mut self) -> Result<(), StreamClosed> {
        if !self.due && self.progress_requested.is_none() {
            return Ok(());
        }
        self.due = false;
        let mut due = Vec::new();
        for (id, watch) in &mut self.running {
            if let Some(revision) = watch.due.filter(|due| watch.has(*due)) {
                watch.due = None;
                due.push((*id, revision));
            }
            self.due |= watch.due.is_some();
        }
        if let Some(revision) = self.progress_requested
            && !self.running.is_empty()
            && self.running.values().all(|watch| watch.has(revision))
        {
            self.progress_requested = None;
            due.push((NO_WATCH, revision));
        }
        for (watch_id, revision) in due {
            let header = self.etcd.header(Revision(revision));
            self.send(pb::WatchResponse { header, watch_id, ..Default::default() }).await?;
        }
        Ok(())
    }
}

/// The reason why a watch was not started.
enum StartError {
    With(&'static str),
    Compacted { id: i64, oldest: i64 },
    Failed(StoreError),
}
