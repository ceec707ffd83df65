//! VolumeZone: a node is in a zone and a region of the labels of the pod's volumes.

use std::collections::BTreeSet;

use api::k8s::api::core::v1::PersistentVolume;
use client::labels::Labels;
use sorting::CollectOrdered as _;

use crate::event::Event;
use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

/// The labels of zones and regions, and the current name of each.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];
/// Between the zones of a regional volume.
const SEPARATOR: &str = "__";

/// A label of a volume.
#[derive(Debug, Clone)]
struct VolumeTopology {
    key: &'static str,
    current_key: &'static str,
    values: BTreeSet<String>,
}

impl VolumeTopology {
    fn allows(&self, labels: &Labels) -> bool {
        let value = labels.get(self.key).or_else(|| labels.get(self.current_key));
        value.is_some_and(|value| self.values.contains(value))
    }
}

/// The topologies of the pod's bound volumes, or the rejection of all nodes.
#[derive(Debug, Clone)]
pub(super) struct VolumeZone(Result<Vec<VolumeTopology>, Rejection>);

impl Plugin for VolumeZone {
    const NAME: &'static str = "VolumeZone";

    fn queueing_hint(event: &Event<'_>, pod: &PodInfo) -> bool {
        match event {
            Event::Node | Event::PersistentVolume | Event::StorageClass => true,
            Event::PersistentVolumeClaim { namespace, name } => pod.uses_claim(namespace, name),
            _ => false,
        }
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let names = snapshot.pod.named_claims();
        let topologies: Result<Vec<Vec<VolumeTopology>>, Rejection> =
            names.map(|name| claim_topologies(snapshot, name)).collect();
        let all = topologies.map(|all| all.concat());
        (!all.as_ref().is_ok_and(Vec::is_empty)).then_some(Self(all))
    }

    fn verdict(&self) -> Result<(), Rejection> {
        self.0.as_ref().map(drop).map_err(Clone::clone)
    }

    fn filter(&self, _: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        let is_constrained = LABELS.iter().any(|(key, _)| node.labels.contains_key(*key));
        let topologies = self.0.as_deref().unwrap_or_default();
        if is_constrained && !topologies.iter().all(|topology| topology.allows(&node.labels)) {
            return Err(Rejection::unresolvable("node(s) had no available volume zone"));
        }
        Ok(())
    }
}

/// The topologies of the volume of a claim; none if it waits for the pod.
fn claim_topologies(snapshot: &Snapshot<'_>, name: &str) -> Result<Vec<VolumeTopology>, Rejection> {
    let reject = |text: String| Err(Rejection::unresolvable(text));
    let Some(claim) = snapshot.listers.claim(&snapshot.pod.namespace, name) else {
        return reject(format!("persistentvolumeclaim \"{name}\" not found"));
    };
    let spec = claim.spec.unwrap_or_default();
    let volume = spec.volume_name.unwrap_or_default();
    if !volume.is_empty() {
        return match snapshot.listers.volume(&volume) {
            Some(volume) => Ok(topologies(&volume)),
            None => reject(format!("persistentvolume \"{volume}\" not found")),
        };
    }
    let class_name = spec.storage_class_name.unwrap_or_default();
    if class_name.is_empty() {
        return reject("PersistentVolumeClaim had no pv name and storageClass name".into());
    }
    let Some(class) = snapshot.listers.storage_class(&class_name) else {
        return reject(format!("storageclass.storage.k8s.io \"{class_name}\" not found"));
    };
    match class.volume_binding_mode.as_deref() {
        Some("WaitForFirstConsumer") => Ok(Vec::new()),
        Some(_) => reject("PersistentVolume had no name".into()),
        None => reject(format!("VolumeBindingMode not set for StorageClass {class_name:?}")),
    }
}

/// The topologies of a volume; a label with an empty zone is ignored.
fn topologies(volume: &PersistentVolume) -> Vec<VolumeTopology> {
    let labels = volume.metadata.labels.as_ref();
    let topology = |&(key, current_key): &(&'static str, &'static str)| {
        let zones = labels?.get(key)?.split(SEPARATOR).map(str::trim);
        if zones.clone().any(str::is_empty) {
            return None;
        }
        let values = zones.map(str::to_owned).collect_set();
        Some(VolumeTopology { key, current_key, values })
    };
    LABELS.iter().filter_map(topology).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fits(volume: Value, node: &[(&str, &str)]) -> bool {
        let volume = serde_json::from_value(json!({"metadata": {"labels": volume}})).unwrap();
        let labels = node.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let node = NodeInfo { labels, ..NodeInfo::default() };
        let pod = std::sync::Arc::new(PodInfo::default());
        let snapshot = Snapshot::with(&pod, &[], &crate::listers::NoObjects);
        VolumeZone(Ok(topologies(&volume))).filter(&snapshot, &node).is_ok()
    }

    /// The cases of upstream's `TestSingleZone` and `TestMultiZone`.
    #[test]
    fn a_node_is_in_a_zone_of_the_volume() {
        const ZONE: &str = "topology.kubernetes.io/zone";
        const BETA: &str = "failure-domain.beta.kubernetes.io/zone";
        assert!(fits(json!({ZONE: "a"}), &[]), "a node without zones");
        assert!(fits(json!({ZONE: "a"}), &[(ZONE, "a")]));
        assert!(!fits(json!({ZONE: "a"}), &[(ZONE, "b")]));
        assert!(fits(json!({ZONE: "a__b"}), &[(ZONE, "b")]));
        assert!(!fits(json!({ZONE: "a__b"}), &[(ZONE, "c")]));
        assert!(fits(json!({BETA: "a"}), &[(ZONE, "a")]), "the beta label of a volume");
        assert!(!fits(json!({ZONE: "a"}), &[(BETA, "a")]));
        assert!(fits(json!({ZONE: "a__"}), &[(ZONE, "c")]), "an ignored label");
        assert!(fits(json!({}), &[(ZONE, "c")]));
    }
}
