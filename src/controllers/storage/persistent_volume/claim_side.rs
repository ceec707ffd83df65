//! The claim's part: find it a volume, ask for one to be made, or tell what it waits for.

use api::csi_translation::driver_of;
use api::k8s::api::core::v1::PersistentVolume;
use api::quantity::Quantity;
use client::Error;
use client::events::EventType;
use serde_json::{Value, json};

use super::matching::{
    BETA_PROVISIONER, BOUND_BY_CONTROLLER, PROVISIONER, SELECTED_NODE, annotation, best,
    claim_class, default_class, has_class, is_bound_to, refusal,
};
use super::{Binder, Claim, Stored, claim_phase, is_unbound};
use crate::framework::pods;
use crate::storage::metrics;
use crate::storage::pod_claims::BY_CLAIM;

/// Size of the file system of a volume that was enlarged while its claim was deleted; the node
/// enlarges the file system of the next claim.
const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// The capacity that a claim shows when it is bound to a volume (`updateClaimStatus`): that of the
/// volume, or the one before a resize whose last step is left.
fn bound_capacity(old: Option<&Value>, volume: &PersistentVolume) -> Result<Value, Error> {
    let spec = volume.spec.as_ref();
    let whole = serde_json::to_value(spec.map(|s| &s.capacity))?;
    let Some(text) = annotation(&volume.metadata.annotations, PRE_RESIZE_CAPACITY) else {
        return Ok(whole);
    };
    let size = match Quantity::parse(text) {
        Ok(size) => Value::from(size.to_string()),
        Err(error) => {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(
                volume = name,
                %error,
                "ignoring the pre-resize capacity of a PersistentVolume"
            );
            whole.get("storage").cloned().unwrap_or_default()
        }
    };
    let mut capacity = old.filter(|old| old.is_object()).cloned().unwrap_or_else(|| json!({}));
    capacity["storage"] = size;
    Ok(capacity)
}

/// The claim's status with this phase, and the volume's access modes and size; `None` when it is so
/// already. The size is taken only when the phase changes: later on resizing keeps it.
pub(super) fn status(
    claim: &Value,
    phase: &str,
    volume: Option<&PersistentVolume>,
) -> Result<Option<Value>, Error> {
    let old = claim.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut new = old.clone();
    let before = old.get("phase").and_then(Value::as_str);
    let changes = before != Some(phase);
    new["phase"] = phase.into();
    let Some(fields) = new.as_object_mut() else { return Ok(None) };
    let volume = volume.and_then(|v| Some((v, v.spec.as_ref()?)));
    match volume {
        None => {
            for field in ["accessModes", "capacity", "currentVolumeAttributesClassName"] {
                fields.remove(field);
            }
        }
        Some((volume, spec)) => {
            fields.insert("accessModes".into(), serde_json::to_value(&spec.access_modes)?);
            if changes {
                let capacity = bound_capacity(fields.get("capacity"), volume)?;
                fields.insert("capacity".into(), capacity);
            }
            // Later on, the class is that of external-resizer.
            if (before, phase) == (Some("Pending"), "Bound") {
                const CLASS: &str = "currentVolumeAttributesClassName";
                match &spec.volume_attributes_class_name {
                    Some(class) => drop(fields.insert(CLASS.into(), class.as_str().into())),
                    None => drop(fields.remove(CLASS)),
                }
            }
        }
    }
    Ok((new != old).then_some(new))
}

/// `<namespace>/<name>` of a claim.
fn key_of(claim: &Claim) -> String {
    let meta = &claim.typed.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    format!("{}/{}", text(&meta.namespace), text(&meta.name))
}

impl Binder {
    pub(super) async fn sync_claim(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let Some(claim) = Stored::cached(&self.claims, namespace, name)? else { return Ok(()) };
        let claim = self.annotate_migration(claim, &[PROVISIONER, BETA_PROVISIONER]).await?;
        let volume = claim.typed.spec.as_ref().and_then(|s| s.volume_name.clone());
        let volume = volume.filter(|v| !v.is_empty());
        match (is_unbound(&claim.typed), volume) {
            (true, None) => self.find(claim).await,
            (true, Some(volume)) => self.take(claim, &volume).await,
            (false, volume) => self.keep(claim, volume.as_deref()).await,
        }
    }

    fn tell(&self, claim: &Claim, kind: EventType, reason: &str, text: &str) {
        self.recorder.event(&claim.typed, kind, reason, text);
    }

    /// Whether volumes of the claim's class wait for a pod.
    fn delayed(&self, claim: &Claim) -> bool {
        let class = self.classes.get("", claim_class(&claim.typed));
        class.is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
    }

