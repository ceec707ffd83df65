//! AppArmor profiles from the annotations that preceded the field (KEP 24).

use api::validation::core::{
    APP_ARMOR_ANNOTATION, APP_ARMOR_DEPRECATED, app_armor, app_armor_profile,
};
use api::value::{
    at, ensure_object, entries, get, has, items_mut, object_mut, semantic_equal, set, str_at,
    str_in,
};
use serde_json::Value;

use crate::registry::WriteContext;

/// Sets the profiles of containers that have an annotation and no profile, unless the pod has the
/// same one, with upstream's warnings (`applyAppArmorVersionSkew`).
pub(super) fn apply_annotations(context: &WriteContext<'_>, pod: &mut Value) {
    let is_annotated = entries(get(pod, "metadata"), "annotations")
        .any(|(key, _)| key.starts_with(APP_ARMOR_ANNOTATION));
    if !is_annotated || str_in(pod, &["spec", "os", "name"]) == "windows" {
        return;
    }
    let annotations = at(pod, &["metadata", "annotations"]).clone();
    let of_pod = at(pod, &["spec", "securityContext", "appArmorProfile"]).clone();
    let Some(spec) = object_mut(pod, "spec") else { return };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items_mut(spec, list) {
            let key = format!("{APP_ARMOR_ANNOTATION}{}", str_at(container, "name"));
            let Some(annotation) = get(&annotations, &key).as_str() else { continue };
            if has(get(container, "securityContext"), "appArmorProfile") {
                continue;
            }
            let is_valid = |own: &Value| app_armor(own, &api::field::Path::new("")).is_empty();
            let own = app_armor_profile(annotation).filter(is_valid);
            if own.as_ref().is_some_and(|own| semantic_equal(own, &of_pod)) {
                continue;
            }
            if let (Some(own), Some(security)) = (own, ensure_object(container, "securityContext"))
            {
                set(security, "appArmorProfile", own);
            }
            let warning = format!("metadata.annotations[{key}]: {APP_ARMOR_DEPRECATED}");
            context.warnings.lock().push(warning);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::user::User;
    use serde_json::json;

    /// Cases of upstream's `TestApplyAppArmorVersionSkew`.
    #[test]
    fn annotations_become_profiles_with_a_warning() {
        let user = User::default();
        let apply = |of_pod: Value, of_container: Value, annotation: &str| {
            let context = WriteContext::of(&user, "a", "");
            let mut pod = json!({
                "metadata": {"annotations": {format!("{APP_ARMOR_ANNOTATION}c"): annotation}},
                "spec": {
                    "securityContext": of_pod,
                    "containers": [{"name": "c", "securityContext": of_container}, {"name": "d"}],
                },
            });
            apply_annotations(&context, &mut pod);
            assert_eq!(pod["spec"]["containers"][1], json!({"name": "d"}));
            let warnings = context.warnings.into_inner();
            (pod["spec"]["containers"][0]["securityContext"].clone(), warnings.len())
        };
        let default = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
        let unconfined = json!({"appArmorProfile": {"type": "Unconfined"}});
        let local = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "test"}});
        let none = json!({});
        assert_eq!(apply(none.clone(), none.clone(), "runtime/default"), (default.clone(), 1));
        assert_eq!(apply(none.clone(), none.clone(), "unconfined"), (unconfined.clone(), 1));
        assert_eq!(apply(none.clone(), none.clone(), "localhost/test"), (local.clone(), 1));
        assert_eq!(apply(none.clone(), none.clone(), "localhost/"), (none.clone(), 1));
        assert_eq!(apply(none.clone(), none.clone(), "unknown"), (none.clone(), 1));
        assert_eq!(apply(none.clone(), local.clone(), "unconfined"), (local.clone(), 0));
        assert_eq!(apply(default.clone(), none.clone(), "runtime/default"), (none.clone(), 0));
        assert_eq!(apply(default, none, "unconfined"), (unconfined, 1));
    }
}
