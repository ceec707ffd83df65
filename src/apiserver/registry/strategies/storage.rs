//! Rules of the kinds of storage.k8s.io.

use api::validation::storage as rules;
use api::validation::warnings;
use api::value::{ensure_object, get, has, is_empty, items, remove, semantic_equal, set};
use serde_json::Value;

use super::super::rules::Rules;

pub(super) const STORAGE_CLASS: Rules = Rules {
    warnings: warnings::storage_class,
    validate: rules::class,
    validate_change: rules::class_change,
    ..Rules::BASE
};

pub(super) const ATTRIBUTES_CLASS: Rules = Rules {
    validate: rules::attributes_class,
    validate_change: rules::attributes_class_change,
    ..Rules::BASE
};

pub(super) const CAPACITY: Rules = Rules {
    warnings: warnings::storage_capacity,
    unconditional_update: false,
    validate: rules::capacity,
    validate_change: rules::capacity_change,
    ..Rules::BASE
};

pub(super) const CSI_NODE: Rules = Rules {
    validate: rules::node,
    validate_change: rules::node_change,
    validate_subresource: rules::node_status,
    // The feature `CSIVolumeHealth` is off by default.
    prepare_change: |_, object, old| {
        if items(get(old, "status"), "storageHealth").is_empty()
            && let Some(status) = object.get_mut("status")
        {
            remove(status, "storageHealth");
        }
    },
    status: Some("{}"),
    status_keeps_meta: true,
    unconditional_update: false,
    ..Rules::BASE
};

pub(super) const VOLUME_ATTACHMENT: Rules = Rules {
    validate: rules::attachment,
    validate_change: rules::attachment_change,
    validate_subresource: |_, object, old| rules::attachment_change(object, old),
    status: Some(r#"{"attached":false}"#),
    status_keeps_meta: true,
    unconditional_update: false,
    ..Rules::BASE
};

/// Warnings of a driver that receives tokens, when it is new or its tokens change.
fn driver_warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let (spec, key) = (get(object, "spec"), "tokenRequests");
    let same = old.is_some_and(|old| semantic_equal(get(spec, key), get(get(old, "spec"), key)));
    if is_empty(spec, key) || has(spec, "serviceAccountTokenInSecrets") || same {
        return Vec::new();
    }
    vec![
        "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"
            .to_owned(),
    ]
}

pub(super) const CSI_DRIVER: Rules = Rules {
    warnings: driver_warnings,
    validate: rules::driver,
    validate_change: rules::driver_change,
    unconditional_update: false,
    prepare_change: |_, object, old| {
        if !semantic_equal(get(object, "spec"), get(old, "spec")) {
            let generation =
                api::value::int_at(get(old, "metadata"), "generation").unwrap_or_default() + 1;
            if let Some(meta) = ensure_object(object, "metadata") {
                set(meta, "generation", generation);
            }
        }
    },
    ..Rules::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// An answer of kube-apiserver 1.37.1, where the feature is off.
    #[test]
    fn health_of_storage_is_dropped() {
        let user = crate::request::user::User::default();
        let context = super::super::super::WriteContext::of(&user, "", "status");
        let health = json!([{"name": "d", "healthConditions": [{"reason": "a/b"}]}]);
        let mut node = json!({"metadata": {"name": "n"}, "status": {"storageHealth": health}});
        (CSI_NODE.prepare_change)(&context, &mut node, &json!({"status": {}}));
        assert_eq!(node["status"], json!({}));
    }

    /// An answer of kube-apiserver 1.37.1.
    #[test]
    fn the_status_of_an_attachment_is_validated() {
        let attachment = json!({"metadata": {"name": "va"}, "spec": {"attacher": "d.example.com", "nodeName": "n", "source": {"persistentVolumeName": "pv2"}},
            "status": {"attached": false, "attachError": {"errorCode": -1}}});
        let errors = (VOLUME_ATTACHMENT.validate_subresource)("status", &attachment, &attachment);
        assert_eq!(
            errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "status.attachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive"
            ]
        );
    }

    #[test]
    fn a_new_driver_with_tokens_in_attributes_causes_a_warning() {
        let driver = |spec: Value| json!({"spec": spec});
        let tokens = driver(json!({"tokenRequests": [{"audience": "a"}]}));
        assert_eq!(driver_warnings(&tokens, None).len(), 1);
        assert_eq!(driver_warnings(&tokens, Some(&driver(json!({})))).len(), 1);
        assert!(driver_warnings(&tokens, Some(&tokens)).is_empty());
        let set = driver(json!({"tokenRequests": [{}], "serviceAccountTokenInSecrets": false}));
        assert!(driver_warnings(&set, None).is_empty());
    }
}
