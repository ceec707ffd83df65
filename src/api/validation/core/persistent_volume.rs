//! Validation of persistent volumes.

use serde_json::Value;

use super::claim::access_modes;
use super::old_volumes::{Of, old_source};
use super::scheduling::node_selector;
use super::volumes::{csi_driver_name, host_path, no_backsteps, required};
use crate::field::{Error, ErrorList, Path};
use crate::validation::checks::{
    Shape, go_json, go_lines, pointer_as, printed, required_as, unified_diff,
};
use crate::validation::numbers::{positive_quantity, quantity};
use crate::validation::{IMMUTABLE, names, one_of};
use crate::value::{entries, get, has, is_empty, remove, semantic_equal, set, str_at, str_in};

/// Volume sources, in the order in which upstream validates them.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

const SECRET: Shape = Shape::Optional(&Shape::Struct(&[
    ("Name", "name", Shape::Text),
    ("Namespace", "namespace", Shape::Text),
]));

/// The volume sources in the form in which upstream prints them. The sources of removed drivers are
/// printed with their JSON names.
const PRINTED: Shape = Shape::Struct(&[
    ("GCEPersistentDisk", "gcePersistentDisk", Shape::Pointer),
    ("AWSElasticBlockStore", "awsElasticBlockStore", Shape::Pointer),
    (
        "HostPath",
        "hostPath",
        Shape::Optional(&Shape::Struct(&[
            ("Path", "path", Shape::Text),
            ("Type", "type", Shape::Pointer),
        ])),
    ),
    ("Glusterfs", "glusterfs", Shape::Pointer),
    (
        "NFS",
        "nfs",
        Shape::Optional(&Shape::Struct(&[
            ("Server", "server", Shape::Text),
            ("Path", "path", Shape::Text),
            ("ReadOnly", "readOnly", Shape::Flag),
        ])),
    ),
    ("RBD", "rbd", Shape::Pointer),
    ("ISCSI", "iscsi", Shape::Pointer),
    ("Cinder", "cinder", Shape::Pointer),
    ("CephFS", "cephfs", Shape::Pointer),
    ("FC", "fc", Shape::Pointer),
    ("Flocker", "flocker", Shape::Pointer),
    ("FlexVolume", "flexVolume", Shape::Pointer),
    ("AzureFile", "azureFile", Shape::Pointer),
    ("VsphereVolume", "vsphereVolume", Shape::Pointer),
    ("Quobyte", "quobyte", Shape::Pointer),
    ("AzureDisk", "azureDisk", Shape::Pointer),
    ("PhotonPersistentDisk", "photonPersistentDisk", Shape::Pointer),
    ("PortworxVolume", "portworxVolume", Shape::Pointer),
    ("ScaleIO", "scaleIO", Shape::Pointer),
    (
        "Local",
        "local",
        Shape::Optional(&Shape::Struct(&[
            ("Path", "path", Shape::Text),
            ("FSType", "fsType", Shape::Pointer),
        ])),
    ),
    ("StorageOS", "storageos", Shape::Pointer),
    (
        "CSI",
        "csi",
        Shape::Optional(&Shape::Struct(&[
            ("Driver", "driver", Shape::Text),
            ("VolumeHandle", "volumeHandle", Shape::Text),
            ("ReadOnly", "readOnly", Shape::Flag),
            ("FSType", "fsType", Shape::Text),
            ("VolumeAttributes", "volumeAttributes", Shape::Pointer),
            ("ControllerPublishSecretRef", "controllerPublishSecretRef", SECRET),
            ("NodeStageSecretRef", "nodeStageSecretRef", SECRET),
            ("NodePublishSecretRef", "nodePublishSecretRef", SECRET),
            ("ControllerExpandSecretRef", "controllerExpandSecretRef", SECRET),
            ("NodeExpandSecretRef", "nodeExpandSecretRef", SECRET),
        ])),
    ),
]);

