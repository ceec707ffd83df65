//! WATCH: optional initial events, then changes and bookmarks, until the time limit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use api::{Object, Status};
use bytes::Bytes;
use futures::stream::{self, Stream};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::json;

use super::list;
use crate::metrics::requests;
use crate::priority_and_fairness::Watching;
use crate::registry::Resource;
use crate::registry::convert;
use crate::registry::watch_cache::{Cache, Event, EventType, Filter, Initial, Position};
use crate::request::body::{Body, BodyError};
use crate::request::context::Context;
use crate::request::negotiate::{Accepted, Media, Transform};
use crate::request::options::ListOptions;
use crate::response::status;
use crate::serialization;

/// Time between bookmarks (upstream's `bookmarkFrequency`).
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// How long before its end a watch sends its last bookmark.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// A watch without `timeoutSeconds` ends at a random time between this and twice this (upstream's
/// `--min-request-timeout`).
const TIMEOUT_MIN: Duration = Duration::from_secs(1800);

/// The next item of a watch.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    /// A change as the filter sees it, and the event of the cache when its type is the same without
    /// a filter.
    Change(EventType, Arc<Object>, Option<Arc<Event>>),
    /// Every change up to this revision was sent.
    Bookmark { revision: i64, initial: bool },
    /// The error that ends the watch.
    Error(Box<Status>),
}

/// The begin of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the changes after this revision.
    After(i64),
    /// With the current objects, then changes. `at_least`: the revision that the objects have
    /// reached; `consistent`: the objects include every acknowledged write; `has_bookmark`: the
    /// bookmark of a streaming list follows the objects.
    Initial { at_least: i64, consistent: bool, has_bookmark: bool },
}

/// A running watch of one cache.
pub(crate) struct Watch {
    row: Arc<Resource>,
    position: Position,
    filter: Filter,
    /// The initial objects, and how many of them were sent.
    initial: Option<(Initial, usize)>,
    pending: VecDeque<Item>,
    has_bookmarks: bool,
    next_bookmark: tokio::time::Instant,
    deadline: tokio::time::Instant,
    revision: i64,
    is_over: bool,
    /// The seat of the watch, until the initial objects are sent.
    pub(crate) seat: Option<Watching>,
}

/// Opens a watch.
///
/// # Errors
/// 504 for a resource version in the future. 410 is sent as [`Item::Error`] of a running watch,
/// like upstream's watch cache.
pub(crate) async fn open(
    objects: &crate::registry::objects::Objects,
    row: &Arc<Resource>,
    filter: Filter,
    start: Start,
    has_bookmarks: bool,
    timeout: Option<Duration>,
) -> Result<Watch, Status> {
    let cache: Arc<Cache>;
    let (mut pending, mut initial) = (VecDeque::new(), None);
    let position = match start {
        Start::After(revision) => {
            cache = objects.cache(row);
            cache.wait_for(0).await?;
            match cache.watch_from(revision, &filter).await {
                Ok(position) => position,
                Err(oldest) => {
                    let refusal =
                        Status::expired(format!("too old resource version: {revision} ({oldest})"));
                    pending.push_back(Item::Error(Box::new(refusal)));
                    cache.list_and_watch(&Filter { name: "\0".into(), ..Filter::default() }).1
                }
            }
        }
        Start::Initial { at_least, consistent, has_bookmark } => {
            cache = if consistent {
                objects.fresh_cache(row).await?
            } else {
                let cache = objects.cache(row);
                cache.wait_for(at_least).await?;
                cache
            };
            let (objects, position, revision) = cache.initial_and_watch(&filter);
            initial = Some((objects, 0));
            if has_bookmark {
                pending.push_back(Item::Bookmark { revision, initial: true });
            }
            position
        }
    };
    let now = base::clock::now();
    let timeout =
        timeout.unwrap_or_else(|| TIMEOUT_MIN + TIMEOUT_MIN.mul_f64(base::clock::random_f64()));
    Ok(Watch {
        row: Arc::clone(row),
        seat: None,
        revision: cache.revision(),
        position,
        filter,
        initial,
        pending,
        has_bookmarks,
        next_bookmark: bookmark_after(now, now + timeout),
        deadline: now + timeout,
        is_over: false,
    })
}

