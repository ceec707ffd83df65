//! Validation of the volume sources of drivers that moved out of tree, of Fibre Channel and of
//! iSCSI, in pods and in persistent volumes.

use serde_json::Value;

use super::volumes::{descending, required};
use crate::field::{Error, ErrorList, Path};
use crate::validation::{each, names, one_of};
use crate::value::{bool_at, entries, get, has, int_at, items, str_at};

/// Maximum length in bytes of `name:targetPortal` of an iSCSI volume with an initiator name.
const ISCSI_NAME_MAX: usize = 64;
const QUOBYTE_TENANT_MAX: usize = 64;

/// The object that contains a volume source: a pod, or a persistent volume with its name.
#[derive(Debug, Clone, Copy)]
pub(super) enum Of<'a> {
    Pod,
    Persistent(&'a str),
}

impl Of<'_> {
    fn is_pod(self) -> bool {
        matches!(self, Of::Pod)
    }
}

/// Validates a volume source of this `kind`. Returns no errors for the kinds that other modules
/// validate.
pub(super) fn old_source(kind: &str, source: &Value, of: Of<'_>, path: &Path) -> ErrorList {
    match kind {
        "gitRepo" => {
            let mut errors = required(source, &["repository"], path);
            errors.extend(descending(str_at(source, "directory"), &path.child("directory")));
            errors
        }
        "gcePersistentDisk" => disk(source, "pdName", path),
        "awsElasticBlockStore" => disk(source, "volumeID", path),
        "iscsi" => iscsi(source, of, path),
        "glusterfs" => glusterfs(source, path),
        "flocker" => flocker(source, path),
        "rbd" => {
            let mut errors = monitors(source, path);
            errors.extend(required(source, &["image"], path));
            errors
        }
        "cinder" => {
            let mut errors = required(source, &["volumeID"], path);
            errors.extend(secret(source, of, path));
            errors
        }
        "cephfs" => monitors(source, path),
        "flexVolume" => flex(source, path),
        "azureFile" => {
            let mut errors = required(source, &["secretName", "shareName"], path);
            if !of.is_pod() && get(source, "secretNamespace").as_str() == Some("") {
                errors.push(Error::required(&path.child("secretNamespace"), ""));
            }
            errors
        }
        "vsphereVolume" => required(source, &["volumePath"], path),
        "photonPersistentDisk" => required(source, &["pdID"], path),
        "portworxVolume" => required(source, &["volumeID"], path),
        "azureDisk" => azure_disk(source, path),
        "scaleIO" => required(source, &["gateway", "system", "volumeName"], path),
        "quobyte" => quobyte(source, path),
        "storageos" => storageos(source, of, path),
        "fc" => fibre_channel(source, path),
        _ => ErrorList::new(),
    }
}

fn between(value: i64, least: i64, path: &Path) -> Option<Error> {
    let text = || format!("must be between {least} and 255, inclusive");
    (!(0..=255).contains(&value)).then(|| Error::invalid(path, value, text()))
}

fn disk(source: &Value, name: &str, path: &Path) -> ErrorList {
    let mut errors = required(source, &[name], path);
    let partition = int_at(source, "partition").unwrap_or_default();
    // Zero is valid and means no partition, although the text of the error starts at 1.
    errors.extend(between(partition, 1, &path.child("partition")));
    errors
}

fn monitors(source: &Value, path: &Path) -> ErrorList {
    let none = items(source, "monitors").is_empty();
    none.then(|| Error::required(&path.child("monitors"), "")).into_iter().collect()
}

/// Validates `secretRef` of a source. In a persistent volume, the reference also needs a namespace.
fn secret(source: &Value, of: Of<'_>, path: &Path) -> ErrorList {
    let keys: &[&str] = if of.is_pod() { &["name"] } else { &["name", "namespace"] };
    match get(source, "secretRef") {
        secret @ Value::Object(_) => required(secret, keys, &path.child("secretRef")),
        _ => ErrorList::new(),
    }
}

fn glusterfs(source: &Value, path: &Path) -> ErrorList {
    let mut errors = required(source, &["endpoints", "path"], path);
    // Only persistent volumes have this field.
    let field = path.child("endpointsNamespace");
    match get(source, "endpointsNamespace").as_str() {
        Some("") => {
            let text = "if the endpointnamespace is set, it must be a valid namespace name";
            errors.push(Error::invalid(&field, "", text));
        }
        Some(name) => errors.extend(each(&field, name, names::dns1123_label(name))),
        None => {}
    }
    errors
}

