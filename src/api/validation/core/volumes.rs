//! Validation of the volumes of pods.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::env::{VOLUME_FIELDS, field_ref, resource_field_ref};
use super::old_volumes::{ISCSI_TOO_LONG, Of, is_iscsi_name_too_long, old_source};
use crate::field::{Error, ErrorList, Path};
use crate::validation::labels::{
    only_labels_and_annotations, validate_annotations, validate_labels,
};
use crate::validation::numbers::quantity;
use crate::validation::{each, names, one_of};
use crate::value::{at, get, has, int_at, items, str_at};

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
/// Volume sources, in the order in which upstream validates them.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

/// Validates `volumes` of a pod spec (`ValidateVolumes`). Returns the valid volumes by name, and
/// the errors of the others.
pub(super) fn volumes<'a>(
    spec: &'a Value,
    pod_name: &str,
    path: &Path,
) -> (BTreeMap<&'a str, &'a Value>, ErrorList) {
    let list = items(spec, "volumes");
    let created: BTreeSet<String> = list
        .iter()
        .filter(|v| has(v, "ephemeral") && !pod_name.is_empty())
        .map(|v| format!("{pod_name}-{}", str_at(v, "name")))
        .collect();
    let (mut good, mut errors) = (BTreeMap::new(), ErrorList::new());
    for (index, volume) in list.iter().enumerate() {
        let field = path.child("volumes").index(index);
        let name = str_at(volume, "name");
        let mut own = source(volume, &field);
        if name.is_empty() {
            own.push(Error::required(&field.child("name"), ""));
        } else {
            own.extend(each(&field.child("name"), name, names::dns1123_label(name)));
        }
        // Of a volume with several sources, upstream validates only the first one.
        let is_ephemeral = has(volume, "ephemeral")
            && SOURCES.iter().filter(|kind| has(volume, kind)).take(2).count() == 1;
        if is_ephemeral && !name.is_empty() && !pod_name.is_empty() {
            let claim = format!("{pod_name}-{name}");
            let texts = names::dns1123_subdomain(&claim)
                .into_iter()
                .map(|m| format!("PVC name {claim:?}: {m}"))
                .collect();
            own.extend(each(&field.child("name"), name, texts));
        }
        if good.contains_key(name) {
            own.push(Error::duplicate(&field.child("name"), name));
        }
        if own.is_empty() {
            good.insert(name, volume);
        }
        errors.extend(own);
        let claim = str_at(get(volume, "persistentVolumeClaim"), "claimName");
        if created.contains(claim) {
            let text = "must not reference a PVC that gets created for an ephemeral volume";
            errors.push(Error::invalid(
                &field.child("persistentVolumeClaim").child("claimName"),
                claim,
                text,
            ));
        }
    }
    (good, errors)
}

fn source(volume: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut count = 0;
    for kind in SOURCES {
        let Some(source) = volume.get(kind).filter(|s| s.is_object()) else { continue };
        count += 1;
        let field = path.child(match kind {
            "cephfs" if count > 1 => "cephFS",
            // Upstream misspells this field.
            "downwardAPI" if count > 1 => "downwarAPI",
            kind => kind,
        });
        if count > 1 {
            errors.push(Error::forbidden(&field, "may not specify more than 1 volume type"));
        } else {
            // Upstream's path of this source differs from the field.
            let field =
                if kind == "gcePersistentDisk" { path.child("persistentDisk") } else { field };
            errors.extend(one_source(kind, source, &field));
        }
        let name = str_at(volume, "name");
        if kind == "iscsi" && is_iscsi_name_too_long(source, name) {
            errors.push(Error::invalid(&path.child("name"), name, ISCSI_TOO_LONG));
        }
    }
    if count == 0 {
        errors.push(Error::required(path, "must specify a volume type"));
    }
    errors
}

/// Returns an error for each of the fields `keys` that is empty.
pub(super) fn required(source: &Value, keys: &[&str], path: &Path) -> ErrorList {
    keys.iter()
        .filter(|key| str_at(source, key).is_empty())
        .map(|key| Error::required(&path.child(key), ""))
        .collect()
}

