//! The only conversions between versions: HorizontalPodAutoscaler v1 ↔ v2 and `events.k8s.io` ↔ core Event.

mod autoscaling;
mod events;

use std::sync::Arc;

use api::schema::Schema;
use api::{Object, codec};
use bytes::Bytes;
use serde_json::Value;

use crate::registry::Resource;

/// A stored value as JSON bytes: our own form as it is; others (imported protobuf) are transcoded.
///
/// # Errors
/// A sentence when the bytes are neither.
pub(crate) fn stored_json(row: &Resource, value: Bytes) -> Result<Bytes, String> {
    if !codec::protobuf::is_enveloped(&value) {
        return Ok(value);
    }
    let (_, value) =
        codec::protobuf::decode_object(&Schema::builtin(), &value).map_err(|e| e.to_string())?;
    Ok(crate::registry::storage::encode(row, &value).into())
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

/// A stored object as an object of the row's version.
pub(crate) fn object(row: &Resource, object: &Arc<Object>) -> Arc<Object> {
    if !row.converts {
        return Arc::clone(object);
    }
    let converted = object
        .value()
        .ok()
        .map(|value| from_storage(row, value))
        .and_then(|value| Object::from_value(value).ok());
    converted.map_or_else(|| Arc::clone(object), Arc::new)
}