fn flocker(source: &Value, path: &Path) -> ErrorList {
    let (name, uuid) = (str_at(source, "datasetName"), str_at(source, "datasetUUID"));
    let mut errors = ErrorList::new();
    if name.is_empty() && uuid.is_empty() {
        errors.push(Error::required(path, "one of datasetName and datasetUUID is required"));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let text = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(Error::invalid(path, "resource", text));
    }
    if name.contains('/') {
        errors.push(Error::invalid(&path.child("datasetName"), name, "must not contain '/'"));
    }
    errors
}

fn flex(source: &Value, path: &Path) -> ErrorList {
    let mut errors = required(source, &["driver"], path);
    for (key, _) in entries(source, "options") {
        let namespace = key.split_once('/').map_or(key.as_str(), |(namespace, _)| namespace);
        let dotted = format!(".{}", namespace.to_lowercase());
        if dotted.ends_with(".kubernetes.io") || dotted.ends_with(".k8s.io") {
            let text = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(Error::invalid(&path.child("options").key(key), key.as_str(), text));
        }
    }
    errors
}

fn azure_disk(source: &Value, path: &Path) -> ErrorList {
    let mut errors = required(source, &["diskName", "diskURI"], path);
    if let Some(mode) = get(source, "cachingMode").as_str() {
        errors.extend(one_of(mode, &["None", "ReadOnly", "ReadWrite"], &path.child("cachingMode")));
    }
    let Some(kind) = get(source, "kind").as_str() else { return errors };
    errors.extend(one_of(kind, &["Dedicated", "Managed", "Shared"], &path.child("kind")));
    let (start, form) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        )
    };
    let uri = str_at(source, "diskURI");
    if !uri.starts_with(start) {
        errors.push(Error::not_supported(&path.child("diskURI"), uri, &[form]));
    }
    errors
}

fn quobyte(source: &Value, path: &Path) -> ErrorList {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let (registry, field) = (str_at(source, "registry"), path.child("registry"));
    let mut errors = ErrorList::new();
    if registry.is_empty() {
        errors.push(Error::required(&field, PAIRS));
    } else if str_at(source, "tenant").len() > QUOBYTE_TENANT_MAX {
        let text = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(Error::required(&path.child("tenant"), text));
    } else {
        let wrong = registry.split(',').filter(|pair| !is_host_and_port(pair));
        errors.extend(wrong.map(|_| Error::invalid(&field, registry, PAIRS)));
    }
    errors.extend(required(source, &["volume"], path));
    errors
}

/// Reports whether Go's `net.SplitHostPort` accepts the text: one colon before the port, and
/// brackets around a host that contains colons.
fn is_host_and_port(pair: &str) -> bool {
    let Some((host, port)) = pair.rsplit_once(':') else { return false };
    let host = match host.strip_prefix('[') {
        Some(inner) => match inner.strip_suffix(']') {
            Some(inner) => inner,
            None => return false,
        },
        None if host.contains(':') => return false,
        None => host,
    };
    !host.contains(['[', ']']) && !port.contains(['[', ']'])
}

fn storageos(source: &Value, of: Of<'_>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (key, is_needed) in [("volumeName", true), ("volumeNamespace", false)] {
        let (name, field) = (str_at(source, key), path.child(key));
        if !name.is_empty() {
            errors.extend(each(&field, name, names::dns1123_label(name)));
        } else if is_needed {
            errors.push(Error::required(&field, ""));
        }
    }
    errors.extend(secret(source, of, path));
    errors
}

fn fibre_channel(source: &Value, path: &Path) -> ErrorList {
    let (targets, field) = (items(source, "targetWWNs"), path.child("targetWWNs"));
    let has_ids = !items(source, "wwids").is_empty();
    let mut errors = ErrorList::new();
    match (targets.is_empty(), has_ids) {
        (true, false) => {
            let text = "must specify either targetWWNs or wwids, but not both";
            errors.push(Error::required(&field, text));
        }
        (false, true) => {
            let text = "targetWWNs and wwids can not be specified simultaneously";
            errors.push(Error::invalid(&field, targets.to_vec(), text));
        }
        _ => {}
    }
    if !targets.is_empty() {
        match int_at(source, "lun") {
            None => {
                let text = "lun is required if targetWWNs is specified";
                errors.push(Error::required(&path.child("lun"), text));
            }
            Some(lun) => errors.extend(between(lun, 0, &path.child("lun"))),
        }
    }
    errors
}

