//! Validation of the volume mounts and block devices of a container.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sorting::CollectOrdered as _;

use super::volumes::{descending, no_backsteps};
use crate::field::{Error, ErrorList, Path};
use crate::validation::one_of;
use crate::value::{at, bool_at, get, has, items, str_at};

/// Validates `volumeMounts` of a container (`ValidateVolumeMounts`). `volumes` contains the valid
/// volumes of the pod.
pub(super) fn mounts(
    container: &Value,
    volumes: &BTreeMap<&str, &Value>,
    path: &Path,
) -> ErrorList {
    let list = path.child("volumeMounts");
    let devices = items(container, "volumeDevices");
    let mut errors = ErrorList::new();
    let mut points = BTreeSet::new();
    let device_names: BTreeSet<&str> = devices.iter().map(|d| str_at(d, "name")).collect_set();
    let device_paths: BTreeSet<&str> =
        devices.iter().map(|d| str_at(d, "devicePath")).collect_set();
    for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
        let field = list.index(index);
        let (name, point) = (str_at(mount, "name"), str_at(mount, "mountPath"));
        if name.is_empty() {
            errors.push(Error::required(&field.child("name"), ""));
        }
        if !volumes.contains_key(name) {
            errors.push(Error::not_found(&field.child("name"), name));
        }
        if point.is_empty() {
            errors.push(Error::required(&field.child("mountPath"), ""));
        }
        if !points.insert(point) {
            errors.push(Error::invalid(&field.child("mountPath"), point, "must be unique"));
        }
        if device_names.contains(name) {
            errors.push(Error::invalid(
                &field.child("name"),
                name,
                "must not already exist in volumeDevices",
            ));
        }
        if device_paths.contains(point) {
            errors.push(Error::invalid(
                &field.child("mountPath"),
                point,
                "must not already exist as a path in volumeDevices",
            ));
        }
        errors.extend(sub_paths(mount, &field, &list));
        errors.extend(propagation(mount, container, &list));
    }
    errors
}

fn sub_paths(mount: &Value, field: &Path, list: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (plain, expression) = (str_at(mount, "subPath"), str_at(mount, "subPathExpr"));
    if !plain.is_empty() {
        errors.extend(descending(plain, &list.child("subPath")));
    }
    if !expression.is_empty() {
        if !plain.is_empty() {
            errors.push(Error::invalid(
                &field.child("subPathExpr"),
                expression,
                "subPathExpr and subPath are mutually exclusive",
            ));
        }
        errors.extend(descending(expression, &list.child("subPathExpr")));
    }
    errors
}

fn propagation(mount: &Value, container: &Value, list: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mode = get(mount, "mountPropagation").as_str();
    let field = list.child("mountPropagation");
    if let Some(mode) = mode {
        errors.extend(one_of(mode, &["Bidirectional", "HostToContainer", "None"], &field));
        if mode == "Bidirectional"
            && at(container, &["securityContext", "privileged"]).as_bool() != Some(true)
        {
            errors.push(Error::forbidden(
                &field,
                "Bidirectional mount propagation is available only to privileged containers",
            ));
        }
    }
    let field = list.child("recursiveReadOnly");
    match get(mount, "recursiveReadOnly").as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !bool_at(mount, "readOnly") {
                errors
                    .push(Error::forbidden(&field, "may only be specified when readOnly is true"));
            }
            if mode.is_some_and(|m| m != "None") {
                errors.push(Error::forbidden(
                    &field,
                    "may only be specified when mountPropagation is None or not specified",
                ));
            }
        }
        Some(other) => {
            errors.push(Error::not_supported(&field, other, &["Disabled", "Enabled", "IfPossible"]))
        }
    }
    errors
}

