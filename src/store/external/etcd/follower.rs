//! The watch that follows etcd, the watchers it feeds, and watches that start in the past.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::{Backoff, Shutdown};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use proto::etcdserverpb as pb;
use tokio::sync::{Semaphore, watch};
use tonic::Streaming;

use super::connection::Connection;
use super::convert::event;
use super::error::EtcdError;
use crate::contract::{Event, KeyRange, StoreError};
use crate::external::etcd::client::{ANSWER, Client, Retry};
use crate::watchers::{Feed, Hub};

/// Maximum number of watches of the past at a time; each is a stream of all changes since its
/// revision.
const HISTORIES_MAX: usize = 16;
/// First and longest wait before a watch is restarted.
const WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The watchers, and the revision up to which all events are delivered to them.
#[derive(Debug)]
struct Watchers {
    hub: Hub,
    revision: i64,
}

/// Follows the changes of an etcd.
#[derive(Debug)]
pub(super) struct Follower {
    client: Client,
    watchers: Mutex<Watchers>,
    reached: watch::Sender<i64>,
    histories: Arc<Semaphore>,
    /// Oldest readable revision known.
    pub(super) compacted: AtomicI64,
    /// Number of observed changes.
    pub(super) events: AtomicI64,
    stopped: Mutex<Option<StoreError>>,
}

/// Why a watch on etcd ended.
enum WatchEnd {
    /// The next changes are compacted.
    Compacted(i64),
    Lost(EtcdError),
}

/// A watch of all keys, delivering whole revisions.
struct KeySpaceWatch {
    answers: Streaming<pb::WatchResponse>,
    parts: Vec<pb::WatchResponse>,
}

impl KeySpaceWatch {
    /// Starts the watch at `start`.
    async fn begin(connection: Connection, start: i64) -> Result<Self, EtcdError> {
        let everything = Bytes::from_static(&[0]);
        let create = pb::WatchCreateRequest {
            key: everything.clone(),
            range_end: everything,
            start_revision: start,
            prev_kv: true,
            // Larger responses arrive in fragments.
            fragment: true,
            ..Default::default()
        };
        Ok(Self { answers: connection.watch(create).await?, parts: Vec::new() })
    }

    /// The next changes, in whole revisions.
    async fn next(&mut self) -> Result<Vec<Event>, WatchEnd> {
        loop {
            let answer = match self.answers.message().await {
                Ok(Some(answer)) => answer,
                Ok(None) => {
                    return Err(WatchEnd::Lost(EtcdError::NotApplied(
                        "the watch ended".to_owned(),
                    )));
                }
                Err(status) => return Err(WatchEnd::Lost(EtcdError::of(status))),
            };
            if answer.canceled {
                if answer.compact_revision != 0 {
                    return Err(WatchEnd::Compacted(answer.compact_revision));
                }
                return Err(WatchEnd::Lost(EtcdError::NotApplied(answer.cancel_reason)));
            }
            let more = answer.fragment;
            self.parts.push(answer);
            if !more {
                let parts = std::mem::take(&mut self.parts);
                let events = parts.into_iter().flat_map(|part| part.events);
                let events: Vec<Event> = events.filter_map(event).collect();
                if !events.is_empty() {
                    return Ok(events);
                }
            }
        }
    }
}

impl Follower {
    /// Follows from the revision after `revision`.
    pub(super) fn new(client: Client, revision: i64) -> Self {
        Self {
            client,
            watchers: Mutex::new(Watchers { hub: Hub::default(), revision }),
            reached: watch::Sender::new(revision),
            histories: Arc::new(Semaphore::new(HISTORIES_MAX)),
            compacted: AtomicI64::new(0),
            events: AtomicI64::new(0),
            stopped: Mutex::new(None),
        }
    }

    /// The revision up to which all events are delivered.
    pub(super) fn revision(&self) -> i64 {
        *self.reached.borrow()
    }

    /// Number of running watches.
    pub(super) fn len(&self) -> usize {
        self.watchers.lock().hub.len()
    }

    /// Sends progress to the watchers of a range, or to all.
    pub(super) fn progress(&self, range: Option<&KeyRange>) {
        let mut watchers = self.watchers.lock();
        let revision = watchers.revision;
        watchers.hub.progress(range, revision);
    }

    /// Ends every watch, and refuses new ones.
    pub(super) fn stop(&self, reason: &StoreError) {
        self.stopped.lock().get_or_insert_with(|| reason.clone());
        self.watchers.lock().hub.end_all(reason);
    }

