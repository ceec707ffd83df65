//! Kinds and fields that are stored but not acted on yet: every write of one is told so by a warning, and `status` lists them.

use api::Gvk;
use serde_json::Value;
use store::kv::{KeyRange, RangeRequest};

use crate::objects::Objects;
use crate::registry::Resource;

const CSI: &str = "no storage driver (CSI) is called";
const DEVICES: &str = "devices are neither allocated nor prepared";
const ADMISSION: &str = "it is not asked when objects are written";
const FLOW: &str = "requests are limited by number alone (--max-requests-inflight of upstream)";

/// Group, kind and what does not happen, for kinds that nothing here acts on.
const KINDS: &[(&str, &str, &str)] = &[
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy", ADMISSION),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding", ADMISSION),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", ADMISSION),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", ADMISSION),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding", ADMISSION),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", ADMISSION),
    ("apiextensions.k8s.io", "CustomResourceDefinition", "the kind it defines is not served"),
    ("apiregistration.k8s.io", "APIService", "requests are not handed to another API server"),
    ("autoscaling", "HorizontalPodAutoscaler", "nothing is scaled by it"),
    ("certificates.k8s.io", "CertificateSigningRequest", "no signer runs, it stays pending"),
    ("certificates.k8s.io", "ClusterTrustBundle", "it cannot be mounted into pods"),
    ("certificates.k8s.io", "PodCertificateRequest", "no signer runs, it stays pending"),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema", FLOW),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", FLOW),
    ("networking.k8s.io", "Ingress", "no ingress controller runs as part of this server"),
    ("networking.k8s.io", "NetworkPolicy", "traffic of pods is not filtered"),
    ("resource.k8s.io", "DeviceClass", DEVICES),
    ("resource.k8s.io", "DeviceTaintRule", DEVICES),
    ("resource.k8s.io", "ResourceClaim", DEVICES),
    ("resource.k8s.io", "ResourceClaimTemplate", DEVICES),
    ("resource.k8s.io", "ResourceSlice", DEVICES),
    ("storage.k8s.io", "CSIDriver", CSI),
    ("storage.k8s.io", "CSINode", CSI),
    ("storage.k8s.io", "CSIStorageCapacity", CSI),
    ("storage.k8s.io", "VolumeAttachment", CSI),
    ("storage.k8s.io", "VolumeAttributesClass", CSI),
    ("storagemigration.k8s.io", "StorageVersionMigration", "stored objects are not rewritten"),
];

/// Group, kind, and pairs of a path (`*` for every element of a list or map) and what does not happen.
const FIELDS: &[(&str, &str, &[(&str, &str)])] = &[
    ("", "PersistentVolumeClaim", &[("spec.volumeAttributesClassName", CSI)]),
    ("", "Service", &[("spec.trafficDistribution", "endpoints get no hints, all are used alike")]),
];

/// Marks objects that every cluster starts with (`flowcontrol.apiserver.k8s.io`).
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// Objects looked at in one piece while `status` counts.
const CHUNK: usize = 500;

/// What one write sets that nothing acts on, as sentences for warnings.
pub(crate) fn warnings(kind: &Gvk, value: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(why) = unused_kind(kind) {
        out.push(format!(
            "{} {}: stored, but not acted on yet: {why}",
            kind.api_version(),
            kind.kind
        ));
    }
    out.extend(
        unused_fields(kind, value)
            .map(|(path, why)| format!("{path}: stored, but not acted on yet: {why}")),
    );
    out
}

fn unused_kind(kind: &Gvk) -> Option<&'static str> {
    let found =
        KINDS.iter().find(|(group, name, _)| *group == &*kind.group && *name == &*kind.kind);
    found.map(|(.., why)| *why)
}

fn fields_of(kind: &Gvk) -> &'static [(&'static str, &'static str)] {
    let known =
        FIELDS.iter().find(|(group, name, _)| *group == &*kind.group && *name == &*kind.kind);
    known.map_or(&[], |(.., fields)| fields)
}

fn unused_fields<'a>(
    kind: &Gvk,
    value: &'a Value,
) -> impl Iterator<Item = (&'static str, &'static str)> + 'a {
    let set = |path: &str| is_set(value, &path.split('.').collect::<Vec<_>>());
    fields_of(kind).iter().copied().filter(move |(path, _)| set(path))
}