/// Validates `volumeDevices` of a container (`ValidateVolumeDevices`). `volumes` contains the valid
/// volumes of the pod.
pub(super) fn devices(
    container: &Value,
    volumes: &BTreeMap<&str, &Value>,
    path: &Path,
) -> ErrorList {
    let list = path.child("volumeDevices");
    let mounts = items(container, "volumeMounts");
    let mount_names: BTreeSet<&str> = mounts.iter().map(|m| str_at(m, "name")).collect_set();
    let mount_paths: BTreeSet<&str> = mounts.iter().map(|m| str_at(m, "mountPath")).collect_set();
    let mut errors = ErrorList::new();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in items(container, "volumeDevices").iter().enumerate() {
        let field = list.index(index);
        let (name, target) = (str_at(device, "name"), str_at(device, "devicePath"));
        let (at_name, at_path) = (field.child("name"), field.child("devicePath"));
        if name.is_empty() {
            errors.push(Error::required(&at_name, ""));
        }
        if names.contains(name) {
            errors.push(Error::invalid(&at_name, name, "must be unique"));
        }
        match volumes.get(name) {
            Some(volume) if !has(volume, "persistentVolumeClaim") && !has(volume, "ephemeral") => {
                let text = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(Error::invalid(&at_name, name, text));
            }
            Some(_) => {}
            None => errors.push(Error::not_found(&at_name, name)),
        }
        if target.is_empty() {
            errors.push(Error::required(&at_path, ""));
        }
        if paths.contains(target) {
            errors.push(Error::invalid(&at_path, target, "must be unique"));
        }
        if !target.is_empty() && !no_backsteps(target, &list).is_empty() {
            errors.push(Error::invalid(&at_path, target, "can not contain backsteps ('..')"));
        } else {
            paths.insert(target);
        }
        if mount_names.contains(name) {
            errors.push(Error::invalid(&at_name, name, "must not already exist in volumeMounts"));
        }
        if mount_paths.contains(target) {
            errors.push(Error::invalid(
                &at_path,
                target,
                "must not already exist as a path in volumeMounts",
            ));
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::{same, with};
    use serde_json::json;

    /// `ValidateVolumeMounts` of `pkg/apis/core/validation`.
    #[test]
    fn mounts_name_a_volume_and_unique_paths() {
        let check = |list: Value, expected: &[&str]| {
            let volume = json!({"emptyDir": {}});
            let volumes = BTreeMap::from([("v", &volume), ("w", &volume)]);
            let devices = json!([{"name": "d", "devicePath": "/dev/d"}]);
            let container = json!({"volumeMounts": list, "volumeDevices": devices});
            same(&mounts(&container, &volumes, &Path::new("c")), expected);
        };
        const AT: &str = "c.volumeMounts";
        let mount = |changes: Value| with(&json!({"name": "v", "mountPath": "/m"}), &changes);
        check(json!([mount(json!({})), mount(json!({"mountPath": "/n"}))]), &[]);
        check(json!([mount(json!({"subPath": "a..b/c", "mountPath": "/a:b"}))]), &[]);
        check(
            json!([{"name": ""}]),
            &[
                &format!("{AT}[0].name: Required value"),
                &format!("{AT}[0].name: Not found: \"\""),
                &format!("{AT}[0].mountPath: Required value"),
            ],
        );
        check(
            json!([mount(json!({})), mount(json!({"name": "w"}))]),
            &[&format!("{AT}[1].mountPath: Invalid value: \"/m\": must be unique")],
        );
        check(
            json!([mount(json!({"mountPath": "/dev/d"}))]),
            &[&format!(
                "{AT}[0].mountPath: Invalid value: \"/dev/d\": \
                 must not already exist as a path in volumeDevices"
            )],
        );
        check(
            json!([mount(json!({"subPath": "/a"}))]),
            &[&format!("{AT}.subPath: Invalid value: \"/a\": must be a relative path")],
        );
        check(
            json!([mount(json!({"subPath": "a", "subPathExpr": "b/../c"}))]),
            &[
                &format!(
                    "{AT}[0].subPathExpr: Invalid value: \"b/../c\": \
                     subPathExpr and subPath are mutually exclusive"
                ),
                &format!("{AT}.subPathExpr: Invalid value: \"b/../c\": must not contain '..'"),
            ],
        );
        check(
            json!([mount(json!({"mountPropagation": "Bidirectional"}))]),
            &[&format!(
                "{AT}.mountPropagation: Forbidden: \
                 Bidirectional mount propagation is available only to privileged containers"
            )],
        );
        check(
            json!([mount(json!({"recursiveReadOnly": "Enabled"}))]),
            &[&format!(
                "{AT}.recursiveReadOnly: Forbidden: may only be specified when readOnly is true"
            )],
        );
        check(
            json!([mount(json!({"recursiveReadOnly": "X"}))]),
            &[&format!(
                "{AT}.recursiveReadOnly: Unsupported value: \"X\": \
                 supported values: \"Disabled\", \"Enabled\", \"IfPossible\""
            )],
        );
    }

    /// `ValidateVolumeDevices` of `pkg/apis/core/validation`.
    #[test]
    fn devices_name_a_claim_and_unique_paths() {
        let check = |list: Value, expected: &[&str]| {
            let (claim, directory) =
                (json!({"persistentVolumeClaim": {}}), json!({"emptyDir": {}}));
            let volumes = BTreeMap::from([("p", &claim), ("q", &claim), ("e", &directory)]);
            let mounts = json!([{"name": "m", "mountPath": "/m"}]);
            let container = json!({"volumeDevices": list, "volumeMounts": mounts});
            same(&devices(&container, &volumes, &Path::new("c")), expected);
        };
        const AT: &str = "c.volumeDevices[0]";
        check(
            json!([{"name": "p", "devicePath": "/dev/a"}, {"name": "q", "devicePath": "/dev/b"}]),
            &[],
        );
        check(
            json!([{"name": "e", "devicePath": "/dev/a"}]),
            &[&format!(
                "{AT}.name: Invalid value: \"e\": can only use volume source type of \
                 PersistentVolumeClaim or Ephemeral for block mode"
            )],
        );
        check(
            json!([{"name": "x"}]),
            &[&format!("{AT}.name: Not found: \"x\""), &format!("{AT}.devicePath: Required value")],
        );
        check(
            json!([{"name": "p", "devicePath": "/dev/../a"}]),
            &[&format!(
                "{AT}.devicePath: Invalid value: \"/dev/../a\": can not contain backsteps ('..')"
            )],
        );
        check(
            json!([{"name": "p", "devicePath": "/dev/a"}, {"name": "p", "devicePath": "/dev/a"}]),
            &[
                "c.volumeDevices[1].name: Invalid value: \"p\": must be unique",
                "c.volumeDevices[1].devicePath: Invalid value: \"/dev/a\": must be unique",
            ],
        );
        check(
            json!([{"name": "p", "devicePath": "/m"}]),
            &[&format!(
                "{AT}.devicePath: Invalid value: \"/m\": \
                 must not already exist as a path in volumeMounts"
            )],
        );
    }
}
