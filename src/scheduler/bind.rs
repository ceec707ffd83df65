//! The scheduler's writes: bindings, volumes, claims, evictions, and the reason why a pod has no
//! node.

pub(crate) mod claims;

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use api::k8s::jiff::Timestamp;
use api::{Gvr, Object};
use client::events::EventType;
use client::informer::decode;
use client::{Client, DeleteOptions, Error, EventRecorder, Informer, Patch};
use serde_json::json;
use tokio::sync::watch;

use crate::framework::PreBind;
use crate::pod_info::PodInfo;
use crate::profile::{DEFAULT_SCHEDULER, Profiles};
use crate::state::Unschedulable;

use claims::{ClaimWriter, ReservedClaims};

/// The node for which the provisioner creates the volume of a claim; the provisioner removes it
/// when it cannot.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Why a pod was not bound to its node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// A claim of the pod was not bound within `bindTimeoutSeconds` of VolumeBinding.
    #[error("the pod's volumes were not bound within 10 minutes")]
    VolumesNotBound,
    /// A volume that was chosen for a claim does not exist any more or has another claim.
    #[error("volume {0} is not available for the pod any more")]
    VolumeLost(String),
    /// A claim of the pod does not exist any more.
    #[error("claim {0} does not exist any more")]
    ClaimLost(String),
    /// The volume of a claim is not provisioned.
    #[error(transparent)]
    Provisioning(#[from] ProvisioningError),
    /// The devices of the pod's claims could not be allocated or are not ready.
    #[error(transparent)]
    Claims(#[from] claims::ClaimWriteError),
    /// A request to the API server failed.
    #[error(transparent)]
    Client(#[from] Error),
}

/// Why the volume of a claim is not provisioned for the node of the pod; upstream's texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProvisioningError {
    /// The claim has no annotations at all.
    #[error("selectedNode annotation reset for PVC {0:?}")]
    Reset(String),
    /// The provisioner removed the selected node, or another pod selected another one.
    #[error("provisioning failed for PVC {0:?}")]
    Failed(String),
}

/// A claim for which the provisioner was asked to create a volume.
#[derive(Debug)]
struct ProvisionedClaim {
    name: String,
    /// The version of the claim with the selected node; the cache may have an older one.
    version: i64,
}

/// Writes to the API server; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) client: Client,
    /// Writes ResourceClaims.
    pub(crate) resource_claims: ClaimWriter,
    pub(crate) recorder: EventRecorder,
    pub(crate) pods: Informer<Pod>,
    pub(crate) claims: Informer<PersistentVolumeClaim>,
    pub(crate) volumes: Informer<PersistentVolume>,
    /// Counts changes of claims and volumes.
    pub(crate) volumes_changed: watch::Receiver<u64>,
    pub(crate) profiles: Profiles,
}

impl BindError {
    /// Whether other pods or users caused it, so that the pod is scheduled again without a report.
    pub(crate) fn is_expected(&self) -> bool {
        match self {
            Self::Client(error) => error.is_not_found() || error.is_conflict(),
            Self::VolumeLost(_) | Self::ClaimLost(_) => true,
            Self::VolumesNotBound | Self::Provisioning(_) | Self::Claims(_) => false,
        }
    }
}

/// Whether a volume is free for a claim: it has no claim, or this one.
fn is_free_for(volume: &PersistentVolume, claim: &ObjectReference) -> bool {
    let Some(own) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else { return true };
    // A volume that was reserved by hand has no identifier of its claim yet.
    let is_same = own.uid.as_deref().is_none_or(str::is_empty) || own.uid == claim.uid;
    is_same && own.namespace == claim.namespace && own.name == claim.name
}

/// Whether the provisioner still works on a claim for a node (`checkBindings`).
fn check_provisioning(
    asked: &ProvisionedClaim,
    claim: &Object,
    node: &str,
) -> Result<(), ProvisioningError> {
    if claim.resource_version < asked.version {
        return Ok(());
    }
    let metadata = decode::<PersistentVolumeClaim>(claim).map(|c| c.metadata).unwrap_or_default();
    let Some(annotations) = metadata.annotations else {
        return Err(ProvisioningError::Reset(asked.name.clone()));
    };
    if annotations.get(SELECTED_NODE).is_some_and(|selected| selected == node) {
        Ok(())
    } else {
        Err(ProvisioningError::Failed(asked.name.clone()))
    }
}