/// The requested timeout of a watch: `None` for 0, zero for negative values; values that overflow
/// nanoseconds wrap around like upstream's multiplication.
fn timeout_of(seconds: i64) -> Option<Duration> {
    let nanos = seconds.wrapping_mul(1_000_000_000);
    (nanos != 0).then(|| Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}

/// Bookmarks come at intervals, and once shortly before the end, so that the client resumes from
/// there (upstream's `nextBookmarkTime`).
fn bookmark_after(
    now: tokio::time::Instant,
    deadline: tokio::time::Instant,
) -> tokio::time::Instant {
    let last = deadline - BOOKMARK_BEFORE_END;
    if last > now { last.min(now + BOOKMARK_INTERVAL) } else { deadline + BOOKMARK_INTERVAL }
}

impl Watch {
    /// The next item; `None` when the watch is over.
    pub(crate) async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.ready() {
                return Some(item);
            }
            if self.is_over {
                return None;
            }
            if let Some(seat) = &mut self.seat {
                seat.initialised();
            }
            let timer = if self.has_bookmarks {
                self.next_bookmark.min(self.deadline)
            } else {
                self.deadline
            };
            tokio::select! {
                biased;
                got = self.position.next() => match got {
                    Ok((events, revision)) => self.add_events(events, revision),
                    // The client resumes after the last event, or lists again.
                    Err(_) => self.is_over = true,
                },
                () = tokio::time::sleep_until(timer) => self.on_timer(),
            }
        }
    }

    /// The next item, if one is ready.
    fn ready(&mut self) -> Option<Item> {
        if let Some((objects, count)) = &mut self.initial {
            if let Some(object) = objects.next(&self.row, &self.filter) {
                *count += 1;
                return Some(Item::Change(EventType::Added, object, None));
            }
            crate::metrics::storage::began(&self.row.spec.gvr, *count);
            self.initial = None;
        }
        let item = self.pending.pop_front()?;
        self.is_over |= matches!(item, Item::Error(_));
        Some(item)
    }

    fn add_events(&mut self, events: Vec<Arc<Event>>, revision: i64) {
        self.revision = revision;
        for event in events {
            if let Some((kind, object)) = event.seen_by(&self.row, &self.filter) {
                let is_natural = kind == event.natural_type();
                self.pending.push_back(Item::Change(kind, object, is_natural.then_some(event)));
            }
        }
    }

    fn on_timer(&mut self) {
        let now = base::clock::now();
        match self.position.try_next() {
            (events, revision) if !events.is_empty() => return self.add_events(events, revision),
            (_, revision) => self.revision = revision,
        }
        if self.has_bookmarks && !self.is_over && now >= self.next_bookmark {
            self.pending.push_back(Item::Bookmark { revision: self.revision, initial: false });
        }
        self.next_bookmark = bookmark_after(now, self.deadline);
        self.is_over |= now >= self.deadline;
    }
}

/// The begin of a watch with these options.
///
/// # Errors
/// 500 for a resource version that is not a number.
fn start_of(options: &ListOptions) -> Result<Start, Status> {
    let revision = options.watch_revision()?;
    Ok(match (options.send_initial_events, options.resource_version.as_str()) {
        // Without a version upstream sets `sendInitialEvents` itself (`SetListOptionsDefaults`).
        (Some(true) | None, "") => {
            Start::Initial { at_least: 0, consistent: true, has_bookmark: options.bookmarks }
        }
        (Some(true), _) | (None, "0") => Start::Initial {
            at_least: revision,
            consistent: false,
            has_bookmark: options.bookmarks,
        },
        _ => Start::After(revision),
    })
}

