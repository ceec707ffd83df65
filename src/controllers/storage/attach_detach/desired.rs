//! Which pods require that a volume is attached to their node.

use api::k8s::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod,
};
use api::{Object, csi_translation};
use client::Informer;
use client::informer::decode;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::multi_attach::is_exclusive;
use super::names::{NodeName, VolumeName};
use super::scsi::{self, FcSource, IscsiSource};
use crate::storage::pod_claims::ephemeral_name;

/// A pod for which a volume is attached to a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct VolumeUser {
    /// The pod, for events.
    pub(super) pod: ObjectReference,
    /// Its node.
    pub(super) node: NodeName,
    /// What it uses.
    pub(super) source: AttachSource,
    /// The volume may be attached to one node at a time.
    pub(super) is_exclusive: bool,
}

/// What is attached, as a VolumeAttachment names it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum AttachSource {
    /// The PersistentVolume of this name.
    PersistentVolume(String),
    /// A volume of a pod without a claim.
    Inline {
        /// Its name in the pod, or the name that the translation of an in-tree plugin gives it.
        name: String,
        /// Its translation; `None` for a SCSI disk, which is attached without a VolumeAttachment.
        spec: Option<Box<PersistentVolumeSpec>>,
    },
}

impl AttachSource {
    /// The name of the volume in events.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::PersistentVolume(name) | Self::Inline { name, .. } => name,
        }
    }

    /// It is a volume of a pod that a CSI driver provides in place of an in-tree plugin.
    pub(super) fn is_translated(&self) -> bool {
        matches!(self, Self::Inline { spec: Some(_), .. })
    }
}

/// A volume of a pod without a claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InlineVolume {
    /// The volume.
    pub(super) volume: VolumeName,
    /// What is attached.
    pub(super) source: AttachSource,
    /// The volume may be attached to one node at a time.
    pub(super) is_exclusive: bool,
}

impl InlineVolume {
    /// A SCSI disk of a pod; `None` for other volumes. Whether several nodes may have it is
    /// unknown, so that they may.
    fn disk(volume: &PodVolume) -> Option<Self> {
        Some(Self {
            volume: scsi::volume_name(volume.iscsi.as_ref(), volume.fc.as_ref())?,
            source: AttachSource::Inline { name: volume.name.clone(), spec: None },
            is_exclusive: false,
        })
    }

    /// The translation of a volume of an in-tree plugin.
    fn translated(volume: PersistentVolume) -> Option<Self> {
        let is_exclusive = is_exclusive(&volume);
        let name = VolumeName::of_translated(&volume)?;
        let spec = Some(Box::new(volume.spec?));
        let source = AttachSource::Inline { name: volume.metadata.name.unwrap_or_default(), spec };
        Some(Self { volume: name, source, is_exclusive })
    }

    /// The volumes of a pod that are attached. A volume that cannot be translated is not attached;
    /// the node reports why.
    fn all(pod: &Object, volumes: &[PodVolume]) -> Vec<Self> {
        let mut all: Vec<Self> = volumes.iter().filter_map(Self::disk).collect();
        if volumes.iter().any(PodVolume::is_migrated) {
            let spec = decode::<Pod>(pod).and_then(|pod| pod.spec);
            let volumes = spec.and_then(|spec| spec.volumes).unwrap_or_default();
            let translated = volumes.iter().map(|v| csi_translation::inline(v, &pod.key.namespace));
            all.extend(translated.filter_map(|v| v.ok().flatten()).filter_map(Self::translated));
        }
        all
    }
}

/// The fields of a pod that decide about attachments.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AttachPod {
    /// `spec.nodeName`, empty while it has none.
    pub(super) node: String,
    /// It needs no volumes any more.
    pub(super) is_terminated: bool,
    claims: Vec<ClaimUse>,
    /// Volumes without a claim that are attached.
    pub(super) inline: Vec<InlineVolume>,
    /// Drivers of CSI volumes without a claim, which are not attached.
    pub(super) inline_drivers: Vec<String>,
}

