//! Which volume suits which claim.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::StorageClass;
use api::k8s::apimachinery::pkg::api::resource::Quantity as RawQuantity;
use api::quantity::Quantity;

pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub(super) const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(super) const BETA_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const BETA_DEFAULT_CLASS: &str = "storageclass.beta.kubernetes.io/is-default-class";

type Annotations = Option<BTreeMap<String, String>>;

pub(super) fn annotation<'a>(annotations: &'a Annotations, name: &str) -> Option<&'a str> {
    annotations.as_ref()?.get(name).map(String::as_str)
}

/// The storage class of a claim; empty for none.
pub(super) fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    annotation(&claim.metadata.annotations, BETA_CLASS)
        .or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref())
        .unwrap_or_default()
}

/// Whether the claim names a class, be it the empty one.
pub(super) fn has_class(claim: &PersistentVolumeClaim) -> bool {
    annotation(&claim.metadata.annotations, BETA_CLASS).is_some()
        || claim.spec.as_ref().is_some_and(|s| s.storage_class_name.is_some())
}

/// The storage class of a volume; empty for none.
pub(super) fn volume_class(volume: &PersistentVolume) -> &str {
    annotation(&volume.metadata.annotations, BETA_CLASS)
        .or_else(|| volume.spec.as_ref()?.storage_class_name.as_deref())
        .unwrap_or_default()
}

/// The newest of the default classes, the first by name of equally old ones.
pub(super) fn default_class(classes: &[StorageClass]) -> Option<&StorageClass> {
    let is_default = |c: &&StorageClass| {
        [DEFAULT_CLASS, BETA_DEFAULT_CLASS]
            .iter()
            .any(|a| annotation(&c.metadata.annotations, a) == Some("true"))
    };
    let rank = |c: &&StorageClass| {
        let created = c.metadata.creation_timestamp.as_ref().map(|t| t.0);
        (std::cmp::Reverse(created), c.metadata.name.clone())
    };
    classes.iter().filter(is_default).min_by_key(rank)
}

fn storage(list: Option<&BTreeMap<String, RawQuantity>>) -> Option<Quantity> {
    Quantity::parse(&list?.get("storage")?.0).ok()
}

/// `spec.capacity.storage`.
pub(super) fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    storage(volume.spec.as_ref()?.capacity.as_ref())
}

/// `spec.resources.requests.storage`.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    storage(claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref())
}

/// The volume is bound, or reserved by its user, for this claim.
pub(super) fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    reference.is_some_and(|r| {
        r.name == claim.metadata.name
            && r.namespace == claim.metadata.namespace
            && r.uid
                .as_ref()
                .is_none_or(|uid| uid.is_empty() || Some(uid) == claim.metadata.uid.as_ref())
    })
}

/// The modes in which the volume is used differ (`Filesystem`, `Block`).
pub(super) fn mode_differs(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let or = |mode: Option<&String>| mode.map_or("Filesystem", String::as_str).to_owned();
    or(volume.spec.as_ref().and_then(|s| s.volume_mode.as_ref()))
        != or(claim.spec.as_ref().and_then(|s| s.volume_mode.as_ref()))
}

fn attributes_differ(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let own = volume.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref());
    let wanted = claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref());
    own.unwrap_or_default() != wanted.unwrap_or_default()
}

fn modes(volume: &PersistentVolume) -> &[String] {
    volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default()
}

fn has_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let wanted = claim.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    wanted.iter().all(|m| modes(volume).contains(m))
}

/// Why a volume that the claim names does not do for it.
pub(super) fn refusal(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    if volume.metadata.deletion_timestamp.is_some() {
        return Some(format!("the volume is marked for deletion {name:?}"));
    }
    let text = match () {
        () if capacity(volume) < requested(claim) => "requested PV is too small",
        () if volume_class(volume) != claim_class(claim) => "storageClassName does not match",
        () if attributes_differ(volume, claim) => "volumeAttributesClassName does not match",
        () if mode_differs(volume, claim) => "incompatible volumeMode",
        () if !has_modes(volume, claim) => "incompatible accessMode",
        () => return None,
    };
    Some(text.to_owned())
}

