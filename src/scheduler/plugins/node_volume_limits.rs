//! NodeVolumeLimits: a node attaches no more volumes of a CSI driver than its CSINode allows.

use std::collections::{BTreeMap, BTreeSet};

use api::csi_translation::{self, Plugin as InTree, driver_of};
use api::k8s::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::{CSINode, CSINodeDriver};
use sorting::CollectOrdered as _;

use crate::event::Event;
use crate::framework::{Plugin, Snapshot};
use crate::listers::Listers;
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

/// A volume of a CSI driver. Pods that use the same volume on a node attach it once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct CsiVolume {
    driver: String,
    handle: Handle,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Handle {
    /// The handle that the driver gave the volume.
    Volume(String),
    /// Namespace and name of a claim that has no volume yet: it becomes one of the class's driver.
    PendingClaim(String, String),
}

/// The CSI volumes of the pod.
#[derive(Debug, Clone)]
pub(super) struct NodeVolumeLimits {
    volumes: BTreeSet<CsiVolume>,
    /// Drivers of these volumes that must be installed on the node
    /// (`CSIDriver.spec.preventPodSchedulingIfMissing`).
    required_drivers: BTreeSet<String>,
}

impl Plugin for NodeVolumeLimits {
    const NAME: &'static str = "NodeVolumeLimits";

    /// Upstream leaves out new nodes because every kubelet creates a CSINode; a node without one
    /// has no limits.
    fn queueing_hint(event: &Event<'_>, pod: &PodInfo) -> bool {
        match event {
            Event::Node | Event::CsiNodeAdd => true,
            Event::CsiNodeUpdate { old, new } => raises_a_limit(old, new),
            Event::AssignedPodDelete(deleted) => {
                !deleted.claims.is_empty() || !deleted.inline_volumes.is_empty()
            }
            Event::PersistentVolumeClaim { namespace, name } => pod.uses_claim(namespace, name),
            Event::VolumeAttachmentDelete => {
                !pod.claims.is_empty() || !pod.inline_volumes.is_empty()
            }
            _ => false,
        }
    }

    /// A claim that does not exist counts nothing here: VolumeBinding rejects its pod.
    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let mut volumes = BTreeSet::new();
        add_volumes(snapshot.pod, snapshot.listers, &mut volumes);
        let prevents = |driver: &str| {
            let driver = snapshot.listers.csi_driver(driver);
            driver.is_some_and(|d| d.spec.prevent_pod_scheduling_if_missing == Some(true))
        };
        let drivers: BTreeSet<&str> = volumes.iter().map(|v| v.driver.as_str()).collect_set();
        let required = drivers.into_iter().filter(|driver| prevents(driver));
        let required_drivers = required.map(str::to_owned).collect();
        (!volumes.is_empty()).then_some(Self { volumes, required_drivers })
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        let csi_node = snapshot.listers.csi_node(&node.name);
        let installed = csi_node.as_deref().map_or(&[][..], drivers_of);
        let is_installed = |driver: &&String| installed.iter().any(|d| d.name == **driver);
        if let Some(missing) = self.required_drivers.iter().find(|driver| !is_installed(driver)) {
            return Err(Rejection::new(format!(
                "{missing} CSI driver is not installed on the node"
            )));
        }
        let limited = |driver: &str| self.volumes.iter().any(|v| v.driver == driver);
        let limits: BTreeMap<&str, usize> = installed
            .iter()
            .filter(|driver| limited(&driver.name))
            .filter_map(|driver| Some((driver.name.as_str(), limit(driver)?)))
            .collect_map();
        // Every claim and every attachment is at most one volume: most nodes are far from their
        // limits, and their claims need not be looked up.
        let attachments = snapshot.listers.volume_attachments(&node.name);
        let volumes = |pod: &PodInfo| pod.claims.len() + pod.inline_volumes.len();
        let volumes: usize = node.pods.iter().map(|pod| volumes(pod)).sum();
        let most = volumes + attachments.len() + self.volumes.len();
        if limits.values().all(|limit| most <= *limit) {
            return Ok(());
        }
        let mut attached = BTreeSet::new();
        for pod in &node.pods {
            add_volumes(pod, snapshot.listers, &mut attached);
        }
        let mut in_attachments = BTreeSet::new();
        for attachment in &attachments {
            let volume = attachment.spec.source.persistent_volume_name.as_deref();
            let volume = volume.and_then(|name| snapshot.listers.volume(name));
            if let Some(source) = volume.and_then(csi_source) {
                let handle = Handle::Volume(source.volume_handle);
                in_attachments
                    .insert(CsiVolume { driver: attachment.spec.attacher.clone(), handle });
            }
        }
        let exceeds = |(driver, limit): (&&str, &usize)| {
            let of_driver = |volume: &&CsiVolume| volume.driver == **driver;
            let new = self.volumes.difference(&attached).filter(of_driver).count();
            let current = attached.union(&in_attachments).filter(of_driver).count();
            new > 0 && current + new > *limit
        };
        if limits.iter().any(exceeds) {
            return Err(Rejection::new("node(s) exceed max volume count"));
        }
        Ok(())
    }
}

