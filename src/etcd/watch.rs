//! The service Watch: one task per stream, whose watches share it.
//!
//! A client that reads slowly costs nobody else anything: its watch is ended by the store when it lags too far, and goes on
//! here from history where it stopped, as etcd's unsynced watchers do.

use std::collections::BTreeMap;
use std::time::Duration;

use base::tasks::Kind;
use futures::future::{AbortHandle, Abortable};
use futures::stream::{self, BoxStream, SelectAll};
use futures::{FutureExt, StreamExt};
use prost::Message;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::watch_create_request::FilterType;
use proto::etcdserverpb::watch_request::RequestUnion;
use proto::etcdserverpb::watch_server::Watch;
use proto::mvccpb;
use store::{Event, KeyRange, Revision, StoreError, WatchBatch};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use crate::answer::{COMPACTED, status};
use crate::range::key_value;
use crate::{Etcd, MESSAGE_BYTES};

/// The id that means all watches of a stream, or none.
const NO_WATCH: i64 = -1;

/// Responses on their way to the client; more wait until it has read. What is ready together goes out together.
const RESPONSES: usize = 64;

/// Batches of changes that are looked at before requests and the end are again.
const ITEMS: usize = 256;

/// Watches of one stream. etcd has no bound; a Kubernetes API server has one a kind.
const MAX_WATCHES: usize = 10_000;

/// How often a watch that asked for it is told that nothing happened: etcd's default, without its jitter of a tenth.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);

type Responses = mpsc::Sender<Result<pb::WatchResponse, Status>>;
type Item = (i64, Option<Result<WatchBatch, StoreError>>);

#[tonic::async_trait]
impl Watch for Etcd {
    type WatchStream = BoxStream<'static, Result<pb::WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (responses, mut receiver) = mpsc::channel(RESPONSES);
        let watches = Watches {
            etcd: self.clone(),
            responses,
            running: BTreeMap::new(),
            feeds: SelectAll::new(),
            next_id: 0,
            notified: 0,
            due: false,
            asked: None,
        };
        self.tasks.spawn(Kind::Request, "etcd watch", watches.run(request.into_inner()));
        Ok(Response::new(stream::poll_fn(move |context| receiver.poll_recv(context)).boxed()))
    }
}

/// One watch.
struct Running {
    range: KeyRange,
    /// First revision that is wanted and was not sent.
    next: i64,
    /// Everything up to here was looked at.
    told: i64,
    puts: bool,
    deletions: bool,
    prev_kv: bool,
    fragment: bool,
    /// Wants to hear that nothing happened; and whether something did since it was last asked.
    progress_notify: bool,
    quiet: bool,
    /// To be told as soon as it has everything up to this revision.
    due: Option<i64>,
    end: AbortHandle,
}

impl Running {
    fn has(&self, revision: i64) -> bool {
        self.told >= revision || self.next > revision + 1
    }
}

/// The watches of one stream.
struct Watches {
    etcd: Etcd,
    responses: Responses,
    running: BTreeMap<i64, Running>,
    feeds: SelectAll<BoxStream<'static, Item>>,
    next_id: i64,
    /// Watches that want to hear that nothing happened.
    notified: usize,
    /// Some watch is to be told how far it is.
    due: bool,
    /// The client asked how far it is: the revision that all watches must have.
    asked: Option<i64>,
}

/// The client has gone, or the stream has failed.
struct Gone;

