//! What makes a StatefulSet's pod itself: its ordinal, name, labels, and volume claims.

use api::k8s::api::apps::v1::StatefulSet;
use api::k8s::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use client::owner_reference;
use serde_json::{Value, json};
use sorting::CompactSort as _;

use crate::framework::pod_control::pod_from_template;

/// Label with the pod's own name, so that a Service can select one pod.
pub(super) const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
/// Label with the ordinal.
pub(super) const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";
/// Label with the name of the revision that the pod was made from.
pub(super) const REVISION_LABEL: &str = "controller-revision-hash";

/// Set's name and ordinal of a pod's name.
pub(super) fn parent_and_ordinal(name: &str) -> Option<(&str, i32)> {
    let (parent, ordinal) = name.rsplit_once('-')?;
    ordinal.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
    Some((parent, ordinal.parse().ok()?))
}

/// The set made this name.
pub(super) fn is_member(set: &StatefulSet, meta: &ObjectMeta) -> bool {
    let name = meta.name.as_deref().unwrap_or_default();
    parent_and_ordinal(name).is_some_and(|(parent, _)| Some(parent) == set.metadata.name.as_deref())
}

pub(super) fn ordinal_of(pod: &Pod) -> Option<i32> {
    parent_and_ordinal(pod.metadata.name.as_deref()?).map(|(_, ordinal)| ordinal)
}

/// The first ordinal, and the first after the last.
pub(super) fn range(set: &StatefulSet) -> std::ops::Range<i32> {
    let start = set.spec.ordinals.as_ref().and_then(|o| o.start).unwrap_or(0);
    start..start.saturating_add(set.spec.replicas.unwrap_or(1).max(0))
}

fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.metadata.name.as_deref().unwrap_or_default())
}

/// Name of the claim that a template makes for an ordinal.
pub(super) fn claim_name(template: &PersistentVolumeClaim, pod: &str) -> String {
    format!("{}-{pod}", template.metadata.name.as_deref().unwrap_or_default())
}

/// The claims of one pod.
pub(super) fn claims(set: &StatefulSet, pod: &str) -> Vec<PersistentVolumeClaim> {
    let templates = set.spec.volume_claim_templates.as_deref().unwrap_or_default();
    let made = templates.iter().map(|template| {
        let mut claim = template.clone();
        claim.metadata.name = Some(claim_name(template, pod));
        claim.metadata.namespace.clone_from(&set.metadata.namespace);
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(set.spec.selector.match_labels.clone().unwrap_or_default());
        claim.status = None;
        claim
    });
    made.collect()
}

/// A new pod of this ordinal from a revision's template.
pub(super) fn new_pod(
    set: &StatefulSet,
    template: &PodTemplateSpec,
    revision: &str,
    ordinal: i32,
) -> Pod {
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let mut pod = pod_from_template(template, "", namespace, owner_reference(set));
    let name = pod_name(set, ordinal);
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(NAME_LABEL.into(), name.clone());
    labels.insert(INDEX_LABEL.into(), ordinal.to_string());
    labels.insert(REVISION_LABEL.into(), revision.to_owned());
    let spec = pod.spec.get_or_insert_default();
    let templates = set.spec.volume_claim_templates.as_deref().unwrap_or_default();
    let mut volumes: Vec<Volume> = templates
        .iter()
        .map(|template| Volume {
            name: template.metadata.name.clone().unwrap_or_default(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(template, &name),
                read_only: None,
            }),
            ..Volume::default()
        })
        .collect();
    let taken: Vec<String> = volumes.iter().map(|v| v.name.clone()).collect();
    volumes.extend(
        spec.volumes.take().unwrap_or_default().into_iter().filter(|v| !taken.contains(&v.name)),
    );
    spec.volumes = (!volumes.is_empty()).then_some(volumes);
    spec.hostname = Some(name);
    spec.subdomain.clone_from(&set.spec.service_name);
    pod
}

/// The patch that gives an adopted pod its labels; `None` when it has them.
pub(super) fn missing_labels(pod: &Pod) -> Option<Value> {
    let name = pod.metadata.name.as_deref()?;
    let has = pod.metadata.labels.as_ref().and_then(|l| l.get(NAME_LABEL));
    if has.is_some_and(|n| n == name) {
        return None;
    }
    let (_, ordinal) = parent_and_ordinal(name)?;
    Some(json!({"metadata": {"labels": {NAME_LABEL: name, INDEX_LABEL: ordinal.to_string()}}}))
}

/// The revision that a pod was made from.
pub(super) fn revision_of(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|l| l.get(REVISION_LABEL)).map_or("", String::as_str)
}