fn reference(pod: &PodInfo) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

impl Writer {
    /// Executes the writes of `reserve`, then binds the pod.
    pub(crate) async fn bind(
        &self,
        pod: &PodInfo,
        node: &str,
        writes: &[PreBind],
    ) -> Result<(), BindError> {
        let mut reserved = ReservedClaims::new(writes);
        let bound = self.bind_reserved(pod, node, writes, &mut reserved).await;
        if bound.is_err() {
            self.resource_claims.unreserve(pod, &reserved).await;
        }
        bound
    }

    /// Takes back what was reserved for a pod that is not bound.
    pub(crate) async fn unreserve(&self, pod: &PodInfo, writes: &[PreBind]) {
        self.resource_claims.unreserve(pod, &ReservedClaims::new(writes)).await;
    }

    async fn bind_reserved(
        &self,
        pod: &PodInfo,
        node: &str,
        writes: &[PreBind],
        reserved: &mut ReservedClaims,
    ) -> Result<(), BindError> {
        let mut provisioned = Vec::new();
        for write in writes {
            provisioned.extend(self.pre_bind(pod, node, write).await?);
        }
        if writes.iter().any(|write| !matches!(write, PreBind::BindClaims(_))) {
            self.volumes_bound((pod, node), writes, &provisioned).await?;
        }
        self.resource_claims.bind(pod, node, reserved).await?;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        self.client
            .post_value(&Gvr::new("", "v1", "pods"), &pod.namespace, &pod.name, "binding", &binding)
            .await?;
        let text = format!("Successfully assigned {}/{} to {node}", pod.namespace, pod.name);
        self.recorder.event_for(reference(pod), EventType::Normal, "Scheduled", text);
        Ok(())
    }