impl Watches {
    async fn run(mut self, mut requests: Streaming<pb::WatchRequest>) -> Result<(), Status> {
        let shutdown = self.etcd.tasks.shutdown().clone();
        let responses = self.responses.clone();
        let mut tick = base::clock::now() + PROGRESS_INTERVAL;
        loop {
            let wait = tick.saturating_duration_since(base::clock::now());
            let done = tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => self.request(request).await,
                    // The client sends no more and goes on listening, or has gone.
                    Ok(None) | Err(_) => Err(Gone),
                },
                Some((id, item)) = self.feeds.next(), if !self.feeds.is_empty() => self.items(id, item).await,
                () = base::clock::sleep(wait), if self.notified > 0 => {
                    tick = base::clock::now() + PROGRESS_INTERVAL;
                    self.tick().await
                }
                () = responses.closed() => Err(Gone),
                () = shutdown.requested() => {
                    let _ = responses.try_send(Err(status(StoreError::Stopped(String::new()))));
                    Err(Gone)
                }
            };
            if let Err(Gone) = done {
                return Ok(());
            }
        }
    }

    async fn send(&mut self, response: pb::WatchResponse) -> Result<(), Gone> {
        self.responses.send(Ok(response)).await.map_err(|_| Gone)
    }

    async fn fail(&mut self, error: StoreError) -> Result<(), Gone> {
        let _ = self.responses.send(Err(status(error))).await;
        Err(Gone)
    }

    fn response(&self, watch_id: i64) -> pb::WatchResponse {
        pb::WatchResponse { header: self.etcd.header_now(), watch_id, ..Default::default() }
    }

    async fn request(&mut self, request: pb::WatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => {
                if self.remove(request.watch_id) {
                    let mut response = self.response(request.watch_id);
                    response.canceled = true;
                    self.send(response).await?;
                }
                Ok(())
            }
            Some(RequestUnion::ProgressRequest(_)) => {
                match self.etcd.backend.quiet_barrier().await {
                    Ok(revision) => self.asked = Some(revision.0),
                    Err(error) => return self.fail(error).await,
                }
                for watch in self.running.values() {
                    self.etcd.backend.tell_progress(&watch.range);
                }
                self.answer_progress().await
            }
            // A request of a newer client: etcd ignores it, too.
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: pb::WatchCreateRequest) -> Result<(), Gone> {
        match self.start(&request).await {
            Ok(id) => {
                let mut response = self.response(id);
                response.created = true;
                self.send(response).await
            }
            Err(Refused::With(reason)) => {
                let mut response = self.response(NO_WATCH);
                (response.created, response.canceled) = (true, true);
                response.cancel_reason = reason.to_owned();
                self.send(response).await
            }
            Err(Refused::Compacted { id, oldest }) => {
                let mut response = self.response(id);
                response.created = true;
                self.send(response).await?;
                self.compacted(id, oldest).await
            }
            Err(Refused::Failed(error)) => self.fail(error).await,
        }
    }

    async fn compacted(&mut self, id: i64, oldest: i64) -> Result<(), Gone> {
        let mut response = self.response(id);
        response.canceled = true;
        response.compact_revision = oldest;
        self.send(response).await
    }

    fn choose_id(&mut self, wanted: i64) -> Result<i64, Refused> {
        if wanted != 0 {
            return if self.running.contains_key(&wanted) {
                Err(Refused::With("mvcc: duplicate watch ID provided on the WatchStream"))
            } else {
                Ok(wanted)
            };
        }
        while self.running.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    async fn start(&mut self, request: &pb::WatchCreateRequest) -> Result<i64, Refused> {
        if request.start_revision < 0 {
            return Err(Refused::With(COMPACTED));
        }
        let (mut start, end) = (request.key.clone(), request.range_end.clone());
        if start.is_empty() {
            start = vec![0].into();
        }
        // The end `\0` means all keys from the first on.
        if !end.is_empty() && *end != [0] && start >= end {
            return Err(Refused::With("mvcc: watcher range is empty"));
        }
        if self.running.len() >= MAX_WATCHES {
            return Err(Refused::With("kube-lite: too many watches on one stream"));
        }
        let id = self.choose_id(request.watch_id)?;
        let range = KeyRange { start, end };
        let first = Some(Revision(request.start_revision)).filter(|revision| revision.0 > 0);
        let newest = self.etcd.backend.revision().0;
        let watcher = match self.etcd.backend.watch(range.clone(), first).await {
            Ok(watcher) => watcher,
            Err(StoreError::Compacted { oldest, .. }) => {
                return Err(Refused::Compacted { id, oldest });
            }
            Err(error) => return Err(Refused::Failed(error)),
        };
        let without = |filter: FilterType| request.filters.contains(&(filter as i32));
        let end = self.feed(id, watcher);
        let watch = Running {
            range,
            next: first.map_or(newest + 1, |revision| revision.0),
            told: 0,
            puts: !without(FilterType::Noput),
            deletions: !without(FilterType::Nodelete),
            prev_kv: request.prev_kv,
            fragment: request.fragment,
            progress_notify: request.progress_notify,
            quiet: true,
            due: None,
            end,
        };
        self.notified += usize::from(watch.progress_notify);
        self.running.insert(id, watch);
        Ok(id)
    }

    /// Listens to a watcher of the store; its end is told once.
    fn feed(&mut self, id: i64, watcher: store::Watcher) -> AbortHandle {
        let mut batches = watcher.batches;
        let batches = stream::poll_fn(move |context| batches.poll_recv(context));
        let items = batches.map(Some).chain(stream::once(async { None }));
        let (handle, registration) = AbortHandle::new_pair();
        let items = Abortable::new(items.map(move |item| (id, item)), registration);
        self.feeds.push(items.boxed());
        handle
    }

    fn remove(&mut self, id: i64) -> bool {
        let removed = self.running.remove(&id);
        if let Some(watch) = &removed {
            watch.end.abort();
            self.notified -= usize::from(watch.progress_notify);
        }
        removed.is_some()
    }

    /// Takes a change and those that are there already: a write wakes all watches of its key at once.
    async fn items(
        &mut self,
        id: i64,
        item: Option<Result<WatchBatch, StoreError>>,
    ) -> Result<(), Gone> {
        self.item(id, item).await?;
        for _ in 1..ITEMS {
            // Not ready, or no watch is left.
            let Some(Some((id, item))) = self.feeds.next().now_or_never() else { break };
            self.item(id, item).await?;
        }
        Ok(())
    }

    async fn item(
        &mut self,
        id: i64,
        item: Option<Result<WatchBatch, StoreError>>,
    ) -> Result<(), Gone> {
        match item {
            Some(Ok(batch)) => {
                self.batch(id, batch).await?;
                self.answer_progress().await
            }
            Some(Err(StoreError::Overrun)) => self.resume(id).await,
            Some(Err(StoreError::Compacted { oldest, .. })) => {
                self.remove(id);
                self.compacted(id, oldest).await
            }
            Some(Err(error)) => self.fail(error).await,
            // After its error, or because the store stops.
            None if self.running.contains_key(&id) => {
                self.fail(StoreError::Stopped("its watches ended".to_owned())).await
            }
            None => Ok(()),
        }
    }

    async fn resume(&mut self, id: i64) -> Result<(), Gone> {
        let Some(watch) = self.running.get(&id) else { return Ok(()) };
        watch.end.abort();
        let (range, next) = (watch.range.clone(), Revision(watch.next));
        match self.etcd.backend.watch(range, Some(next)).await {
            Ok(watcher) => {
                let end = self.feed(id, watcher);
                if let Some(watch) = self.running.get_mut(&id) {
                    watch.end = end;
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

    async fn batch(&mut self, id: i64, batch: WatchBatch) -> Result<(), Gone> {
        let Some(watch) = self.running.get_mut(&id) else { return Ok(()) };
        watch.told = watch.told.max(batch.revision.0);
        watch.next = watch.next.max(batch.revision.0 + 1);
        let prev_kv = watch.prev_kv;
        let wanted = |event: &Event| if event.deleted { watch.deletions } else { watch.puts };
        let events: Vec<_> =
            batch.events.into_iter().filter(wanted).map(|event| shape(event, prev_kv)).collect();
        if events.is_empty() {
            return Ok(());
        }
        watch.quiet = false;
        let response = pb::WatchResponse {
            header: self.etcd.header(batch.revision),
            watch_id: id,
            events,
            ..Default::default()
        };
        if !watch.fragment {
            return self.send(response).await;
        }
        for part in fragments(response, MESSAGE_BYTES) {
            self.send(part).await?;
        }
        Ok(())
    }

    async fn tick(&mut self) -> Result<(), Gone> {
        let revision = match self.etcd.backend.quiet_barrier().await {
            Ok(revision) => revision.0,
            // Nothing is known that could be told.
            Err(_) => return Ok(()),
        };
        for watch in self.running.values_mut().filter(|watch| watch.progress_notify) {
            watch.due = std::mem::replace(&mut watch.quiet, true).then_some(revision);
            self.due |= watch.due.is_some();
            self.etcd.backend.tell_progress(&watch.range);
        }
        self.answer_progress().await
    }

    /// Tells how far they are to those who asked and are there.
    async fn answer_progress(&mut self) -> Result<(), Gone> {
        if !self.due && self.asked.is_none() {
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
        if let Some(revision) = self.asked
            && !self.running.is_empty()
            && self.running.values().all(|watch| watch.has(revision))
        {
            self.asked = None;
            due.push((NO_WATCH, revision));
        }
        for (watch_id, revision) in due {
            let header = self.etcd.header(Revision(revision));
            self.send(pb::WatchResponse { header, watch_id, ..Default::default() }).await?;
        }
        Ok(())
    }
}

/// Why a watch was not started.
enum Refused {
    With(&'static str),
    Compacted { id: i64, oldest: i64 },
    Failed(StoreError),
}

/// One change in etcd's form: of a deletion only the key and its revision.
fn shape(event: Event, prev_kv: bool) -> mvccpb::Event {
    let kind = if event.deleted {
        mvccpb::event::EventType::Delete
    } else {
        mvccpb::event::EventType::Put
    };
    // What came and went at one revision had no version before it.
    let revision = event.kv.mod_revision;
    let prev = event.prev.filter(|prev| prev_kv && prev.mod_revision < revision);
    let kv = if event.deleted {
        mvccpb::KeyValue {
            key: event.kv.key,
            mod_revision: event.kv.mod_revision.0,
            ..Default::default()
        }
    } else {
        key_value(event.kv)
    };
    mvccpb::Event { r#type: kind.into(), kv: Some(kv), prev_kv: prev.map(key_value) }
}

/// Cuts a response between events so that each part is smaller than `limit`, or has one event; all but the last are marked.
fn fragments(response: pb::WatchResponse, limit: usize) -> Vec<pb::WatchResponse> {
    if response.encoded_len() < limit || response.events.len() < 2 {
        return vec![response];
    }
    let pb::WatchResponse { events, .. } = response;
    let empty = pb::WatchResponse { events: Vec::new(), ..response };
    let bare = empty.encoded_len();
    let (mut parts, mut part, mut bytes) = (Vec::new(), empty.clone(), bare);
    for event in events {
        let size = event.encoded_len();
        // A field of a message carries its number and its length before it.
        let size = 1 + prost::length_delimiter_len(size) + size;
        if !part.events.is_empty() && bytes + size >= limit {
            part.fragment = true;
            parts.push(std::mem::replace(&mut part, empty.clone()));
            bytes = bare;
        }
        bytes += size;
        part.events.push(event);
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: &str, value: usize) -> mvccpb::Event {
        let kv = mvccpb::KeyValue {
            key: key.to_owned().into(),
            value: vec![7; value].into(),
            ..Default::default()
        };
        mvccpb::Event { kv: Some(kv), ..Default::default() }
    }

    #[test]
    fn a_response_is_cut_between_events_and_all_but_the_last_part_are_marked() {
        let response = pb::WatchResponse {
            watch_id: 3,
            events: vec![event("a", 400), event("b", 400), event("c", 2000), event("d", 1)],
            ..Default::default()
        };
        let parts = fragments(response.clone(), 1000);
        let keys = |part: &pb::WatchResponse| -> Vec<String> {
            part.events
                .iter()
                .map(|e| String::from_utf8_lossy(&e.kv.as_ref().unwrap().key).into_owned())
                .collect()
        };
        let seen: Vec<_> =
            parts.iter().map(|part| (keys(part), part.fragment, part.watch_id)).collect();
        let list = |keys: &[&str]| keys.iter().map(|k| (*k).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            seen,
            [(list(&["a", "b"]), true, 3), (list(&["c"]), true, 3), (list(&["d"]), false, 3)]
        );
        assert!(parts[0].encoded_len() < 1000);
        assert_eq!(fragments(response.clone(), 1 << 20), [response]);
    }
}