fn one_source(kind: &str, source: &Value, path: &Path) -> ErrorList {
    match kind {
        "emptyDir" => {
            let negative = quantity(get(source, "sizeLimit")).is_some_and(|q| q.sign() < 0);
            let error = || {
                Error::forbidden(
                    &path.child("sizeLimit"),
                    "SizeLimit field must be a valid resource quantity",
                )
            };
            negative.then(error).into_iter().collect()
        }
        "hostPath" => host_path(source, path),
        "secret" => keyed(source, "secretName", path),
        "configMap" => keyed(source, "name", path),
        "nfs" => {
            let mut errors = required(source, &["server", "path"], path);
            if !str_at(source, "path").starts_with('/') {
                errors.push(Error::invalid(
                    &path.child("path"),
                    str_at(source, "path"),
                    "must be an absolute path",
                ));
            }
            errors
        }
        "persistentVolumeClaim" => required(source, &["claimName"], path),
        "downwardAPI" => {
            let mut errors: ErrorList = mode(source, "defaultMode", path).into_iter().collect();
            errors.extend(items(source, "items").iter().flat_map(|file| downward_file(file, path)));
            errors
        }
        "projected" => super::projected::projected(source, path),
        "csi" => csi(source, path),
        "ephemeral" => ephemeral(source, path),
        "image" => {
            let mut errors = required(source, &["reference"], path);
            errors.extend(super::image::pull_policy(
                str_at(source, "pullPolicy"),
                &path.child("pullPolicy"),
            ));
            errors
        }
        other => old_source(other, source, Of::Pod, path),
    }
}

/// Validates `hostPath` of a pod or a persistent volume.
pub(super) fn host_path(source: &Value, path: &Path) -> ErrorList {
    let target = str_at(source, "path");
    if target.is_empty() {
        return vec![Error::required(&path.child("path"), "")];
    }
    let mut errors = no_backsteps(target, &path.child("path"));
    if let Some(kind) = get(source, "type").as_str() {
        errors.extend(one_of(kind, &HOST_PATH_TYPES, &path.child("type")));
    }
    errors
}

/// Validates the file mode in the field `key`: it is in the range 0 to 0777.
pub(super) fn mode(source: &Value, key: &str, path: &Path) -> Option<Error> {
    let value = int_at(source, key).filter(|m| !(0..=0o777).contains(m))?;
    Some(Error::invalid(&path.child(key), value, MODE))
}

fn keyed(source: &Value, name: &str, path: &Path) -> ErrorList {
    let mut errors = required(source, &[name], path);
    errors.extend(mode(source, "defaultMode", path));
    for (index, item) in items(source, "items").iter().enumerate() {
        errors.extend(key_to_path(item, &path.child("items").index(index)));
    }
    errors
}

/// Validates an entry of `items` of a secret or config map volume.
pub(super) fn key_to_path(item: &Value, path: &Path) -> ErrorList {
    let mut errors = required(item, &["key", "path"], path);
    errors.extend(local_path(str_at(item, "path"), &path.child("path")));
    errors.extend(mode(item, "mode", path));
    errors
}

/// Validates a file of a downward API volume.
pub(super) fn downward_file(file: &Value, path: &Path) -> ErrorList {
    let mut errors = required(file, &["path"], path);
    errors.extend(local_path(str_at(file, "path"), &path.child("path")));
    if has(file, "fieldRef") {
        errors.extend(field_ref(get(file, "fieldRef"), &VOLUME_FIELDS, &path.child("fieldRef")));
        if has(file, "resourceFieldRef") {
            errors.push(Error::invalid(
                path,
                "resource",
                "fieldRef and resourceFieldRef can not be specified simultaneously",
            ));
        }
    } else if has(file, "resourceFieldRef") {
        errors.extend(resource_field_ref(
            get(file, "resourceFieldRef"),
            &path.child("resourceFieldRef"),
            true,
        ));
    } else {
        errors.push(Error::required(path, "one of fieldRef and resourceFieldRef is required"));
    }
    errors.extend(mode(file, "mode", path));
    errors
}

/// Validates the name of a CSI driver (`ValidateCSIDriverName`).
pub fn csi_driver_name(name: &str, path: &Path) -> ErrorList {
    if name.is_empty() {
        return vec![Error::required(path, "")];
    }
    let mut errors = ErrorList::new();
    if name.len() > names::LABEL_MAX {
        errors.push(Error::too_long(path, names::LABEL_MAX));
    }
    errors.extend(each(path, name, names::dns1123_subdomain(&name.to_lowercase())));
    errors
}

