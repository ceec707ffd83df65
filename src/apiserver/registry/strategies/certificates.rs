//! What writes to a certificate signing request may touch.

use api::value::{ensure_object, get, items, items_mut, restore, set, str_at};
use serde_json::Value;

use crate::registry::WriteContext;

const DECISIONS: [&str; 2] = ["Approved", "Denied"];

/// The spec never changes; approval writes decisions, status writes the rest.
pub(super) fn prepare_change(context: &WriteContext<'_>, object: &mut Value, old: &Value) {
    restore(object, old, "spec");
    let old_status = get(old, "status");
    match context.subresource {
        "" => restore(object, old, "status"),
        "approval" => {
            let conditions = get(get(object, "status"), "conditions").clone();
            restore(object, old, "status");
            if let (Some(status), false) = (ensure_object(object, "status"), conditions.is_null()) {
                set(status, "conditions", conditions);
            }
            times(object, old_status);
        }
        "status" => {
            keep_decisions(object, old_status);
            times(object, old_status);
        }
        _ => {}
    }
}

/// A status write leaves approvals and denials as they were.
fn keep_decisions(object: &mut Value, old_status: &Value) {
    let Some(status) = ensure_object(object, "status") else { return };
    for decision in DECISIONS {
        let known: Vec<Value> = items(old_status, "conditions")
            .iter()
            .filter(|c| str_at(c, "type") == decision)
            .cloned()
            .collect();
        let new: Vec<&mut Value> = items_mut(status, "conditions")
            .iter_mut()
            .filter(|c| str_at(c, "type") == decision)
            .collect();
        if new.len() == known.len() {
            new.into_iter().zip(known).for_each(|(new, known)| *new = known);
        }
    }
}

fn times(object: &mut Value, old_status: &Value) {
    let now = super::now();
    let Some(status) = ensure_object(object, "status") else { return };
    for condition in items_mut(status, "conditions") {
        if !get(condition, "lastUpdateTime").is_string() {
            set(condition, "lastUpdateTime", now.as_str());
        }
        if !get(condition, "lastTransitionTime").is_string() {
            let same = |c: &&Value| {
                get(c, "type") == get(condition, "type")
                    && get(c, "status") == get(condition, "status")
            };
            let known = items(old_status, "conditions")
                .iter()
                .find(same)
                .and_then(|c| c.get("lastTransitionTime"))
                .cloned();
            set(
                condition,
                "lastTransitionTime",
                known.unwrap_or_else(|| Value::from(now.as_str())),
            );
        }
    }
}
