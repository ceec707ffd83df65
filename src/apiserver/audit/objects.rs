//! Records the objects of requests and responses.

use api::Status;
use serde_json::Value;

use super::policy::Level;
use super::with;

/// Records the decoded body of a create or update: its reference, and if the level requires it the
/// result of `convert`.
pub(crate) fn request_object(value: &Value, convert: impl FnOnce(Value) -> Value) {
    with(|trail| {
        let (level, omit_managed_fields) = trail.level();
        if level >= Level::Metadata {
            trail.request_object(value);
        }
        if level >= Level::Request {
            let mut value = convert(value.clone());
            if omit_managed_fields {
                remove_managed_fields(&mut value);
            }
            trail.request_body(value.to_string());
        }
    });
}

/// Records a request body unchanged; `json` returns `None` if it is not JSON.
pub(crate) fn request_body(json: impl FnOnce() -> Option<String>) {
    with(|trail| {
        if trail.level().0 >= Level::Request
            && let Some(json) = json()
        {
            trail.request_body(json);
        }
    });
}

/// Whether the object of the response is recorded.
pub(crate) fn records_response() -> bool {
    let mut records = false;
    with(|trail| records = trail.level().0 >= Level::RequestResponse);
    records
}

/// Records the object of the response, as JSON.
pub(crate) fn response_json(json: impl FnOnce() -> Vec<u8>) {
    with(|trail| {
        let (level, omit_managed_fields) = trail.level();
        if level < Level::RequestResponse {
            return;
        }
        let json = json();
        let text = if omit_managed_fields && has_managed_fields(&json) {
            serde_json::from_slice::<Value>(&json).ok().map(|mut value| {
                remove_managed_fields(&mut value);
                value.to_string()
            })
        } else {
            String::from_utf8(json).ok()
        };
        if let Some(text) = text {
            trail.response_body(text);
        }
    });
}

/// Records the object of the response; a Status also becomes the response status.
pub(crate) fn response_value(value: &Value) {
    with(|trail| {
        let (level, omit_managed_fields) = trail.level();
        if level >= Level::Metadata
            && api::value::str_at(value, "kind") == "Status"
            && api::value::str_at(value, "apiVersion") == "v1"
            && let Ok(status) = serde_json::from_value::<Status>(value.clone())
        {
            trail.status(&status);
        }
        if level == Level::RequestResponse {
            let mut value = value.clone();
            if omit_managed_fields {
                remove_managed_fields(&mut value);
            }
            trail.response_body(value.to_string());
        }
    });
}

fn has_managed_fields(json: &[u8]) -> bool {
    const MARK: &[u8] = b"\"managedFields\"";
    json.windows(MARK.len()).any(|window| window == MARK)
}

/// Removes `managedFields` from an object, the items of a list, or the rows of a table.
fn remove_managed_fields(value: &mut Value) {
    let strip = |value: &mut Value| {
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    };
    strip(value);
    for (list, member) in [("items", None), ("rows", Some("object"))] {
        let members = value.get_mut(list).and_then(Value::as_array_mut);
        for entry in members.into_iter().flatten() {
            match member {
                None => strip(entry),
                Some(member) => entry.get_mut(member).into_iter().for_each(strip),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn managed_fields_are_removed_from_objects_lists_and_tables() {
        let object = || json!({"metadata": {"name": "a", "managedFields": [1]}, "spec": {"managedFields": 2}});
        let bare = || json!({"metadata": {"name": "a"}, "spec": {"managedFields": 2}});
        let stripped = |mut value: Value| {
            remove_managed_fields(&mut value);
            value
        };
        assert_eq!(stripped(object()), bare());
        assert_eq!(
            stripped(json!({"kind": "PodList", "items": [object()]})),
            json!({"kind": "PodList", "items": [bare()]})
        );
        assert_eq!(
            stripped(json!({"kind": "Table", "rows": [{"cells": [], "object": object()}]})),
            json!({"kind": "Table", "rows": [{"cells": [], "object": bare()}]})
        );
    }
}
