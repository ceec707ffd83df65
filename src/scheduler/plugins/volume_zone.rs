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

/// The topologies of the pod's bound volumes.
#[derive(Debug, Clone)]
pub(super) struct VolumeZone(Vec<VolumeTopology>);

impl Plugin for VolumeZone {
    const NAME: &'static str = "VolumeZone";

    fn queueing_hint(event: &Event<'_>, pod: &PodInfo) -> bool {
        match event {
            Event::Node | Event::PersistentVolume | Event::StorageClass => true,
            Event::PersistentVolumeClaim { namespace, name } => pod.uses_claim(namespace, name),
            _ => false,
        }
    }

    /// VolumeBinding rejects pods whose claims or volumes are missing.
    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let volume = |name: &String| {
            let claim = snapshot.listers.claim(&snapshot.pod.namespace, name)?;
            snapshot.listers.volume(claim.spec?.volume_name.as_deref()?)
        };
        let volumes = snapshot.pod.claims.iter().filter_map(volume);
        let all: Vec<VolumeTopology> = volumes.flat_map(|volume| topologies(&volume)).collect();
        (!all.is_empty()).then_some(Self(all))
    }

    fn filter(&self, _: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        let is_constrained = LABELS.iter().any(|(key, _)| node.labels.contains_key(*key));
        if is_constrained && !self.0.iter().all(|topology| topology.allows(&node.labels)) {
            return Err(Rejection::unresolvable("node(s) had no available volume zone"));
        }
        Ok(())
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
        VolumeZone(topologies(&volume)).filter(&snapshot, &node).is_ok()
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
