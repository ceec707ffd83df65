//! Records events about objects, aggregated and rate limited as by upstream's recorder.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{Event, EventSource, ObjectReference};
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use api::k8s::jiff::Timestamp;
use base::{Backoff, Kind as TaskKind, Tasks, clock};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::{Client, Kind, Patch};

/// Maximum number of queued events; more are dropped (`k8s.io/client-go/tools/record`:
/// `maxQueuedEvents`).
const QUEUE_MAX: usize = 1000;
/// Maximum number of events remembered for counting repetitions (`maxLruCacheEntries`).
const REMEMBERED_MAX: usize = 4096;
/// Rate limit per source and object: a burst of 25 events, then one per 5 minutes
/// (`defaultSpamBurst`, `defaultSpamQPS`).
const SPAM_BURST: f64 = 25.0;
const SPAM_REFILL: Duration = Duration::from_secs(300);
/// A repetition after this time starts a new event (`defaultAggregateIntervalInSeconds`).
const REPEATED_WITHIN: Duration = Duration::from_secs(600);

/// Delay between attempts to write an event while no server answers.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Expected operation.
    Normal,
    /// A person may have to act.
    Warning,
}

#[derive(Debug)]
struct Record {
    object: ObjectReference,
    kind: EventType,
    reason: String,
    message: String,
    annotations: BTreeMap<String, String>,
    action: Option<Action>,
    at: Timestamp,
}

/// What a controller did or tried when it recorded an event, as in `events.k8s.io`.
#[derive(Debug, Clone)]
pub struct Action {
    /// Name of the controller, instead of that of the recorder's component.
    pub controller: String,
    /// The action, such as `Binding`.
    pub name: &'static str,
    /// Another object that is part of the action.
    pub related: Option<ObjectReference>,
}

/// Records events of one component; cheap to clone, never blocks.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    sender: mpsc::Sender<Record>,
}

/// A reference to an object in an event.
pub fn reference<K: Kind>(object: &K) -> ObjectReference {
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.to_owned()),
        kind: Some(K::KIND.to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

impl EventRecorder {
    /// Creates a recorder for `component` (on `host`, for node components); its writer runs in
    /// `tasks`.
    pub fn new(client: Client, component: &str, host: &str, tasks: &Tasks) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        let writer = Writer {
            client,
            component: component.into(),
            host: host.into(),
            recorded: HashMap::new(),
            spam: HashMap::new(),
            receiver,
        };
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(TaskKind::Critical, "events", async move {
            writer.run(shutdown).await;
            Ok::<(), std::convert::Infallible>(())
        });
        Self { sender }
    }

    /// Records an event of an object; dropped silently if too many are queued, as upstream does.
    pub fn event<K: Kind>(
        &self,
        object: &K,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.event_for(reference(object), kind, reason, message);
    }

    /// Records an event of the referenced object; a container is referenced by its `field_path`.
    pub fn event_for(
        &self,
        object: ObjectReference,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.annotated_event_for(object, BTreeMap::new(), kind, reason, message);
    }

    /// Records an event with annotations. A repetition keeps those of the first event.
    pub fn annotated_event_for(
        &self,
        object: ObjectReference,
        annotations: BTreeMap<String, String>,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let (reason, message) = (reason.to_owned(), message.into());
        let (action, at) = (None, Timestamp::now());
        self.send(Record { object, kind, reason, message, annotations, action, at });
    }

    /// Records an event of the referenced object with the action that led to it.
    pub fn action_event_for(
        &self,
        object: ObjectReference,
        action: Action,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let (reason, message) = (reason.to_owned(), message.into());
        let (annotations, at) = (BTreeMap::new(), Timestamp::now());
        let action = Some(action);
        self.send(Record { object, kind, reason, message, annotations, action, at });
    }

    fn send(&self, record: Record) {
        if let Err(error) = self.sender.try_send(record) {
            let (mpsc::error::TrySendError::Full(record)
            | mpsc::error::TrySendError::Closed(record)) = error;
            let reason = record.reason;
            tracing::debug!(reason, "event dropped, too many wait");
        }
    }
}