fn csi(source: &Value, path: &Path) -> ErrorList {
    let mut errors = csi_driver_name(str_at(source, "driver"), &path.child("driver"));
    if let Some(secret) = source.get("nodePublishSecretRef").filter(|s| s.is_object()) {
        let name = str_at(secret, "name");
        if name.is_empty() {
            errors.push(Error::required(&path.child("nodePublishSecretRef").child("name"), ""));
        } else {
            errors.extend(each(&path.child("name"), name, names::dns1123_subdomain(name)));
        }
    }
    errors
}

fn ephemeral(source: &Value, path: &Path) -> ErrorList {
    let field = path.child("volumeClaimTemplate");
    let Some(template) = source.get("volumeClaimTemplate").filter(|t| t.is_object()) else {
        return vec![Error::required(&field, "")];
    };
    let (meta, at) = (get(template, "metadata"), field.child("metadata"));
    let mut errors = validate_annotations(meta, "annotations", &at);
    errors.extend(validate_labels(meta, "labels", &at));
    errors.extend(only_labels_and_annotations(meta, &at));
    errors.extend(super::claim::claim_spec(get(template, "spec"), &field.child("spec")));
    errors
}

/// Rejects a path with an element `..` (`validatePathNoBacksteps`).
pub(super) fn no_backsteps(target: &str, path: &Path) -> ErrorList {
    let stepping = target.split('/').any(|item| item == "..");
    stepping.then(|| Error::invalid(path, target, "must not contain '..'")).into_iter().collect()
}

/// Validates a path that is relative and has no element `..` (`validateLocalDescendingPath`).
pub(super) fn descending(target: &str, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if target.starts_with('/') {
        errors.push(Error::invalid(path, target, "must be a relative path"));
    }
    errors.extend(no_backsteps(target, path));
    errors
}

/// Validates the path of a file in a volume (`ValidateLocalNonReservedPath`). The kubelet reserves
/// the names that begin with two dots.
pub(super) fn local_path(target: &str, path: &Path) -> ErrorList {
    let mut errors = descending(target, path);
    if target.starts_with("..") && !target.starts_with("../") {
        errors.push(Error::invalid(path, target, "must not start with '..'"));
    }
    errors
}

