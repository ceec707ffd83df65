//! VolumeRestrictions: a claim with the access mode ReadWriteOncePod serves one pod at a time.

use crate::event::Event;
use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

/// A pod one of whose ReadWriteOncePod claims is in use.
#[derive(Debug, Clone)]
pub(super) struct VolumeRestrictions;

impl Plugin for VolumeRestrictions {
    const NAME: &'static str = "VolumeRestrictions";

    fn queueing_hint(event: &Event<'_>, pod: &PodInfo) -> bool {
        let Event::AssignedPodDelete(deleted) = event else { return false };
        pod.claims.iter().any(|claim| deleted.uses_claim(&pod.namespace, claim))
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let namespace = &snapshot.pod.namespace;
        for name in &snapshot.pod.claims {
            // VolumeBinding rejects a pod whose claim is missing or being deleted.
            let claim = snapshot.listers.claim(namespace, name)?;
            if claim.metadata.deletion_timestamp.is_some() {
                return None;
            }
            let mut modes = claim.spec.iter().flat_map(|s| &s.access_modes).flatten();
            if modes.any(|mode| mode == "ReadWriteOncePod") && in_use(snapshot, name) {
                return Some(Self);
            }
        }
        None
    }

    fn filter(&self, _: &Snapshot<'_>, _: &NodeInfo) -> Result<(), Rejection> {
        Err(Rejection::new(
            "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode \
             already in-use by another pod",
        ))
    }
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
            let snapshot = Snapshot { pod: &user("n"), nodes: &nodes, listers: &Claim(mode) };
            let plugin = VolumeRestrictions::pre_filter(&snapshot);
            assert_eq!(plugin.is_some(), rejected, "{mode} {other}");
        }
    }
}