/// The owner references that the retention policy requires on a pod's claim; `None` if they are set
/// already, or if another controller owns the claim.
pub(super) fn claim_owners(
    claim: &PersistentVolumeClaim,
    set: &StatefulSet,
    pod: &Pod,
) -> Option<Vec<OwnerReference>> {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    let deletes = |when: Option<&String>| when.is_some_and(|w| w == "Delete");
    let when_deleted = deletes(policy.and_then(|p| p.when_deleted.as_ref()));
    let when_scaled = deletes(policy.and_then(|p| p.when_scaled.as_ref()));
    let (set_ref, pod_ref) = (owner_reference(set), owner_reference(pod));
    let refs = claim.metadata.owner_references.clone().unwrap_or_default();
    let same = |r: &OwnerReference, o: &OwnerReference| {
        r.api_version == o.api_version && r.kind == o.kind && r.name == o.name
    };
    let ours = |r: &OwnerReference| same(r, &set_ref) || same(r, &pod_ref);
    // A reference to a set or pod of the same name that is gone: the collector deletes the claim.
    let stale = refs.iter().any(|r| {
        (same(r, &set_ref) && r.uid != set_ref.uid) || (same(r, &pod_ref) && r.uid != pod_ref.uid)
    });
    if stale {
        return None;
    }
    let foreign = (when_deleted || when_scaled)
        && refs.iter().any(|r| !ours(r) && r.controller == Some(true));
    let ordinal = ordinal_of(pod).unwrap_or(-1);
    let scaled_down = when_scaled && !range(set).contains(&ordinal);
    let mut wanted: Vec<OwnerReference> = refs.iter().filter(|r| !ours(r)).cloned().collect();
    if !foreign {
        if scaled_down {
            wanted.push(pod_ref);
        } else if when_deleted {
            wanted.push(set_ref);
        }
    }
    let facts = |all: &[OwnerReference]| {
        let mut facts: Vec<(String, bool)> =
            all.iter().map(|r| (r.uid.clone(), r.controller == Some(true))).collect();
        facts.compact_sort();
        facts
    };
    (facts(&wanted) != facts(&refs)).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(policy: (&str, &str)) -> StatefulSet {
        serde_json::from_value(json!({"metadata": {"name": "db", "namespace": "n", "uid": "s"},
            "spec": {"replicas": 2,
            "serviceName": "svc", "selector": {"matchLabels": {"app": "db"}},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": policy.0,
                "whenScaled": policy.1},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
            "template": {"metadata": {"labels": {"app": "db"}},
                "spec": {"containers": [], "volumes": [{"name": "data"}, {"name": "tmp"}]}}}}))
        .unwrap()
    }

    #[test]
    fn names_end_in_ordinals() {
        assert_eq!(parent_and_ordinal("web-1-12"), Some(("web-1", 12)));
        assert_eq!(parent_and_ordinal("web"), None);
        assert_eq!(parent_and_ordinal("web-+1"), None);
        assert_eq!(parent_and_ordinal("web-99999999999"), None);
    }

    #[test]
    fn a_pod_has_its_identity_and_claims() {
        let set = set(("Retain", "Retain"));
        let pod = new_pod(&set, &set.spec.template, "db-x", 1);
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(
            (spec.hostname.as_deref(), spec.subdomain.as_deref()),
            (Some("db-1"), Some("svc"))
        );
        let volumes = spec.volumes.as_ref().unwrap();
        let claim = volumes[0].persistent_volume_claim.as_ref().unwrap();
        assert_eq!((volumes.len(), claim.claim_name.as_str()), (2, "data-db-1"));
        let labels = pod.metadata.labels.as_ref().unwrap();
        assert_eq!((labels[NAME_LABEL].as_str(), labels[INDEX_LABEL].as_str()), ("db-1", "1"));
        assert_eq!(missing_labels(&pod), None);
        assert_eq!(claims(&set, "db-1")[0].metadata.labels.as_ref().unwrap()["app"], "db");
    }

    #[test]
    fn the_retention_policy_decides_who_owns_claims() {
        let claim = |refs: Value| -> PersistentVolumeClaim {
            serde_json::from_value(
                json!({"metadata": {"name": "data-db-1", "ownerReferences": refs}}),
            )
            .unwrap()
        };
        let pod = |name: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": name, "uid": "p"}})).unwrap()
        };
        let owned = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db",
            "uid": "s", "controller": true}]);
        let uids = |owners: Option<Vec<OwnerReference>>| {
            owners.map(|o| o.into_iter().map(|r| r.uid).collect::<Vec<_>>())
        };
        assert_eq!(
            uids(claim_owners(&claim(json!([])), &set(("Retain", "Retain")), &pod("db-1"))),
            None
        );
        assert_eq!(
            uids(claim_owners(&claim(json!([])), &set(("Delete", "Retain")), &pod("db-1"))),
            Some(vec!["s".into()])
        );
        assert_eq!(
            uids(claim_owners(&claim(owned.clone()), &set(("Retain", "Retain")), &pod("db-1"))),
            Some(vec![])
        );
        assert_eq!(
            uids(claim_owners(&claim(owned), &set(("Delete", "Delete")), &pod("db-2"))),
            Some(vec!["p".into()])
        );
        let gone = json!([{"apiVersion": "v1", "kind": "Pod", "name": "db-1", "uid": "before",
            "controller": true}]);
        assert_eq!(claim_owners(&claim(gone), &set(("Delete", "Delete")), &pod("db-1")), None);
    }
}
