//! Fields that the API server stores but this version does not implement. The API server returns
//! warnings from this table, and the node agent rejects pods by it.

pub mod kinds;

use serde_json::Value;

use crate::object::Gvk;

/// The values of a field that are not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Any value except null, the empty string and the empty list.
    Set,
    /// This string.
    Is(&'static str),
}

/// A field that no component implements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The path below the pod specification or the object, with elements joined by `.`; `*` is
    /// every element of a list.
    pub path: &'static str,
    /// The unsupported values; all other values are supported.
    pub when: When,
}

/// An unsupported field in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedField {
    /// The path in the object, in upstream's form:
    /// `spec.containers[0].volumeMounts[1].bindMountOptions`.
    pub path: String,
    /// The row of the table.
    pub field: Field,
}

impl UnsupportedField {
    /// Returns the path and, if only some values are unsupported, the value:
    /// `spec.os.name: windows`.
    pub fn shown(&self) -> String {
        self.of_path(self.path.clone())
    }

    /// Returns the text of [`UnsupportedField::shown`] without list indexes:
    /// `spec.containers[*].volumeMounts[*].bindMountOptions`.
    pub fn general(&self) -> String {
        let mut path = String::with_capacity(self.path.len());
        for (at, piece) in self.path.split('[').enumerate() {
            match piece.split_once(']') {
                Some((_, rest)) if at > 0 => {
                    path.push_str("[*]");
                    path.push_str(rest);
                }
                _ => path.push_str(piece),
            }
        }
        self.of_path(path)
    }

    fn of_path(&self, path: String) -> String {
        match self.field.when {
            When::Set => path,
            When::Is(value) => format!("{path}: {value}"),
        }
    }
}

const fn set(path: &'static str) -> Field {
    Field { path, when: When::Set }
}

const fn is(path: &'static str, value: &'static str) -> Field {
    Field { path, when: When::Is(value) }
}

/// The fields of a container, which apply to each of the three lists of containers.
const CONTAINER: &[Field] = &[set("volumeMounts.*.bindMountOptions")];

/// The fields of a pod specification, except those of containers.
const POD: &[Field] = &[
    set("schedulingGroup"),
    set("evictionResponders"),
    is("os.name", "windows"),
    set("volumes.*.emptyDir.mode"),
    is("volumes.*.projected.sources.*.podCertificate.keyType", "RSA3072"),
    is("volumes.*.projected.sources.*.podCertificate.keyType", "RSA4096"),
    is("volumes.*.projected.sources.*.podCertificate.keyType", "ECDSAP521"),
    set("volumes.*.configMap.defaultUser"),
    set("volumes.*.configMap.items.*.user"),
    set("volumes.*.secret.defaultUser"),
    set("volumes.*.secret.items.*.user"),
    set("volumes.*.downwardAPI.defaultUser"),
    set("volumes.*.downwardAPI.items.*.user"),
    set("volumes.*.projected.defaultUser"),
    set("volumes.*.projected.sources.*.configMap.items.*.user"),
    set("volumes.*.projected.sources.*.secret.items.*.user"),
    set("volumes.*.projected.sources.*.downwardAPI.items.*.user"),
    set("volumes.*.projected.sources.*.serviceAccountToken.user"),
    set("volumes.*.projected.sources.*.clusterTrustBundle.user"),
    set("volumes.*.projected.sources.*.podCertificate.user"),
    set("volumes.*.cephfs"),
    set("volumes.*.flexVolume"),
    set("volumes.*.flocker"),
    set("volumes.*.gitRepo"),
    set("volumes.*.glusterfs"),
    set("volumes.*.photonPersistentDisk"),
    set("volumes.*.quobyte"),
    set("volumes.*.rbd"),
    set("volumes.*.scaleIO"),
    set("volumes.*.storageos"),
];

/// The fields of a PersistentVolume; the node supports `hostPath`, `local`, `nfs`, `iscsi`, `fc`,
/// `csi` and the kinds that a CSI driver replaces.
const PERSISTENT_VOLUME: &[Field] = &[
    MOUNT_OPTIONS,
    set("spec.cephfs"),
    set("spec.flexVolume"),
    set("spec.flocker"),
    set("spec.glusterfs"),
    set("spec.photonPersistentDisk"),
    set("spec.quobyte"),
    set("spec.rbd"),
    set("spec.scaleIO"),
    set("spec.storageos"),
];