fn iscsi(source: &Value, of: Of<'_>, path: &Path) -> ErrorList {
    let mut errors = required(source, &["targetPortal"], path);
    if let Of::Persistent(name) = of
        && is_iscsi_name_too_long(source, name)
    {
        let portal = str_at(source, "targetPortal");
        errors.push(Error::invalid(&path.child("targetportal"), portal, ISCSI_TOO_LONG));
    }
    errors.extend(required(source, &["iqn"], path));
    let name = str_at(source, "iqn");
    if !name.is_empty() {
        errors.extend(iscsi_name(name, of, &path.child("iqn")));
    }
    errors.extend(between(int_at(source, "lun").unwrap_or_default(), 0, &path.child("lun")));
    let is_authenticated =
        bool_at(source, "chapAuthDiscovery") || bool_at(source, "chapAuthSession");
    if is_authenticated && !has(source, "secretRef") {
        errors.push(Error::required(&path.child("secretRef"), ""));
    }
    if let (Of::Persistent(_), secret @ Value::Object(_)) = (of, get(source, "secretRef")) {
        errors.extend(required(secret, &["name"], &path.child("secretRef")));
    }
    if let Some(name) = get(source, "initiatorName").as_str() {
        errors.extend(iscsi_name(name, of, &path.child("initiatorname")));
    }
    errors
}

/// Text of the error for a volume name that is too long in combination with its target portal.
pub(super) const ISCSI_TOO_LONG: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";

/// Reports whether the source has an initiator name and `name:targetPortal` is too long.
pub(super) fn is_iscsi_name_too_long(source: &Value, name: &str) -> bool {
    has(source, "initiatorName")
        && name.len() + 1 + str_at(source, "targetPortal").len() > ISCSI_NAME_MAX
}

fn iscsi_name(name: &str, of: Of<'_>, path: &Path) -> Option<Error> {
    let alphanumeric = |rest: &str, count: usize| {
        let mut chars = rest.chars();
        // Upstream's regular expressions have an unescaped dot, which matches any character but a
        // newline.
        chars.next().is_some_and(|any| any != '\n')
            && chars.as_str().len() == count
            && chars.all(|c| c.is_ascii_alphanumeric())
    };
    let is_good = if name.starts_with("iqn") {
        is_iqn(name)
    } else if let Some(rest) = name.strip_prefix("eui") {
        alphanumeric(rest, 16)
    } else if let Some(rest) = name.strip_prefix("naa") {
        alphanumeric(rest, 32)
    } else {
        let text = match of {
            Of::Pod => "must be valid format starting with iqn, eui, or naa",
            Of::Persistent(_) => "must be valid format",
        };
        return Some(Error::invalid(path, name, text));
    };
    (!is_good).then(|| Error::invalid(path, name, "must be valid format"))
}

