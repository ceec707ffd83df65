//! Rules of the kinds of certificates.k8s.io, and the fields of a CertificateSigningRequest that
//! each of its subresources may write.

use api::value::{ensure_object, get, items, items_mut, restore, set, str_at, str_in};
use serde_json::Value;

use super::{pod_certificate, trust_bundle};
use crate::registry::WriteContext;
use crate::registry::rules::Rules;

pub(super) const CLUSTER_TRUST_BUNDLE: Rules = Rules {
    // Which names are valid depends on the signer.
    name: |_, _| Vec::new(),
    unconditional_update: false,
    validate: trust_bundle::validate,
    validate_change: trust_bundle::validate_change,
    selectable: |object| {
        vec![("spec.signerName", str_in(object, &["spec", "signerName"]).to_owned())]
    },
    ..Rules::BASE
};

pub(super) const POD_CERTIFICATE_REQUEST: Rules = Rules {
    status: Some("{}"),
    status_keeps_meta: true,
    unconditional_update: false,
    validate: pod_certificate::validate,
    validate_change: pod_certificate::validate_change,
    validate_subresource: pod_certificate::validate_status,
    prepare_change: |_, object, _| pod_certificate::whole_seconds(object),
    selectable: pod_certificate::selectable,
    ..Rules::BASE
};

const DECISIONS: [&str; 2] = ["Approved", "Denied"];

/// Restores the fields that a write cannot change: always the spec; `approval` writes conditions,
/// `status` the other fields of the status.
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
            set_condition_times(object, old_status);
        }
        "status" => {
            keep_decisions(object, old_status);
            set_condition_times(object, old_status);
        }
        _ => {}
    }
}

/// Restores approvals and denials, which a write of `status` cannot change.
fn keep_decisions(object: &mut Value, old_status: &Value) {
    let Some(status) = ensure_object(object, "status") else { return };
    for decision in DECISIONS {
        let previous: Vec<Value> = items(old_status, "conditions")
            .iter()
            .filter(|c| str_at(c, "type") == decision)
            .cloned()
            .collect();
        let new: Vec<&mut Value> = items_mut(status, "conditions")
            .iter_mut()
            .filter(|c| str_at(c, "type") == decision)
            .collect();
        if new.len() == previous.len() {
            new.into_iter().zip(previous).for_each(|(new, previous)| *new = previous);
        }
    }
}

/// Sets missing times of conditions; a condition keeps its time while its status stays.
fn set_condition_times(object: &mut Value, old_status: &Value) {
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
            let previous = items(old_status, "conditions")
                .iter()
                .find(same)
                .and_then(|c| c.get("lastTransitionTime"))
                .cloned();
            set(
                condition,
                "lastTransitionTime",
                previous.unwrap_or_else(|| Value::from(now.as_str())),
            );
        }
    }
}