fn is_set(value: &Value, path: &[&str]) -> bool {
    match (path.split_first(), value) {
        (None, value) => !value.is_null(),
        (Some((&"*", rest)), Value::Array(items)) => items.iter().any(|item| is_set(item, rest)),
        (Some((&"*", rest)), Value::Object(map)) => map.values().any(|item| is_set(item, rest)),
        (Some((key, rest)), value) => value.get(key).is_some_and(|item| is_set(item, rest)),
    }
}

/// Stored objects that are a kind, or set a field, that nothing acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// `ingresses.networking.k8s.io`, or `services spec.trafficDistribution`.
    pub what: String,
    /// How many objects.
    pub count: usize,
    /// What does not happen.
    pub why: String,
}

/// What the store holds that nothing acts on; without the objects that every cluster starts with. Kinds that cannot be read
/// are left out: `status` reports the store itself.
pub(crate) async fn in_use(objects: &Objects) -> Vec<Unused> {
    let registry = objects.registry();
    let mut out = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for row in registry.rows().filter(|row| row.is_stored()) {
        let kind = &row.spec.gvk;
        // Versions of one resource share their objects.
        if !seen.insert(row.spec.prefix.clone()) {
            continue;
        }
        if let Some(why) = unused_kind(kind) {
            let count = count(objects, row, |value| !is_given(value)).await;
            out.push(Unused { what: row.qualified(), count, why: why.to_owned() });
        }
        for (path, why) in fields_of(kind) {
            let parts: Vec<&str> = path.split('.').collect();
            let count = count(objects, row, |value| is_set(value, &parts)).await;
            let what = format!("{} {path}", row.qualified());
            out.push(Unused { what, count, why: (*why).to_owned() });
        }
    }
    out.retain(|unused| unused.count > 0);
    out.sort_by(|a, b| a.what.cmp(&b.what));
    out
}

fn is_given(value: &Value) -> bool {
    value.pointer("/metadata/annotations").and_then(|a| a.get(AUTOUPDATE)).is_some()
}

async fn count(objects: &Objects, row: &Resource, counts: impl Fn(&Value) -> bool) -> usize {
    let storage = objects.storage();
    let mut range = KeyRange::prefix(row.key_prefix("").into_bytes());
    let mut total = 0;
    loop {
        let request = RangeRequest { limit: CHUNK, ..RangeRequest::new(range.clone()) };
        let Ok(found) = storage.backend().range(request).await else { return total };
        for kv in &found.kvs {
            let value = storage.decode(row, kv).ok().and_then(|object| object.value().ok());
            total += usize::from(value.is_some_and(|value| counts(&value)));
        }
        match found.kvs.last() {
            Some(last) if found.more => {
                range.start = [&last.key[..], b"\0"].concat().into();
            }
            _ => return total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::schema::Schema;
    use serde_json::json;

    #[test]
    fn paths_reach_through_lists() {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"stdin": true}]}});
        assert!(is_set(&pod, &["spec", "containers", "*", "stdin"]));
        assert!(!is_set(&pod, &["spec", "containers", "*", "tty"]));
    }

    #[test]
    fn every_kind_of_the_table_is_served() {
        let registry = crate::registry::Registry::builtin(Schema::builtin());
        let kinds = KINDS.iter().map(|(group, kind, _)| (group, kind));
        for (group, kind) in kinds.chain(FIELDS.iter().map(|(group, kind, _)| (group, kind))) {
            let served = registry
                .rows()
                .any(|row| &*row.spec.gvk.group == *group && &*row.spec.gvk.kind == *kind);
            assert!(served, "{group} {kind}");
        }
    }

    #[test]
    fn a_write_is_told_of_kind_and_field() {
        let policy = Gvk::new("networking.k8s.io", "v1", "NetworkPolicy");
        assert_eq!(
            warnings(&policy, &json!({})),
            [
                "networking.k8s.io/v1 NetworkPolicy: stored, but not acted on yet: traffic of pods is not filtered"
            ]
        );
        let service = Gvk::new("", "v1", "Service");
        let set = json!({"spec": {"trafficDistribution": "PreferClose"}});
        assert_eq!(warnings(&service, &set).len(), 1);
        assert_eq!(warnings(&service, &json!({"spec": {}})), Vec::<String>::new());
    }
}
