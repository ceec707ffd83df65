//! VolumeBinding and VolumeRestrictions: which nodes the pod's claims allow, and what to bind before the pod.

use api::k8s::api::core::v1::{NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::StorageClass;
use api::quantity::Quantity;

use crate::node_info::NodeInfo;
use crate::node_selector::term_matches;
use crate::plugins::Misfit;
use crate::pod_info::PodInfo;

const PLUGIN: &str = "VolumeBinding";

/// A volume that could be bound to a claim.
#[derive(Debug, Clone)]
struct Candidate {
    name: String,
    size: Option<Quantity>,
    affinity: Option<Vec<NodeSelectorTerm>>,
}

/// A claim that waits for its first consumer.
#[derive(Debug, Clone)]
struct Waiting {
    claim: String,
    candidates: Vec<Candidate>,
    /// Topologies that its class may provision in; `None` when it cannot provision.
    provision: Option<Vec<NodeSelectorTerm>>,
}

/// The pod's claims as they stand.
#[derive(Debug, Clone, Default)]
pub(crate) struct VolumeView {
    /// No node will do.
    refusal: Option<Misfit>,
    /// Node affinity of the volumes bound already.
    bound: Vec<Vec<NodeSelectorTerm>>,
    waiting: Vec<Waiting>,
}

/// What to write before the pod is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VolumeStep {
    /// Bind this volume to the claim.
    Bind {
        /// Claim.
        claim: String,
        /// Volume.
        volume: String,
    },
    /// Ask the class's provisioner for a volume on the node.
    Provision {
        /// Claim.
        claim: String,
    },
}

/// Looks claims, volumes and classes up.
pub(crate) trait Storage {
    /// A claim of the pod's namespace.
    fn claim(&self, namespace: &str, name: &str) -> Option<PersistentVolumeClaim>;
    /// A volume.
    fn volume(&self, name: &str) -> Option<PersistentVolume>;
    /// All volumes.
    fn volumes(&self) -> Vec<PersistentVolume>;
    /// A class.
    fn class(&self, name: &str) -> Option<StorageClass>;
}

fn affinity(volume: &PersistentVolume) -> Option<Vec<NodeSelectorTerm>> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    Some(required.node_selector_terms.clone())
}

fn allowed(terms: &[NodeSelectorTerm], node: &NodeInfo) -> bool {
    terms.iter().any(|t| term_matches(t, &node.name, &node.labels))
}

impl VolumeView {
    /// Reads the pod's claims; `in_use` says whether a claim is used by another pod already.
    pub(crate) fn new(pod: &PodInfo, storage: &dyn Storage, in_use: &dyn Fn(&str) -> bool) -> Self {
        let mut view = Self::default();
        for name in &pod.claims {
            if let Err(misfit) = view.read(pod, name, storage, in_use) {
                view.refusal = Some(misfit);
                break;
            }
        }
        view
    }

    fn read(
        &mut self,
        pod: &PodInfo,
        name: &str,
        storage: &dyn Storage,
        in_use: &dyn Fn(&str) -> bool,
    ) -> Result<(), Misfit> {
        let claim = storage.claim(&pod.namespace, name);
        let claim = claim.ok_or_else(|| {
            Misfit::unresolvable(PLUGIN, &format!("persistentvolumeclaim \"{name}\" not found"))
        })?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(Misfit::unresolvable(
                PLUGIN,
                &format!("persistentvolumeclaim \"{name}\" is being deleted"),
            ));
        }
        let Some(spec) = claim.spec.as_ref() else { return Ok(()) };
        if spec.access_modes.iter().flatten().any(|m| m == "ReadWriteOncePod") && in_use(name) {
            let reason = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
            return Err(Misfit::new("VolumeRestrictions", reason));
        }
        let volume = spec.volume_name.as_deref().unwrap_or_default();
        if !volume.is_empty() {
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
            if phase == Some("Lost") {
                let text = format!(
                    "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
                );
                return Err(Misfit::unresolvable(PLUGIN, &text));
            }
            let volume = storage.volume(volume);
            let volume = volume.ok_or_else(|| {
                Misfit::unresolvable(
                    PLUGIN,
                    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
                )
            })?;
            self.bound.extend(affinity(&volume));
            return Ok(());
        }
        let class_name = spec.storage_class_name.clone().unwrap_or_default();
        let class = storage.class(&class_name);
        let waits = class
            .as_ref()
            .is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
        if !waits {
            return Err(Misfit::unresolvable(
                PLUGIN,
                "pod has unbound immediate PersistentVolumeClaims",
            ));
        }
        let provision = class
            .filter(|c| c.provisioner != "kubernetes.io/no-provisioner")
            .map(|c| topologies(&c));
        let candidates = storage
            .volumes()
            .iter()
            .filter(|v| is_candidate(v, &claim, &class_name))
            .map(candidate)
            .collect();
        self.waiting.push(Waiting { claim: name.to_owned(), candidates, provision });
        Ok(())
    }

    /// The node can hold all of the pod's volumes.
    pub(crate) fn filter(&self, node: &NodeInfo) -> Result<(), Misfit> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        if !self.bound.iter().all(|terms| allowed(terms, node)) {
            return Err(Misfit::unresolvable(
                PLUGIN,
                "node(s) didn't match PersistentVolume's node affinity",
            ));
        }
        self.plan(node).map(drop)
    }

    /// What to bind and provision for the pod on this node.
    pub(crate) fn plan(&self, node: &NodeInfo) -> Result<Vec<VolumeStep>, Misfit> {
        let mut taken: Vec<&str> = Vec::new();
        let mut steps = Vec::new();
        for waiting in &self.waiting {
            let free = waiting.candidates.iter().filter(|c| !taken.contains(&c.name.as_str()));
            let here =
                free.filter(|c| c.affinity.as_ref().is_none_or(|terms| allowed(terms, node)));
            // The smallest volume that is large enough (`volume.FindMatchingVolume`).
            if let Some(found) = here.min_by(|a, b| a.size.cmp(&b.size)) {
                taken.push(&found.name);
                steps.push(VolumeStep::Bind {
                    claim: waiting.claim.clone(),
                    volume: found.name.clone(),
                });
                continue;
            }
            match &waiting.provision {
                Some(terms) if terms.is_empty() || allowed(terms, node) => {
                    steps.push(VolumeStep::Provision { claim: waiting.claim.clone() })
                }
                Some(_) | None => {
                    return Err(Misfit::unresolvable(
                        PLUGIN,
                        "node(s) didn't find available persistent volumes to bind",
                    ));
                }
            }
        }
        Ok(steps)
    }
}

