//! The volume's part: its phase, and what becomes of it when its claim is gone.

use api::csi_translation::{MIGRATED_TO, driver_of};
use api::k8s::api::core::v1::PersistentVolumeClaim;
use client::Error;
use client::events::EventType;
use serde_json::Value;

use super::matching::{
    BOUND_BY_CONTROLLER, PROVISIONED_BY, annotation, mode_differs, volume_class,
};
use super::{Binder, Stored, Volume, volume_phase};

/// What a volume without its claim becomes.
#[derive(Debug, PartialEq, Eq)]
enum Reclaim {
    /// Left to its administrator, or to its provisioner.
    Leave,
    /// Cannot be done; reason of the event and text.
    Fail(&'static str, String),
}

fn reclaim(policy: &str, provisioned_by: Option<&str>, name: &str) -> Reclaim {
    match (policy, provisioned_by) {
        ("Retain", _) => Reclaim::Leave,
        ("Delete", Some(by)) if !by.starts_with("kubernetes.io/") => Reclaim::Leave,
        ("Delete", _) => Reclaim::Fail(
            "VolumeFailedDelete",
            format!(
                "error getting deleter volume plugin for volume {name:?}: no deletable volume \
                    plugin matched"
            ),
        ),
        ("Recycle", _) => Reclaim::Fail(
            "VolumeFailedRecycle",
            "No recycler plugin found for the volume!".to_owned(),
        ),
        _ => Reclaim::Fail(
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy".to_owned(),
        ),
    }
}

impl Binder {
    pub(super) async fn sync_volume(&self, name: &str) -> Result<(), Error> {
        let Some(volume) = Stored::cached(&self.volumes, "", name)? else { return Ok(()) };
        let volume = self.annotate_migration(volume, &[PROVISIONED_BY]).await?;
        let reference = volume.typed.spec.as_ref().and_then(|s| s.claim_ref.clone());
        let Some(reference) = reference else {
            return self.volume_phase(volume, "Available", "").await.map(drop);
        };
        let Some(uid) = reference.uid.filter(|u| !u.is_empty()) else {
            // Reserved by a user; the claim binds it.
            return self.volume_phase(volume, "Available", "").await.map(drop);
        };
        let (namespace, claim) =
            (reference.namespace.unwrap_or_default(), reference.name.unwrap_or_default());
        let Some(claim) = self.claim_of(&volume, &namespace, &claim, &uid).await? else {
            return self.released(volume).await;
        };
        let bound_to = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref());
        match bound_to.unwrap_or_default() {
            "" if mode_differs(&volume.typed, &claim) => {
                self.tell_modes(&volume, &claim);
                Ok(())
            }
            "" => {
                self.queue.add((namespace, claim.metadata.name.unwrap_or_default()));
                Ok(())
            }
            bound if bound == name => self.volume_phase(volume, "Bound", "").await.map(drop),
            _ => {
                let by = annotation(&volume.typed.metadata.annotations, PROVISIONED_BY);
                if by.is_some() && self.policy(&volume) == "Delete" {
                    self.released(volume).await
                } else {
                    self.unbind(volume).await
                }
            }
        }
    }