fn drivers_of(node: &CSINode) -> &[CSINodeDriver] {
    &node.spec.drivers
}

/// The most volumes of the driver on its node; `None` without a limit.
fn limit(driver: &CSINodeDriver) -> Option<usize> {
    let count = driver.allocatable.as_ref()?.count?;
    Some(usize::try_from(count).unwrap_or(0))
}

/// The update raises the limit of a driver. A driver without a limit counts as 0, as upstream.
fn raises_a_limit(old: &CSINode, new: &CSINode) -> bool {
    let limit_in = |node: &CSINode, name: &str| {
        let driver = drivers_of(node).iter().find(|d| d.name == name);
        driver.and_then(limit).unwrap_or(0)
    };
    drivers_of(new).iter().any(|d| limit_in(new, &d.name) > limit_in(old, &d.name))
}

/// The CSI source of a volume, translated for an in-tree plugin; `None` if it has none.
fn csi_source(volume: PersistentVolume) -> Option<CSIPersistentVolumeSource> {
    let spec = volume.spec.as_ref()?;
    if InTree::of_volume(spec).is_some_and(InTree::is_scheduled) {
        return csi_translation::persistent(&volume).ok()??.spec?.csi;
    }
    volume.spec?.csi
}

/// Adds the CSI volumes of the pod and of its claims. Claims that do not exist are left out.
fn add_volumes(pod: &PodInfo, listers: &dyn Listers, volumes: &mut BTreeSet<CsiVolume>) {
    for name in &pod.claims {
        let claim = listers.claim(&pod.namespace, name);
        volumes.extend(claim.and_then(|claim| volume_of(&claim, listers)));
    }
    volumes.extend(pod.inline_volumes.iter().map(|volume| CsiVolume {
        driver: volume.driver.clone(),
        handle: Handle::Volume(volume.handle.clone()),
    }));
}

