//! VolumeBinding: which nodes the pod's claims allow, and which volumes to bind or provision before
//! the pod is bound.

use std::borrow::Cow;

use api::k8s::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim,
    TopologySelectorLabelRequirement, TopologySelectorTerm,
};
use api::k8s::api::storage::v1::StorageClass;
use api::quantity::Quantity;

use crate::event::Event;
use crate::framework::{Plugin, PreBind, Snapshot};
use crate::listers::Listers;
use crate::node_info::NodeInfo;
use crate::node_selector::term_matches;
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

/// A volume that could be bound to a claim.
#[derive(Debug, Clone)]
struct Candidate {
    name: String,
    size: Option<Quantity>,
    affinity: Option<Vec<NodeSelectorTerm>>,
}

/// An unbound claim whose class waits for the first consumer.
#[derive(Debug, Clone)]
struct DelayedClaim {
    name: String,
    candidates: Vec<Candidate>,
    /// Topologies that its class may provision in; `None` when it cannot provision.
    provision: Option<Vec<NodeSelectorTerm>>,
}

/// The claims of the pod.
#[derive(Debug, Clone, Default)]
pub(super) struct VolumeBinding {
    /// The rejection of all nodes.
    rejection: Option<Rejection>,
    /// Node affinity of the bound volumes.
    bound: Vec<Vec<NodeSelectorTerm>>,
    delayed: Vec<DelayedClaim>,
}

impl Plugin for VolumeBinding {
    const NAME: &'static str = "VolumeBinding";

    fn queueing_hint(event: &Event<'_>, pod: &PodInfo) -> bool {
        match event {
            Event::Node | Event::PersistentVolume | Event::StorageClass => true,
            Event::PersistentVolumeClaim { namespace, name } => pod.uses_claim(namespace, name),
            _ => false,
        }
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let mut state = Self::default();
        for name in &snapshot.pod.claims {
            if let Err(rejection) = state.read(snapshot.pod, name, snapshot.listers) {
                state.rejection = Some(rejection);
                break;
            }
        }
        (!snapshot.pod.claims.is_empty()).then_some(state)
    }

    fn filter(&self, _: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        if let Some(rejection) = &self.rejection {
            return Err(rejection.clone());
        }
        if !self.bound.iter().all(|terms| allows(terms, node)) {
            return Err(Rejection::unresolvable(
                "node(s) didn't match PersistentVolume's node affinity",
            ));
        }
        self.plan(node).map(drop)
    }

    fn reserve(&self, node: &NodeInfo, writes: &mut Vec<PreBind>) {
        writes.extend(self.plan(node).unwrap_or_default());
    }
}

fn affinity(volume: &PersistentVolume) -> Option<Vec<NodeSelectorTerm>> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    Some(required.node_selector_terms.clone())
}

fn allows(terms: &[NodeSelectorTerm], node: &NodeInfo) -> bool {
    terms.iter().any(|t| term_matches(t, &node.name, &node.labels))
}