/// Options of mounts, which apply to volumes of CSI drivers, NFS, iSCSI and Fibre Channel, and to
/// no others.
const MOUNT_OPTIONS: Field = set("spec.mountOptions");

/// Annotations of Services without effect: k3s reads them for the pods of its ServiceLB, and
/// kube-lite needs no such pods.
const SERVICE_ANNOTATIONS: &[Field] = &[
    set("svccontroller.k3s.cattle.io/tolerations"),
    set("svccontroller.k3s.cattle.io/priorityclassname"),
];

/// Returns the path of the pod specification in the objects of a kind.
pub fn pod_spec_path(kind: &Gvk) -> Option<&'static [&'static str]> {
    Some(match (&*kind.group, &*kind.kind) {
        ("", "Pod") => &["spec"],
        ("", "PodTemplate") => &["template", "spec"],
        ("", "ReplicationController")
        | ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("batch", "Job") => &["spec", "template", "spec"],
        ("batch", "CronJob") => &["spec", "jobTemplate", "spec", "template", "spec"],
        _ => return None,
    })
}

/// Returns the unsupported fields of an object, in the order of the table.
pub fn fields(kind: &Gvk, object: &Value) -> Vec<UnsupportedField> {
    if let Some(path) = pod_spec_path(kind) {
        let spec = path.iter().try_fold(object, |at, part| at.get(part));
        return spec.map_or_else(Vec::new, |spec| pod_spec(spec, &path.join(".")));
    }
    let mut out = Vec::new();
    for field in table(kind) {
        find(object, field.path, String::new(), *field, &mut out);
    }
    let sources = [
        "/spec/csi",
        "/spec/nfs",
        "/spec/iscsi",
        "/spec/fc",
        "/spec/awsElasticBlockStore",
        "/spec/azureDisk",
        "/spec/azureFile",
        "/spec/cinder",
        "/spec/gcePersistentDisk",
        "/spec/portworxVolume",
        "/spec/vsphereVolume",
    ];
    let mut applied = sources.iter().filter_map(|path| object.pointer(path));
    if applied.any(|source| matches(source, When::Set)) {
        out.retain(|found| found.field != MOUNT_OPTIONS);
    }
    if (&*kind.group, &*kind.kind) == ("", "Service") {
        annotations(object, SERVICE_ANNOTATIONS, &mut out);
    }
    out
}

/// Adds the annotations of an object that are in a table; the path of a row is the whole key.
fn annotations(object: &Value, table: &[Field], out: &mut Vec<UnsupportedField>) {
    let Some(found) = object.pointer("/metadata/annotations") else { return };
    for field in table {
        if found.get(field.path).is_some_and(|value| matches(value, field.when)) {
            let path = format!("metadata.annotations.{}", field.path);
            out.push(UnsupportedField { path, field: *field });
        }
    }
}

/// Returns the fields of a kind without a pod specification.
fn table(kind: &Gvk) -> &'static [Field] {
    match (&*kind.group, &*kind.kind) {
        ("", "PersistentVolume") => PERSISTENT_VOLUME,
        _ => &[],
    }
}

/// Returns whether objects of this kind can have unsupported fields.
pub fn has_fields(kind: &Gvk) -> bool {
    pod_spec_path(kind).is_some()
        || !table(kind).is_empty()
        || (&*kind.group, &*kind.kind) == ("", "Service")
}

/// Returns the unsupported fields of a pod specification; `at` is its path, such as `spec`.
pub fn pod_spec(spec: &Value, at: &str) -> Vec<UnsupportedField> {
    let mut out = Vec::new();
    for field in POD {
        find(spec, field.path, at.to_owned(), *field, &mut out);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let containers = spec.get(list).and_then(Value::as_array);
        for (index, container) in containers.into_iter().flatten().enumerate() {
            for field in CONTAINER {
                find(container, field.path, format!("{at}.{list}[{index}]"), *field, &mut out);
            }
        }
    }
    out
}

fn find(value: &Value, path: &str, at: String, field: Field, out: &mut Vec<UnsupportedField>) {
    let (part, rest) = path.split_once('.').map_or((path, None), |(part, rest)| (part, Some(rest)));
    if part == "*" {
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            if let Some(rest) = rest {
                find(item, rest, format!("{at}[{index}]"), field, out);
            }
        }
        return;
    }
    let Some(value) = value.get(part) else { return };
    let at = if at.is_empty() { part.to_owned() } else { format!("{at}.{part}") };
    match rest {
        Some(rest) => find(value, rest, at, field, out),
        None if matches(value, field.when) => out.push(UnsupportedField { path: at, field }),
        None => {}
    }
}

