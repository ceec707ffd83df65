//! What the caches say about a volume.

use std::collections::BTreeSet;

use api::k8s::api::core::v1::{PersistentVolume, Pod};
use api::{Object, csi_translation};
use client::informer::decode;
use client::{Error, events};
use serde::Deserialize;
use sorting::CompactSort as _;

use super::Controller;
use super::desired::{AttachPod, AttachSource, VolumeUser, are_bound};
use super::detach::NodeCondition;
use super::multi_attach::is_exclusive;
use super::names::{NodeName, VolumeName};
use super::node_view::AttachNode;
use super::volume_attachment::Attachment;
use super::volume_state::{VolumeOnNode, VolumeView};
use crate::storage::pod_claims::BY_CLAIM;

/// Index of PersistentVolumes by [`VolumeName`].
pub(super) const BY_VOLUME: &str = "attachable-volume";
/// Index of VolumeAttachments by the name of the PersistentVolume, or by the [`VolumeName`] of an
/// inline volume.
pub(super) const BY_PERSISTENT_VOLUME: &str = "persistent-volume";
/// Index of pods by the [`VolumeName`]s of their inline volumes, and by the CSI drivers of these.
pub(super) const BY_INLINE: &str = "inline-volume";
/// Index of nodes by the [`VolumeName`]s in `status.volumesAttached`.
pub(super) const BY_LISTED: &str = "volumes-attached";