/// Handles a watch.
///
/// # Errors
/// Errors before the first byte is sent; later errors are items of the watch.
pub(super) async fn watch(context: &Context) -> Result<Response<Body>, Status> {
    let began = base::clock::now();
    let accepted = context.accept()?;
    let options = ListOptions::read(&context.query, true)?;
    let filter = list::filter(context)?;
    let mut start = start_of(&options)?;
    if accepted.media == Media::Yaml {
        let text = "only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
        return Err(Status::failure(406, "NotAcceptable", text));
    }
    let objects = &context.server.objects;
    if options.begins_now() {
        let revision =
            objects.storage().backend().read_index().await.map_err(|e| status::of_store(&e))?;
        start = Start::After(revision.0);
    }
    let timeout = options.timeout.and_then(timeout_of);
    let mut watch = open(objects, &context.row, filter, start, options.bookmarks, timeout).await?;
    watch.seat = context.watching.lock().take();
    let encoder = Encoder {
        row: Arc::clone(&context.row),
        accepted: accepted.clone(),
        include: include(context),
        schema: Arc::clone(&objects.registry().schema),
        has_sent_headers: false,
        began,
        scope: context.info.scope(),
    };
    let mut response = Response::new(body(watch, encoder));
    *response.status_mut() = StatusCode::OK;
    let kind = match accepted.media {
        Media::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        media => media.name(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

fn include(context: &Context) -> String {
    context.query.get("includeObject").unwrap_or_default().to_owned()
}

fn body(watch: Watch, encoder: Encoder) -> Body {
    let frames = frames(watch, encoder);
    StreamBody::new(frames).boxed_unsync()
}

fn frames(
    watch: Watch,
    encoder: Encoder,
) -> impl Stream<Item = Result<Frame<Bytes>, BodyError>> + Send {
    let first = (watch, encoder, FRAME_BYTES_MIN);
    stream::unfold(first, |(mut watch, mut encoder, frame_bytes)| async move {
        let item = watch.next().await?;
        let mut bytes = encoder.encode_counted(&item);
        // Items that are ready are sent in the same frame.
        if bytes.len() < frame_bytes
            && let Some(item) = watch.ready()
        {
            let mut all = Vec::with_capacity(bytes.len() * 4);
            all.extend_from_slice(&bytes);
            all.extend_from_slice(&encoder.encode_counted(&item));
            while all.len() < frame_bytes {
                let Some(item) = watch.ready() else { break };
                all.extend_from_slice(&encoder.encode_counted(&item));
            }
            bytes = all.into();
        }
        base::memory::worked(bytes.len());
        let grown = (frame_bytes * 2).min(FRAME_BYTES_MAX);
        Some((Ok(Frame::data(bytes)), (watch, encoder, grown)))
    })
}

/// Approximate size of the first frame; each further frame is twice as large up to the maximum, so
/// that a client that does not read costs little memory.
const FRAME_BYTES_MIN: usize = 4 * 1024;
/// The largest frame.
const FRAME_BYTES_MAX: usize = 32 * 1024;

/// Encodes items in one media type.
struct Encoder {
    row: Arc<Resource>,
    accepted: Accepted,
    include: String,
    schema: Arc<api::schema::Schema>,
    /// Whether the columns of a table were sent, which only the first event has.
    has_sent_headers: bool,
    /// Arrival of the request, and its scope in metrics.
    began: tokio::time::Instant,
    scope: &'static str,
}

impl Encoder {
    fn encode_counted(&mut self, item: &Item) -> Bytes {
        let bytes = self.encode(item);
        requests::sent(&self.row.spec.gvr, bytes.len());
        if matches!(item, Item::Bookmark { initial: true, .. }) {
            requests::listed(&self.row.spec.gvr, self.scope, self.began.elapsed());
        }
        bytes
    }

    fn encode(&mut self, item: &Item) -> Bytes {
        let plain = self.accepted.media == Media::Json
            && self.accepted.transform == Transform::None
            && !self.row.converts;
        match item {
            Item::Change(_, _, Some(event)) if plain => {
                event.json_line(|| json_line(event.natural_type(), &event.entry.object))
            }
            Item::Change(kind, object, _) if plain => json_line(*kind, object),
            Item::Change(kind, object, _) => self.transformed(*kind, object),
            Item::Bookmark { revision, initial } => {
                let kind = &self.row.spec.gvk;
                let mut metadata = json!({"resourceVersion": revision.to_string()});
                if *initial && let Some(map) = metadata.as_object_mut() {
                    map.insert("annotations".into(), json!({"k8s.io/initial-events-end": "true"}));
                }
                let mut object = json!({"kind": *kind.kind, "apiVersion": kind.api_version(), "metadata": metadata});
                if self.row.spec.custom.is_none() {
                    // Upstream's bookmark is an empty object of the kind.
                    set_zero_values(&self.schema, kind, &mut object);
                }
                match (self.accepted.transform, Object::from_value(object.clone())) {
                    (Transform::None, _) => {}
                    (_, Ok(empty)) => {
                        return self.transformed_as("BOOKMARK", &Arc::new(empty));
                    }
                    (_, Err(error)) => {
                        let refusal = Status::internal(&error.to_string());
                        let refusal = serde_json::to_value(&refusal).unwrap_or_default();
                        return self.event("ERROR", &refusal);
                    }
                }
                self.event("BOOKMARK", &object)
            }
            Item::Error(refusal) => {
                self.event("ERROR", &serde_json::to_value(refusal.as_ref()).unwrap_or_default())
            }
        }
    }

    fn transformed(&mut self, kind: EventType, object: &Arc<Object>) -> Bytes {
        let object = convert::object(&self.row, object);
        self.transformed_as(type_name(kind), &object)
    }

    fn transformed_as(&mut self, event: &str, object: &Arc<Object>) -> Bytes {
        let version = &self.accepted.transform_version;
        let value = match self.accepted.transform {
            Transform::None => object.value().map_err(|e| Status::internal(&e.to_string())),
            Transform::Table => {
                let metadata = crate::response::encode::revision_only(object.resource_version);
                let headers = !std::mem::replace(&mut self.has_sent_headers, true);
                let objects = std::slice::from_ref(object);
                crate::response::encode::table(
                    &self.row,
                    &self.accepted,
                    &self.include,
                    objects,
                    metadata,
                    false,
                    headers,
                )
            }
            Transform::Partial | Transform::PartialList => {
                crate::response::encode::partial(object, version)
            }
        };
        match value {
            Ok(value) => self.event(event, &value),
            Err(refusal) => {
                self.event("ERROR", &serde_json::to_value(&refusal).unwrap_or_default())
            }
        }
    }

    fn event(&self, kind: &str, object: &serde_json::Value) -> Bytes {
        match self.accepted.media {
            Media::Json => {
                let mut out = format!("{{\"type\":\"{kind}\",\"object\":").into_bytes();
                // Writing to memory cannot fail.
                let _ = serde_json::to_writer(&mut out, object);
                out.extend_from_slice(b"}\n");
                out.into()
            }
            Media::Yaml => {
                format!("---\n{}", serialization::yaml(&json!({"type": kind, "object": object})))
                    .into()
            }
            Media::Protobuf => serialization::protobuf_event(&self.schema, kind, object),
        }
    }
}

/// Sets the fields that Go encodes in an empty object of the kind, including counts that are not
/// pointers in the internal type.
fn set_zero_values(schema: &api::schema::Schema, kind: &api::Gvk, object: &mut serde_json::Value) {
    serialization::normalize(schema, kind, object);
    if &*kind.kind == "DaemonSet" {
        // The annotation is a field of the internal type.
        let metadata = crate::registry::metadata::metadata_mut(object);
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert("deprecated.daemonset.template.generation".into(), "0".into());
        }
    }
    let has_replicas = matches!(&*kind.kind, "Deployment" | "ReplicaSet" | "StatefulSet");
    if let Some(spec) = object.get_mut("spec").and_then(|spec| spec.as_object_mut())
        && has_replicas
    {
        spec.insert("replicas".into(), 0.into());
    }
}

fn type_name(kind: EventType) -> &'static str {
    match kind {
        EventType::Added => "ADDED",
        EventType::Modified => "MODIFIED",
        EventType::Deleted => "DELETED",
    }
}

/// An event as one JSON line, from the stored bytes.
fn json_line(kind: EventType, object: &Object) -> Bytes {
    let mut out = Vec::with_capacity(object.raw().len() + 80);
    out.extend_from_slice(format!("{{\"type\":\"{}\",\"object\":", type_name(kind)).as_bytes());
    object.write_json(&mut out);
    out.extend_from_slice(b"}\n");
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Query;

    /// `SetListOptionsDefaults` and `ValidateListOptions` of
    /// `k8s.io/apimachinery/pkg/apis/meta/internalversion`.
    #[test]
    fn a_watch_begins_with_the_initial_objects_unless_a_resource_version_is_given() {
        let initial = |at_least, consistent, has_bookmark| Start::Initial {
            at_least,
            consistent,
            has_bookmark,
        };
        let match_rule = "resourceVersionMatch=NotOlderThan";
        let rows = [
            (String::new(), initial(0, true, false)),
            ("allowWatchBookmarks=true".to_owned(), initial(0, true, true)),
            ("resourceVersion=0".to_owned(), initial(0, false, false)),
            ("resourceVersion=7".to_owned(), Start::After(7)),
            (
                format!("sendInitialEvents=true&allowWatchBookmarks=true&{match_rule}"),
                initial(0, true, true),
            ),
            (
                format!(
                    "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersion=7&{match_rule}"
                ),
                initial(7, false, true),
            ),
            (format!("sendInitialEvents=false&resourceVersion=7&{match_rule}"), Start::After(7)),
        ];
        for (query, expected) in rows {
            let options = ListOptions::read(&Query::parse(&query), true).unwrap();
            assert_eq!(start_of(&options).unwrap(), expected, "{query}");
        }
    }

    /// `ListResource` of `endpoints/handlers/get.go` multiplies `timeoutSeconds` by a second and
    /// chooses a random timeout only for 0.
    #[test]
    fn a_timeout_of_zero_is_none_and_a_negative_one_ends_the_watch_at_once() {
        let rows = [
            (0, None),
            (1, Some(Duration::from_secs(1))),
            (-1, Some(Duration::ZERO)),
            (i64::MAX, Some(Duration::ZERO)),
        ];
        for (seconds, expected) in rows {
            assert_eq!(timeout_of(seconds), expected, "{seconds}");
        }
    }

    /// `cacheWatcher.nextBookmarkTime`: every minute, and 2 s before the deadline.
    #[test]
    fn bookmarks_come_every_minute_and_before_the_deadline() {
        let now = tokio::time::Instant::now();
        // Seconds to the deadline; seconds to the next bookmark, `None` for none before it.
        let rows = [(600, Some(60)), (62, Some(60)), (61, Some(59)), (3, Some(1)), (1, None)];
        for (deadline, expected) in rows {
            let deadline = now + Duration::from_secs(deadline);
            let next = bookmark_after(now, deadline);
            let expected = expected.map(|seconds| now + Duration::from_secs(seconds));
            assert_eq!((next < deadline).then_some(next), expected);
        }
    }
}