/// The volume of the claim, or the one that the driver of its class will provision; `None` when it
/// is not a CSI volume.
fn volume_of(claim: &PersistentVolumeClaim, listers: &dyn Listers) -> Option<CsiVolume> {
    let spec = claim.spec.as_ref()?;
    let name = spec.volume_name.as_deref().filter(|name| !name.is_empty());
    if let Some(volume) = name.and_then(|name| listers.volume(name)) {
        let source = csi_source(volume)?;
        return Some(CsiVolume {
            driver: source.driver,
            handle: Handle::Volume(source.volume_handle),
        });
    }
    let class = listers.storage_class(spec.storage_class_name.as_deref()?)?;
    // Volumes of the other in-tree plugins count nowhere.
    let is_counted = InTree::of_name(&class.provisioner).is_none_or(InTree::is_scheduled);
    let driver = is_counted.then(|| driver_of(&class.provisioner).to_owned())?;
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    let name = claim.metadata.name.clone().unwrap_or_default();
    Some(CsiVolume { driver, handle: Handle::PendingClaim(namespace, name) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::k8s::api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
    use serde_json::{Value, json};
    use std::sync::Arc;

    /// A claim `x` has the volume `x` of the driver `csi`; `pending` waits for one of that driver;
    /// `local` has a volume without driver. The node `n` allows `limit` volumes.
    #[derive(Default)]
    struct Cluster {
        limit: Option<i32>,
        prevents: bool,
        attached: Vec<&'static str>,
    }

    fn decode<K: serde::de::DeserializeOwned>(value: Value) -> Option<K> {
        serde_json::from_value(value).unwrap()
    }

    fn csi_node(limit: i32) -> CSINode {
        let driver = json!({"name": "csi", "nodeID": "n", "allocatable": {"count": limit}});
        decode(json!({"metadata": {"name": "n"}, "spec": {"drivers": [driver]}})).unwrap()
    }

    impl Listers for Cluster {
        fn claim(&self, namespace: &str, name: &str) -> Option<PersistentVolumeClaim> {
            let volume = if name == "pending" { "" } else { name };
            decode(match name {
                "missing" => Value::Null,
                name => json!({
                    "metadata": {"name": name, "namespace": namespace},
                    "spec": {"volumeName": volume, "storageClassName": "class"},
                }),
            })
        }

        fn volume(&self, name: &str) -> Option<PersistentVolume> {
            let source = json!({"driver": "csi", "volumeHandle": name});
            let source = if name == "local" { Value::Null } else { source };
            decode(json!({"metadata": {"name": name}, "spec": {"csi": source}}))
        }

        fn storage_class(&self, _: &str) -> Option<StorageClass> {
            decode(json!({"metadata": {"name": "class"}, "provisioner": "csi"}))
        }

        fn csi_node(&self, _: &str) -> Option<Arc<CSINode>> {
            self.limit.map(csi_node).map(Arc::new)
        }

        fn csi_driver(&self, _: &str) -> Option<CSIDriver> {
            decode(json!({
                "metadata": {"name": "csi"},
                "spec": {"preventPodSchedulingIfMissing": self.prevents},
            }))
        }

        fn volume_attachments(&self, node: &str) -> Vec<VolumeAttachment> {
            let attachment = |volume: &&str| {
                let spec = json!({
                    "attacher": "csi", "nodeName": node, "source": {"persistentVolumeName": volume},
                });
                decode(json!({"metadata": {"name": "a"}, "spec": spec}))
            };
            self.attached.iter().filter_map(attachment).collect()
        }
    }

    fn pod(claims: &[&str]) -> Arc<PodInfo> {
        let claims = claims.iter().map(|claim| (*claim).to_owned()).collect();
        Arc::new(PodInfo { namespace: "d".into(), claims, ..PodInfo::default() })
    }

    /// The reason of the rejection of `pod` by a node with the other pods; empty when it fits.
    fn filter(cluster: &Cluster, pod: &Arc<PodInfo>, others: Vec<Arc<PodInfo>>) -> String {
        let node = NodeInfo { name: "n".into(), pods: others, ..NodeInfo::default() };
        let snapshot = Snapshot::with(pod, &[], cluster);
        let Some(plugin) = NodeVolumeLimits::pre_filter(&snapshot) else { return String::new() };
        let rejection = plugin.filter(&snapshot, &node).err();
        assert!(rejection.iter().all(|r| !r.unresolvable));
        rejection.map(|r| r.reasons.join(", ")).unwrap_or_default()
    }

    #[test]
    fn volumes_beyond_the_limit_of_the_node_are_rejected() {
        const EXCEEDED: &str = "node(s) exceed max volume count";
        for (limit, new, others, want) in [
            (Some(2), vec!["a"], vec![vec!["b"]], ""),
            (Some(1), vec!["a"], vec![vec!["b"]], EXCEEDED),
            (Some(0), vec!["a"], vec![], EXCEEDED),
            // A volume counts once, however many pods use it.
            (Some(1), vec!["a"], vec![vec!["a"]], ""),
            (Some(2), vec!["a"], vec![vec!["b"], vec!["b"]], ""),
            (Some(2), vec!["a", "b"], vec![vec!["b"], vec!["c"]], EXCEEDED),
            // A claim without volume counts for the driver of its class.
            (Some(1), vec!["pending"], vec![vec!["b"]], EXCEEDED),
            (Some(1), vec!["a"], vec![vec!["pending"]], EXCEEDED),
            // Volumes without driver and claims that do not exist count nothing.
            (Some(1), vec!["a"], vec![vec!["local"], vec!["missing"]], ""),
            (Some(0), vec!["local", "missing"], vec![], ""),
            (None, vec!["a"], vec![vec!["b"]], ""),
        ] {
            let cluster = Cluster { limit, ..Cluster::default() };
            let pods = others.iter().map(|claims| pod(claims)).collect();
            assert_eq!(filter(&cluster, &pod(&new), pods), want, "{limit:?} {new:?} {others:?}");
        }
    }

    /// The cases of upstream's `TestCSILimits` with migrated volumes.
    #[test]
    fn volumes_of_in_tree_plugins_count_for_their_drivers() {
        let decode = |spec: Value| decode::<PersistentVolume>(json!({"spec": spec})).unwrap();
        let driver = |spec: Value| csi_source(decode(spec)).map(|source| source.driver);
        let disk = json!({"gcePersistentDisk": {"pdName": "d"}});
        assert_eq!(driver(disk).as_deref(), Some("pd.csi.storage.gke.io"));
        let disk = json!({"vsphereVolume": {"volumePath": "p"}});
        assert_eq!(driver(disk), None);
        let inline =
            crate::inline_volumes::InlineVolume { driver: "csi".into(), handle: "b".into() };
        let other = PodInfo { inline_volumes: vec![inline], ..PodInfo::default() };
        let cluster = Cluster { limit: Some(1), ..Cluster::default() };
        let rejected = filter(&cluster, &pod(&["a"]), vec![Arc::new(other)]);
        assert_eq!(rejected, "node(s) exceed max volume count");
    }

    #[test]
    fn attached_volumes_without_a_pod_count() {
        for (attached, others, fits) in [
            (vec!["b"], vec![], false),
            (vec!["b"], vec![pod(&["b"])], false),
            (vec![], vec![], true),
        ] {
            let cluster = Cluster { limit: Some(1), attached, ..Cluster::default() };
            assert_eq!(filter(&cluster, &pod(&["a"]), others).is_empty(), fits);
        }
    }

    #[test]
    fn driver_that_prevents_scheduling_must_be_installed() {
        for (limit, prevents, want) in [
            (None, true, "csi CSI driver is not installed on the node"),
            (Some(5), true, ""),
            (None, false, ""),
        ] {
            let cluster = Cluster { limit, prevents, ..Cluster::default() };
            assert_eq!(filter(&cluster, &pod(&["a"]), vec![]), want, "{limit:?} {prevents}");
        }
    }

    #[test]
    fn only_events_that_free_or_allow_volumes_wake_a_pod() {
        let (one, two, with, without) = (csi_node(1), csi_node(2), pod(&["a"]), pod(&[]));
        let claim = |name| Event::PersistentVolumeClaim { namespace: "d", name };
        for (event, want) in [
            (Event::Node, true),
            (Event::CsiNodeAdd, true),
            (Event::CsiNodeUpdate { old: &one, new: &two }, true),
            (Event::CsiNodeUpdate { old: &two, new: &one }, false),
            (Event::CsiNodeUpdate { old: &one, new: &one }, false),
            (Event::AssignedPodDelete(&with), true),
            (Event::AssignedPodDelete(&without), false),
            (claim("a"), true),
            (claim("b"), false),
            (Event::VolumeAttachmentDelete, true),
            (Event::AssignedPodAdd, false),
            (Event::Namespace, false),
        ] {
            assert_eq!(NodeVolumeLimits::queueing_hint(&event, &with), want, "{event:?}");
        }
    }
}