/// Reports whether the name contains `iqn.<year>-<month>.<authority>:<rest>`. The match starts
/// anywhere and extends to the end of the name.
fn is_iqn(name: &str) -> bool {
    name.match_indices("iqn.").any(|(at, _)| {
        let rest = name.get(at + 4..).unwrap_or_default();
        let Some((head, tail)) = rest.split_once(':') else { return false };
        let bytes = head.as_bytes();
        let is_dated = bytes.iter().take(8).enumerate().all(|(i, byte)| match i {
            4 => *byte == b'-',
            7 => *byte == b'.',
            _ => byte.is_ascii_digit(),
        });
        let authority = bytes.get(8..).unwrap_or_default();
        is_dated
            && !authority.is_empty()
            && authority.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
            && !tail.is_empty()
            && !tail.contains([',', ';', '*', '&', '$', '|', ' ', '\t', '\n', '\r', '\u{c}'])
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bodies(kind: &str, source: Value, of: Of<'_>) -> Vec<String> {
        let path = Path::new("v").child(kind);
        let errors = old_source(kind, &source, of, &path);
        errors.iter().map(|e| format!("{}: {}", e.field, e.body())).collect()
    }

    // Expected texts: upstream's `validateFCVolumeSource`, `validateQuobyteVolumeSource` and the
    // functions next to them in pkg/apis/core/validation/validation.go.
    #[test]
    fn fibre_channel_takes_targets_with_a_lun_or_ids() {
        assert_eq!(
            bodies("fc", json!({"targetWWNs": ["a"], "wwids": ["b"], "lun": 256}), Of::Pod),
            [
                "v.fc.targetWWNs: Invalid value: [\"a\"]: targetWWNs and wwids can not be specified simultaneously",
                "v.fc.lun: Invalid value: 256: must be between 0 and 255, inclusive",
            ]
        );
        assert_eq!(
            bodies("fc", json!({"targetWWNs": ["a"]}), Of::Pod),
            ["v.fc.lun: Required value: lun is required if targetWWNs is specified"]
        );
        assert_eq!(
            bodies("fc", json!({}), Of::Pod),
            [
                "v.fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"
            ]
        );
        assert_eq!(bodies("fc", json!({"wwids": ["b"]}), Of::Pod), [""; 0]);
    }

    #[test]
    fn registries_of_quobyte_are_pairs() {
        let told = |registry: &str| {
            bodies("quobyte", json!({"registry": registry, "volume": "v"}), Of::Pod)
        };
        assert_eq!(told("a:1,[::1]:2,:3"), [""; 0]);
        let wrong = "must be a host:port pair or multiple pairs separated by commas";
        for registry in ["registryValue", "a:b:c", "[a:1", "a]:1", "::1"] {
            let want = format!("v.quobyte.registry: Invalid value: \"{registry}\": {wrong}");
            assert_eq!(told(registry), [want]);
        }
        assert_eq!(told(""), [format!("v.quobyte.registry: Required value: {wrong}")]);
    }

    #[test]
    fn names_of_iscsi_have_their_forms() {
        let told = |name: &str, of: Of<'_>| {
            bodies("iscsi", json!({"targetPortal": "p", "iqn": name, "lun": 0}), of)
        };
        for name in [
            "iqn.2015-02.example.com:test",
            "eui.0123456789ABCDEF",
            "naa.0123456789abcdef0123456789abcdef",
        ] {
            assert_eq!(told(name, Of::Pod), [""; 0]);
        }
        for name in ["iqn.2015-02.example.com", "iqn.2015-02.example.com:a b", "eui.0", "naa.x"] {
            let want = format!("v.iscsi.iqn: Invalid value: \"{name}\": must be valid format");
            assert_eq!(told(name, Of::Pod), [want]);
        }
        assert_eq!(
            told("x", Of::Pod),
            [
                "v.iscsi.iqn: Invalid value: \"x\": must be valid format starting with iqn, eui, or naa"
            ]
        );
        assert_eq!(
            told("x", Of::Persistent("pv")),
            ["v.iscsi.iqn: Invalid value: \"x\": must be valid format"]
        );
    }

    #[test]
    fn persistent_volumes_name_the_namespace_of_secrets() {
        let source = json!({"volumeID": "v", "secretRef": {"name": "s"}});
        assert_eq!(bodies("cinder", source.clone(), Of::Pod), [""; 0]);
        assert_eq!(
            bodies("cinder", source, Of::Persistent("pv")),
            ["v.cinder.secretRef.namespace: Required value"]
        );
    }

    #[test]
    fn disks_have_their_forms() {
        assert_eq!(
            bodies(
                "azureDisk",
                json!({"diskName": "d", "diskURI": "x", "kind": "Managed", "cachingMode": "x"}),
                Of::Pod
            ),
            [
                "v.azureDisk.cachingMode: Unsupported value: \"x\": supported values: \"None\", \"ReadOnly\", \"ReadWrite\"",
                "v.azureDisk.diskURI: Unsupported value: \"x\": supported values: \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
            ]
        );
        assert_eq!(
            bodies("awsElasticBlockStore", json!({"volumeID": "v", "partition": 256}), Of::Pod),
            [
                "v.awsElasticBlockStore.partition: Invalid value: 256: must be between 1 and 255, inclusive"
            ]
        );
        assert_eq!(
            bodies("flexVolume", json!({"driver": "d", "options": {"x.k8s.io/a": "b"}}), Of::Pod),
            [
                "v.flexVolume.options[x.k8s.io/a]: Invalid value: \"x.k8s.io/a\": kubernetes.io and k8s.io namespaces are reserved"
            ]
        );
    }
}
