//! Objects as the Table that kubectl prints.

use std::sync::Arc;

use api::{Object, Status};
use serde_json::{Value, json};

use crate::registry::Resource;

/// A Table of these objects; `include` is the query's `includeObject`.
///
/// # Errors
/// 400 for an unknown `includeObject`.
pub(crate) fn table(
    row: &Resource,
    version: &str,
    include: &str,
    items: &[Arc<Object>],
    revision: &str,
) -> Result<Value, Status> {
    let mut rows = Vec::with_capacity(items.len());
    for object in items {
        let value = object.value().map_err(|e| Status::internal(&e.to_string()))?;
        let cells =
            json!([*object.key.name, crate::registry::metadata::text(&value, "creationTimestamp")]);
        let mut cell = json!({"cells": cells});
        let shown = match include {
            "None" => None,
            "Object" => Some(value),
            "" | "Metadata" => {
                let metadata = value.get("metadata").cloned().unwrap_or_default();
                Some(
                    json!({"kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": metadata}),
                )
            }
            other => {
                return Err(Status::bad_request(format!(
                    "unrecognized includeObject value: {}",
                    api::field::go_quote(other)
                )));
            }
        };
        if let (Some(map), Some(shown)) = (cell.as_object_mut(), shown) {
            map.insert("object".into(), shown);
        }
        rows.push(cell);
    }
    let _ = row;
    let columns = json!([
        {"name": "Name", "type": "string", "format": "name", "description": "Name of the object.", "priority": 0},
        {"name": "Created At", "type": "date", "format": "", "description": "When it was created.", "priority": 0},
    ]);
    Ok(
        json!({"kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": {"resourceVersion": revision},
        "columnDefinitions": columns, "rows": rows}),
    )
}
