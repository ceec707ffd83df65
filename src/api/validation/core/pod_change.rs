//! Validation of pod updates: the fields that may change, and the subresources.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::pod::body;
use super::pod_resize::MIRROR;
use super::scheduling;
use crate::field::{Error, ErrorList, Path, distinct};
use crate::validation::names;
use crate::value::{at, get, int_at, items, remove, restore, semantic_equal, set, str_at};

/// Validates an update of a pod (`ValidatePodUpdate`).
pub fn validate_change(pod: &Value, old: &Value) -> ErrorList {
    let mut errors = body(pod);
    let (new, old_spec, path) = (get(pod, "spec"), get(old, "spec"), Path::new("spec"));
    for list in ["containers", "initContainers"] {
        let field = path.child(list);
        let (now, was) = (items(new, list), items(old_spec, list));
        if now.len() != was.len() {
            errors.push(Error::forbidden(&field, "pod updates may not add or remove containers"));
            return distinct(errors);
        }
        for (index, container) in now.iter().enumerate() {
            if str_at(container, "image").is_empty() {
                errors.push(Error::required(&field.index(index).child("image"), ""));
            }
        }
    }
    let deadline = path.child("activeDeadlineSeconds");
    match (int_at(new, "activeDeadlineSeconds"), int_at(old_spec, "activeDeadlineSeconds")) {
        (Some(now), _) if !(0..=i64::from(i32::MAX)).contains(&now) => {
            errors.push(Error::invalid(&deadline, now, names::range_text(0, i64::from(i32::MAX))));
            return distinct(errors);
        }
        (Some(now), Some(was)) if was < now => {
            errors.push(Error::invalid(
                &deadline,
                now,
                "must be less than or equal to previous value",
            ));
            return distinct(errors);
        }
        (None, Some(_)) => errors.push(Error::invalid(
            &deadline,
            Value::Null,
            "must not update from a positive integer to nil value",
        )),
        _ => {}
    }
    errors.extend(only_added_tolerations(new, old_spec, &path.child("tolerations")));
    let old_gates: HashSet<Option<&Value>> =
        items(old_spec, "schedulingGates").iter().map(|gate| gate.get("name")).collect();
    for (index, gate) in items(new, "schedulingGates").iter().enumerate() {
        if !old_gates.contains(&gate.get("name")) {
            let text = format!(
                "only deletion is allowed, but found new scheduling gate '{}'",
                str_at(gate, "name")
            );
            errors.push(Error::forbidden(
                &path.child("schedulingGates").index(index).child("name"),
                text,
            ));
        }
    }
    if !semantic_equal(new, old_spec) {
        errors.extend(frozen_fields(new, old_spec, &path));
    }
    distinct(errors)
}

fn only_added_tolerations(new: &Value, old: &Value, path: &Path) -> Option<Error> {
    let bare = |toleration: &Value| {
        let mut bare = toleration.clone();
        remove(&mut bare, "tolerationSeconds");
        bare
    };
    let now: HashSet<Value> = items(new, "tolerations").iter().map(bare).collect();
    let lost = items(old, "tolerations").iter().any(|toleration| !now.contains(&bare(toleration)));
    lost.then(|| {
        Error::forbidden(
            path,
            "existing toleration can not be modified except its tolerationSeconds",
        )
    })
}

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Rejects changes of all fields except the updatable ones.
fn frozen_fields(new: &Value, old: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut munged = new.clone();
    for list in ["containers", "initContainers"] {
        for (container, was) in
            crate::value::items_mut(&mut munged, list).iter_mut().zip(items(old, list))
        {
            restore(container, was, "image");
        }
    }
    for key in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        restore(&mut munged, old, key);
    }
    let grace = int_at(old, "terminationGracePeriodSeconds");
    if grace.is_some_and(|g| g < 0) && int_at(&munged, "terminationGracePeriodSeconds") == Some(1) {
        restore(&mut munged, old, "terminationGracePeriodSeconds");
    }
    if !items(old, "schedulingGates").is_empty() {
        errors.extend(scheduling::narrowing(&munged, old, path));
        restore(&mut munged, old, "nodeSelector");
        let old_affinity = at(old, &["affinity", "nodeAffinity"]).clone();
        if let Some(affinity) = crate::value::ensure_object(&mut munged, "affinity") {
            set(affinity, "nodeAffinity", old_affinity);
        }
    }
    if !semantic_equal(&munged, old) {
        errors.push(Error::forbidden(
            path,
            format!("pod updates may not change fields other than {UPDATABLE}\n"),
        ));
    }
    errors
}

/// Validates an update of `status`, `ephemeralcontainers` or `resize`.
pub fn validate_subresource(subresource: &str, pod: &Value, old: &Value) -> ErrorList {
    match subresource {
        "status" => super::pod_status::validate(pod, old),
        "ephemeralcontainers" => ephemeral_change(pod, old),
        "resize" => super::pod_resize::validate(pod, old),
        _ => Vec::new(),
    }
}