    /// The error that stopped the store, if any.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.stopped.lock().clone().map_or(Ok(()), Err)
    }

    /// Resolves when all events up to `revision` are delivered.
    ///
    /// # Errors
    /// The timeout of requests has passed.
    pub(super) async fn wait_for(&self, revision: i64) -> Result<(), StoreError> {
        let mut reached = self.reached.subscribe();
        let waited = tokio::time::timeout(ANSWER, reached.wait_for(|at| *at >= revision)).await;
        if waited.is_ok() {
            return Ok(());
        }
        self.check()?;
        let text =
            format!("the watch of etcd is at revision {}, not yet at {revision}", self.revision());
        Err(StoreError::Unavailable(text))
    }

    /// Follows etcd until shutdown.
    ///
    /// # Errors
    /// None; the health check decides how long etcd may be unreachable.
    pub(super) async fn run(self: Arc<Self>, shutdown: Shutdown) -> Result<(), StoreError> {
        let mut backoff = Backoff::new(WAIT.0, WAIT.1);
        loop {
            let connection = tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
                connection = self.client.connections.current() => connection,
            };
            let number = connection.number;
            let ended = tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
                ended = self.follow(connection, &mut backoff) => ended,
            };
            match ended {
                WatchEnd::Compacted(oldest) => self.skip_compacted(oldest).await,
                WatchEnd::Lost(reason) => self.client.connections.lost(number, &reason.to_string()),
            }
            if !backoff.wait(&shutdown).await {
                return Ok(());
            }
        }
    }

    async fn follow(&self, connection: Connection, backoff: &mut Backoff) -> WatchEnd {
        let mut all = match KeySpaceWatch::begin(connection, self.revision() + 1).await {
            Ok(all) => all,
            Err(reason) => return WatchEnd::Lost(reason),
        };
        loop {
            match all.next().await {
                Ok(events) => {
                    backoff.reset();
                    self.publish(&events);
                }
                Err(end) => return end,
            }
        }
    }

    fn publish(&self, events: &[Event]) {
        let Some(last) = events.last().map(|event| event.kv.mod_revision.0) else { return };
        self.events.fetch_add(i64::try_from(events.len()).unwrap_or_default(), Relaxed);
        let mut watchers = self.watchers.lock();
        watchers.hub.publish(events, last);
        watchers.revision = watchers.revision.max(last);
        let revision = watchers.revision;
        drop(watchers);
        self.reached.send_replace(revision);
    }

    /// Skips compacted changes: all watches end and must start again after them.
    async fn skip_compacted(&self, oldest: i64) {
        self.compacted.fetch_max(oldest, Relaxed);
        let Ok(newest) = self.client.newest().await else { return };
        let mut watchers = self.watchers.lock();
        tracing::warn!(
            revision = watchers.revision,
            oldest,
            newest,
            "changes were compacted while etcd was unreachable, all watches restart"
        );
        let error = StoreError::Compacted { requested: watchers.revision + 1, oldest };
        watchers.hub.end_all(&error);
        watchers.revision = watchers.revision.max(newest);
        let revision = watchers.revision;
        drop(watchers);
        self.reached.send_replace(revision);
    }

    /// Adds a watcher. If it starts in the past, this checks that its start is not compacted, and
    /// returns a task that replays the history.
    ///
    /// # Errors
    /// The start is compacted.
    pub(super) async fn begin<T>(
        self: &Arc<Self>,
        range: KeyRange,
        start: i64,
        make: impl FnOnce(KeyRange, i64) -> (Feed, T),
    ) -> Result<(T, Option<BoxFuture<'static, ()>>), StoreError> {
        {
            let mut watchers = self.watchers.lock();
            if start > watchers.revision {
                let (feed, other) = make(range, start);
                let revision = watchers.revision;
                watchers.hub.join(feed, revision);
                return Ok((other, None));
            }
        }
        let place = Arc::clone(&self.histories).acquire_owned();
        let many = || {
            let text = format!("{HISTORIES_MAX} watches are reading etcd's history already");
            StoreError::Unavailable(text)
        };
        let place = tokio::time::timeout(ANSWER, place).await.ok().and_then(Result::ok);
        let place = place.ok_or_else(many)?;
        let (all, first) = self.history(start).await?;
        let (feed, other) = make(range, start);
        let this = Arc::clone(self);
        let work = async move {
            this.feed(feed, all, first).await;
            drop(place);
        };
        Ok((other, Some(work.boxed())))
    }

    /// A watch from `start`, which has events already, and the first of them.
    async fn history(&self, start: i64) -> Result<(KeySpaceWatch, Vec<Event>), StoreError> {
        let begin = |connection: Connection| async move {
            let mut all = KeySpaceWatch::begin(connection, start).await?;
            match all.next().await {
                Ok(events) => Ok((all, events)),
                Err(WatchEnd::Compacted(oldest)) => Err(EtcdError::Compacted(oldest)),
                Err(WatchEnd::Lost(reason)) => Err(reason),
            }
        };
        self.client.call(Retry::Allowed, ANSWER, begin).await.map_err(|error| {
            if let EtcdError::Compacted(oldest) = error {
                self.compacted.fetch_max(oldest, Relaxed);
            }
            error.into_store_error(start)
        })
    }

    /// Replays history until it has caught up with the hub, then adds the watcher to the hub.
    async fn feed(&self, mut feed: Feed, mut all: KeySpaceWatch, mut events: Vec<Event>) {
        loop {
            let next = events.last().map_or(feed.next(), |event| event.kv.mod_revision.0 + 1);
            let range = feed.range().clone();
            events.retain(|event| range.contains(&event.kv.key));
            if !feed.replay(events, next).await {
                return;
            }
            {
                let mut watchers = self.watchers.lock();
                if feed.next() > watchers.revision {
                    let revision = watchers.revision;
                    watchers.hub.join(feed, revision);
                    return;
                }
            }
            events = match all.next().await {
                Ok(events) => events,
                Err(_) => match self.history(feed.next()).await {
                    Ok((again, events)) => {
                        all = again;
                        events
                    }
                    Err(error) => return feed.end(error),
                },
            };
        }
    }

    /// The oldest revision of etcd, after it refused `requested` as compacted.
    pub(super) async fn oldest(&self, requested: i64) -> i64 {
        match self.history(requested.max(1)).await {
            Err(StoreError::Compacted { oldest, .. }) => oldest,
            _ => self.compacted.load(Relaxed).max(requested),
        }
    }
}
