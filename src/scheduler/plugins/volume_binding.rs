//! VolumeBinding: which nodes the pod's claims allow, and which volumes to bind or provision before
//! the pod is bound.

mod bound_volume;

use std::borrow::Cow;

use api::k8s::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim,
    TopologySelectorLabelRequirement, TopologySelectorTerm,
};
use api::k8s::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;
use api::quantity::Quantity;

use self::bound_volume::{BoundVolume, migrated_plugins};
use crate::event::Event;
use crate::framework::{Plugin, PreBind, Snapshot};
use crate::listers::Listers;
use crate::node_info::NodeInfo;
use crate::node_selector::term_matches;
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

/// Annotation of a claim whose binding is complete.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

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
    /// Where the driver has enough free space; `None` if the driver does not report its space.
    spaces: Option<Vec<LabelSelector>>,
}

/// The claims of the pod.
#[derive(Debug, Clone, Default)]
pub(super) struct VolumeBinding {
    /// The rejection of all nodes.
    rejection: Option<Rejection>,
    /// Node affinity of the bound volumes.
    bound: Vec<BoundVolume>,
    delayed: Vec<DelayedClaim>,
    /// A claim is bound to a volume that does not exist.
    is_volume_missing: bool,
}

impl Plugin for VolumeBinding {
    const NAME: &'static str = "VolumeBinding";

    fn queueing_hint(event: &Event<'_>, pod: &PodInfo) -> bool {
        match event {
            Event::Node | Event::PersistentVolume | Event::StorageClass => true,
            Event::PersistentVolumeClaim { namespace, name } => pod.uses_claim(namespace, name),
            Event::CsiNodeAdd => true,
            Event::CsiNodeUpdate { old, new } => migrated_plugins(old) != migrated_plugins(new),
            // Upstream looks only for inline volumes of the driver, which have no capacity.
            Event::CsiDriverUpdate { old, new } => reports_space(old) && !reports_space(new),
            Event::CsiStorageCapacity { old, new } => raises_limit(*old, new),
            _ => false,
        }
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        if snapshot.pod.claims.is_empty() {
            return None;
        }
        let state = Self::new(snapshot.pod, snapshot.listers);
        Some(
            state
                .unwrap_or_else(|rejection| Self { rejection: Some(rejection), ..Self::default() }),
        )
    }

    fn verdict(&self) -> Result<(), Rejection> {
        self.rejection.clone().map_or(Ok(()), Err)
    }

    /// The texts of all reasons, in upstream's order (`FindPodVolumes`).
    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        let mut reasons: Vec<Cow<'static, str>> = Vec::new();
        let is_migrated = self.bound.iter().any(|volume| volume.is_migrated());
        let csi_node = is_migrated.then(|| snapshot.listers.csi_node(&node.name)).flatten();
        if !self.bound.iter().all(|volume| volume.allows(node, csi_node.as_deref())) {
            reasons.push("node(s) didn't match PersistentVolume's node affinity".into());
        }
        if let Err(rejection) = self.plan(node) {
            reasons.extend(rejection.reasons);
        }
        if self.is_volume_missing {
            reasons.push(
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)".into(),
            );
        }
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Rejection { plugin: "", reasons, unresolvable: true, is_error: false })
    }

    fn reserve(&self, node: &NodeInfo, writes: &mut Vec<PreBind>) -> Result<(), Rejection> {
        writes.extend(self.plan(node).unwrap_or_default());
        Ok(())
    }
}

/// A claim of the pod that exists and may be used (`podHasPVCs`).
///
/// # Errors
///
/// Why it may not be used.
fn usable_claim(
    pod: &PodInfo,
    name: &str,
    listers: &dyn Listers,
) -> Result<PersistentVolumeClaim, Rejection> {
    let is_ephemeral = pod.ephemeral_claims.iter().any(|claim| claim == name);
    let claim = listers.claim(&pod.namespace, name).ok_or_else(|| {
        Rejection::unresolvable(if is_ephemeral {
            format!(
                "waiting for ephemeral volume controller to create the persistentvolumeclaim \
                 {name:?}"
            )
        } else {
            format!("persistentvolumeclaim {name:?} not found")
        })
    })?;
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
        let text = format!(
            "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
        );
        return Err(Rejection::unresolvable(text));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        let text = format!("persistentvolumeclaim {name:?} is being deleted");
        return Err(Rejection::unresolvable(text));
    }
    let owners = claim.metadata.owner_references.as_deref().unwrap_or_default();
    let is_own = owners.iter().any(|o| o.controller == Some(true) && o.uid == pod.uid);
    if is_ephemeral && !is_own {
        let text = format!(
            "PVC {}/{name} was not created for pod {}/{} (pod is not owner)",
            pod.namespace, pod.namespace, pod.name
        );
        return Err(Rejection::unresolvable(text));
    }
    Ok(claim)
}

fn affinity(volume: &PersistentVolume) -> Option<Vec<NodeSelectorTerm>> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    Some(required.node_selector_terms.clone())
}

