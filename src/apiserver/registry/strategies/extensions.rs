//! Rules of the kinds of apiextensions.k8s.io and apiregistration.k8s.io.

use api::validation::names::{name_is_path_segment, name_is_subdomain};
use api::validation::{crd, small_kinds as small};
use api::value::{bool_at, ensure_object, get, items, set, str_at};
use serde_json::{Value, json};

use crate::registry::rules::Rules;

pub(super) const CUSTOM_RESOURCE_DEFINITION: Rules = Rules {
    name: name_is_subdomain,
    status: Some(
        r#"{"acceptedNames":{"kind":"","plural":""},"conditions":null,"storedVersions":null}"#,
    ),
    generation: &["spec"],
    status_keeps_meta: true,
    unconditional_update: false,
    warnings: crd::warnings,
    validate: crd::validate,
    validate_change: crd::validate_change,
    validate_subresource: crd::validate_subresource,
    prepare: |_, object| stored_version(object),
    prepare_change: |context, object, _| {
        if context.subresource.is_empty() {
            stored_version(object);
        }
    },
    ..Rules::BASE
};

/// Adds the storage version to `status.storedVersions`.
fn stored_version(object: &mut Value) {
    let storage = items(get(object, "spec"), "versions")
        .iter()
        .find(|v| bool_at(v, "storage"))
        .map(|v| str_at(v, "name").to_owned());
    let Some(name) = storage else { return };
    if let Some(status) = ensure_object(object, "status") {
        let mut stored = items(status, "storedVersions").to_vec();
        if !stored.iter().any(|v| v.as_str() == Some(&name)) {
            stored.push(Value::from(name));
            set(status, "storedVersions", stored);
        }
    }
}

pub(super) const API_SERVICE: Rules = Rules {
    validate: small::api_service,
    validate_change: |new, _| small::api_service(new),
    validate_subresource: small::api_service_status,
    name: name_is_path_segment,
    status: Some("{}"),
    status_keeps_meta: true,
    unconditional_update: false,
    prepare: |_, object| {
        if get(get(object, "spec"), "service").is_null() {
            let local = json!([{
                "type": "Available", "status": "True", "lastTransitionTime": super::now(),
                "reason": "Local", "message": "Local APIServices are always available",
            }]);
            if let Some(status) = ensure_object(object, "status") {
                set(status, "conditions", local);
            }
        }
    },
    ..Rules::BASE
};