const EXPRESSIONS: Shape = Shape::List(&Shape::Struct(&[
    ("Key", "key", Shape::Text),
    ("Operator", "operator", Shape::Text),
    ("Values", "values", Shape::List(&Shape::Text)),
]));
const AFFINITY: Shape = Shape::Optional(&Shape::Struct(&[(
    "Required",
    "required",
    Shape::Optional(&Shape::Struct(&[(
        "NodeSelectorTerms",
        "nodeSelectorTerms",
        Shape::List(&Shape::Struct(&[
            ("MatchExpressions", "matchExpressions", EXPRESSIONS),
            ("MatchFields", "matchFields", EXPRESSIONS),
        ])),
    )])),
)]));

/// Validates a new volume (`ValidatePersistentVolume`).
pub fn validate(object: &Value) -> ErrorList {
    let name = str_at(get(object, "metadata"), "name");
    volume_spec(get(object, "spec"), name, false, &Path::new("spec"))
}

/// Validates the spec of the volume `name` (`ValidatePersistentVolumeSpec`). `inline` is true for
/// the spec in a volume attachment, which has no name.
pub fn volume_spec(spec: &Value, name: &str, inline: bool, path: &Path) -> ErrorList {
    const CONTEXT: &str = "in the context of inline volumes";
    let mut errors = ErrorList::new();
    let mut unwanted = |key: &str| {
        if inline && !is_empty(spec, key) {
            let text = format!("may not be specified {CONTEXT}");
            errors.push(Error::forbidden(&path.child(key), text));
        }
    };
    ["claimRef", "capacity"].into_iter().for_each(&mut unwanted);
    if inline && !has(spec, "csi") {
        let text = format!("has to be specified {CONTEXT}");
        errors.push(Error::required(&path.child("csi"), text));
    }
    errors.extend(access_modes(spec, path, "", |_, _, _| {}));
    if !inline {
        errors.extend(capacity(spec, path));
    }
    let (policy, field) = (
        str_at(spec, "persistentVolumeReclaimPolicy"),
        path.child("persistentVolumeReclaimPolicy"),
    );
    match (policy, inline) {
        ("", _) | ("Retain", true) => {}
        (_, true) => errors.push(Error::forbidden(&field, format!("may only be Retain {CONTEXT}"))),
        (policy, false) => errors.extend(one_of(policy, &["Delete", "Recycle", "Retain"], &field)),
    }
    let affinity = get(spec, "nodeAffinity");
    if affinity.is_object() && inline {
        let text = format!("may not be specified {CONTEXT}");
        errors.push(Error::forbidden(&path.child("nodeAffinity"), text));
    } else if affinity.is_object() {
        let field = path.child("nodeAffinity").child("required");
        match affinity.get("required").filter(|r| r.is_object()) {
            Some(selector) => errors.extend(node_selector(selector, false, &field)),
            None => errors.push(Error::required(&field, "must specify required node constraints")),
        }
    }
    errors.extend(sources(spec, name, path));
    if policy == "Recycle" && root(str_in(spec, &["hostPath", "path"])) {
        errors.push(Error::forbidden(&field, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    errors.extend(classes(spec, inline, path));
    errors
}

fn root(target: &str) -> bool {
    target.starts_with('/') && target.split('/').all(|part| matches!(part, "" | "."))
}

fn capacity(spec: &Value, path: &Path) -> ErrorList {
    let (field, map) = (path.child("capacity"), get(spec, "capacity"));
    let count = entries(spec, "capacity").count();
    let mut errors = ErrorList::new();
    if count == 0 {
        errors.push(Error::required(&field, ""));
    }
    if !has(map, "storage") || count > 1 {
        errors.push(Error::not_supported(&field, map.clone(), &["storage"]));
    }
    for (name, amount) in entries(spec, "capacity") {
        let field = field.key(name);
        if let Some(negative) = quantity(amount).filter(|q| q.sign() < 0) {
            let text = "must be a valid resource quantity";
            errors.push(Error::invalid(&field, negative.value(), text));
        }
        errors.extend(positive_quantity(amount, &field));
    }
    errors
}

fn sources(spec: &Value, name: &str, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut count = 0;
    for kind in SOURCES {
        let Some(source) = spec.get(kind).filter(|s| s.is_object()) else { continue };
        count += 1;
        let field = path.child(kind);
        if count > 1 && kind != "flexVolume" {
            let field = if kind == "cephfs" { path.child("cephFS") } else { field };
            errors.push(Error::forbidden(&field, "may not specify more than 1 volume type"));
            continue;
        }
        // Upstream's path of this source differs from the field.
        let field = if kind == "gcePersistentDisk" { path.child("persistentDisk") } else { field };
        errors.extend(one_source(kind, source, name, &field));
        if kind == "local" && !get(spec, "nodeAffinity").is_object() {
            let text = "Local volume requires node affinity";
            errors.push(Error::required(&path.child("nodeAffinity"), text));
        }
    }
    if count == 0 {
        errors.push(Error::required(path, "must specify a volume type"));
    }
    errors
}

fn one_source(kind: &str, source: &Value, name: &str, path: &Path) -> ErrorList {
    match kind {
        "hostPath" => host_path(source, path),
        "local" => match str_at(source, "path") {
            "" => vec![Error::required(&path.child("path"), "")],
            target => no_backsteps(target, &path.child("path")),
        },
        "nfs" => {
            let mut errors = required(source, &["server", "path"], path);
            let target = str_at(source, "path");
            if !target.starts_with('/') {
                let text = "must be an absolute path";
                errors.push(Error::invalid(&path.child("path"), target, text));
            }
            errors
        }
        "csi" => {
            let mut errors = csi_driver_name(str_at(source, "driver"), &path.child("driver"));
            errors.extend(required(source, &["volumeHandle"], path));
            for key in [
                "controllerPublishSecretRef",
                "controllerExpandSecretRef",
                "nodePublishSecretRef",
                "nodeExpandSecretRef",
            ] {
                if let Some(secret) = source.get(key).filter(|s| s.is_object()) {
                    let path = path.child(key);
                    errors.extend(required_as(secret, "name", &path, names::dns1123_subdomain));
                    errors.extend(required_as(secret, "namespace", &path, names::dns1123_label));
                }
            }
            errors
        }
        other => old_source(other, source, Of::Persistent(name), path),
    }
}

fn classes(spec: &Value, inline: bool, path: &Path) -> ErrorList {
    const CONTEXT: &str = "in the context of inline volumes";
    let mut errors = ErrorList::new();
    if inline {
        if !is_empty(spec, "storageClassName") {
            let text = format!("may not be specified {CONTEXT}");
            errors.push(Error::forbidden(&path.child("storageClassName"), text));
        }
        if get(spec, "volumeMode").as_str().is_some_and(|mode| mode != "Filesystem") {
            let text = format!("may not specify volumeMode other than Filesystem {CONTEXT}");
            errors.push(Error::forbidden(&path.child("volumeMode"), text));
        }
    } else {
        errors.extend(crate::validation::checks::optional_as(
            spec,
            "storageClassName",
            path,
            names::dns1123_subdomain,
        ));
        let mode = get(spec, "volumeMode").as_str();
        let known = ["Block", "Filesystem"];
        errors.extend(mode.and_then(|mode| one_of(mode, &known, &path.child("volumeMode"))));
    }
    const CLASS: &str = "volumeAttributesClassName";
    if let Some(name) = get(spec, CLASS).as_str() {
        if name.is_empty() {
            errors.push(Error::required(&path.child(CLASS), "an empty string is disallowed"));
        } else {
            errors.extend(pointer_as(spec, CLASS, path, names::dns1123_subdomain));
        }
        if !has(spec, "csi") {
            let text = "has to be specified when using volumeAttributesClassName";
            errors.push(Error::required(&path.child("csi"), text));
        }
    }
    errors
}

/// Beta labels of nodes, and the stable labels that replace them.
const STABLE: [(&str, &str); 5] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// Returns the old node affinity with the keys of the new one where upstream permits the change:
/// from a beta label to its stable label, or from any other label to an empty key, because
/// upstream's table yields an empty string for labels that it does not contain.
fn relabelled(before: &Value, now: &Value) -> Value {
    let mut before = before.clone();
    let path = |at: usize, kind: &str, index: usize| {
        format!("/required/nodeSelectorTerms/{at}/{kind}/{index}")
    };
    let terms = before.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
    for (at, term) in terms.into_iter().flatten().enumerate() {
        for kind in ["matchExpressions", "matchFields"] {
            let list = term.get_mut(kind).and_then(Value::as_array_mut);
            for (index, requirement) in list.into_iter().flatten().enumerate() {
                let Some(new) = now.pointer(&path(at, kind, index)) else { continue };
                let old = str_at(requirement, "key");
                let stable = STABLE.iter().find(|(beta, _)| *beta == old).map_or("", |(_, ga)| ga);
                if stable == str_at(new, "key") {
                    set(requirement, "key", stable);
                }
            }
        }
    }
    before
}

/// Validates an update of a volume (`ValidatePersistentVolumeUpdate`): the source and the volume
/// mode are immutable, and so is the node affinity once set, except for the change from a beta
/// label to its stable label.
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    const SECRET_KEY: &str = "controllerExpandSecretRef";
    let mut errors = validate(object);
    let (mut new, was) = (get(object, "spec").clone(), get(old, "spec"));
    let late = has(was, "csi") && !has(get(was, "csi"), SECRET_KEY);
    if let (true, Some(csi)) = (late, new.get_mut("csi")) {
        remove(csi, SECRET_KEY);
    }
    if SOURCES.iter().any(|kind| !semantic_equal(get(&new, kind), get(was, kind))) {
        let diff = unified_diff(&go_lines(was, PRINTED), &go_lines(&new, PRINTED));
        let text = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        errors.push(Error::forbidden(&Path::new("spec.persistentvolumesource"), text));
    }
    errors.extend(mode_stays(&new, was));
    let (affinity, before) = (get(&new, "nodeAffinity"), get(was, "nodeAffinity"));
    if before.is_object() && !semantic_equal(affinity, &relabelled(before, affinity)) {
        let text = format!("{IMMUTABLE}, except for updating from beta label to GA");
        errors.push(printed(&Path::new("nodeAffinity"), &go_json(affinity, AFFINITY), &text));
    }
    const CLASS: &str = "volumeAttributesClassName";
    if has(was, CLASS) && !has(&new, CLASS) {
        let text = "update from non-nil value to nil is forbidden";
        errors.push(Error::forbidden(&Path::new("spec").child(CLASS), text));
    }
    errors
}

/// Rejects a change of `volumeMode` of a volume or a claim.
pub(super) fn mode_stays(new: &Value, old: &Value) -> Option<Error> {
    let (mode, was) = (get(new, "volumeMode"), get(old, "volumeMode"));
    (mode != was).then(|| Error::invalid(&Path::new("volumeMode"), mode.clone(), IMMUTABLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_source_stays() {
        let volume = |path: &str| json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": path, "type": "Directory"}}});
        assert!(validate_change(&volume("/tmp/x"), &volume("/tmp/x")).is_empty());
        let errors = validate_change(&volume("/tmp/y"), &volume("/tmp/x"));
        assert_eq!(
            errors[0].to_string(),
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n@@ -2,7 +2,7 @@\n  \"GCEPersistentDisk\": null,\n  \"AWSElasticBlockStore\": null,\n  \"HostPath\": {\n-  \"Path\": \"/tmp/x\",\n+  \"Path\": \"/tmp/y\",\n   \"Type\": \"Directory\"\n  },\n  \"Glusterfs\": null,\n"
        );
    }

    #[test]
    fn a_place_may_change_to_the_stable_name_of_its_label() {
        let volume = |key: &str| {
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/mnt"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": ["n"]}]}]}}}})
        };
        let refusals = |old: &str, new: &str| {
            let errors = validate_change(&volume(new), &volume(old));
            errors.iter().filter(|e| e.to_string().contains("beta label to GA")).count()
        };
        assert_eq!(refusals("beta.kubernetes.io/os", "kubernetes.io/os"), 0);
        assert_eq!(refusals("kubernetes.io/os", "beta.kubernetes.io/os"), 1);
        assert_eq!(refusals("kubernetes.io/hostname", "kubernetes.io/os"), 1);
        // Recorded response: an update that empties the key is rejected only because the key is
        // empty.
        assert_eq!(refusals("kubernetes.io/hostname", ""), 0);
    }

    #[test]
    fn a_local_volume_needs_a_place() {
        let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/mnt"}});
        let errors = volume_spec(&spec, "", false, &Path::new("spec"));
        assert_eq!(
            errors[0].to_string(),
            "spec.nodeAffinity: Required value: Local volume requires node affinity"
        );
    }
}