/// The best volume: of those with the fewest access modes one that is bound to the claim already,
/// else the smallest. With `delayed` binding only the scheduler chooses among free ones.
pub(super) fn best<'a>(
    volumes: &'a [PersistentVolume],
    claim: &PersistentVolumeClaim,
    delayed: bool,
) -> Option<&'a PersistentVolume> {
    let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
    let taken = |v: &PersistentVolume| v.spec.as_ref().is_some_and(|s| s.claim_ref.is_some());
    let phase = |v: &PersistentVolume| v.status.as_ref().and_then(|s| s.phase.clone());
    let suits = |v: &PersistentVolume| {
        has_modes(v, claim)
            && capacity(v) >= requested(claim)
            && !mode_differs(v, claim)
            && !attributes_differ(v, claim)
            && v.metadata.deletion_timestamp.is_none()
    };
    let free = |v: &PersistentVolume| {
        !delayed
            && !taken(v)
            && phase(v).as_deref() == Some("Available")
            && selector.is_none_or(|s| client::labels::selects(s, v.metadata.labels.as_ref()))
            && volume_class(v) == claim_class(claim)
    };
    let candidates = volumes.iter().filter(|v| suits(v) && (is_bound_to(v, claim) || free(v)));
    candidates.min_by(|a, b| {
        let rank = |v: &PersistentVolume| (modes(v).len(), !is_bound_to(v, claim));
        rank(a).cmp(&rank(b)).then_with(|| {
            capacity(a).partial_cmp(&capacity(b)).unwrap_or(std::cmp::Ordering::Equal)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(name: &str, size: &str, spec: &Value) -> PersistentVolume {
        let mut value = json!({"metadata": {"name": name, "labels": {"n": name}},
            "spec": {"capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"], "storageClassName": "c"},
            "status": {"phase": "Available"}});
        for (field, v) in spec.as_object().into_iter().flatten() {
            value["spec"][field] = v.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    fn claim(spec: &Value) -> PersistentVolumeClaim {
        let mut value = json!({"metadata": {"name": "x", "namespace": "n", "uid": "u"},
            "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": "c", "resources": {"requests": {"storage": "1Gi"}}}});
        for (field, v) in spec.as_object().into_iter().flatten() {
            value["spec"][field] = v.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    fn chosen(
        volumes: &[PersistentVolume],
        claim: &PersistentVolumeClaim,
        delayed: bool,
    ) -> Option<String> {
        best(volumes, claim, delayed).and_then(|v| v.metadata.name.clone())
    }

    #[test]
    fn the_smallest_that_is_large_enough_unless_one_is_reserved() {
        let mut all = vec![
            volume("big", "10Gi", &json!({})),
            volume("fits", "1Gi", &json!({})),
            volume("small", "1000Mi", &json!({})),
            volume("other", "1Gi", &json!({"storageClassName": "d"})),
        ];
        let plain = claim(&json!({}));
        assert_eq!(chosen(&all, &plain, false).as_deref(), Some("fits"));
        assert_eq!(chosen(&all, &plain, true), None);
        let picky = claim(&json!({"selector": {"matchLabels": {"n": "big"}}}));
        assert_eq!(chosen(&all, &picky, false).as_deref(), Some("big"));
        all.push(volume("mine", "9Gi", &json!({"claimRef": {"name": "x", "namespace": "n"}})));
        assert_eq!(chosen(&all, &plain, true).as_deref(), Some("mine"));
        assert_eq!(chosen(&all, &plain, false).as_deref(), Some("mine"));
    }

    #[test]
    fn a_named_volume_is_refused_with_upstreams_words() {
        let of = |v: &Value, c: &Value| refusal(&volume("v", "1Gi", v), &claim(c));
        assert_eq!(of(&json!({}), &json!({})), None);
        assert_eq!(
            of(&json!({}), &json!({"resources": {"requests": {"storage": "2Gi"}}})).as_deref(),
            Some("requested PV is too small")
        );
        assert_eq!(
            of(&json!({"storageClassName": null}), &json!({})).as_deref(),
            Some("storageClassName does not match")
        );
        assert_eq!(
            of(&json!({"volumeMode": "Block"}), &json!({})).as_deref(),
            Some("incompatible volumeMode")
        );
        assert_eq!(
            of(&json!({}), &json!({"accessModes": ["ReadWriteMany"]})).as_deref(),
            Some("incompatible accessMode")
        );
    }

    #[test]
    fn the_newest_default_class_wins() {
        let class = |name: &str, at: &str, default: &str| -> StorageClass {
            serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": at,
                "annotations": {DEFAULT_CLASS: default}}, "provisioner": "p"}))
            .unwrap()
        };
        let all = [
            class("a", "2026-01-01T00:00:00Z", "true"),
            class("c", "2026-02-01T00:00:00Z", "true"),
            class("b", "2026-02-01T00:00:00Z", "true"),
            class("z", "2026-03-01T00:00:00Z", "false"),
        ];
        assert_eq!(default_class(&all).unwrap().metadata.name.as_deref(), Some("b"));
    }
}