fn matches(value: &Value, when: When) -> bool {
    match when {
        When::Set => match value {
            Value::Null => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            // An empty object, as in `image: {}`, is set.
            Value::Object(_) | Value::Bool(_) | Value::Number(_) => true,
        },
        When::Is(wanted) => value == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(kind: (&str, &str), object: &Value) -> Vec<String> {
        fields(&Gvk::new(kind.0, "v1", kind.1), object)
            .iter()
            .map(UnsupportedField::shown)
            .collect()
    }

    #[test]
    fn fields_are_named_where_they_stand() {
        let spec = json!({
            "hostUsers": false, "hostNetwork": true, "evictionResponders": [],
            "os": {"name": "windows"},
            "schedulingGroup": {"podGroupName": "g"},
            "containers": [{"name": "a"}, {"volumeMounts": [{"bindMountOptions": ["noexec"]}]}],
            "volumes": [{"name": "e", "emptyDir": {"medium": "Memory"}}, {"emptyDir": {"medium": "HugePages-2Mi"}},
                {"name": "n", "cephfs": {"monitors": ["m"]}}],
        });
        assert_eq!(
            shown(("", "Pod"), &json!({"spec": spec})),
            [
                "spec.schedulingGroup",
                "spec.os.name: windows",
                "spec.volumes[2].cephfs",
                "spec.containers[1].volumeMounts[0].bindMountOptions",
            ]
        );
        let template = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": {"os": {"name": "windows"}}}}}}});
        assert_eq!(
            shown(("batch", "CronJob"), &template),
            ["spec.jobTemplate.spec.template.spec.os.name: windows"]
        );
        assert_eq!(
            shown(("", "PersistentVolume"), &json!({"spec": {"mountOptions": ["ro"]}})),
            ["spec.mountOptions"]
        );
        let of_driver = json!({"spec": {"mountOptions": ["ro"], "csi": {"driver": "d"}}});
        assert!(shown(("", "PersistentVolume"), &of_driver).is_empty());
        let of_server = json!({"spec": {"mountOptions": ["ro"], "nfs": {"server": "s"}}});
        assert!(shown(("", "PersistentVolume"), &of_server).is_empty());
        let of_disk = json!({"spec": {"mountOptions": ["ro"], "fc": {"wwids": ["w"]}}});
        assert!(shown(("", "PersistentVolume"), &of_disk).is_empty());
        let annotated = json!({"metadata": {"annotations": {"a": "b",
            "svccontroller.k3s.cattle.io/tolerations": "- operator: Exists"}}});
        assert_eq!(
            shown(("", "Service"), &annotated),
            ["metadata.annotations.svccontroller.k3s.cattle.io/tolerations"]
        );
        let mounts = json!([{"bindMountOptions": ["noexec"]}]);
        let pod = json!({"spec": {"containers": [{}, {"volumeMounts": mounts}]}});
        let found = fields(&Gvk::new("", "v1", "Pod"), &pod);
        assert_eq!(found[0].general(), "spec.containers[*].volumeMounts[*].bindMountOptions");
        assert!(shown(("", "ConfigMap"), &json!({"spec": {"schedulingGroup": {}}})).is_empty());
    }

    #[test]
    fn every_path_is_a_field_of_the_schema() {
        let schema = crate::schema::Schema::builtin();
        let check = |root: &str, table: &[Field]| {
            for field in table {
                let path: Vec<&str> = field.path.split('.').filter(|p| *p != "*").collect();
                assert!(has_path(&schema, root, &path), "{root} has no {}", field.path);
            }
        };
        check("PodSpec", POD);
        check("Container", CONTAINER);
        check("PersistentVolume", PERSISTENT_VOLUME);
    }

    /// Returns whether the type `root` has a field at this path.
    fn has_path(schema: &crate::schema::Schema, root: &str, path: &[&str]) -> bool {
        use crate::schema::Shape;
        let mut at = schema.by_name(&format!("io.k8s.api.core.v1.{root}"));
        for part in path {
            let Some(field) = at.and_then(|id| schema.get(id).field(part)) else { return false };
            let mut shape = &field.shape;
            while let Shape::List(inner) = shape {
                shape = inner;
            }
            at = if let Shape::Struct(id) = shape { Some(*id) } else { None };
        }
        true
    }
}