/// A recorded event: its name, count and last time.
#[derive(Debug)]
struct RecordedEvent {
    name: String,
    count: i32,
    last: Instant,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

struct Writer {
    client: Client,
    component: Arc<str>,
    host: Arc<str>,
    recorded: HashMap<String, RecordedEvent>,
    spam: HashMap<String, Bucket>,
    receiver: mpsc::Receiver<Record>,
}

impl Writer {
    async fn run(mut self, shutdown: base::Shutdown) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            let record = tokio::select! {
                record = self.receiver.recv() => record,
                () = shutdown.requested() => None,
            };
            let Some(record) = record else { return };
            if self.is_spam(&record) {
                continue;
            }
            // While no server answers, further events wait in the bounded queue.
            while let Err(error) = self.write(&record).await {
                tracing::debug!(%error, "event not written");
                let away = matches!(error, crate::Error::Transport(_));
                if !away || !backoff.wait_or(&shutdown, self.client.transport().back()).await {
                    break;
                }
            }
            backoff.reset();
        }
    }

    /// Takes one token of the object's rate limit.
    fn is_spam(&mut self, record: &Record) -> bool {
        let now = clock::now();
        if self.spam.len() >= REMEMBERED_MAX {
            self.spam.retain(|_, b| now - b.at < SPAM_REFILL);
            if self.spam.len() >= REMEMBERED_MAX {
                self.spam.clear();
            }
        }
        let object =
            record.object.uid.clone().or_else(|| record.object.name.clone()).unwrap_or_default();
        let bucket = self.spam.entry(object).or_insert(Bucket { tokens: SPAM_BURST, at: now });
        let refill = (now - bucket.at).as_secs_f64() / SPAM_REFILL.as_secs_f64();
        bucket.tokens = (bucket.tokens + refill).min(SPAM_BURST);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            return true;
        }
        bucket.tokens -= 1.0;
        false
    }

    async fn write(&mut self, record: &Record) -> Result<(), crate::Error> {
        let object = &record.object;
        let namespace =
            object.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".into());
        let key = format!(
            "{namespace}/{:?}/{:?}/{:?}/{:?}/{}/{}",
            object.kind, object.uid, object.name, object.field_path, record.reason, record.message
        );
        let now = clock::now();
        if let Some(recorded) =
            self.recorded.get_mut(&key).filter(|s| now - s.last < REPEATED_WITHIN)
        {
            let patch = json!({"count": recorded.count + 1, "lastTimestamp": Time(record.at)});
            let done = self
                .client
                .patch::<Event>(&namespace, &recorded.name, "", &Patch::Strategic(&patch))
                .await;
            match done {
                Ok(_) => {
                    recorded.count += 1;
                    recorded.last = now;
                    return Ok(());
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let name = format!(
            "{}.{:x}",
            object.name.as_deref().unwrap_or("unknown"),
            record.at.as_nanosecond()
        );
        let event = self.event(record, &namespace, &name);
        self.client.create(&namespace, &event).await?;
        if self.recorded.len() >= REMEMBERED_MAX {
            self.recorded.retain(|_, s| now - s.last < REPEATED_WITHIN / 2);
            if self.recorded.len() >= REMEMBERED_MAX {
                self.recorded.clear();
            }
        }
        self.recorded.insert(key, RecordedEvent { name, count: 1, last: now });
        Ok(())
    }

    fn event(&self, record: &Record, namespace: &str, name: &str) -> Event {
        let host = (!self.host.is_empty()).then(|| self.host.to_string());
        let action = record.action.as_ref();
        let component = action.map_or(&*self.component, |action| &action.controller);
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                annotations: Some(record.annotations.clone()).filter(|all| !all.is_empty()),
                ..ObjectMeta::default()
            },
            involved_object: record.object.clone(),
            type_: Some(format!("{:?}", record.kind)),
            reason: Some(record.reason.clone()),
            message: Some(record.message.clone()),
            count: Some(1),
            first_timestamp: Some(Time(record.at)),
            last_timestamp: Some(Time(record.at)),
            source: Some(EventSource { component: Some(component.to_owned()), host: host.clone() }),
            reporting_component: Some(component.to_owned()),
            action: action.map(|action| action.name.to_owned()),
            related: action.and_then(|action| action.related.clone()),
            reporting_instance: host,
            ..Event::default()
        }
    }
}