    /// A claim that takes any volume.
    async fn find(&self, claim: Claim) -> Result<(), Error> {
        let delayed = self.delayed(&claim);
        let all = self.volumes.list("");
        if let Some(found) = best(&all, &claim.typed, delayed) {
            let name = found.metadata.name.as_deref().unwrap_or_default();
            let Some(volume) = Stored::cached(&self.volumes, "", name)? else { return Ok(()) };
            let key = key_of(&claim);
            let bound = self.bind(volume, claim).await;
            self.operations.ended(&key, &bound);
            return bound;
        }
        if !has_class(&claim.typed) {
            let classes = self.classes.list("");
            if let Some(name) = default_class(&classes).and_then(|c| c.metadata.name.clone()) {
                let set = |json: &mut Value| json["spec"]["storageClassName"] = name.into();
                let written = claim.write(&self.client, "", set).await.map(drop);
                metrics::default_class_assigned(written.is_ok());
                return written;
            }
        }
        let selected = annotation(&claim.typed.metadata.annotations, SELECTED_NODE).is_some();
        if delayed && !selected {
            let (reason, text) = self.waits_for(&claim);
            self.tell(&claim, EventType::Normal, reason, &text);
        } else if claim_class(&claim.typed).is_empty() {
            let text = "no persistent volumes available for this claim and no storage class is set";
            self.tell(&claim, EventType::Normal, "FailedBinding", text);
        } else {
            return self.provision(claim).await;
        }
        self.claim_phase(claim, "Pending", None).await.map(drop)
    }

    fn waits_for(&self, claim: &Claim) -> (&'static str, String) {
        let waiting: Vec<String> = self
            .pods
            .by_index(BY_CLAIM, &key_of(claim))
            .into_iter()
            .filter(|p| !pods::is_terminal(p) && !pods::is_scheduled(p))
            .filter_map(|p| p.metadata.name)
            .collect();
        match waiting.as_slice() {
            [] => (
                "WaitForFirstConsumer",
                "waiting for first consumer to be created before binding".into(),
            ),
            [one] => ("WaitForPodScheduled", format!("waiting for pod {one} to be scheduled")),
            all => (
                "WaitForPodScheduled",
                format!("waiting for pods {} to be scheduled", all.join(",")),
            ),
        }
    }

    /// Requests a volume from the class's provisioner, which creates one with a reference to the
    /// claim.
    async fn provision(&self, claim: Claim) -> Result<(), Error> {
        let name = claim_class(&claim.typed);
        let Some(class) = self.classes.get("", name) else {
            let text = format!("storageclass.storage.k8s.io {name:?} not found");
            self.tell(&claim, EventType::Warning, "ProvisioningFailed", &text);
            return Ok(());
        };
        // The driver, for the plugin that it replaces.
        let provisioner = driver_of(&class.provisioner).to_owned();
        if provisioner.starts_with("kubernetes.io/") {
            let text = format!("no volume plugin matched name: {provisioner}");
            self.tell(&claim, EventType::Warning, "ProvisioningFailed", &text);
            return Ok(());
        }
        let key = key_of(&claim);
        self.operations.begin(&key, "provision", Some(&provisioner));
        let asked = annotation(&claim.typed.metadata.annotations, PROVISIONER);
        if asked == Some(&provisioner) {
            return Ok(());
        }
        let written = claim
            .write(&self.client, "", |json| {
                for name in [PROVISIONER, BETA_PROVISIONER] {
                    json["metadata"]["annotations"][name] = provisioner.as_str().into();
                }
            })
            .await;
        if written.is_err() {
            self.operations.failed(&key);
        }
        let claim = written?;
        let text = format!(
            "Waiting for a volume to be created either by the external provisioner \
             '{provisioner}' or manually by the system administrator. If volume creation is \
             delayed, please verify that the provisioner is running and correctly registered."
        );
        self.tell(&claim, EventType::Normal, "ExternalProvisioning", &text);
        Ok(())
    }

    /// A claim that names its volume.
    async fn take(&self, claim: Claim, name: &str) -> Result<(), Error> {
        let Some(volume) = Stored::cached(&self.volumes, "", name)? else {
            return self.claim_phase(claim, "Pending", None).await.map(drop);
        };
        if volume.typed.spec.as_ref().is_none_or(|s| s.claim_ref.is_none()) {
            let Some(why) = refusal(&volume.typed, &claim.typed) else {
                return self.bind(volume, claim).await;
            };
            let text = format!("Cannot bind to requested volume {name:?}: {why}");
            self.tell(&claim, EventType::Warning, "VolumeMismatch", &text);
            return self.claim_phase(claim, "Pending", None).await.map(drop);
        }
        if is_bound_to(&volume.typed, &claim.typed) {
            return self.bind(volume, claim).await;
        }
        let text = format!("volume {name:?} already bound to a different claim.");
        self.tell(&claim, EventType::Warning, "FailedBinding", &text);
        if annotation(&claim.typed.metadata.annotations, BOUND_BY_CONTROLLER).is_some() {
            // Somebody removed the mark of completion; the volume's next change looks again.
            return Ok(());
        }
        self.claim_phase(claim, "Pending", None).await.map(drop)
    }

