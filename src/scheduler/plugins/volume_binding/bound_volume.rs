//! Where a volume that is bound to a claim of the pod can be used.

use api::csi_translation::{self, MIGRATED_PLUGINS, Plugin as InTree, TranslationError};
use api::k8s::api::core::v1::{NodeSelectorTerm, PersistentVolume};
use api::k8s::api::storage::v1::CSINode;

use super::{affinity, allows};
use crate::node_info::NodeInfo;

/// Where a bound volume can be used; `None` everywhere.
#[derive(Debug, Clone, Default)]
pub(super) struct BoundVolume {
    affinity: Option<Vec<NodeSelectorTerm>>,
    /// The in-tree plugin of the volume, and the affinity for nodes that use its CSI driver.
    migrated: Option<(InTree, Option<Vec<NodeSelectorTerm>>)>,
}

impl BoundVolume {
    /// Reads a volume.
    ///
    /// # Errors
    /// It is of an in-tree plugin, and cannot be translated.
    pub(super) fn of(volume: &PersistentVolume) -> Result<Self, TranslationError> {
        let plugin = volume.spec.as_ref().and_then(InTree::of_volume);
        let migrated = match plugin.filter(|plugin| plugin.is_scheduled()) {
            Some(plugin) => csi_translation::persistent(volume)?.map(|v| (plugin, affinity(&v))),
            None => None,
        };
        Ok(Self { affinity: affinity(volume), migrated })
    }

    /// Whether it is of an in-tree plugin, so that the CSINode decides.
    pub(super) fn is_migrated(&self) -> bool {
        self.migrated.is_some()
    }

    /// Whether the volume can be used on a node with this CSINode (`tryTranslatePVToCSI`).
    pub(super) fn allows(&self, node: &NodeInfo, csi_node: Option<&CSINode>) -> bool {
        let translated = self
            .migrated
            .as_ref()
            .filter(|(plugin, _)| plugin.is_in(csi_node.and_then(migrated_plugins)));
        let terms = translated.map_or(&self.affinity, |(_, affinity)| affinity);
        terms.as_ref().is_none_or(|terms| allows(terms, node))
    }
}

/// The plugins whose volumes the node of a CSINode mounts by CSI.
pub(super) fn migrated_plugins(node: &CSINode) -> Option<&str> {
    node.metadata.annotations.as_ref()?.get(MIGRATED_PLUGINS).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::super::VolumeBinding;
    use super::*;
    use crate::event::Event;
    use crate::framework::Plugin as _;
    use crate::pod_info::PodInfo;
    use serde_json::json;

    /// The cases of upstream's `TestCheckBindingsWithCSIMigration` and of
    /// `TestIsSchedulableAfterCSINodeChange`.
    #[test]
    fn a_migrated_volume_follows_the_topology_of_its_driver() {
        let disk = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "us-east1-a"}},
            "spec": {"gcePersistentDisk": {"pdName": "d"}}});
        let bound = BoundVolume::of(&serde_json::from_value(disk).unwrap()).unwrap();
        let csi_node = |plugins: &str| -> CSINode {
            serde_json::from_value(json!({"metadata": {"annotations": {MIGRATED_PLUGINS: plugins}},
                "spec": {"drivers": []}}))
            .unwrap()
        };
        let (migrated, other) =
            (csi_node("kubernetes.io/gce-pd,x"), csi_node("kubernetes.io/aws-ebs"));
        let near = NodeInfo {
            labels: [("topology.gke.io/zone".to_owned(), "us-east1-a".to_owned())].into(),
            ..NodeInfo::default()
        };
        assert!(bound.allows(&near, Some(&migrated)));
        assert!(!bound.allows(&NodeInfo::default(), Some(&migrated)));
        assert!(
            bound.allows(&NodeInfo::default(), Some(&other))
                && bound.allows(&NodeInfo::default(), None)
        );
        let event = Event::CsiNodeUpdate { old: &other, new: &migrated };
        assert!(VolumeBinding::queueing_hint(&event, &PodInfo::default()));
        let event = Event::CsiNodeUpdate { old: &other, new: &other };
        assert!(!VolumeBinding::queueing_hint(&event, &PodInfo::default()));
    }
}