    /// The claim that the volume references, if it is still the same; read from the server before a
    /// volume is released.
    async fn claim_of(
        &self,
        volume: &Volume,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Option<PersistentVolumeClaim>, Error> {
        let same = |c: &PersistentVolumeClaim| c.metadata.uid.as_deref() == Some(uid);
        let cached = self.claims.get(namespace, name);
        if let Some(claim) = cached.as_ref().filter(|c| same(c)) {
            return Ok(Some(claim.clone()));
        }
        if cached.is_none() && matches!(volume_phase(&volume.typed), "Released" | "Failed") {
            return Ok(None);
        }
        match self.client.get::<PersistentVolumeClaim>(namespace, name).await {
            Ok(claim) => Ok(Some(claim).filter(same)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn tell_modes(&self, volume: &Volume, claim: &PersistentVolumeClaim) {
        let (v, c) = (
            volume.typed.metadata.name.as_deref().unwrap_or_default(),
            claim.metadata.name.as_deref().unwrap_or_default(),
        );
        let reason = "VolumeMismatch";
        let text = format!(
            "Cannot bind PersistentVolume to requested PersistentVolumeClaim {c:?} due to \
                incompatible volumeMode."
        );
        self.recorder.event(&volume.typed, EventType::Warning, reason, text);
        let text = format!(
            "Cannot bind PersistentVolume {v:?} to requested PersistentVolumeClaim due to \
                incompatible volumeMode."
        );
        self.recorder.event(claim, EventType::Warning, reason, text);
    }

    fn policy(&self, volume: &Volume) -> String {
        let spec = volume.typed.spec.as_ref();
        spec.and_then(|s| s.persistent_volume_reclaim_policy.clone())
            .unwrap_or_else(|| "Retain".into())
    }

    /// The claim is gone for good.
    async fn released(&self, volume: Volume) -> Result<(), Error> {
        let volume = match volume_phase(&volume.typed) {
            "Released" | "Failed" => volume,
            _ => self.volume_phase(volume, "Released", "").await?,
        };
        let name = volume.typed.metadata.name.clone().unwrap_or_default();
        let annotations = &volume.typed.metadata.annotations;
        if annotation(annotations, MIGRATED_TO).is_some() {
            // The provisioner of the CSI driver deletes the volume.
            return Ok(());
        }
        let by = annotation(annotations, PROVISIONED_BY);
        let policy = self.policy(&volume);
        let reclaimed = reclaim(&policy, by, &name);
        if policy == "Delete" {
            let class = (reclaimed == Reclaim::Leave).then(|| volume_class(&volume.typed));
            let class = class.and_then(|class| self.classes.get("", class));
            let plugin = class.as_ref().map(|class| driver_of(&class.provisioner));
            self.operations.begin(&name, "delete", plugin);
            if reclaimed != Reclaim::Leave {
                self.operations.failed(&name);
            }
        }
        match reclaimed {
            Reclaim::Leave => Ok(()),
            Reclaim::Fail(_, _) if volume_phase(&volume.typed) == "Failed" => Ok(()),
            Reclaim::Fail(reason, text) => {
                let volume = self.volume_phase(volume, "Failed", &text).await?;
                self.recorder.event(&volume.typed, EventType::Warning, reason, text);
                Ok(())
            }
        }
    }

    /// Takes a binding back: the claim found another volume.
    async fn unbind(&self, volume: Volume) -> Result<(), Error> {
        let ours = annotation(&volume.typed.metadata.annotations, BOUND_BY_CONTROLLER).is_some();
        let volume = volume
            .write(&self.client, "", |json| {
                if ours {
                    if let Some(spec) = json.get_mut("spec").and_then(Value::as_object_mut) {
                        spec.remove("claimRef");
                    }
                    let annotations = json.pointer_mut("/metadata/annotations");
                    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
                        annotations.remove(BOUND_BY_CONTROLLER);
                    }
                } else if let Some(reference) =
                    json.pointer_mut("/spec/claimRef").and_then(Value::as_object_mut)
                {
                    reference.remove("uid");
                }
            })
            .await?;
        self.volume_phase(volume, "Available", "").await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisioners_delete_their_own_and_recycling_is_refused() {
        assert_eq!(reclaim("Delete", Some("rancher.io/local-path"), "v"), Reclaim::Leave);
        assert_eq!(reclaim("Retain", None, "v"), Reclaim::Leave);
        assert!(matches!(reclaim("Delete", None, "v"), Reclaim::Fail("VolumeFailedDelete", _)));
        assert!(matches!(reclaim("Recycle", None, "v"), Reclaim::Fail("VolumeFailedRecycle", _)));
    }
}