impl VolumeBinding {
    /// Reads a claim of the pod.
    fn read(&mut self, pod: &PodInfo, name: &str, listers: &dyn Listers) -> Result<(), Rejection> {
        let reject = |reason: Cow<'static, str>| Err(Rejection::unresolvable(reason));
        let Some(claim) = listers.claim(&pod.namespace, name) else {
            return reject(format!("persistentvolumeclaim \"{name}\" not found").into());
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return reject(format!("persistentvolumeclaim \"{name}\" is being deleted").into());
        }
        let Some(spec) = claim.spec.as_ref() else { return Ok(()) };
        let volume = spec.volume_name.as_deref().unwrap_or_default();
        if !volume.is_empty() {
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
            if phase == Some("Lost") {
                return reject(
                    format!(
                        "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \
                         \"{volume}\""
                    )
                    .into(),
                );
            }
            let Some(volume) = listers.volume(volume) else {
                return reject(
                    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
                        .into(),
                );
            };
            self.bound.extend(affinity(&volume));
            return Ok(());
        }
        let class_name = spec.storage_class_name.as_deref().unwrap_or_default();
        let class = listers
            .storage_class(class_name)
            .filter(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
        let Some(class) = class else {
            return reject("pod has unbound immediate PersistentVolumeClaims".into());
        };
        let provisions = class.provisioner != "kubernetes.io/no-provisioner";
        let volumes = listers.volumes();
        let candidates = volumes.iter().filter(|v| is_candidate(v, &claim, class_name));
        self.delayed.push(DelayedClaim {
            name: name.to_owned(),
            candidates: candidates.map(candidate).collect(),
            provision: provisions.then(|| topologies(&class)),
        });
        Ok(())
    }

    /// What to bind and provision for the pod on this node.
    fn plan(&self, node: &NodeInfo) -> Result<Vec<PreBind>, Rejection> {
        let mut taken: Vec<&str> = Vec::new();
        let mut writes = Vec::new();
        for claim in &self.delayed {
            let free = claim.candidates.iter().filter(|c| !taken.contains(&c.name.as_str()));
            let here = free.filter(|c| c.affinity.as_ref().is_none_or(|terms| allows(terms, node)));
            // The smallest volume that is large enough (`volume.FindMatchingVolume`).
            if let Some(volume) = here.min_by(|a, b| a.size.cmp(&b.size)) {
                taken.push(&volume.name);
                writes.push(PreBind::BindVolume {
                    claim: claim.name.clone(),
                    volume: volume.name.clone(),
                });
                continue;
            }
            match &claim.provision {
                Some(terms) if terms.is_empty() || allows(terms, node) => {
                    writes.push(PreBind::ProvisionVolume { claim: claim.name.clone() });
                }
                Some(_) | None => {
                    return Err(Rejection::unresolvable(
                        "node(s) didn't find available persistent volumes to bind",
                    ));
                }
            }
        }
        Ok(writes)
    }
}

/// Topologies that the class may provision in; empty means all.
fn topologies(class: &StorageClass) -> Vec<NodeSelectorTerm> {
    let requirement = |e: &TopologySelectorLabelRequirement| NodeSelectorRequirement {
        key: e.key.clone(),
        operator: "In".into(),
        values: Some(e.values.clone()),
    };
    let term = |t: &TopologySelectorTerm| NodeSelectorTerm {
        match_expressions: Some(
            t.match_label_expressions.iter().flatten().map(requirement).collect(),
        ),
        match_fields: None,
    };
    class.allowed_topologies.iter().flatten().map(term).collect()
}

fn candidate(volume: &PersistentVolume) -> Candidate {
    let size = volume
        .spec
        .as_ref()
        .and_then(|s| s.capacity.as_ref()?.get("storage"))
        .and_then(|q| Quantity::parse(&q.0).ok());
    Candidate {
        name: volume.metadata.name.clone().unwrap_or_default(),
        size,
        affinity: affinity(volume),
    }
}

/// The volume is free or reserved for this claim, of the class, large enough, has the requested
/// modes, and the selector of the claim selects it.
fn is_candidate(volume: &PersistentVolume, claim: &PersistentVolumeClaim, class: &str) -> bool {
    let (Some(have), Some(want)) = (&volume.spec, &claim.spec) else { return false };
    let reserved = have.claim_ref.as_ref().is_none_or(|r| {
        r.name == claim.metadata.name
            && r.namespace == claim.metadata.namespace
            && r.uid.as_ref().is_none_or(|u| claim.metadata.uid.as_ref() == Some(u))
    });
    let free = matches!(volume.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Available"))
        || have.claim_ref.is_some();
    let modes = want
        .access_modes
        .iter()
        .flatten()
        .all(|m| have.access_modes.iter().flatten().any(|h| h == m));
    let wanted = want
        .resources
        .as_ref()
        .and_then(|r| r.requests.as_ref()?.get("storage"))
        .and_then(|q| Quantity::parse(&q.0).ok());
    let large = candidate(volume).size.is_some_and(|size| wanted.is_none_or(|w| size >= w));
    let chosen = want
        .selector
        .as_ref()
        .is_none_or(|s| client::labels::selects(s, volume.metadata.labels.as_ref()));
    let mode = |m: &Option<String>| m.clone().unwrap_or_else(|| "Filesystem".into());
    reserved
        && free
        && modes
        && large
        && chosen
        && have.storage_class_name.as_deref().unwrap_or_default() == class
        && mode(&have.volume_mode) == mode(&want.volume_mode)
        && volume.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    struct Fake {
        claim: serde_json::Value,
        volumes: Vec<serde_json::Value>,
        class: serde_json::Value,
    }

    impl Listers for Fake {
        fn claim(&self, _: &str, _: &str) -> Option<PersistentVolumeClaim> {
            serde_json::from_value(self.claim.clone()).ok()
        }
        fn volume(&self, name: &str) -> Option<PersistentVolume> {
            self.volumes().into_iter().find(|v| v.metadata.name.as_deref() == Some(name))
        }
        fn volumes(&self) -> Vec<PersistentVolume> {
            self.volumes.iter().map(|v| serde_json::from_value(v.clone()).unwrap()).collect()
        }
        fn storage_class(&self, _: &str) -> Option<StorageClass> {
            serde_json::from_value(self.class.clone()).ok()
        }
    }

    fn node(name: &str) -> NodeInfo {
        NodeInfo {
            name: name.into(),
            labels: [("kubernetes.io/hostname".to_owned(), name.to_owned())].into(),
            ..NodeInfo::default()
        }
    }

    fn volume(name: &str, size: &str, host: &str) -> serde_json::Value {
        let requirement =
            json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [host]});
        let terms = json!([{"matchExpressions": [requirement]}]);
        json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "s", "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            },
            "status": {"phase": "Available"},
        })
    }

    fn class(provisioner: &str, mode: &str) -> serde_json::Value {
        json!({
            "metadata": {"name": "s"}, "provisioner": provisioner, "volumeBindingMode": mode,
        })
    }

    /// The plugin for a pod with one claim for 1 GiB.
    fn plugin(class: serde_json::Value, volumes: Vec<serde_json::Value>) -> VolumeBinding {
        let claim = json!({
            "metadata": {"name": "c", "namespace": "n"},
            "spec": {
                "storageClassName": "s", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let pod = PodInfo { namespace: "n".into(), claims: vec!["c".into()], ..PodInfo::default() };
        let listers = Fake { claim, volumes, class };
        let snapshot = Snapshot { pod: &Arc::new(pod), nodes: &[], listers: &listers };
        VolumeBinding::pre_filter(&snapshot).unwrap()
    }

    fn reasons(plugin: &VolumeBinding, node: &NodeInfo) -> Vec<Cow<'static, str>> {
        let pod = Arc::new(PodInfo::default());
        let snapshot = Snapshot { pod: &pod, nodes: &[], listers: &crate::listers::NoObjects };
        plugin.filter(&snapshot, node).unwrap_err().reasons
    }

    #[test]
    fn smallest_sufficient_volume_on_the_node_is_bound() {
        let volumes = vec![
            volume("big", "9Gi", "a"),
            volume("fit", "2Gi", "a"),
            volume("small", "500Mi", "a"),
            volume("far", "1Gi", "b"),
        ];
        let class = class("kubernetes.io/no-provisioner", "WaitForFirstConsumer");
        let plugin = plugin(class, volumes);
        assert_eq!(
            plugin.plan(&node("a")).unwrap(),
            [PreBind::BindVolume { claim: "c".into(), volume: "fit".into() }]
        );
        assert_eq!(
            reasons(&plugin, &node("z")),
            ["node(s) didn't find available persistent volumes to bind"]
        );
    }

    #[test]
    fn delayed_claim_of_a_provisioner_needs_no_volume() {
        assert_eq!(
            plugin(class("x/y", "WaitForFirstConsumer"), vec![]).plan(&node("a")).unwrap(),
            [PreBind::ProvisionVolume { claim: "c".into() }]
        );
    }

    #[test]
    fn immediate_claim_must_be_bound() {
        assert_eq!(
            reasons(&plugin(class("x/y", "Immediate"), vec![]), &node("a")),
            ["pod has unbound immediate PersistentVolumeClaims"]
        );
    }
}
