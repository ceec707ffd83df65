//! AppArmor profiles from the annotations that preceded the field (KEP 24).

use api::validation::core::app_armor;
use api::value::{
    at, ensure_object, entries, get, has, items_mut, object_mut, set, str_at, str_in,
};
use serde_json::{Value, json};

use crate::registry::WriteContext;

/// Begins the key of the annotation of a container, whose name follows.
const PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Returns the profile that an annotation names, if it is a valid one.
fn profile(annotation: &str) -> Option<Value> {
    let profile = match (annotation, annotation.strip_prefix("localhost/")) {
        ("unconfined", _) => json!({"type": "Unconfined"}),
        ("runtime/default", _) => json!({"type": "RuntimeDefault"}),
        (_, Some(name)) => json!({"type": "Localhost", "localhostProfile": name}),
        _ => return None,
    };
    app_armor(&profile, &api::field::Path::new("")).is_empty().then_some(profile)
}

/// Sets the profiles of containers that have an annotation and no profile, unless the pod has the
/// same one, with upstream's warnings (`applyAppArmorVersionSkew`).
pub(super) fn apply_annotations(context: &WriteContext<'_>, pod: &mut Value) {
    let annotations = at(pod, &["metadata", "annotations"]).clone();
    let is_windows = str_in(pod, &["spec", "os", "name"]) == "windows";
    let metadata = get(pod, "metadata");
    if is_windows || !entries(metadata, "annotations").any(|(key, _)| key.starts_with(PREFIX)) {
        return;
    }
    let of_pod = at(pod, &["spec", "securityContext", "appArmorProfile"]).clone();
    let Some(spec) = object_mut(pod, "spec") else { return };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items_mut(spec, list) {
            let key = format!("{PREFIX}{}", str_at(container, "name"));
            let Some(annotation) = get(&annotations, &key).as_str() else { continue };
            if has(get(container, "securityContext"), "appArmorProfile") {
                continue;
            }
            let found = profile(annotation);
            if found.as_ref() == Some(&of_pod) {
                continue;
            }
            if let (Some(found), Some(security)) =
                (found, ensure_object(container, "securityContext"))
            {
                set(security, "appArmorProfile", found);
            }
            context.warnings.lock().push(format!(
                "metadata.annotations[{key}]: deprecated since v1.30; use the \
                 \"appArmorProfile\" field instead"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::user::User;

    /// Cases of upstream's `TestApplyAppArmorVersionSkew`.
    #[test]
    fn annotations_become_profiles_with_a_warning() {
        let user = User::default();
        let apply = |of_pod: Value, of_container: Value, annotation: &str| {
            let context = WriteContext {
                user: &user,
                namespace: "a",
                subresource: "",
                dry_run: false,
                warnings: Default::default(),
            };
            let mut pod = json!({
                "metadata": {"annotations": {format!("{PREFIX}c"): annotation}},
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