/// A claim of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ClaimUse {
    name: String,
    /// The pod's ephemeral volume: the claim must belong to the pod.
    is_ephemeral: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shape {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    volumes: Option<Vec<PodVolume>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodVolume {
    name: String,
    persistent_volume_claim: Option<ClaimSource>,
    ephemeral: Option<IgnoredAny>,
    csi: Option<InlineCsi>,
    iscsi: Option<IscsiSource>,
    fc: Option<FcSource>,
    aws_elastic_block_store: Option<IgnoredAny>,
    azure_disk: Option<IgnoredAny>,
    azure_file: Option<IgnoredAny>,
    cinder: Option<IgnoredAny>,
    gce_persistent_disk: Option<IgnoredAny>,
    portworx_volume: Option<IgnoredAny>,
    vsphere_volume: Option<IgnoredAny>,
}

impl PodVolume {
    /// The volume is of a plugin that a CSI driver replaces.
    fn is_migrated(&self) -> bool {
        let sources = [
            &self.aws_elastic_block_store,
            &self.azure_disk,
            &self.azure_file,
            &self.cinder,
            &self.gce_persistent_disk,
            &self.portworx_volume,
            &self.vsphere_volume,
        ];
        sources.into_iter().any(Option::is_some)
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct InlineCsi {
    driver: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ClaimSource {
    claim_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    init_container_statuses: Option<Vec<Container>>,
    container_statuses: Option<Vec<Container>>,
    ephemeral_container_statuses: Option<Vec<Container>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Container {
    state: Option<ContainerState>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerState {
    terminated: Option<IgnoredAny>,
    waiting: Option<IgnoredAny>,
}

impl Container {
    /// Neither terminated nor waiting; an unknown state counts as running.
    fn may_run(&self) -> bool {
        self.state.as_ref().is_none_or(|s| s.terminated.is_none() && s.waiting.is_none())
    }
}

impl Status {
    fn may_run(&self) -> bool {
        let lists = [
            &self.init_container_statuses,
            &self.container_statuses,
            &self.ephemeral_container_statuses,
        ];
        lists.into_iter().flatten().flatten().any(Container::may_run)
    }
}

impl AttachPod {
    /// Reads a pod.
    ///
    /// # Errors
    /// A field has another type than in the API.
    pub(super) fn of(pod: &Object) -> Result<Self, serde_json::Error> {
        let shape: Shape = serde_json::from_slice(pod.raw())?;
        let claim = |volume: PodVolume| match (volume.persistent_volume_claim, volume.ephemeral) {
            (Some(claim), _) => Some(ClaimUse { name: claim.claim_name, is_ephemeral: false }),
            (None, Some(_)) => {
                let name = ephemeral_name(&pod.key.name, &volume.name);
                Some(ClaimUse { name, is_ephemeral: true })
            }
            (None, None) => None,
        };
        let mut volumes = shape.spec.volumes.unwrap_or_default();
        let inline_drivers = volumes.iter_mut().filter_map(|v| v.csi.take()).map(|csi| csi.driver);
        let inline_drivers = inline_drivers.collect();
        let inline = InlineVolume::all(pod, &volumes);
        let is_finished = matches!(shape.status.phase.as_deref(), Some("Failed" | "Succeeded"));
        let is_deleted = shape.metadata.deletion_timestamp.is_some();
        Ok(Self {
            node: shape.spec.node_name.unwrap_or_default(),
            // `IsPodTerminated`: a pod that is deleted before it started has no statuses.
            is_terminated: is_finished || is_deleted && !shape.status.may_run(),
            claims: volumes.into_iter().filter_map(claim).collect(),
            inline,
            inline_drivers,
        })
    }

    /// It is on a node and needs its volumes there.
    pub(super) fn is_active(&self) -> bool {
        !self.node.is_empty() && !self.is_terminated
    }

    /// The names of its claims.
    pub(super) fn claims(&self) -> impl Iterator<Item = &str> {
        self.claims.iter().map(|claim| claim.name.as_str())
    }

    /// The claims of which it uses the volumes (`createInTreeVolumeSpec`); `uid` is its own.
    pub(super) fn bound_claims<'a>(
        &'a self,
        namespace: &'a str,
        uid: &'a str,
        claims: &'a Informer<PersistentVolumeClaim>,
    ) -> impl Iterator<Item = PersistentVolumeClaim> + 'a {
        let found = self.claims().filter_map(move |name| claims.get(namespace, name));
        found.filter(move |claim| self.uses(uid, claim))
    }

    /// It uses `claim`, which is of its namespace; `uid` is its own.
    pub(super) fn uses(&self, uid: &str, claim: &PersistentVolumeClaim) -> bool {
        let name = claim.metadata.name.as_deref();
        self.claims.iter().any(|c| {
            let is_own = !c.is_ephemeral || client::is_controlled_by(&claim.metadata, uid);
            Some(&*c.name) == name && is_own
        })
    }
}

/// The volume of a bound claim (`getPVCFromCache`).
pub(super) fn bound_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref());
    volume.filter(|name| phase == Some("Bound") && !name.is_empty())
}

/// Claim and volume name each other (`getPVSpecFromCache`).
pub(super) fn are_bound(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    bound_volume(claim).is_some_and(|name| volume.metadata.name.as_deref() == Some(name))
        && reference.is_some_and(|r| r.uid == claim.metadata.uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(value: Value) -> AttachPod {
        AttachPod::of(&Object::from_value(value).unwrap()).unwrap()
    }

    fn with_status(deleted: bool, status: Value) -> AttachPod {
        let mut value = json!({"metadata": {"name": "p", "namespace": "a"},
            "spec": {"nodeName": "n"}, "status": status});
        if deleted {
            value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        pod(value)
    }

    #[test]
    fn a_pod_is_terminated_when_nothing_of_it_can_run() {
        let running = json!({"state": {"running": {}}});
        let (waiting, ended) =
            (json!({"state": {"waiting": {}}}), json!({"state": {"terminated": {}}}));
        for (deleted, status, want) in [
            (false, json!({"phase": "Pending"}), false),
            (false, json!({"phase": "Running"}), false),
            (false, json!({"phase": "Unknown"}), false),
            (false, json!({"phase": "Failed"}), true),
            (false, json!({"phase": "Succeeded"}), true),
            (false, json!({"containerStatuses": [&ended]}), false),
            (true, json!({}), true),
            (true, json!({"containerStatuses": [&waiting, &ended]}), true),
            (true, json!({"containerStatuses": [&ended, &running]}), false),
            (true, json!({"initContainerStatuses": [&running]}), false),
            (true, json!({"ephemeralContainerStatuses": [&running]}), false),
            (true, json!({"containerStatuses": [{}]}), false),
        ] {
            let pod = with_status(deleted, status.clone());
            assert_eq!(pod.is_terminated, want, "deleted: {deleted}, {status}");
            assert_eq!(pod.is_active(), !want);
        }
        assert!(!pod(json!({"metadata": {"name": "p"}, "spec": {}})).is_active());
    }

    fn claim(name: &str, owner: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "a", "uid": "c", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner,
                    "controller": true}]},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}))
        .unwrap()
    }

    #[test]
    fn claims_by_name_count_and_those_of_ephemeral_volumes_when_the_pod_owns_them() {
        let pod = pod(json!({"metadata": {"name": "p", "namespace": "a"}, "spec": {"volumes": [
            {"name": "x", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "y", "ephemeral": {"volumeClaimTemplate": {}}},
            {"name": "z", "csi": {"driver": "inline.example.com"}},
            {"name": "disk", "fc": {"wwids": ["w"]}},
            {"name": "old", "cinder": {"volumeID": "c"}},
            {"name": "wrong", "awsElasticBlockStore": {"volumeID": "aws://z/x"}}]}}));
        let inline = pod.inline.iter().map(|v| (v.volume.as_str(), v.source.name()));
        assert_eq!(
            inline.collect::<Vec<_>>(),
            [
                ("kubernetes.io/fc/[w]", "disk"),
                ("kubernetes.io/csi/cinder.csi.openstack.org^c", "cinder.csi.openstack.org-c"),
            ]
        );
        assert!(!pod.inline[0].source.is_translated() && pod.inline[1].source.is_translated());
        assert!(!pod.inline[0].is_exclusive && pod.inline[1].is_exclusive);
        assert_eq!(pod.claims().collect::<Vec<_>>(), ["data", "p-y"]);
        assert!(pod.uses("u", &claim("data", "other")));
        assert!(pod.uses("u", &claim("p-y", "u")));
        assert!(!pod.uses("u", &claim("p-y", "other")));
        assert!(!pod.uses("u", &claim("z", "u")));
    }

    #[test]
    fn claim_and_volume_must_name_each_other() {
        let volume = |name: &str, uid: Value| -> PersistentVolume {
            serde_json::from_value(json!({"metadata": {"name": name},
                "spec": {"claimRef": {"uid": uid}}}))
            .unwrap()
        };
        let mut claim = claim("data", "u");
        assert!(are_bound(&claim, &volume("pv", json!("c"))));
        assert!(!are_bound(&claim, &volume("pv", json!("earlier"))));
        assert!(!are_bound(&claim, &volume("other", json!("c"))));
        assert!(!are_bound(&claim, &PersistentVolume::default()));
        claim.status.as_mut().unwrap().phase = Some("Lost".into());
        assert!(!are_bound(&claim, &volume("pv", json!("c"))));
        claim.status.as_mut().unwrap().phase = Some("Bound".into());
        claim.spec.as_mut().unwrap().volume_name = Some(String::new());
        assert_eq!(bound_volume(&claim), None);
    }
}
