//! Kinds and fields that are stored without effect: every write of one returns a warning, and
//! `kube-lite status` lists those in the store.

mod ingress_classes;

use std::collections::{BTreeMap, HashSet};

use api::Gvk;
use api::unsupported::{self, kinds};
use serde_json::Value;
use sorting::CompactSort as _;
use store::{KeyRange, RangeRequest};

pub(crate) use self::ingress_classes::IngressClasses;
use crate::registry::Resource;
use crate::registry::objects::Objects;

/// Objects read at once while they are counted.
const CHUNK: usize = 500;
/// Most warnings of one write, because clients print a line for each; the last one counts further
/// fields.
const WARNINGS_MAX: usize = 16;

/// Warnings for the kind and fields of a written object that have no effect. `classes` is the
/// result of [`IngressClasses::for_kind`].
pub(crate) fn warnings(kind: &Gvk, value: &Value, classes: &IngressClasses) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(why) = no_effect(kind, value, classes) {
        let version = kind.api_version();
        out.push(format!("{version} {}: has no effect: {why}", kind.kind));
    }
    let found = unsupported::fields(kind, value);
    let shown = found.iter().take(WARNINGS_MAX);
    let effect = effect_of_fields(kind);
    out.extend(shown.map(|f| format!("{}: not supported: {effect}", f.shown())));
    if let Some(more @ 1..) = found.len().checked_sub(WARNINGS_MAX) {
        out.push(format!("{more} more fields: not supported: {effect}"));
    }
    out
}

/// What an unsupported field of this kind causes: the node rejects pods with one.
fn effect_of_fields(kind: &Gvk) -> &'static str {
    match unsupported::pod_spec_path(kind) {
        Some(_) if &*kind.kind == "Pod" => "this pod will not start",
        Some(_) => "its pods will not start",
        None => "it has no effect",
    }
}

/// The signers that the certificate controller of this server implements.
const SIGNERS: &[&str] = &[
    "kubernetes.io/kube-apiserver-client",
    "kubernetes.io/kube-apiserver-client-kubelet",
    "kubernetes.io/kubelet-serving",
];

/// Why an object has no effect; `None` when a controller acts on it.
fn no_effect(kind: &Gvk, value: &Value, classes: &IngressClasses) -> Option<&'static str> {
    let why = kinds::kind(kind)?;
    let signer = value.pointer("/spec/signerName").and_then(Value::as_str);
    let is_signed = &*kind.kind == "CertificateSigningRequest"
        && signer.is_some_and(|name| SIGNERS.contains(&name));
    let is_routed = &*kind.kind == "Ingress" && classes.match_ingress(value);
    (!is_signed && !is_routed).then_some(why)
}

/// Stored objects whose kind, or one of whose fields, has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// `ingresses.networking.k8s.io`, or `pods spec.schedulingGroup`.
    pub what: String,
    /// How many objects.
    pub count: usize,
    /// Why there is no effect.
    pub why: String,
}

/// Counts the stored objects without effect, except those that every cluster starts with. Objects
/// that cannot be read are skipped: `kube-lite status` reports the store separately.
pub(crate) async fn in_use(objects: &Objects) -> Vec<Unused> {
    let registry = objects.registry();
    let mut out = Vec::new();
    let mut seen = HashSet::new();
    for row in registry.rows().filter(|row| row.is_stored()) {
        let kind = &row.spec.gvk;
        // Versions of one resource share their objects.
        let may_lack_effect = kinds::kind(kind).is_some() || unsupported::has_fields(kind);
        if !may_lack_effect || !seen.insert(row.spec.prefix.clone()) {
            continue;
        }
        let classes = IngressClasses::for_kind(kind, objects).await;
        let counts = count(objects, row, &classes).await;
        out.extend(counts.into_iter().map(|((what, why), count)| Unused { what, count, why }));
    }
    out.compact_sort_by(|a, b| a.what.cmp(&b.what));
    out
}

/// Counts the objects of one row by the kind or field without effect and the reason.
async fn count(
    objects: &Objects,
    row: &Resource,
    classes: &IngressClasses,
) -> BTreeMap<(String, String), usize> {
    let storage = objects.storage();
    let mut range = KeyRange::prefix(row.key_prefix("").into_bytes());
    let mut counts = BTreeMap::new();
    loop {
        let request = RangeRequest { limit: CHUNK, ..RangeRequest::new(range.clone()) };
        let Ok(found) = storage.backend().range(request).await else { return counts };
        storage.fetch(row, &found.kvs.iter().collect::<Vec<_>>()).await;
        for kv in &found.kvs {
            let value = storage.decode(row, kv).ok().and_then(|object| object.value().ok());
            for what in value.iter().flat_map(|value| uses(row, value, classes)) {
                *counts.entry(what).or_default() += 1;
            }
        }
        match found.kvs.last() {
            Some(last) if found.more => range.start = [&last.key[..], b"\0"].concat().into(),
            _ => return counts,
        }
    }
}

/// The kind or fields of an object that have no effect, with the reasons.
fn uses(row: &Resource, value: &Value, classes: &IngressClasses) -> HashSet<(String, String)> {
    let name = row.qualified();
    let whole = no_effect(&row.spec.gvk, value, classes);
    let whole = whole.map(|why| (name.clone(), why.to_owned()));
    let fields = unsupported::fields(&row.spec.gvk, value);
    let field = |f: unsupported::UnsupportedField| {
        let why = format!("not supported: {}", effect_of_fields(&row.spec.gvk));
        (format!("{name} {}", f.general()), why)
    };
    whole.into_iter().chain(fields.into_iter().map(field)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::schema::Schema;
    use serde_json::json;

    #[test]
    fn every_kind_of_the_table_is_served() {
        let registry = crate::registry::Registry::builtin(Schema::builtin());
        for (group, kind) in kinds::all() {
            let served = registry
                .rows()
                .any(|row| &*row.spec.gvk.group == group && &*row.spec.gvk.kind == kind);
            assert!(served, "{group} {kind}");
        }
    }

    #[test]
    fn certificate_request_warns_only_for_a_signer_that_does_not_run_here() {
        let kind = Gvk::new("certificates.k8s.io", "v1", "CertificateSigningRequest");
        let none = IngressClasses::default();
        let request =
            |signer: &str| warnings(&kind, &json!({"spec": {"signerName": signer}}), &none);
        for signer in ["kube-apiserver-client", "kube-apiserver-client-kubelet", "kubelet-serving"]
        {
            assert_eq!(request(&format!("kubernetes.io/{signer}")), Vec::<String>::new());
        }
        for signer in ["kubernetes.io/legacy-unknown", "example.com/signer"] {
            assert_eq!(
                request(signer),
                ["certificates.k8s.io/v1 CertificateSigningRequest: has no effect: \
                 this server runs no signer of that name"]
            );
        }
    }

    #[test]
    fn warnings_name_kind_and_fields() {
        let ingress = Gvk::new("networking.k8s.io", "v1", "Ingress");
        let none = IngressClasses::default();
        assert_eq!(
            warnings(&ingress, &json!({}), &none),
            [
                "networking.k8s.io/v1 Ingress: has no effect: no IngressClass matches it, so that no controller serves it"
            ]
        );
        let job = Gvk::new("batch", "v1", "Job");
        let set =
            json!({"spec": {"template": {"spec": {"schedulingGroup": {"podGroupName": "g"}}}}});
        assert_eq!(
            warnings(&job, &set, &none),
            ["spec.template.spec.schedulingGroup: not supported: its pods will not start"]
        );
        assert_eq!(warnings(&job, &json!({"spec": {}}), &none), Vec::<String>::new());
    }
}
