//! The scheduler's writes: bindings, volumes, claims, evictions, and the reason why a pod has no
//! node.

pub(crate) mod claims;
mod report;

use std::time::Duration;

use api::k8s::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use api::{Gvr, Object};
use base::clock;
use client::events::EventType;
use client::informer::decode;
use client::{Client, Error, EventRecorder, Informer, Patch};
use serde_json::json;
use tokio::sync::watch;

use crate::extender::{ExtenderClients, ExtenderError};
use crate::framework::PreBind;
use crate::metrics::{self, point, status};
use crate::pod_info::PodInfo;
use crate::profile::{Profiles, scheduler_name};

use claims::{ClaimWriter, ReservedClaims};
pub(crate) use report::record;

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
    /// The API server rejects the binding.
    #[error(transparent)]
    Binding(Error),
    /// The extender that binds the pod fails.
    #[error(transparent)]
    Extender(#[from] ExtenderError),
    /// Another request to the API server failed.
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
    pub(crate) extenders: ExtenderClients,
    pub(crate) pods: Informer<Pod>,
    pub(crate) claims: Informer<PersistentVolumeClaim>,
    pub(crate) volumes: Informer<PersistentVolume>,
    /// Counts changes of claims and volumes.
    pub(crate) volumes_changed: watch::Receiver<u64>,
    pub(crate) profiles: Profiles,
}

impl BindError {
    /// The plugin of upstream that would have failed.
    fn plugin(&self) -> &'static str {
        match self {
            Self::Binding(_) => "DefaultBinder",
            Self::Extender(_) => "Extender",
            Self::Claims(_) => "DynamicResources",
            Self::VolumesNotBound
            | Self::VolumeLost(_)
            | Self::ClaimLost(_)
            | Self::Provisioning(_)
            | Self::Client(_) => "VolumeBinding",
        }
    }

    /// The message of the pod's condition.
    pub(crate) fn message(&self) -> String {
        let plugin = self.plugin();
        match self {
            Self::Binding(error) => format!("running Bind plugin {plugin:?}: {error}"),
            Self::Extender(error) => error.to_string(),
            Self::Claims(error) => format!("running PreBind plugin {plugin:?}: {error}"),
            Self::VolumesNotBound
            | Self::VolumeLost(_)
            | Self::ClaimLost(_)
            | Self::Provisioning(_)
            | Self::Client(_) => {
                format!("running PreBind plugin {plugin:?}: binding volumes: {self}")
            }
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
        if let Err(error) = &bound {
            metrics::volume_error(error.plugin(), "bind");
            let start = clock::now();
            self.resource_claims.unreserve(pod, &reserved).await;
            let profile = scheduler_name(pod);
            metrics::extension_point(point::UNRESERVE, status::SUCCESS, profile, start);
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
        let start = clock::now();
        let prepared = self.pre_bind_all(pod, node, writes, reserved).await;
        let profile = scheduler_name(pod);
        metrics::extension_point(point::PRE_BIND, status::of(&prepared), profile, start);
        prepared?;
        if !self.bind_by_extender(pod, node).await? {
            let start = clock::now();
            let bound = self.post_binding(pod, node).await;
            metrics::extension_point(point::BIND, status::of(&bound), profile, start);
            if metrics::is_sampled() {
                metrics::plugin(point::BIND, "DefaultBinder", status::of(&bound), start, 1);
            }
            bound.map_err(BindError::Binding)?;
        }
        let text = format!("Successfully assigned {}/{} to {node}", pod.namespace, pod.name);
        record(&self.recorder, pod, "Binding", (EventType::Normal, "Scheduled"), text);
        Ok(())
    }

    /// Executes the writes of `reserve`, and waits until their effect is there.
    async fn pre_bind_all(
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
        Ok(self.resource_claims.bind(pod, node, reserved).await?)
    }

    /// Whether an extender has bound the pod (`extendersBinding`).
    async fn bind_by_extender(&self, pod: &PodInfo, node: &str) -> Result<bool, ExtenderError> {
        let object = || self.pods.cache().get(&pod.namespace, &pod.name);
        for extender in self.extenders.extenders().binders(object) {
            match self.extenders.bind(extender, pod, node).await {
                Ok(()) => return Ok(true),
                Err(error) if extender.ignorable => {
                    tracing::debug!(
                        extender = extender.url_prefix,
                        %error,
                        "an extender that may be ignored failed"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    async fn post_binding(&self, pod: &PodInfo, node: &str) -> Result<(), Error> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let pods = Gvr::new("", "v1", "pods");
        let name = pod.name.as_str();
        self.client.post_value(&pods, &pod.namespace, name, "binding", &binding).await.map(drop)
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
