//! Writes the status of a definition as upstream's controllers do: with the field manager
//! `kube-apiserver`.

use api::patch::apply;
use api::{Gvr, Object, Status};
use serde_json::{Map, Value, json};

use super::definition::{CLEANUP, Condition, Names};
use crate::registry::metadata;
use crate::registry::objects::Objects;
use crate::registry::storage::{Deletion, Written};

/// The field manager: upstream's name of the API server as a client of itself.
const MANAGER: &str = "kube-apiserver";

/// The resource of definitions.
pub(crate) fn definitions() -> Gvr {
    Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

/// `status`, created if it is absent.
fn status_of(value: &mut Value) -> Option<&mut Map<String, Value>> {
    let slot = value.as_object_mut()?.entry("status").or_insert_with(|| json!({}));
    if !slot.is_object() {
        *slot = json!({});
    }
    slot.as_object_mut()
}

/// Sets a condition; `lastTransitionTime` changes only with the status (`SetCRDCondition`).
pub(crate) fn set_condition(value: &mut Value, new: &Condition) {
    let Some(status) = status_of(value) else { return };
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return };
    let text =
        |c: &Value, key: &str| c.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let existing = list.iter_mut().find(|c| text(c, "type") == new.name);
    let now = metadata::now();
    match existing.and_then(|c| {
        let is_transition =
            text(c, "status") != new.status || text(c, "lastTransitionTime").is_empty();
        c.as_object_mut().map(|map| (map, is_transition))
    }) {
        Some((map, is_transition)) => {
            if is_transition {
                map.insert("lastTransitionTime".into(), now.into());
            }
            map.insert("status".into(), new.status.as_str().into());
            map.insert("reason".into(), new.reason.as_str().into());
            map.insert("message".into(), new.message.as_str().into());
        }
        None => list
            .push(json!({"type": new.name, "status": new.status, "lastTransitionTime": now,
            "reason": new.reason, "message": new.message})),
    }
}

/// Sets `acceptedNames`.
pub(crate) fn set_names(value: &mut Value, names: &Names) {
    let Some(status) = status_of(value) else { return };
    let mut map = Map::new();
    for (key, text) in [
        ("plural", &names.plural),
        ("singular", &names.singular),
        ("kind", &names.kind),
        ("listKind", &names.list_kind),
    ] {
        // Plural and kind are required fields: they are written even if empty.
        if !text.is_empty() || matches!(key, "plural" | "kind") {
            map.insert(key.into(), text.as_str().into());
        }
    }
    for (key, list) in [("shortNames", &names.short_names), ("categories", &names.categories)] {
        if !list.is_empty() {
            map.insert(key.into(), json!(list));
        }
    }
    status.insert("acceptedNames".into(), map.into());
}

/// Starts the deletion of a definition: sets `deletionTimestamp`, the finalizer and the condition
/// `Terminating` (upstream's `REST.Delete`).
pub(crate) fn begin_deletion(value: &mut Value) {
    metadata::metadata_mut(value).insert("deletionTimestamp".into(), metadata::now().into());
    let mut finalizers = metadata::finalizers(value);
    if !finalizers.iter().any(|f| f == CLEANUP) {
        finalizers.push(CLEANUP.to_owned());
        metadata::set_finalizers(value, &finalizers);
    }
    let condition = terminating(
        true,
        "InstanceDeletionPending",
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    );
    set_condition(value, &condition);
}

/// The condition `Terminating`.
pub(crate) fn terminating(status: bool, reason: &str, message: &str) -> Condition {
    Condition {
        name: "Terminating".into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
    }
}

/// The outcome of a write to a definition.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The object was written or deleted; it is the last version.
    Done(Box<Object>),
    /// Another client has changed or deleted the object: nothing was written.
    Changed,
}

/// Applies `change` to a definition and writes it; deletes it instead if it is marked for deletion
/// and has no finalizers left.
///
/// # Errors
/// The error of the store.
pub(crate) async fn write(
    objects: &Objects,
    current: &Object,
    change: impl FnOnce(&mut Value),
) -> Result<Outcome, Status> {
    let row = objects.row(&definitions())?;
    let registry = objects.registry();
    let old = current.value().map_err(|e| Status::internal(&e.to_string()))?;
    let mut new = old.clone();
    change(&mut new);
    if let Some(ty) = registry.schema.kind(&row.spec.gvk) {
        let now = metadata::now();
        let write = apply::Write {
            schema: &registry.schema,
            ty,
            gvk: &row.spec.gvk,
            custom: false,
            manager: MANAGER,
            subresource: "status",
            reset: crate::registry::reset_fields::of(&row, "status"),
            now: &now,
        };
        apply::track_update(&write, Some(&old), &mut new);
        crate::serialization::normalize(&registry.schema, &row.spec.gvk, &mut new);
    }
    let is_deleted = !metadata::text(&new, "deletionTimestamp").is_empty()
        && metadata::finalizers(&new).is_empty();
    if is_deleted {
        return match objects.storage().delete(&row, current).await? {
            Deletion::Done(_) => Ok(Outcome::Done(Box::new(current.clone()))),
            Deletion::Changed(_) => Ok(Outcome::Changed),
        };
    }
    match objects.storage().write(&row, &new, current.resource_version).await? {
        Written::Done(object) => Ok(Outcome::Done(Box::new(object))),
        Written::Changed(_) => Ok(Outcome::Changed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let mut value = json!({"status": {"conditions": null}});
        set_condition(&mut value, &terminating(true, "A", "a"));
        let list = &mut value["status"]["conditions"];
        list[0]["lastTransitionTime"] = "2020-01-01T00:00:00Z".into();
        set_condition(&mut value, &terminating(true, "B", "b"));
        assert_eq!(
            value["status"]["conditions"],
            json!([{"type": "Terminating", "status": "True",
                "lastTransitionTime": "2020-01-01T00:00:00Z", "reason": "B", "message": "b"}])
        );
        set_condition(&mut value, &terminating(false, "C", "c"));
        assert_ne!(value["status"]["conditions"][0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
    }

    #[test]
    fn a_deletion_adds_the_finalizer_and_a_condition() {
        let mut value =
            json!({"metadata": {"name": "foos.example.com", "finalizers": ["example.com/own"]}});
        begin_deletion(&mut value);
        assert_eq!(
            metadata::finalizers(&value),
            ["example.com/own", "customresourcecleanup.apiextensions.k8s.io"]
        );
        assert_eq!(value["status"]["conditions"][0]["reason"], "InstanceDeletionPending");
    }
}
