//! VolumeRestrictions: a claim with the access mode ReadWriteOncePod serves one pod at a time, and
//! a disk of GCE, AWS or iSCSI one pod of a node, or several that read it.

use crate::event::Event;
use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

/// A pod with ReadWriteOncePod claims that are in use, or with disks.
#[derive(Debug, Clone)]
pub(super) struct VolumeRestrictions {
    /// The rejection of all nodes.
    rejection: Option<Rejection>,
    /// The pod's ReadWriteOncePod claims.
    claims: Vec<String>,
    /// How many of them scheduled pods use; preemption can free them.
    conflicts: usize,
}

impl VolumeRestrictions {
    /// Returns how many of the claims a pod uses.
    fn used_by(&self, snapshot: &Snapshot<'_>, pod: &PodInfo) -> usize {
        let namespace = &snapshot.pod.namespace;
        self.claims.iter().filter(|claim| pod.uses_claim(namespace, claim)).count()
    }
}

impl Plugin for VolumeRestrictions {
    const NAME: &'static str = "VolumeRestrictions";

    fn queueing_hint(event: &Event<'_>, pod: &PodInfo) -> bool {
        match event {
            Event::AssignedPodDelete(deleted) => {
                let uses = |claim: &String| deleted.uses_claim(&pod.namespace, claim);
                pod.claims.iter().any(uses) || disks_conflict(pod, deleted)
            }
            Event::Node => !pod.disks.is_empty(),
            Event::PersistentVolumeClaim { namespace, name } => pod.uses_claim(namespace, name),
            _ => false,
        }
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let namespace = &snapshot.pod.namespace;
        let mut state = Self { rejection: None, claims: Vec::new(), conflicts: 0 };
        for name in snapshot.pod.named_claims() {
            let Some(claim) = snapshot.listers.claim(namespace, name) else {
                let text = format!("persistentvolumeclaim \"{name}\" not found");
                state.rejection = Some(Rejection::unresolvable(text));
                return Some(state);
            };
            let mut modes = claim.spec.iter().flat_map(|s| &s.access_modes).flatten();
            if modes.any(|mode| mode == "ReadWriteOncePod") {
                state.claims.push(name.clone());
                state.conflicts += usize::from(in_use(snapshot, name));
            }
        }
        (state.conflicts > 0 || !snapshot.pod.disks.is_empty()).then_some(state)
    }

    fn verdict(&self) -> Result<(), Rejection> {
        self.rejection.clone().map_or(Ok(()), Err)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        if node.pods.iter().any(|other| disks_conflict(snapshot.pod, other)) {
            return Err(Rejection::new("node(s) had no available disk"));
        }
        if self.conflicts == 0 {
            return Ok(());
        }
        Err(Rejection::new(
            "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode \
             already in-use by another pod",
        ))
    }

    fn add_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, _: &NodeInfo) {
        self.conflicts = self.conflicts.saturating_add(self.used_by(snapshot, pod));
    }

    fn remove_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, _: &NodeInfo) {
        self.conflicts = self.conflicts.saturating_sub(self.used_by(snapshot, pod));
    }
}

/// Two pods cannot use their disks on one node (`satisfyVolumeConflicts`).
fn disks_conflict(pod: &PodInfo, other: &PodInfo) -> bool {
    pod.disks.iter().any(|disk| other.disks.iter().any(|used| disk.conflicts_with(used)))
}

