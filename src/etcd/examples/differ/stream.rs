//! One side's stream of watches.

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

/// How long the next message may take; waited for several times over, as the whole machine may be
/// held up once.
const PATIENCE: Duration = Duration::from_secs(20);
const ATTEMPTS: usize = 4;

/// etcd answers how far it is only once it is there, which it looks at ten times a second, and
/// forgets who asked before.
const ASKED_AGAIN: Duration = Duration::from_millis(110);

/// What a watch was told since it was last looked at.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) events: Vec<Event>,
    /// The revision that is kept, and the reason.
    pub(crate) canceled: Option<(i64, String)>,
}

/// etcd says that a stream is there with its first message.
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
    pub(crate) told: BTreeMap<i64, Told>,
    /// Newest revision that each was told of.
    pub(crate) seen: BTreeMap<i64, i64>,
    /// What all of them have, as was last said.
    progress: i64,
}

impl Stream {
    pub(crate) fn open(channel: Channel) -> Self {
        let (requests, mut receiver) = mpsc::channel(4);
        let stream = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
        let opening = async move { WatchClient::new(channel).watch(stream).await };
        let responses = Responses::Opening(opening.boxed());
        let (told, seen) = (BTreeMap::new(), BTreeMap::new());
        Self { requests, responses, told, seen, progress: 0 }
    }

    async fn send(&self, request: RequestUnion) -> Result<(), Box<dyn Error>> {
        Ok(self.requests.send(pb::WatchRequest { request_union: Some(request) }).await?)
    }

    /// Takes the next message.
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
            self.told.entry(id).or_default().canceled = Some(why);
        } else if let Some(last) = message.events.last().and_then(|event| event.kv.as_ref()) {
            self.seen.insert(id, last.mod_revision);
            self.told.entry(id).or_default().events.append(&mut message.events);
        } else if id == -1 && !message.created {
            self.progress = message.header.map_or(0, |header| header.revision);
        }
        message
    }

    /// Begins a watch; the answer to that.
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
                    self.told.remove(&message.watch_id);
                }
                return Ok(message);
            }
        }
    }

    /// Ends a watch; the answer to that.
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

    /// Waits until a watch has told of a revision, or has ended.
    pub(crate) async fn reach(&mut self, id: i64, revision: i64) -> Result<(), Box<dyn Error>> {
        let waits_for = format!("revision {revision} by watch {id}");
        while self.seen.get(&id).is_none_or(|seen| *seen < revision) && !self.has_ended(id) {
            self.next(&waits_for).await?;
        }
        Ok(())
    }

    /// Waits until a watch has ended by itself.
    pub(crate) async fn end(&mut self, id: i64) -> Result<(), Box<dyn Error>> {
        while !self.has_ended(id) {
            self.next(&format!("the end of watch {id}")).await?;
        }
        Ok(())
    }

    fn has_ended(&self, id: i64) -> bool {
        self.told.get(&id).is_some_and(|told| told.canceled.is_some())
    }

    /// Asks how far all watches are, until they are at a revision.
    pub(crate) async fn settle(&mut self, revision: i64) -> Result<(), Box<dyn Error>> {
        for _ in 0..ATTEMPTS * 200 {
            self.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await?;
            let told = async {
                while self.progress < revision {
                    self.next(&format!("that all watches are at {revision}")).await?;
                }
                Ok::<(), Box<dyn Error>>(())
            };
            match timeout(ASKED_AGAIN, told).await {
                Ok(told) => {
                    told?;
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