/// The fields of a VolumeAttachment that say of what it is.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Shape {
    spec: Spec,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: String,
    source: Source,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Source {
    persistent_volume_name: Option<String>,
    inline_volume_spec: Option<InlineSpec>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct InlineSpec {
    csi: CsiSource,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct CsiSource {
    driver: String,
    volume_handle: String,
}

/// The volume that a VolumeAttachment names.
pub(super) enum AttachedVolume {
    /// The PersistentVolume of this name.
    Persistent(String),
    /// A volume of a pod.
    Inline(VolumeName),
}

impl AttachedVolume {
    /// The key in [`BY_PERSISTENT_VOLUME`]: names of volumes contain a slash, those of
    /// PersistentVolumes do not.
    fn key(self) -> String {
        match self {
            Self::Persistent(name) => name,
            Self::Inline(name) => name.as_str().to_owned(),
        }
    }
}

/// The node and the volume of a VolumeAttachment.
pub(super) fn attachment_parts(attachment: &Object) -> Option<(String, Option<AttachedVolume>)> {
    let shape: Shape = serde_json::from_slice(attachment.raw()).ok()?;
    let Source { persistent_volume_name, inline_volume_spec } = shape.spec.source;
    let inline = inline_volume_spec.map(|spec| {
        AttachedVolume::Inline(VolumeName::new(&spec.csi.driver, &spec.csi.volume_handle))
    });
    let volume = persistent_volume_name.map(AttachedVolume::Persistent).or(inline);
    Some((shape.spec.node_name, volume))
}

impl Controller {
    /// Declares the indexes that reads need.
    pub(super) fn add_indexes(&self) {
        crate::storage::pod_claims::index_pods(&self.pods);
        crate::framework::nodes::index_pods(&self.pods);
        self.volumes.add_index(BY_VOLUME, |volume| {
            VolumeName::of(volume).map(|name| name.as_str().to_owned()).into_iter().collect()
        });
        self.attachments.add_index(BY_PERSISTENT_VOLUME, |attachment| {
            let volume = attachment_parts(attachment).and_then(|(_, volume)| volume);
            volume.map(AttachedVolume::key).into_iter().collect()
        });
        self.pods.add_index(BY_INLINE, |pod| {
            let inline = AttachPod::of(pod).map(|pod| pod.inline).unwrap_or_default();
            let names = inline.iter().map(|inline| &inline.volume);
            let driver = |name: &VolumeName| (!name.is_disk()).then(|| name.driver().to_owned());
            let keys = |name: &VolumeName| [Some(name.as_str().to_owned()), driver(name)];
            names.flat_map(keys).flatten().collect()
        });
        self.nodes.add_index(BY_LISTED, |node| {
            let listed = AttachNode::of(node).map(|node| node.listed_volumes()).unwrap_or_default();
            listed.iter().map(|name| name.as_str().to_owned()).collect()
        });
    }

    /// What the caches say about a volume; `users` and `nodes` are those of the last time.
    ///
    /// # Errors
    /// A cached object cannot be read.
    pub(super) fn view(
        &self,
        name: &VolumeName,
        users: Vec<VolumeUser>,
        nodes: BTreeSet<NodeName>,
    ) -> Result<VolumeView, Error> {
        let mut is_migrated = false;
        let mut volumes = self.volumes.by_index(BY_VOLUME, name.as_str());
        for volume in &mut volumes {
            if let Ok(Some(translated)) = csi_translation::persistent(volume) {
                *volume = translated;
                is_migrated = true;
            }
        }
        let users = self.users(name, &volumes, users)?;
        is_migrated |= users.iter().any(|user| user.source.is_translated());
        let mut nodes = nodes;
        nodes.extend(users.iter().map(|user| NodeName::clone(&user.node)));
        let named = volumes.iter().filter_map(|volume| volume.metadata.name.as_deref());
        for volume in named.chain([name.as_str()]) {
            for attachment in self.attachments.cache().by_index(BY_PERSISTENT_VOLUME, volume) {
                nodes.extend(attachment_parts(&attachment).map(|(node, _)| NodeName::from(node)));
            }
        }
        nodes.extend(self.disks.nodes(name));
        let listing = self.nodes.cache().by_index(BY_LISTED, name.as_str());
        nodes.extend(listing.iter().map(|node| NodeName::clone(&node.key.name)));
        let on_node = |node: NodeName| Ok((NodeName::clone(&node), self.on_node(name, &node)?));
        Ok(VolumeView {
            name: name.clone(),
            is_migrated,
            is_exclusive: volumes.iter().any(is_exclusive) || users.iter().any(|u| u.is_exclusive),
            nodes: nodes.into_iter().map(on_node).collect::<Result<_, Error>>()?,
            users,
        })
    }

    /// The pods for which a volume is attached, by namespace and name.
    fn users(
        &self,
        name: &VolumeName,
        volumes: &[PersistentVolume],
        mut users: Vec<VolumeUser>,
    ) -> Result<Vec<VolumeUser>, Error> {
        if !self.is_attachable(name) {
            return Ok(Vec::new());
        }
        users.retain(|user| self.is_still_user(user));
        for volume in volumes {
            let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
            let Some(reference) = reference else { continue };
            let namespace = reference.namespace.as_deref().unwrap_or_default();
            let claim = reference.name.as_deref().unwrap_or_default();
            let Some(claim) = self.claims.get(namespace, claim) else { continue };
            if !are_bound(&claim, volume) {
                continue;
            }
            let key = format!("{namespace}/{}", reference.name.as_deref().unwrap_or_default());
            for object in self.pods.cache().by_index(BY_CLAIM, &key) {
                let pod = AttachPod::of(&object)?;
                let is_user = pod.is_active() && pod.uses(&object.uid, &claim);
                let is_there = users.iter().any(|u| u.pod.uid.as_deref() == Some(&*object.uid));
                if is_user && !is_there && self.is_managed(&pod.node)? {
                    users.extend(volume_user(&object, &pod, volume));
                }
            }
        }
        for object in self.pods.cache().by_index(BY_INLINE, name.as_str()) {
            let pod = AttachPod::of(&object)?;
            let is_there = users.iter().any(|u| u.pod.uid.as_deref() == Some(&*object.uid));
            if pod.is_active() && !is_there && self.is_managed(&pod.node)? {
                users.extend(inline_user(&object, &pod, name));
            }
        }
        let by = |user: &VolumeUser| (user.pod.namespace.clone(), user.pod.name.clone());
        users.compact_sort_by_key(by);
        Ok(users)
    }

    /// The driver has attachments: without a CSIDriver object it does (`skipAttach`).
    fn is_attachable(&self, name: &VolumeName) -> bool {
        if name.is_disk() {
            return true;
        }
        let driver = self.drivers.get("", name.driver());
        driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
    }

    /// The pod exists and has not ended.
    fn is_still_user(&self, user: &VolumeUser) -> bool {
        let namespace = user.pod.namespace.as_deref().unwrap_or_default();
        let name = user.pod.name.as_deref().unwrap_or_default();
        let Some(object) = self.pods.cache().get(namespace, name) else { return false };
        let is_same = user.pod.uid.as_deref() == Some(&*object.uid);
        // A pod that cannot be read has not ended.
        is_same && AttachPod::of(&object).map_or(true, |pod| !pod.is_terminated)
    }

    fn is_managed(&self, node: &str) -> Result<bool, Error> {
        Ok(self.node(node)?.is_some_and(|node| node.is_managed))
    }

    /// A node; `None` if it does not exist.
    ///
    /// # Errors
    /// The cached node cannot be read.
    pub(super) fn node(&self, name: &str) -> Result<Option<AttachNode>, Error> {
        let object = self.nodes.cache().get("", name);
        Ok(object.map(|object| AttachNode::of(&object)).transpose()?)
    }

    fn on_node(&self, name: &VolumeName, node: &NodeName) -> Result<VolumeOnNode, Error> {
        let known = self.node(node)?;
        let reports = self.reports.lock();
        let is_listed = known.as_ref().is_some_and(|n| reports.lists(node, n, name));
        let attachment = if name.is_disk() {
            self.disks.get(name, node, is_listed)
        } else {
            let object = self.attachments.cache().get("", &name.attachment(node));
            object.map(|object| object.decode()).transpose()?.map(Attachment::of)
        };
        Ok(VolumeOnNode {
            attachment,
            is_listed,
            is_removed: known.is_none() || reports.is_removed(node, name),
            condition: match &known {
                Some(node) => NodeCondition {
                    is_mounted: node.in_use.contains(name.as_str()),
                    is_healthy: node.is_ready,
                    is_out_of_service: node.is_out_of_service,
                },
                None => NodeCondition {
                    is_mounted: reports.was_in_use(node, name),
                    is_healthy: false,
                    is_out_of_service: false,
                },
            },
        })
    }
}

/// The user that a pod is.
fn volume_user(object: &Object, pod: &AttachPod, volume: &PersistentVolume) -> Option<VolumeUser> {
    Some(VolumeUser {
        pod: events::reference(&decode::<Pod>(object)?),
        node: pod.node.as_str().into(),
        source: AttachSource::PersistentVolume(volume.metadata.name.clone()?),
        is_exclusive: is_exclusive(volume),
    })
}

/// The user that a pod with the inline volume `name` is.
fn inline_user(object: &Object, pod: &AttachPod, name: &VolumeName) -> Option<VolumeUser> {
    let inline = pod.inline.iter().find(|inline| inline.volume == *name)?;
    Some(VolumeUser {
        pod: events::reference(&decode::<Pod>(object)?),
        node: pod.node.as_str().into(),
        source: inline.source.clone(),
        is_exclusive: inline.is_exclusive,
    })
}
