//! Sets the fields that upstream sets when it reads an object that an older API server has stored:
//! the decorators of Services (`pkg/registry/core/service/storage`) and PersistentVolumeClaims
//! (`pkg/registry/core/persistentvolumeclaim/storage`).

use std::borrow::Cow;

use api::schema::Schema;
use api::value::{get, has, is_empty, items, object_mut, remove, set, str_at};
use api::{Gvk, defaults};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::registry::Resource;
use crate::serialization;

type Items = Vec<IgnoredAny>;

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ServiceSpec<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "clusterIP")]
    address: Option<Cow<'a, str>>,
    #[serde(rename = "clusterIPs")]
    addresses: Option<Items>,
    #[serde(rename = "ipFamilies")]
    families: Option<Items>,
    internal_traffic_policy: Option<IgnoredAny>,
    session_affinity: Option<IgnoredAny>,
}

impl ServiceSpec<'_> {
    fn is_current(&self) -> bool {
        let has = |items: &Option<Items>| items.as_ref().is_some_and(|items| !items.is_empty());
        let has_address = self.address.as_deref().is_some_and(|address| !address.is_empty());
        if self.session_affinity.is_none() || (has_address && !has(&self.addresses)) {
            return false;
        }
        match self.kind.as_deref() {
            None | Some("") => false,
            Some("ExternalName") => self.internal_traffic_policy.is_none(),
            Some(_) => has(&self.families) && self.internal_traffic_policy.is_some(),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ClaimSpec<'a> {
    volume_mode: Option<IgnoredAny>,
    data_source: Option<IgnoredAny>,
    #[serde(borrow)]
    data_source_ref: Option<SourceReference<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SourceReference<'a> {
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
}

impl ClaimSpec<'_> {
    fn is_current(&self) -> bool {
        let sources = match (&self.data_source, &self.data_source_ref) {
            (None, Some(reference)) => {
                reference.namespace.as_ref().is_some_and(|namespace| !namespace.is_empty())
            }
            (Some(_), None) => false,
            _ => true,
        };
        sources && self.volume_mode.is_some()
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shape<S> {
    spec: S,
}

/// The decorated kinds.
#[derive(Clone, Copy)]
enum Decorated {
    Service,
    Claim,
}

fn decorated(row: &Resource) -> Option<Decorated> {
    match (&*row.spec.gvr.group, &*row.spec.gvr.resource) {
        ("", "services") => Some(Decorated::Service),
        ("", "persistentvolumeclaims") => Some(Decorated::Claim),
        _ => None,
    }
}

/// The object with the fields that upstream sets on read; `None` when none is missing. `primary` is
/// the family of the cluster's first service range.
pub(super) fn decorate(row: &Resource, json: &[u8], primary: &str) -> Option<Bytes> {
    let kind = decorated(row)?;
    let is_current = match kind {
        Decorated::Service => {
            serde_json::from_slice::<Shape<ServiceSpec<'_>>>(json).ok()?.spec.is_current()
        }
        Decorated::Claim => {
            serde_json::from_slice::<Shape<ClaimSpec<'_>>>(json).ok()?.spec.is_current()
        }
    };
    if is_current {
        return None;
    }
    let before: Value = serde_json::from_slice(json).ok()?;
    let mut value = before.clone();
    fill_defaults(&row.spec.storage, &mut value);
    match kind {
        Decorated::Service => service(&mut value, primary),
        Decorated::Claim => claim(&mut value),
    }
    (value != before).then(|| crate::registry::storage::encode(row, &value).into())
}

/// Sets the defaults that upstream's decoder sets.
fn fill_defaults(kind: &Gvk, value: &mut Value) {
    let schema = Schema::builtin();
    serialization::default(&schema, kind, value);
    defaults::defaulter(&kind.group, &kind.version, &kind.kind)(value);
    serialization::normalize(&schema, kind, value);
}

/// `defaultOnReadService`.
fn service(value: &mut Value, primary: &str) {
    let Some(spec) = object_mut(value, "spec") else { return };
    let address = str_at(spec, "clusterIP").to_owned();
    if !address.is_empty() && is_empty(spec, "clusterIPs") {
        set(spec, "clusterIPs", json!([address]));
    }
    if str_at(spec, "type") == "ExternalName" {
        remove(spec, "internalTrafficPolicy");
        return;
    }
    if !is_empty(spec, "ipFamilies") {
        return;
    }
    let other = if primary == "IPv4" { "IPv6" } else { "IPv4" };
    let families = if address == "None" {
        if is_empty(spec, "selector") { vec![primary, other] } else { vec![primary] }
    } else {
        let family = |ip: &Value| {
            if ip.as_str().is_some_and(|ip| ip.contains(':')) { "IPv6" } else { "IPv4" }
        };
        items(spec, "clusterIPs").iter().map(family).collect()
    };
    match families.len() {
        1 => set(spec, "ipFamilyPolicy", "SingleStack"),
        2 => set(spec, "ipFamilyPolicy", "RequireDualStack"),
        _ => return,
    }
    set(spec, "ipFamilies", families);
}

/// `NormalizeDataSources`.
fn claim(value: &mut Value) {
    let Some(spec) = object_mut(value, "spec") else { return };
    let (source, reference) = (get(spec, "dataSource").clone(), get(spec, "dataSourceRef").clone());
    if source.is_object() && !has(spec, "dataSourceRef") {
        set(spec, "dataSourceRef", source);
    } else if reference.is_object()
        && !has(spec, "dataSource")
        && str_at(&reference, "namespace").is_empty()
    {
        set(spec, "dataSource", reference);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;
    use api::Gvr;
    use std::sync::Arc;

    fn row(resource: &str) -> Arc<Resource> {
        let registry = Registry::builtin(Schema::builtin());
        Arc::clone(registry.row(&Gvr::new("", "v1", resource)).unwrap())
    }

    fn read(resource: &str, spec: Value, primary: &str) -> Option<Value> {
        let object = json!({"metadata": {"name": "x", "namespace": "n"}, "spec": spec});
        let found = decorate(&row(resource), &serde_json::to_vec(&object).unwrap(), primary)?;
        let mut value: Value = serde_json::from_slice(&found).unwrap();
        // The result is complete.
        assert_eq!(decorate(&row(resource), &found, primary), None);
        Some(value["spec"].take())
    }

    fn service(spec: Value, primary: &str) -> (Value, Value, Value) {
        let spec = read("services", spec, primary).unwrap();
        let field = |name: &str| spec.get(name).cloned().unwrap_or_default();
        (field("clusterIPs"), field("ipFamilies"), field("ipFamilyPolicy"))
    }

    #[test]
    fn services_from_before_dual_stack_get_addresses_and_families() {
        let ports = json!([{"port": 80}]);
        assert_eq!(
            service(json!({"clusterIP": "10.43.0.9", "ports": ports}), "IPv4"),
            (json!(["10.43.0.9"]), json!(["IPv4"]), json!("SingleStack"))
        );
        assert_eq!(
            service(json!({"clusterIP": "fd00::9", "ports": ports}), "IPv4"),
            (json!(["fd00::9"]), json!(["IPv6"]), json!("SingleStack"))
        );
        let headless = json!({"clusterIP": "None", "selector": {"a": "b"}});
        assert_eq!(
            service(headless.clone(), "IPv6"),
            (json!(["None"]), json!(["IPv6"]), json!("SingleStack"))
        );
        assert_eq!(
            service(json!({"clusterIP": "None"}), "IPv4"),
            (json!(["None"]), json!(["IPv4", "IPv6"]), json!("RequireDualStack"))
        );
    }

    #[test]
    fn services_get_the_defaults_of_newer_fields() {
        let old = json!({"clusterIP": "10.43.0.9", "ports": [{"port": 80}]});
        let spec = read("services", old, "IPv4").unwrap();
        assert_eq!(spec["type"], "ClusterIP");
        assert_eq!(spec["sessionAffinity"], "None");
        assert_eq!(spec["internalTrafficPolicy"], "Cluster");
        assert_eq!(spec["ports"], json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]));
    }

    #[test]
    fn external_names_have_no_internal_traffic_policy_and_no_families() {
        let old = json!({"type": "ExternalName", "externalName": "a.example",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None"});
        let spec = read("services", old, "IPv4").unwrap();
        assert_eq!(
            spec,
            json!({"type": "ExternalName", "externalName": "a.example", "sessionAffinity": "None"})
        );
    }

    #[test]
    fn claims_have_both_forms_of_their_source() {
        let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot",
            "name": "other"});
        let fields = |spec: &Value| (spec["dataSource"].clone(), spec["dataSourceRef"].clone());
        let both = (source.clone(), source.clone());
        let old = json!({"dataSource": source, "volumeMode": "Filesystem"});
        assert_eq!(fields(&read("persistentvolumeclaims", old, "IPv4").unwrap()), both);
        let new = json!({"dataSourceRef": source, "volumeMode": "Filesystem"});
        assert_eq!(fields(&read("persistentvolumeclaims", new, "IPv4").unwrap()), both);
        let elsewhere = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot",
            "name": "o", "namespace": "m"});
        let foreign = json!({"dataSourceRef": elsewhere, "volumeMode": "Filesystem"});
        assert_eq!(read("persistentvolumeclaims", foreign, "IPv4"), None);
        let bare = read("persistentvolumeclaims", json!({"resources": {}}), "IPv4").unwrap();
        assert_eq!(bare["volumeMode"], "Filesystem");
    }

    #[test]
    fn other_kinds_and_complete_objects_are_unchanged() {
        assert_eq!(read("configmaps", json!({}), "IPv4"), None);
        let current = json!({"type": "ClusterIP", "clusterIP": "10.43.0.9",
            "clusterIPs": ["10.43.0.9"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"});
        assert_eq!(read("services", current, "IPv4"), None);
    }
}
