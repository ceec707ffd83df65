//! Messages of watch streams and their encoding: watches with the same changes share the encoded
//! bytes.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::message;
use proto::{etcdserverpb as pb, mvccpb};
use store::Event;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::range_plan::key_value;

/// Number of the field `events` of a `WatchResponse`: the last one, so that the fields before it
/// can be encoded separately.
const EVENTS: u32 = 11;

/// A response to be sent.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// Any response.
    Message(pb::WatchResponse),
    /// Changes: the fields before them, and the encoded field `events`.
    Events(pb::WatchResponse, Bytes),
}

/// Decodes requests and encodes [`Outgoing`] responses.
#[derive(Debug, Clone, Copy)]
pub(super) struct WatchCodec;

impl Codec for WatchCodec {
    type Encode = Outgoing;
    type Decode = pb::WatchRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for WatchCodec {
    type Item = Outgoing;
    type Error = Status;

    fn encode(&mut self, item: Outgoing, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let (head, events) = match &item {
            Outgoing::Message(message) => (message, &Bytes::new()),
            Outgoing::Events(head, events) => (head, events),
        };
        out.reserve(head.encoded_len() + events.len());
        head.encode_raw(out);
        out.put_slice(events);
        Ok(())
    }
}

impl Decoder for WatchCodec {
    type Item = pb::WatchRequest;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<pb::WatchRequest>, Status> {
        let request = pb::WatchRequest::decode(from);
        request.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

/// The filter of a watch, and whether it includes previous values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventFilter {
    pub(super) puts: bool,
    pub(super) deletions: bool,
    pub(super) prev_kv: bool,
}

impl EventFilter {
    /// The matching changes, in etcd's form.
    pub(super) fn shape<'a>(self, events: &'a [Event]) -> impl Iterator<Item = mvccpb::Event> + 'a {
        let wanted = move |event: &&Event| if event.deleted { self.deletions } else { self.puts };
        events.iter().filter(wanted).map(move |event| shape(event.clone(), self.prev_kv))
    }
}

/// The encoding of the newest changes, which the next watch of a stream usually needs as well.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    last: Option<(Arc<[Event]>, EventFilter, Bytes)>,
}

impl Encoded {
    /// The encoded field `events`; empty if nothing matches.
    pub(super) fn of(&mut self, events: &Arc<[Event]>, wanted: EventFilter) -> Bytes {
        if let Some((last, by, encoded)) = &self.last
            && Arc::ptr_eq(last, events)
            && *by == wanted
        {
            return encoded.clone();
        }
        let mut out = BytesMut::new();
        wanted.shape(events).for_each(|event| message::encode(EVENTS, &event, &mut out));
        let encoded = out.freeze();
        self.last = Some((Arc::clone(events), wanted, encoded.clone()));
        encoded
    }

    /// Drops the changes.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }
}

/// The fields of a response before the changes.
pub(super) fn head(header: Option<pb::ResponseHeader>, watch_id: i64) -> pb::WatchResponse {
    pb::WatchResponse { header, watch_id, ..Default::default() }
}

/// A change in etcd's form; a deletion has only the key and its revision.
fn shape(event: Event, prev_kv: bool) -> mvccpb::Event {
    let kind = if event.deleted {
        mvccpb::event::EventType::Delete
    } else {
        mvccpb::event::EventType::Put
    };
    // A key created and deleted at one revision has no previous version.
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

/// Splits a response between events so that each part is smaller than `limit`, or has one event;
/// all but the last are marked as fragments.
pub(super) fn fragments(response: pb::WatchResponse, limit: usize) -> Vec<pb::WatchResponse> {
    if response.encoded_len() < limit || response.events.len() < 2 {
        return vec![response];
    }
    let pb::WatchResponse { events, .. } = response;
    let empty = pb::WatchResponse { events: Vec::new(), ..response };
    let bare = empty.encoded_len();
    let (mut parts, mut part, mut bytes) = (Vec::new(), empty.clone(), bare);
    for event in events {
        let size = event.encoded_len();
        // A message field is prefixed with its number and its length.
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
