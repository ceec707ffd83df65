//! The versions of a resource: equivalent ones, and conversion between them.

use std::sync::Arc;

use api::{Gvk, Gvr, Status};
use serde_json::Value;

use crate::admission::Request;
use crate::registry::Resource;
use crate::registry::convert;
use crate::registry::objects::Objects;
use crate::request::negotiate::Media;
use crate::serialization;

/// Converts between the versions of all served resources.
pub(crate) struct Versions(Arc<Objects>);

impl Versions {
    /// Creates it over these objects.
    pub(crate) fn new(objects: &Arc<Objects>) -> Self {
        Self(Arc::clone(objects))
    }

    /// The kind of the request; for a subresource with a kind of its own, that kind.
    pub(crate) fn kind(&self, request: &Request<'_>) -> Gvk {
        let kind = self.0.registry().row(request.gvr).map(|row| kind_of(row, request.subresource));
        kind.flatten().unwrap_or_else(|| request.gvk.clone())
    }

    /// The other resources with the same stored objects (upstream's `EquivalentResourceRegistry`),
    /// with their kinds.
    pub(crate) fn equivalents(&self, gvr: &Gvr, subresource: &str) -> Vec<(Gvr, Gvk)> {
        let registry = self.0.registry();
        let Some(own) = registry.row(gvr) else { return Vec::new() };
        let others = registry
            .rows()
            .filter(|row| row.spec.gvr != *gvr && row.spec.prefix == own.spec.prefix);
        others.filter_map(|row| Some((row.spec.gvr.clone(), kind_of(row, subresource)?))).collect()
    }

    /// Converts the object to another version of its resource. A kind that all versions share
    /// (`Scale`) is unchanged.
    ///
    /// # Errors
    /// 500 if one of the kinds is no longer served.
    pub(crate) fn convert(&self, object: Value, from: &Gvk, to: &Gvk) -> Result<Value, Status> {
        if from == to {
            return Ok(object);
        }
        let registry = self.0.registry();
        let row = |kind: &Gvk| {
            let row = registry.row_of_kind(kind).map(Arc::clone);
            row.ok_or_else(|| {
                let kind = format!("{}, Kind={}", kind.api_version(), kind.kind);
                Status::internal(&format!("unable to convert to {kind}: unknown kind"))
            })
        };
        let stored = convert::to_storage(&*row(from)?, object);
        let mut object = convert::from_storage(&*row(to)?, stored);
        name_kind(&mut object, to);
        Ok(object)
    }

    /// Decodes a patched object as the server decodes requests, with defaulting.
    ///
    /// # Errors
    /// 500 with the decoder's message.
    pub(crate) fn decode(&self, kind: &Gvk, object: &Value) -> Result<Value, Status> {
        self.decoded(kind, object, false)
    }

    /// Like [`Versions::decode`], and rejects unknown fields.
    ///
    /// # Errors
    /// 500 with the decoder's message.
    pub(crate) fn decode_strictly(&self, kind: &Gvk, object: &Value) -> Result<Value, Status> {
        self.decoded(kind, object, true)
    }

    fn decoded(&self, kind: &Gvk, object: &Value, strict: bool) -> Result<Value, Status> {
        let registry = self.0.registry();
        let bytes = serde_json::to_vec(object).map_err(|e| Status::internal(&e.to_string()))?;
        let decoded = serialization::decode(&registry.schema, Media::Json, &bytes, kind);
        let decoded = decoded.map_err(|e| Status::internal(&e.message))?;
        if strict && !decoded.strict_errors.is_empty() {
            return Err(Status::internal(&api::codec::strict_message(&decoded.strict_errors)));
        }
        let mut value = decoded.value;
        name_kind(&mut value, kind);
        serialization::default(&registry.schema, kind, &mut value);
        if let Some(row) = registry.row_of_kind(kind) {
            row.spec.strategy.default(&mut value);
        }
        Ok(value)
    }
}

/// Sets kind and version.
fn name_kind(object: &mut Value, kind: &Gvk) {
    if let Some(map) = object.as_object_mut() {
        map.insert("kind".to_owned(), (*kind.kind).into());
        map.insert("apiVersion".to_owned(), kind.api_version().into());
    }
}

fn kind_of(row: &Resource, subresource: &str) -> Option<Gvk> {
    if subresource.is_empty() {
        return Some(row.spec.gvk.clone());
    }
    row.subresource(subresource).map(|sub| sub.kind.clone())
}