    fn claim_reference(&self, namespace: &str, claim: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolumeClaim".into()),
            namespace: Some(namespace.into()),
            name: Some(claim.into()),
            uid: self.claims.get(namespace, claim).and_then(|c| c.metadata.uid),
            ..ObjectReference::default()
        }
    }

    /// Executes a write; returns the claim for which a volume is to be provisioned.
    async fn pre_bind(
        &self,
        pod: &PodInfo,
        node: &str,
        write: &PreBind,
    ) -> Result<Option<ProvisionedClaim>, BindError> {
        match write {
            PreBind::ProvisionVolume { claim } => {
                let annotations = json!({SELECTED_NODE: node});
                let patch = json!({"metadata": {"annotations": annotations}});
                let written = self
                    .client
                    .patch::<PersistentVolumeClaim>(
                        &pod.namespace,
                        claim,
                        "",
                        &Patch::Merge(&patch),
                    )
                    .await?;
                let version = written.metadata.resource_version.and_then(|v| v.parse().ok());
                let version = version.unwrap_or_default();
                return Ok(Some(ProvisionedClaim { name: claim.clone(), version }));
            }
            PreBind::BindVolume { claim, volume } => {
                let reference = self.claim_reference(&pod.namespace, claim);
                // Pods that are scheduled at the same time may have chosen the same volume: the
                // first one gets it.
                let current: PersistentVolume = self.client.get("", volume).await?;
                if !is_free_for(&current, &reference) {
                    return Err(BindError::VolumeLost(volume.clone()));
                }
                let annotations = json!({"pv.kubernetes.io/bound-by-controller": "yes"});
                let version = current.metadata.resource_version;
                let patch = json!({
                    "metadata": {"annotations": annotations, "resourceVersion": version},
                    "spec": {"claimRef": reference},
                });
                self.client
                    .patch::<PersistentVolume>("", volume, "", &Patch::Merge(&patch))
                    .await?;
            }
            // Written after the volumes are bound.
            PreBind::BindClaims(_) => {}
        }
        Ok(None)
    }

    /// Returns the volume or claim that was lost after `writes`, if any (`checkBindings`).
    fn lost(
        &self,
        (pod, node): (&PodInfo, &str),
        writes: &[PreBind],
        provisioned: &[ProvisionedClaim],
    ) -> Option<BindError> {
        if let Some(name) =
            pod.claims.iter().find(|name| self.claims.get(&pod.namespace, name).is_none())
        {
            return Some(BindError::ClaimLost(name.clone()));
        }
        let failed = provisioned.iter().find_map(|asked| {
            let claim = self.claims.cache().get(&pod.namespace, &asked.name)?;
            check_provisioning(asked, &claim, node).err()
        });
        if let Some(error) = failed {
            return Some(error.into());
        }
        writes.iter().find_map(|write| {
            let PreBind::BindVolume { claim, volume } = write else { return None };
            let reference = self.claim_reference(&pod.namespace, claim);
            let is_kept = self.volumes.get("", volume).is_some_and(|v| is_free_for(&v, &reference));
            (!is_kept).then(|| BindError::VolumeLost(volume.clone()))
        })
    }

    /// Resolves once every claim of the pod is bound, or one cannot be any more.
    async fn volumes_bound(
        &self,
        (pod, node): (&PodInfo, &str),
        writes: &[PreBind],
        provisioned: &[ProvisionedClaim],
    ) -> Result<(), BindError> {
        let mut changed = self.volumes_changed.clone();
        let all_bound = || {
            pod.claims.iter().all(|name| {
                let claim = self.claims.get(&pod.namespace, name);
                claim.and_then(|c| c.status).and_then(|s| s.phase).is_some_and(|p| p == "Bound")
            })
        };
        let wait = async {
            loop {
                // Also of claims that are bound: the volume may be one for another node.
                if let Some(error) = self.lost((pod, node), writes, provisioned) {
                    return Err(error);
                }
                if all_bound() || changed.changed().await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        let profile = self.profiles.of(&pod.scheduler);
        let timeout = profile.map_or(Duration::ZERO, |profile| profile.args.bind_timeout);
        tokio::time::timeout(timeout, wait).await.unwrap_or(Err(BindError::VolumesNotBound))
    }

    /// Releases a claim, evicts the victims of a preemption, and reports why the pod has no node.
    pub(crate) async fn unschedulable(
        &self,
        pod: &PodInfo,
        why: &Unschedulable,
    ) -> Result<(), Error> {
        let released = match &why.release {
            Some(release) => self.resource_claims.release(release).await,
            None => Ok(()),
        };
        if let Err(error) = released {
            let text = why.text_with(&error.to_string());
            return self.not_scheduled(pod, "Unschedulable", &text, "").await;
        }
        let nomination = why.nomination.as_ref().filter(|_| self.cached(pod).is_some());
        let victims = nomination.iter().flat_map(|nomination| &nomination.victims);
        for victim in victims.filter(|victim| !victim.deleting) {
            self.evict(pod, victim, nomination.map_or("", |n| n.node.as_str())).await?;
        }
        let nominated = nomination.map_or("", |n| n.node.as_str());
        self.not_scheduled(pod, "Unschedulable", &why.text(), nominated).await
    }

    /// The pod in the cache, unless it is another one of this name.
    fn cached(&self, pod: &PodInfo) -> Option<Pod> {
        let cached = self.pods.get(&pod.namespace, &pod.name)?;
        (cached.metadata.uid.as_deref() == Some(&pod.uid)).then_some(cached)
    }

    /// Reports why the pod has no node. `nominated` is the node that will be free for it, or empty.
    pub(crate) async fn not_scheduled(
        &self,
        pod: &PodInfo,
        reason: &str,
        message: &str,
        nominated: &str,
    ) -> Result<(), Error> {
        self.recorder.event_for(reference(pod), EventType::Warning, "FailedScheduling", message);
        let Some(cached) = self.cached(pod) else { return Ok(()) };
        let status = cached.status.unwrap_or_default();
        let old = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled");
        let same = old.is_some_and(|c| {
            c.status == "False"
                && c.reason.as_deref() == Some(reason)
                && c.message.as_deref() == Some(message)
        });
        let keeps_nomination =
            nominated.is_empty() || status.nominated_node_name.as_deref() == Some(nominated);
        if same && keeps_nomination {
            return Ok(());
        }
        let since =
            old.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.clone());
        let since =
            since.unwrap_or(api::k8s::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()));
        let mut patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [{
            "type": "PodScheduled", "status": "False",
            "reason": reason, "message": message,
            "lastTransitionTime": since, "lastProbeTime": null,
            "observedGeneration": cached.metadata.generation,
        }]}});
        if !nominated.is_empty() {
            patch["status"]["nominatedNodeName"] = nominated.into();
        }
        match self
            .client
            .patch::<Pod>(&pod.namespace, &pod.name, "status", &Patch::Strategic(&patch))
            .await
        {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn evict(
        &self,
        preemptor: &PodInfo,
        victim: &Arc<PodInfo>,
        node: &str,
    ) -> Result<(), Error> {
        let scheduler = match preemptor.scheduler.as_str() {
            "" => DEFAULT_SCHEDULER,
            name => name,
        };
        let message = format!("{scheduler}: preempting to accommodate a higher priority pod");
        let condition = json!({"status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": message,
            "lastTransitionTime": Timestamp::now().to_string(),
        }]}});
        let gone = |error: &Error| error.is_not_found() || error.is_conflict();
        match self
            .client
            .patch::<Pod>(&victim.namespace, &victim.name, "status", &Patch::Strategic(&condition))
            .await
        {
            Err(error) if !gone(&error) => return Err(error),
            Ok(_) | Err(_) => {}
        }
        match self
            .client
            .delete::<Pod>(&victim.namespace, &victim.name, &DeleteOptions::with_uid(&victim.uid))
            .await
        {
            Err(error) if !gone(&error) => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let text = format!("Preempted by pod {} on node {node}", preemptor.uid);
        self.recorder.event_for(reference(victim), EventType::Normal, "Preempted", text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases `provisioning-pvc-*` of `TestCheckBindings`.
    #[test]
    fn provisioning_fails_when_the_selected_node_is_removed_or_replaced() {
        let check = |version: &str, annotations: serde_json::Value| {
            let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": "c", "namespace": "n", "uid": "u",
                    "resourceVersion": version, "annotations": annotations}});
            let asked = ProvisionedClaim { name: "c".into(), version: 7 };
            let claim = Object::from_value(claim).unwrap();
            check_provisioning(&asked, &claim, "node1").map_err(|error| error.to_string())
        };
        let selected = |node: &str| json!({SELECTED_NODE: node, "a": "b"});
        assert_eq!(check("7", selected("node1")), Ok(()));
        assert_eq!(check("8", selected("node1")), Ok(()));
        assert_eq!(check("6", serde_json::Value::Null), Ok(()), "the cache is older");
        assert_eq!(
            check("8", serde_json::Value::Null),
            Err("selectedNode annotation reset for PVC \"c\"".to_owned())
        );
        let failed = Err("provisioning failed for PVC \"c\"".to_owned());
        assert_eq!(check("8", json!({})), failed);
        assert_eq!(check("8", json!({"a": "b"})), failed);
        assert_eq!(check("8", selected("wrong-node")), failed);
    }

    #[test]
    fn a_volume_is_free_without_a_claim_or_for_its_own() {
        let claim = |name: &str, uid: Option<&str>| ObjectReference {
            namespace: Some("n".into()),
            name: Some(name.into()),
            uid: uid.map(Into::into),
            ..ObjectReference::default()
        };
        let free = |own: Option<ObjectReference>| {
            let mut volume = PersistentVolume::default();
            volume.spec.get_or_insert_default().claim_ref = own;
            is_free_for(&volume, &claim("c", Some("1")))
        };
        assert!(is_free_for(&PersistentVolume::default(), &claim("c", Some("1"))));
        assert!(free(None));
        assert!(free(Some(claim("c", Some("1")))));
        assert!(free(Some(claim("c", None))), "reserved by hand");
        assert!(!free(Some(claim("c", Some("2")))), "an earlier claim of this name");
        assert!(!free(Some(claim("d", None))));
    }
}