fn allows(terms: &[NodeSelectorTerm], node: &NodeInfo) -> bool {
    terms.iter().any(|t| term_matches(t, &node.name, &node.labels))
}

impl VolumeBinding {
    /// Reads the claims of the pod.
    ///
    /// # Errors
    ///
    /// Why the pod fits no node.
    fn new(pod: &PodInfo, listers: &dyn Listers) -> Result<Self, Rejection> {
        let claims: Vec<PersistentVolumeClaim> = pod
            .claims
            .iter()
            .map(|name| usable_claim(pod, name, listers))
            .collect::<Result<_, _>>()?;
        let mut state = Self::default();
        for claim in &claims {
            state.read(claim, listers)?;
        }
        Ok(state)
    }

    fn read(
        &mut self,
        claim: &PersistentVolumeClaim,
        listers: &dyn Listers,
    ) -> Result<(), Rejection> {
        let unbound =
            || Rejection::unresolvable("pod has unbound immediate PersistentVolumeClaims");
        let Some(spec) = claim.spec.as_ref() else { return Ok(()) };
        let volume = spec.volume_name.as_deref().unwrap_or_default();
        if !volume.is_empty() {
            let annotations = claim.metadata.annotations.as_ref();
            if !annotations.is_some_and(|all| all.contains_key(BIND_COMPLETED)) {
                return Err(unbound());
            }
            match listers.volume(volume).as_ref().map(BoundVolume::of) {
                Some(Ok(bound)) => self.bound.push(bound),
                Some(Err(error)) => {
                    let text = format!("could not translate pv: {error}");
                    return Err(Rejection::unresolvable(text));
                }
                None => self.is_volume_missing = true,
            }
            return Ok(());
        }
        let class_name = spec.storage_class_name.as_deref().unwrap_or_default();
        let class = listers
            .storage_class(class_name)
            .filter(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
        let class = class.ok_or_else(unbound)?;
        let provisions = class.provisioner != "kubernetes.io/no-provisioner";
        let volumes = listers.volumes();
        let candidates = volumes.iter().filter(|v| is_candidate(v, claim, class_name));
        self.delayed.push(DelayedClaim {
            name: claim.metadata.name.clone().unwrap_or_default(),
            candidates: candidates.map(candidate).collect(),
            provision: provisions.then(|| topologies(&class)),
            spaces: spaces(claim, &class, listers),
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
                    let selects =
                        |s: &LabelSelector| client::labels::selects(s, Some(&node.labels));
                    if claim.spaces.as_ref().is_some_and(|spaces| !spaces.iter().any(selects)) {
                        return Err(Rejection::unresolvable(
                            "node(s) did not have enough free storage",
                        ));
                    }
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

/// The driver reports its free space by CSIStorageCapacities.
fn reports_space(driver: &CSIDriver) -> bool {
    driver.spec.storage_capacity == Some(true)
}

/// The largest volume that can be made, in bytes: `maximumVolumeSize` is the more precise one.
fn volume_limit(capacity: &CSIStorageCapacity) -> Option<Quantity> {
    let limit = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref())?;
    Quantity::parse(&limit.0).ok()
}

/// A CSIStorageCapacity that is new, or has a higher limit.
fn raises_limit(old: Option<&CSIStorageCapacity>, new: &CSIStorageCapacity) -> bool {
    let Some(old) = old else { return true };
    volume_limit(new).is_some_and(|new| volume_limit(old).is_none_or(|old| new > old))
}

/// The topologies in which the driver of the class has enough free space for the claim; `None` if
/// that is not to be checked (`volumeBinder.hasEnoughCapacity`).
fn spaces(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    listers: &dyn Listers,
) -> Option<Vec<LabelSelector>> {
    let size = requested_size(claim)?;
    listers.csi_driver(&class.provisioner).filter(reports_space)?;
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let capacities = listers.csi_storage_capacities().into_iter();
    let large = capacities.filter(|capacity| {
        capacity.storage_class_name == name
            && volume_limit(capacity).is_some_and(|limit| limit >= size)
    });
    Some(large.filter_map(|capacity| capacity.node_topology).collect())
}

fn requested_size(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    Quantity::parse(&requests.get("storage")?.0).ok()
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

/// The volume is free or reserved for this claim, of the classes, large enough, has the requested
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
    let wanted = requested_size(claim);
    let large = candidate(volume).size.is_some_and(|size| wanted.is_none_or(|w| size >= w));
    let chosen = want
        .selector
        .as_ref()
        .is_none_or(|s| client::labels::selects(s, volume.metadata.labels.as_ref()));
    let attributes = |class: &Option<String>| class.clone().unwrap_or_default();
    let mode = |m: &Option<String>| m.clone().unwrap_or_else(|| "Filesystem".into());
    reserved
        && free
        && modes
        && large
        && chosen
        && have.storage_class_name.as_deref().unwrap_or_default() == class
        && mode(&have.volume_mode) == mode(&want.volume_mode)
        && attributes(&have.volume_attributes_class_name)
            == attributes(&want.volume_attributes_class_name)
        && volume.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests;