fn ephemeral_change(pod: &Value, old: &Value) -> ErrorList {
    if at(old, &["metadata", "annotations"]).get(MIRROR).is_some() {
        let text = "static pods do not support ephemeral containers";
        return vec![Error::forbidden(&super::pod_resize::whole(), text)];
    }
    let mut errors = body(pod);
    let path = Path::new("spec").child("ephemeralContainers");
    let mut now: HashMap<&str, &Value> = HashMap::new();
    for container in items(get(pod, "spec"), "ephemeralContainers") {
        now.entry(str_at(container, "name")).or_insert(container);
    }
    for was in items(get(old, "spec"), "ephemeralContainers") {
        let name = str_at(was, "name");
        match now.get(name) {
            None => errors.push(Error::forbidden(
                &path,
                format!("existing ephemeral containers {name:?} may not be removed\n"),
            )),
            Some(container) if !semantic_equal(container, was) => {
                errors.push(Error::forbidden(
                    &path,
                    format!("existing ephemeral containers {name:?} may not be changed\n"),
                ));
            }
            Some(_) => {}
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::{same, with};
    use serde_json::json;

    fn pod(changes: Value) -> Value {
        let containers = json!([{"name": "c", "image": "i", "resources": {}}]);
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": containers}});
        crate::defaults::defaulter("", "v1", "Pod")(&mut pod);
        with(&pod, &json!({ "spec": changes }))
    }

    fn check(old: Value, new: Value, expected: &[&str]) {
        same(&validate_change(&pod(new), &pod(old)), expected);
    }

    /// `ValidatePodUpdate` of `pkg/apis/core/validation`.
    #[test]
    fn few_fields_of_pods_may_change() {
        const DEADLINE: &str = "spec.activeDeadlineSeconds: Invalid value";
        check(json!({}), json!({}), &[]);
        check(json!({"activeDeadlineSeconds": 20}), json!({"activeDeadlineSeconds": 5}), &[]);
        check(json!({}), json!({"activeDeadlineSeconds": 5}), &[]);
        check(
            json!({"activeDeadlineSeconds": 5}),
            json!({"activeDeadlineSeconds": 6}),
            &[&format!("{DEADLINE}: 6: must be less than or equal to previous value")],
        );
        check(
            json!({"activeDeadlineSeconds": 5}),
            json!({}),
            &[&format!("{DEADLINE}: null: must not update from a positive integer to nil value")],
        );
        check(
            json!({}),
            json!({"nodeName": "n"}),
            &["spec: Forbidden: pod updates may not change fields other than `spec.containers..."],
        );
        check(
            json!({}),
            json!({"initContainers": [{"name": "i", "image": "i", "imagePullPolicy": "Always",
                "terminationMessagePolicy": "File"}]}),
            &["spec.initContainers: Forbidden: pod updates may not add or remove containers"],
        );
        check(
            json!({"terminationGracePeriodSeconds": -1}),
            json!({"terminationGracePeriodSeconds": 1}),
            &[],
        );
    }

    /// `validateOnlyAddedTolerations` and `validateOnlyDeletedSchedulingGates` of
    /// `pkg/apis/core/validation`.
    #[test]
    fn tolerations_are_added_and_gates_removed() {
        let tolerations = |seconds: &[i64]| {
            let list: Vec<Value> = seconds
                .iter()
                .map(|seconds| {
                    json!({"key": "k", "operator": "Exists", "effect": "NoExecute",
                        "tolerationSeconds": seconds})
                })
                .collect();
            json!({ "tolerations": list })
        };
        check(tolerations(&[10]), tolerations(&[10, 20]), &[]);
        check(tolerations(&[10]), tolerations(&[20]), &[]);
        check(
            tolerations(&[10]),
            json!({}),
            &["spec.tolerations: Forbidden: \
               existing toleration can not be modified except its tolerationSeconds"],
        );
        let gates = |names: &[&str]| {
            let list: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
            json!({ "schedulingGates": list })
        };
        check(gates(&["a", "b"]), gates(&["b"]), &[]);
        check(
            gates(&["a"]),
            gates(&["a", "b"]),
            &["spec.schedulingGates[1].name: Forbidden: \
               only deletion is allowed, but found new scheduling gate 'b'"],
        );
    }

    /// `ValidatePodEphemeralContainersUpdate` of `pkg/apis/core/validation`.
    #[test]
    fn ephemeral_containers_are_only_added() {
        let of = |names: &[&str]| {
            let list: Vec<Value> = names
                .iter()
                .map(|name| {
                    json!({"name": name, "image": "i", "imagePullPolicy": "Always",
                        "terminationMessagePolicy": "File"})
                })
                .collect();
            pod(json!({ "ephemeralContainers": list }))
        };
        let check = |old: Value, new: Value, expected: &[&str]| {
            same(&validate_subresource("ephemeralcontainers", &new, &old), expected);
        };
        check(of(&[]), of(&["a"]), &[]);
        check(of(&["a", "b"]), of(&["b", "d", "a"]), &[]);
        check(
            of(&["a"]),
            of(&[]),
            &["spec.ephemeralContainers: Forbidden: \
               existing ephemeral containers \"a\" may not be removed\n"],
        );
        let mut changed = of(&["a"]);
        changed["spec"]["ephemeralContainers"][0]["image"] = json!("other");
        check(
            of(&["a"]),
            changed,
            &["spec.ephemeralContainers: Forbidden: \
               existing ephemeral containers \"a\" may not be changed\n..."],
        );
        let mut fixed = of(&[]);
        fixed["metadata"]["annotations"] = json!({ MIRROR: "x" });
        let found = validate_subresource("ephemeralcontainers", &of(&["a"]), &fixed);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].detail, "static pods do not support ephemeral containers");
    }
}