/// Checks that environment variables with `fileKeyRef` reference an `emptyDir` volume.
pub(super) fn file_key_volumes(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut volumes: BTreeMap<&str, &Value> = BTreeMap::new();
    for volume in items(spec, "volumes") {
        volumes.entry(str_at(volume, "name")).or_insert(volume);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in items(spec, list).iter().enumerate() {
            for (j, variable) in items(container, "env").iter().enumerate() {
                let reference = at(variable, &["valueFrom", "fileKeyRef"]);
                if !reference.is_object() {
                    continue;
                }
                let name = str_at(reference, "volumeName");
                let field = path
                    .child(list)
                    .index(i)
                    .child("env")
                    .index(j)
                    .child("valueFrom")
                    .child("fileKeyRef")
                    .child("volumeName");
                match volumes.get(name) {
                    None => errors.push(Error::not_found(&field, name)),
                    Some(volume) if !has(volume, "emptyDir") => {
                        errors.push(Error::invalid(
                            &field,
                            name,
                            "referenced volume must be of type emptyDir",
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    fn check(list: Value, expected: &[&str]) {
        same(&volumes(&json!({ "volumes": list }), "pod", &Path::new("s")).1, expected);
    }

    /// `ValidateVolumes` of `pkg/apis/core/validation`.
    #[test]
    fn volumes_have_unique_names_and_one_source() {
        check(json!([{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}]), &[]);
        check(json!([{"emptyDir": {}}]), &["s.volumes[0].name: Required value"]);
        check(
            json!([{"name": "a"}]),
            &["s.volumes[0]: Required value: must specify a volume type"],
        );
        check(
            json!([{"name": "a.b", "emptyDir": {}}]),
            &["s.volumes[0].name: Invalid value: \"a.b\": must not contain dots"],
        );
        check(
            json!([{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]),
            &["s.volumes[1].name: Duplicate value: \"a\""],
        );
        check(
            json!([{"name": "a", "emptyDir": {}, "hostPath": {"path": "/x"}}]),
            &["s.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        );
        check(
            json!([{"name": "a", "emptyDir": {"sizeLimit": "-1Gi"}}]),
            &["s.volumes[0].emptyDir.sizeLimit: Forbidden: \
               SizeLimit field must be a valid resource quantity"],
        );
        let claim = json!({"metadata": {"labels": {"a": "b"}}, "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "1Gi"}}}});
        check(
            json!([{"name": "a", "ephemeral": {"volumeClaimTemplate": claim}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "pod-a"}}]),
            &["s.volumes[1].persistentVolumeClaim.claimName: Invalid value: \"pod-a\": \
               must not reference a PVC that gets created for an ephemeral volume"],
        );
    }

    /// `validateVolumeSource` and the functions of each source in `pkg/apis/core/validation`.
    #[test]
    fn sources_are_complete() {
        let check = |kind: &str, source: Value, expected: &[&str]| {
            let expected: Vec<String> =
                expected.iter().map(|text| format!("s.volumes[0].{kind}.{text}")).collect();
            let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
            check(json!([{ "name": "a", kind: source }]), &expected);
        };
        check("hostPath", json!({"path": "/mnt/path", "type": "Directory"}), &[]);
        check("hostPath", json!({}), &["path: Required value"]);
        check(
            "hostPath",
            json!({"path": "/foo/../bar"}),
            &["path: Invalid value: \"/foo/../bar\": must not contain '..'"],
        );
        check(
            "hostPath",
            json!({"path": "/a", "type": "invalid"}),
            &["type: Unsupported value: \"invalid\": ..."],
        );
        check("nfs", json!({"server": "s", "path": "/p"}), &[]);
        check(
            "nfs",
            json!({"path": "p"}),
            &["server: Required value", "path: Invalid value: \"p\": must be an absolute path"],
        );
        check("persistentVolumeClaim", json!({}), &["claimName: Required value"]);
        check("csi", json!({"driver": "io.kubernetes.storage.csi"}), &[]);
        check("csi", json!({}), &["driver: Required value"]);
        check(
            "csi",
            json!({"driver": "a".repeat(64)}),
            &["driver: Too long: may not be more than 63 bytes"],
        );
        check("image", json!({}), &["reference: Required value", "pullPolicy: Required value"]);
    }

    /// `validateKeyToPath`, `ValidateLocalNonReservedPath` and `validateDownwardAPIVolumeFile` of
    /// `pkg/apis/core/validation`.
    #[test]
    fn paths_of_keys_stay_in_the_volume() {
        let check = |item: Value, expected: &[&str]| {
            let source = json!({"secretName": "s", "items": [item]});
            check(json!([{"name": "a", "secret": source}]), expected);
        };
        const AT: &str = "s.volumes[0].secret.items[0]";
        check(json!({"key": "k", "path": "p/..x/q", "mode": 0o777}), &[]);
        check(json!({"path": "p"}), &[&format!("{AT}.key: Required value")]);
        check(json!({"key": "k"}), &[&format!("{AT}.path: Required value")]);
        for (path, text) in [
            ("/p", "must be a relative path"),
            ("a/../b", "must not contain '..'"),
            ("../b", "must not contain '..'"),
            ("..b", "must not start with '..'"),
        ] {
            let error = format!("{AT}.path: Invalid value: \"{path}\": {text}");
            check(json!({"key": "k", "path": path}), &[&error]);
        }
        check(
            json!({"key": "k", "path": "p", "mode": 512}),
            &[&format!(
                "{AT}.mode: Invalid value: 512: \
                 must be a number between 0 and 0777 (octal), both inclusive"
            )],
        );
        let field = json!({"apiVersion": "v1", "fieldPath": "metadata.labels"});
        let file = |file: Value| downward_file(&file, &Path::new("f"));
        same(&file(json!({"path": "p", "fieldRef": field})), &[""; 0]);
        same(
            &file(json!({"path": "p"})),
            &["f: Required value: one of fieldRef and resourceFieldRef is required"],
        );
        same(
            &file(json!({"path": "p", "fieldRef": field, "resourceFieldRef": {}})),
            &["f: Invalid value: \"resource\": \
               fieldRef and resourceFieldRef can not be specified simultaneously"],
        );
    }
}