fn topologies(class: &StorageClass) -> Vec<NodeSelectorTerm> {
    use api::k8s::api::core::v1::NodeSelectorRequirement;
    let requirement =
        |e: &api::k8s::api::core::v1::TopologySelectorLabelRequirement| NodeSelectorRequirement {
            key: e.key.clone(),
            operator: "In".into(),
            values: Some(e.values.clone()),
        };
    let term = |t: &api::k8s::api::core::v1::TopologySelectorTerm| NodeSelectorTerm {
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

/// Free (or already promised to this claim), of the class, large enough, with the modes asked for, chosen by the selector.
fn is_candidate(volume: &PersistentVolume, claim: &PersistentVolumeClaim, class: &str) -> bool {
    let (Some(have), Some(want)) = (&volume.spec, &claim.spec) else { return false };
    let promised = have.claim_ref.as_ref().is_none_or(|r| {
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
    promised
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

    struct Fake {
        claim: serde_json::Value,
        volumes: Vec<serde_json::Value>,
        class: serde_json::Value,
    }

    impl Storage for Fake {
        fn claim(&self, _: &str, _: &str) -> Option<PersistentVolumeClaim> {
            serde_json::from_value(self.claim.clone()).ok()
        }
        fn volume(&self, name: &str) -> Option<PersistentVolume> {
            self.volumes().into_iter().find(|v| v.metadata.name.as_deref() == Some(name))
        }
        fn volumes(&self) -> Vec<PersistentVolume> {
            self.volumes.iter().map(|v| serde_json::from_value(v.clone()).unwrap()).collect()
        }
        fn class(&self, _: &str) -> Option<StorageClass> {
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
        let term = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]});
        json!({"metadata": {"name": name}, "status": {"phase": "Available"}, "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "s", "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}})
    }

    fn view(class: serde_json::Value, volumes: Vec<serde_json::Value>) -> VolumeView {
        let claim = json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"storageClassName": "s", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
        let pod = PodInfo { namespace: "n".into(), claims: vec!["c".into()], ..PodInfo::default() };
        VolumeView::new(&pod, &Fake { claim, volumes, class }, &|_| false)
    }

    #[test]
    fn the_smallest_sufficient_volume_on_the_node_is_bound() {
        let class = json!({"metadata": {"name": "s"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
        let volumes = vec![
            volume("big", "9Gi", "a"),
            volume("fit", "2Gi", "a"),
            volume("small", "500Mi", "a"),
            volume("far", "1Gi", "b"),
        ];
        let view = view(class, volumes);
        assert_eq!(
            view.plan(&node("a")).unwrap(),
            [VolumeStep::Bind { claim: "c".into(), volume: "fit".into() }]
        );
        let misfit = view.filter(&node("z")).unwrap_err();
        assert_eq!(misfit.reasons, ["node(s) didn't find available persistent volumes to bind"]);
    }

    #[test]
    fn a_class_that_provisions_needs_no_volume_and_an_immediate_one_must_be_bound() {
        let class = json!({"metadata": {"name": "s"}, "provisioner": "x/y", "volumeBindingMode": "WaitForFirstConsumer"});
        assert_eq!(
            view(class, vec![]).plan(&node("a")).unwrap(),
            [VolumeStep::Provision { claim: "c".into() }]
        );
        let class = json!({"metadata": {"name": "s"}, "provisioner": "x/y", "volumeBindingMode": "Immediate"});
        assert_eq!(
            view(class, vec![]).filter(&node("a")).unwrap_err().reasons,
            ["pod has unbound immediate PersistentVolumeClaims"]
        );
    }
}