/// A pod on a node uses the claim.
fn in_use(snapshot: &Snapshot<'_>, claim: &str) -> bool {
    let namespace = &snapshot.pod.namespace;
    let mut pods = snapshot.nodes.iter().flat_map(|node| &node.pods);
    pods.any(|pod| pod.uses_claim(namespace, claim))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listers::Listers;
    use api::k8s::api::core::v1::PersistentVolumeClaim;
    use serde_json::json;
    use std::sync::Arc;

    struct Claim(&'static str);

    impl Listers for Claim {
        fn claim(&self, _: &str, name: &str) -> Option<PersistentVolumeClaim> {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "n"}, "spec": {"accessModes": [self.0]},
            }))
            .ok()
        }
    }

    #[test]
    fn deletion_of_a_pod_that_uses_the_claim_wakes_the_pod() {
        let pod = |claim: &str| PodInfo { claims: vec![claim.into()], ..PodInfo::default() };
        let hint = |deleted: &PodInfo| {
            VolumeRestrictions::queueing_hint(&Event::AssignedPodDelete(deleted), &pod("c"))
        };
        assert!(hint(&pod("c")));
        assert!(!hint(&pod("d")));
    }

    #[test]
    fn read_write_once_pod_claim_in_use_rejects_every_node() {
        let user = |namespace: &str| {
            let claims = vec!["c".to_owned()];
            Arc::new(PodInfo { namespace: namespace.into(), claims, ..PodInfo::default() })
        };
        for (mode, other, rejected) in [
            ("ReadWriteOncePod", "n", true),
            ("ReadWriteOncePod", "m", false),
            ("ReadWriteOnce", "n", false),
        ] {
            let nodes = [NodeInfo { pods: vec![user(other)], ..NodeInfo::default() }];
            let (pod, claim) = (user("n"), Claim(mode));
            let snapshot = Snapshot::with(&pod, &nodes, &claim);
            let plugin = VolumeRestrictions::pre_filter(&snapshot);
            assert_eq!(plugin.is_some(), rejected, "{mode} {other}");
        }
    }

    #[test]
    fn a_disk_that_a_pod_of_the_node_uses_rejects_the_node() {
        let pod = |source: serde_json::Value| {
            let mut volume = source;
            volume["name"] = "v".into();
            let disk = crate::inline_volumes::Disk::of(&serde_json::from_value(volume).unwrap());
            Arc::new(PodInfo { disks: disk.into_iter().collect(), ..PodInfo::default() })
        };
        let aws = |id: &str| pod(json!({"awsElasticBlockStore": {"volumeID": id}}));
        let iscsi = |iqn: &str, read_only: bool| {
            let source = json!({"targetPortal": "p", "iqn": iqn, "lun": 0, "readOnly": read_only});
            pod(json!({"iscsi": source}))
        };
        for (own, other, is_rejected) in [
            (aws("a"), aws("a"), true),
            (iscsi("iqn.a", false), iscsi("iqn.a", false), true),
            (iscsi("iqn.a", false), iscsi("iqn.a", true), true),
            (iscsi("iqn.a", false), iscsi("iqn.b", false), false),
            (iscsi("iqn.a", false), Arc::new(PodInfo::default()), false),
        ] {
            let nodes = [NodeInfo { pods: vec![Arc::clone(&other)], ..NodeInfo::default() }];
            let listers = Claim("ReadWriteOnce");
            let snapshot = Snapshot::with(&own, &nodes, &listers);
            let plugin = VolumeRestrictions::pre_filter(&snapshot).unwrap();
            let reasons = plugin.filter(&snapshot, &nodes[0]).err().map(|r| r.reasons);
            let want = is_rejected.then(|| vec!["node(s) had no available disk".into()]);
            assert_eq!(reasons, want, "{other:?}");
            assert!(plugin.filter(&snapshot, &NodeInfo::default()).is_ok());
            let event = Event::AssignedPodDelete(&other);
            assert_eq!(VolumeRestrictions::queueing_hint(&event, &own), is_rejected);
            assert!(VolumeRestrictions::queueing_hint(&Event::Node, &own));
        }
        assert!(!VolumeRestrictions::queueing_hint(&Event::Node, &PodInfo::default()));
    }

    #[test]
    fn the_claim_is_free_without_its_user() {
        let user = |claim: &str| {
            let claims = vec![claim.to_owned()];
            Arc::new(PodInfo { namespace: "n".into(), claims, ..PodInfo::default() })
        };
        let nodes = [NodeInfo { pods: vec![user("c")], ..NodeInfo::default() }];
        let listers = Claim("ReadWriteOncePod");
        let pod = user("c");
        let snapshot = Snapshot::with(&pod, &nodes, &listers);
        let mut plugin = VolumeRestrictions::pre_filter(&snapshot).unwrap();
        let fits = |plugin: &VolumeRestrictions| plugin.filter(&snapshot, &nodes[0]).is_ok();
        plugin.remove_pod(&snapshot, &user("d"), &nodes[0]);
        assert!(!fits(&plugin));
        plugin.remove_pod(&snapshot, &user("c"), &nodes[0]);
        assert!(fits(&plugin));
        plugin.add_pod(&snapshot, &user("c"), &nodes[0]);
        assert!(!fits(&plugin));
    }
}
