//! Encodes `ExportTraceServiceRequest` of `opentelemetry/proto/collector/trace/v1` in protobuf: by
//! hand, because generated code would be larger than these few messages.

use super::span::{Attributes, SpanContext, SpanRecord, Value};

/// The name of the instrumentation library (`InstrumentationScope`).
const SCOPE: &str = "kube-lite/apiserver";
/// `SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK` and `SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK`.
const KNOWS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;
/// `STATUS_CODE_ERROR`.
const FAILED: u64 = 2;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

/// Appends a field of bytes, text or a message.
fn put(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn put_fixed64(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_fixed32(out: &mut Vec<u8>, field: u64, value: u32) {
    varint(out, field << 3 | 5);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a field with the message that `fill` encodes.
fn message(out: &mut Vec<u8>, field: u64, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    fill(&mut inner);
    put(out, field, &inner);
}

/// Appends attributes as `KeyValue` messages.
fn attributes(out: &mut Vec<u8>, field: u64, all: &Attributes) {
    for (key, value) in all {
        message(out, field, |out| {
            put(out, 1, key.as_bytes());
            message(out, 2, |out| match value {
                Value::Text(text) => put(out, 1, text.as_bytes()),
                Value::Number(number) => put_number(out, 3, number.cast_unsigned()),
            });
        });
    }
}

fn flags(context: &SpanContext, is_remote: bool) -> u32 {
    let remote = if is_remote { IS_REMOTE } else { 0 };
    u32::from(context.sampled) | KNOWS_REMOTE | remote
}

/// Encodes a `Span`.
fn span(out: &mut Vec<u8>, record: &SpanRecord) {
    put(out, 1, &record.context.trace);
    put(out, 2, &record.context.span);
    if record.parent != [0; 8] {
        put(out, 4, &record.parent);
    }
    put(out, 5, record.name.as_bytes());
    put_number(out, 6, record.kind as u64);
    put_fixed64(out, 7, record.times.0);
    put_fixed64(out, 8, record.times.1);
    attributes(out, 9, &record.attributes);
    for event in &record.events {
        message(out, 11, |out| {
            put_fixed64(out, 1, event.at);
            put(out, 2, event.name.as_bytes());
            attributes(out, 3, &event.attributes);
        });
    }
    if let Some(link) = &record.link {
        message(out, 13, |out| {
            put(out, 1, &link.trace);
            put(out, 2, &link.span);
            put_fixed32(out, 6, flags(link, true));
        });
    }
    if record.failed {
        message(out, 15, |out| put_number(out, 3, FAILED));
    }
    put_fixed32(out, 16, flags(&record.context, record.is_remote));
}

/// Encodes the request of one batch; `identity` is that of this server.
pub(super) fn request(records: &[SpanRecord], identity: &str) -> Vec<u8> {
    let mut out = Vec::new();
    message(&mut out, 1, |out| {
        message(out, 1, |out| {
            let resource = vec![
                ("service.name", "apiserver".into()),
                ("service.instance.id", identity.into()),
            ];
            attributes(out, 1, &resource);
        });
        message(out, 2, |out| {
            message(out, 1, |out| {
                put(out, 1, SCOPE.as_bytes());
                put(out, 2, env!("CARGO_PKG_VERSION").as_bytes());
            });
            for record in records {
                message(out, 2, |out| span(out, record));
            }
        });
    });
    out
}
