//! One side's watch stream.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::watch_client::WatchClient;
use proto::etcdserverpb::watch_request::RequestUnion;
use proto::mvccpb::Event;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use crate::answers::strip;

/// Timeout of the next message; retried several times, since the whole machine may stall.
const PATIENCE: Duration = Duration::from_secs(20);
const ATTEMPTS: usize = 4;

/// Interval of progress requests. etcd answers one only when its watches are synced, which it
/// checks ten times a second, and forgets earlier requests.
const ASKED_AGAIN: Duration = Duration::from_millis(110);

/// What a watch received since it was last compared.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Received {
    pub(crate) events: Vec<Event>,
    /// The compacted revision and the cancel reason.
    pub(crate) canceled: Option<(i64, String)>,
}

/// etcd confirms a stream with its first message.
enum Responses {
    Opening(BoxFuture<'static, Result<Response<Streaming<pb::WatchResponse>>, Status>>),
    Open(Box<Streaming<pb::WatchResponse>>),
}

impl Responses {
    async fn message(&mut self) -> Result<Option<pb::WatchResponse>, Status> {
        loop {
            match self {
                Self::Opening(opening) => *self = Self::Open(Box::new(opening.await?.into_inner())),
                Self::Open(responses) => return responses.message().await,
            }
        }
    }
}

/// The watches of one stream.
pub(crate) struct Stream {
    requests: mpsc::Sender<pb::WatchRequest>,
    responses: Responses,
    pub(crate) received: BTreeMap<i64, Received>,
    /// Newest revision that each watch received.
    pub(crate) seen: BTreeMap<i64, i64>,
    /// Revision that all watches have reached, from the last progress notification.
    progress: i64,
}

impl Stream {
    pub(crate) fn open(channel: Channel) -> Self {
        let (requests, mut receiver) = mpsc::channel(4);
        let stream = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
        let opening = async move { WatchClient::new(channel).watch(stream).await };
        let responses = Responses::Opening(opening.boxed());
        let (received, seen) = (BTreeMap::new(), BTreeMap::new());
        Self { requests, responses, received, seen, progress: 0 }
    }

    async fn send(&self, request: RequestUnion) -> Result<(), Box<dyn Error>> {
        Ok(self.requests.send(pb::WatchRequest { request_union: Some(request) }).await?)
    }

    /// Receives the next message.
    async fn next(&mut self, waits_for: &str) -> Result<pb::WatchResponse, Box<dyn Error>> {
        for _ in 0..ATTEMPTS {
            if let Ok(message) = timeout(PATIENCE, self.responses.message()).await {
                let message = message?
                    .ok_or_else(|| format!("a stream of watches ended before {waits_for}"))?;
                return Ok(self.take(message));
            }
        }
        Err(format!("nothing was said for {PATIENCE:?}, and not {waits_for}").into())
    }

    fn take(&mut self, mut message: pb::WatchResponse) -> pb::WatchResponse {
        strip(&mut message);
        let id = message.watch_id;
        if message.canceled {
            let why = (message.compact_revision, message.cancel_reason.clone());
            self.received.entry(id).or_default().canceled = Some(why);
        } else if let Some(last) = message.events.last().and_then(|event| event.kv.as_ref()) {
            self.seen.insert(id, last.mod_revision);
            self.received.entry(id).or_default().events.append(&mut message.events);
        } else if id == -1 && !message.created {
            self.progress = message.header.map_or(0, |header| header.revision);
        }
        message
    }

    /// Creates a watch; returns the response.
    pub(crate) async fn create(
        &mut self,
        request: pb::WatchCreateRequest,
    ) -> Result<pb::WatchResponse, Box<dyn Error>> {
        let waits_for = format!("that a watch was made: {request:?}");
        self.send(RequestUnion::CreateRequest(request)).await?;
        loop {
            let message = self.next(&waits_for).await?;
            if message.created {
                if message.canceled {
                    self.received.remove(&message.watch_id);
                }
                return Ok(message);
            }
        }
    }

    /// Cancels a watch; returns the response.
    pub(crate) async fn cancel(&mut self, id: i64) -> Result<pb::WatchResponse, Box<dyn Error>> {
        self.send(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: id })).await?;
        let waits_for = format!("that watch {id} ended");
        loop {
            let message = self.next(&waits_for).await?;
            if message.canceled && message.watch_id == id {
                self.seen.remove(&id);
                return Ok(message);
            }
        }
    }

    /// Waits until a watch has received a revision, or has been cancelled.
    pub(crate) async fn reach(&mut self, id: i64, revision: i64) -> Result<(), Box<dyn Error>> {
        let waits_for = format!("revision {revision} by watch {id}");
        while self.seen.get(&id).is_none_or(|seen| *seen < revision) && !self.has_ended(id) {
            self.next(&waits_for).await?;
        }
        Ok(())
    }

    /// Waits until the server has cancelled a watch.
    pub(crate) async fn end(&mut self, id: i64) -> Result<(), Box<dyn Error>> {
        while !self.has_ended(id) {
            self.next(&format!("the end of watch {id}")).await?;
        }
        Ok(())
    }

    fn has_ended(&self, id: i64) -> bool {
        self.received.get(&id).is_some_and(|received| received.canceled.is_some())
    }

    /// Requests progress until all watches have reached a revision.
    pub(crate) async fn wait_for_progress(&mut self, revision: i64) -> Result<(), Box<dyn Error>> {
        for _ in 0..ATTEMPTS * 200 {
            self.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await?;
            let received = async {
                while self.progress < revision {
                    self.next(&format!("that all watches are at {revision}")).await?;
                }
                Ok::<(), Box<dyn Error>>(())
            };
            match timeout(ASKED_AGAIN, received).await {
                Ok(received) => {
                    received?;
                    return if self.progress == revision {
                        Ok(())
                    } else {
                        Err(format!(
                            "watches are said to be at {}, the newest is {revision}",
                            self.progress
                        )
                        .into())
                    };
                }
                Err(_) => continue,
            }
        }
        Err(format!("no progress notification for revision {revision}").into())
    }
}
