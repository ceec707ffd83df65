//! What this server says in the status of a definition, written like upstream's controllers write
//! it: as `kube-apiserver`, the fields noted under that name.

use api::patch::apply;
use api::{Gvr, Object, Status};
use serde_json::{Map, Value, json};

use super::definition::{CLEANUP, Condition, Names};
use crate::registry::metadata;
use crate::registry::objects::Objects;
use crate::registry::storage::{Deletion, Written};

/// Upstream's name of the API server as a client of itself.
const MANAGER: &str = "kube-apiserver";

/// The resource of definitions.
pub(crate) fn definitions() -> Gvr {
    Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

/// `status`, made when it is absent.
fn status_of(value: &mut Value) -> Option<&mut Map<String, Value>> {
    let slot = value.as_object_mut()?.entry("status").or_insert_with(|| json!({}));
    if !slot.is_object() {
        *slot = json!({});
    }
    slot.as_object_mut()
}

/// Sets a condition; its time moves when its status does (`SetCRDCondition`).
pub(crate) fn set_condition(value: &mut Value, wanted: &Condition) {
    let Some(status) = status_of(value) else { return };
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return };
    let at =
        |c: &Value, key: &str| c.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let found = list.iter_mut().find(|c| at(c, "type") == wanted.name);
    let now = metadata::now();
    match found.and_then(|c| {
        let moved = at(c, "status") != wanted.status || at(c, "lastTransitionTime").is_empty();
        c.as_object_mut().map(|map| (map, moved))
    }) {
        Some((map, moved)) => {
            if moved {
                map.insert("lastTransitionTime".into(), now.into());
            }
            map.insert("status".into(), wanted.status.as_str().into());
            map.insert("reason".into(), wanted.reason.as_str().into());
            map.insert("message".into(), wanted.message.as_str().into());
        }
        None => list
            .push(json!({"type": wanted.name, "status": wanted.status, "lastTransitionTime": now,
            "reason": wanted.reason, "message": wanted.message})),
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
        // Plural and kind are never left out.
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

/// The condition that a deletion begins with, and the finalizer that holds the definition
/// (upstream's `REST.Delete`).
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

/// What became of a write to a definition.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Written; the object as it is now.
    Done(Box<Object>),
    /// Somebody else changed or deleted it: it will be looked at again.
    Changed,
}

/// Writes a definition back as `change` leaves it. Deletes it instead when it only waited for
/// finalizers that are gone.
///
/// # Errors
/// The store's refusal.
pub(crate) async fn write(
    objects: &Objects,
    current: &Object,
    change: impl FnOnce(&mut Value),
) -> Result<Outcome, Status> {
    let row = objects.row(&definitions())?;
    let registry = objects.registry();
    let fault = |e: &dyn std::fmt::Display| Status::internal(&e.to_string());
    let old = current.value().map_err(|e| fault(&e))?;
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
    let gone = !metadata::text(&new, "deletionTimestamp").is_empty()
        && metadata::finalizers(&new).is_empty();
    if gone {
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
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let mut value = json!({"status": {"conditions": null}});
        set_condition(&mut value, &terminating(true, "A", "a"));
        let list = &mut value["status"]["conditions"];
        list[0]["lastTransitionTime"] = "2020-01-01T00:00:00Z".into();
        set_condition(&mut value, &terminating(true, "B", "b"));
        assert_eq!(
            value["status"]["conditions"],
            json!([{"type": "Terminating", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z", "reason": "B", "message": "b"}])
        );
        set_condition(&mut value, &terminating(false, "C", "c"));
        assert_ne!(value["status"]["conditions"][0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
    }

    #[test]
    fn a_deletion_begins_with_a_finalizer_and_a_condition() {
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