    /// A claim that was bound: it is still, or has lost its volume for good.
    async fn keep(&self, claim: Claim, volume: Option<&str>) -> Result<(), Error> {
        let found = match volume {
            Some(name) => Stored::cached(&self.volumes, "", name)?,
            None => None,
        };
        let reference = found.as_ref().and_then(|v| v.typed.spec.as_ref()?.claim_ref.clone());
        let (reason, text) = match (volume, found, reference) {
            (Some(_), Some(volume), None) => return self.bind(volume, claim).await,
            (Some(_), Some(volume), Some(r)) if r.uid == claim.typed.metadata.uid => {
                return self.bind(volume, claim).await;
            }
            (Some(_), Some(_), Some(_)) => (
                "ClaimMisbound",
                "Two claims are bound to the same volume, this one is bound incorrectly",
            ),
            (Some(_), None, _) => (
                "ClaimLost",
                "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
            ),
            (None, _, _) => (
                "ClaimLost",
                "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
            ),
        };
        if claim_phase(&claim.typed) == "Lost" {
            return Ok(());
        }
        let claim = self.claim_phase(claim, "Lost", None).await?;
        self.tell(&claim, EventType::Warning, reason, text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_takes_size_and_modes_when_the_claim_becomes_bound() {
        let volume: PersistentVolume = serde_json::from_value(
            json!({"spec": {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"]}}),
        )
        .unwrap();
        let pending = json!({"status": {"phase": "Pending", "conditions": [{"type": "Unused"}]}});
        let bound = status(&pending, "Bound", Some(&volume)).unwrap().unwrap();
        assert_eq!(
            bound,
            json!({"phase": "Bound", "conditions": [{"type": "Unused"}],
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}})
        );
        let resized = json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"}}});
        assert_eq!(status(&resized, "Bound", Some(&volume)).unwrap(), None);
        assert_eq!(status(&resized, "Lost", None).unwrap(), Some(json!({"phase": "Lost"})));
    }

    /// Cases of `TestSync` with `volumeAttributesClassName`.
    #[test]
    fn the_attributes_class_is_that_of_the_volume_when_a_pending_claim_is_bound() {
        let volume = |class: Value| -> PersistentVolume {
            let spec = json!({"capacity": {"storage": "1Gi"}, "volumeAttributesClassName": class});
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        let class = |phase: &str, current: Value, volume: &PersistentVolume| {
            let claim = json!({"status": {"phase": phase,
                "currentVolumeAttributesClassName": current}});
            let status = status(&claim, "Bound", Some(volume)).unwrap();
            status.map_or(current, |s| s["currentVolumeAttributesClassName"].clone())
        };
        assert_eq!(class("Pending", Value::Null, &volume(json!("gold"))), "gold");
        assert_eq!(class("Pending", json!("silver"), &volume(Value::Null)), Value::Null);
        assert_eq!(class("Bound", json!("silver"), &volume(json!("gold"))), "silver");
        assert_eq!(class("Lost", json!("silver"), &volume(json!("gold"))), "silver");
    }

    /// Cases of `TestSync` with `withPreResizeCapacity`, and those with other capacities.
    #[test]
    fn a_volume_with_a_pending_resize_of_its_file_system_shows_the_size_before() {
        let bind = |annotation: Value, status: Value| {
            let volume: PersistentVolume = serde_json::from_value(json!({
                "metadata": {"name": "pv", "annotations": {PRE_RESIZE_CAPACITY: annotation}},
                "spec": {"capacity": {"storage": "2Gi"}},
            }))
            .unwrap();
            let mut claim = json!({"status": status});
            claim["status"]["phase"] = "Pending".into();
            status_of(&claim, &volume)
        };
        assert_eq!(bind(json!("1Gi"), json!({})), json!({"storage": "1Gi"}));
        let other = json!({"capacity": {"storage": "3Gi", "x": "1"}});
        assert_eq!(bind(json!("1Gi"), other), json!({"storage": "1Gi", "x": "1"}));
        assert_eq!(bind(json!("much"), json!({})), json!({"storage": "2Gi"}));
    }

    fn status_of(claim: &Value, volume: &PersistentVolume) -> Value {
        status(claim, "Bound", Some(volume)).unwrap().unwrap()["capacity"].clone()
    }
}
