//! Converts between served versions, HorizontalPodAutoscaler v1 ↔ v2 and `events.k8s.io` ↔ core
//! Event, and reads values that another API server has stored.

mod autoscaling;
mod events;
mod foreign;
mod on_read;

use std::sync::Arc;

use api::{Object, codec};
use bytes::Bytes;
use serde_json::Value;

use crate::registry::Resource;
pub(crate) use foreign::ForeignError;

/// A stored value as JSON bytes. Values of another API server are decoded ([`foreign`]); fields
/// that upstream sets on read are added ([`on_read`]). `primary` is the family of the cluster's
/// first service range.
///
/// # Errors
/// When protobuf cannot be decoded.
pub(crate) fn stored_json(
    row: &Resource,
    value: Bytes,
    primary: &str,
) -> Result<Bytes, ForeignError> {
    if !codec::protobuf::is_enveloped(&value) {
        return Ok(filled(row, value, primary));
    }
    Ok(filled(row, undecorated(row, &value)?, primary))
}

/// Protobuf that another API server has stored, as JSON with the defaults of its kind.
///
/// # Errors
/// As [`stored_json`].
pub(crate) fn undecorated(row: &Resource, value: &[u8]) -> Result<Bytes, ForeignError> {
    let read = foreign::read(&row.spec.storage, value)?;
    Ok(crate::registry::storage::encode(row, &read).into())
}

/// Stored JSON with the fields that upstream sets on read.
pub(crate) fn filled(row: &Resource, json: Bytes, primary: &str) -> Bytes {
    on_read::decorate(row, &json, primary).unwrap_or(json)
}

/// A value of the row's version as the storage version.
pub(crate) fn to_storage(row: &Resource, value: Value) -> Value {
    if !row.converts {
        return value;
    }
    match row.spec.gvr.group.as_ref() {
        "autoscaling" => autoscaling::v1_to_v2(value),
        "events.k8s.io" => events::to_core(value),
        _ => value,
    }
}

/// A value of the storage version as the row's version.
pub(crate) fn from_storage(row: &Resource, value: Value) -> Value {
    if !row.converts {
        return value;
    }
    match row.spec.gvr.group.as_ref() {
        "autoscaling" => autoscaling::v2_to_v1(value),
        "events.k8s.io" => events::from_core(value),
        _ => value,
    }
}

/// The object of a converted value. That of a dry run has the resource version that the client
/// sent, which need not be a number.
fn rebuilt(value: Value, revision: i64) -> Option<Object> {
    let version = value.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    if version.is_none_or(|text| text.is_empty() || text.parse::<i64>().is_ok()) {
        return Object::from_value(value).ok();
    }
    Object::from_stored(serde_json::to_vec(&value).ok()?.into(), revision).ok()
}

/// A stored object as an object of the row's version.
pub(crate) fn object(row: &Resource, object: &Arc<Object>) -> Arc<Object> {
    if !row.converts {
        return Arc::clone(object);
    }
    let converted = object
        .value()
        .ok()
        .map(|value| from_storage(row, value))
        .and_then(|value| rebuilt(value, object.resource_version));
    converted.map_or_else(|| Arc::clone(object), Arc::new)
}
