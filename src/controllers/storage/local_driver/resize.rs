//! Larger claims, as csi-resizer handles them: the node enlarges the stored volume, then the
//! kubelet its file system.

use std::time::Duration;

use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use api::local_driver::{GrowRequest, Stored};
use client::events::EventType;
use client::{Action, Error, Patch};
use http::Method;
use serde_json::{Value, json};

use super::plan::{bytes, handle, node_of, requested, size_text};
use super::{Controller, DriverError, volume_path};
use crate::framework::keyed::settled;
use crate::storage::provisioning::metadata_key;

/// When a size is attempted again for which the node had no room.
const NO_ROOM_INTERVAL: Duration = Duration::from_secs(300);
/// The conditions of claims that are about their size.
const CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// What the status of a claim says about its size.
#[derive(Debug, Clone, Copy)]
enum Progress<'a> {
    /// The node enlarges the stored volume.
    Begun,
    /// The kubelet has to enlarge the file system.
    Stored,
    /// The node has no room.
    Infeasible(&'a str),
}

fn status_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    let statuses = claim.status.as_ref()?.allocated_resource_statuses.as_ref()?;
    statuses.get("storage").map(String::as_str)
}

fn shown(
    sizes: Option<
        &std::collections::BTreeMap<String, api::k8s::apimachinery::pkg::api::resource::Quantity>,
    >,
) -> Option<u64> {
    bytes(&sizes?.get("storage")?.0)
}

/// The size as text to which the stored volume of a bound claim has to grow; `None` if that is
/// done or not requested.
fn wanted<'a>(claim: &'a PersistentVolumeClaim, volume: &PersistentVolume) -> Option<&'a str> {
    let text = requested(claim)?;
    let status = claim.status.as_ref().filter(|s| s.phase.as_deref() == Some("Bound"))?;
    let (size, now) = (bytes(text)?, shown(status.capacity.as_ref())?);
    let stored = shown(volume.spec.as_ref()?.capacity.as_ref())?;
    let is_with_kubelet = matches!(
        status_of(claim),
        Some("NodeResizePending" | "NodeResizeInProgress" | "NodeResizeInfeasible")
    );
    (size > now && !(stored >= size && is_with_kubelet)).then_some(text)
}

/// The patch of the status of a claim.
fn patch(claim: &PersistentVolumeClaim, size: &str, progress: Progress<'_>, now: Time) -> Value {
    let (status, type_, message) = match progress {
        Progress::Begun => ("ControllerResizeInProgress", "Resizing", ""),
        Progress::Stored => (
            "NodeResizePending",
            "FileSystemResizePending",
            "Waiting for user to (re-)start a pod to finish file system resize of volume on node.",
        ),
        Progress::Infeasible(why) => ("ControllerResizeInfeasible", "ControllerResizeError", why),
    };
    let conditions = claim.status.as_ref().and_then(|s| s.conditions.as_ref());
    let others = conditions.into_iter().flatten();
    let others = others.filter(|condition| !CONDITIONS.contains(&condition.type_.as_str()));
    let mut conditions: Vec<Value> = others.map(|condition| json!(condition)).collect();
    conditions.push(json!({"type": type_, "status": "True", "lastTransitionTime": now,
        "message": message}));
    json!({
        "metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {"allocatedResources": {"storage": size},
            "allocatedResourceStatuses": {"storage": status}, "conditions": conditions},
    })
}

impl Controller {
    /// Enlarges the stored volume of a bound claim if the claim requests it.
    pub(super) async fn resize(&self, claim: &PersistentVolumeClaim) -> Result<Action, Error> {
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        let volume = self.volumes.get("", name.as_deref().unwrap_or_default());
        let Some((volume, name)) = volume.zip(name) else { return Ok(Action::Done) };
        if handle(&volume).is_none() {
            return Ok(Action::Done);
        }
        let Some(size) = wanted(claim, &volume) else { return Ok(Action::Done) };
        let claim = match status_of(claim) {
            Some("ControllerResizeInProgress") => claim.clone(),
            _ => {
                let text = format!("External resizer is resizing volume {name}");
                self.recorder.event(claim, EventType::Normal, "Resizing", text);
                match self.show(claim, size, Progress::Begun).await? {
                    Some(claim) => claim,
                    None => return Ok(Action::Done),
                }
            }
        };
        match self.grow(&volume, size).await {
            Ok(()) => {
                let text = "Require file system resize of volume on node";
                self.recorder.event(&claim, EventType::Normal, "FileSystemResizeRequired", text);
                self.show(&claim, size, Progress::Stored).await?;
                Ok(Action::Done)
            }
            Err(error) if error.is_in_progress() => error.outcome(),
            Err(error) => {
                let text = error.to_string();
                let event = format!("resize volume {name:?} failed: {text}");
                self.recorder.event(&claim, EventType::Warning, "VolumeResizeFailed", event);
                if !matches!(&error, DriverError::Node(error) if error.is_no_room()) {
                    return error.outcome();
                }
                self.show(&claim, size, Progress::Infeasible(&text)).await?;
                Ok(Action::After(NO_ROOM_INTERVAL))
            }
        }
    }

    /// Has the node enlarge the stored volume, and shows that in the PersistentVolume.
    async fn grow(&self, volume: &PersistentVolume, size: &str) -> Result<(), DriverError> {
        let node = node_of(volume).ok_or(DriverError::UnknownNode)?;
        let path = volume_path(handle(volume).unwrap_or_default());
        let body = GrowRequest { size: bytes(size).unwrap_or_default() };
        let stored: Stored = self.requests.send(node, Method::PUT, &path, &body).await?;
        let capacity = size_text(size, stored.size);
        let patch = json!({"spec": {"capacity": {"storage": capacity}}});
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Merge(&patch);
        let _: PersistentVolume = self.client.patch("", name, "", &patch).await?;
        Ok(())
    }

    /// Writes the status of a claim; `None` if the claim has changed meanwhile, which wakes it.
    async fn show(
        &self,
        claim: &PersistentVolumeClaim,
        size: &str,
        progress: Progress<'_>,
    ) -> Result<Option<PersistentVolumeClaim>, Error> {
        let patch = patch(claim, size, progress, Time(Timestamp::now()));
        let (namespace, name) = metadata_key(claim.metadata.clone());
        match self.client.patch(&namespace, &name, "status", &Patch::Merge(&patch)).await {
            Ok(claim) => Ok(Some(claim)),
            Err(error) => settled::<()>(Err(error)).map(|()| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(requested: &str, capacity: &str, status: Value) -> PersistentVolumeClaim {
        let statuses = if status.is_null() { json!({}) } else { json!({"storage": status}) };
        serde_json::from_value(json!({"metadata": {"name": "c", "resourceVersion": "7"},
            "spec": {"resources": {"requests": {"storage": requested}}},
            "status": {"phase": "Bound", "capacity": {"storage": capacity},
                "allocatedResourceStatuses": statuses,
                "conditions": [{"type": "Resizing", "status": "True"},
                    {"type": "Other", "status": "True"}]}}))
        .unwrap()
    }

    fn volume(size: &str) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {}, "spec": {"capacity": {"storage": size}}}))
            .unwrap()
    }

    #[test]
    fn a_larger_claim_grows_until_the_kubelet_has_its_turn() {
        let none = claim("1Gi", "1Gi", Value::Null);
        assert_eq!(wanted(&none, &volume("1Gi")), None);
        assert_eq!(wanted(&claim("1Gi", "2Gi", Value::Null), &volume("2Gi")), None);
        let larger = claim("2Gi", "1Gi", Value::Null);
        assert_eq!(wanted(&larger, &volume("1Gi")), Some("2Gi"));
        // The process ended between the volume and the claim.
        let begun = claim("2Gi", "1Gi", json!("ControllerResizeInProgress"));
        assert_eq!(wanted(&begun, &volume("2Gi")), Some("2Gi"));
        let pending = claim("2Gi", "1Gi", json!("NodeResizePending"));
        assert_eq!(wanted(&pending, &volume("2Gi")), None);
        // The claim has grown once more meanwhile.
        let again = claim("3Gi", "1Gi", json!("NodeResizePending"));
        assert_eq!(wanted(&again, &volume("2Gi")), Some("3Gi"));
    }

    #[test]
    fn the_claim_shows_one_condition_about_its_size() {
        let larger = claim("2Gi", "1Gi", Value::Null);
        let patch = patch(&larger, "2Gi", Progress::Stored, Time(Timestamp::UNIX_EPOCH));
        let types: Vec<&str> = patch["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|condition| condition["type"].as_str().unwrap())
            .collect();
        assert_eq!(types, ["Other", "FileSystemResizePending"]);
        assert_eq!(patch["status"]["allocatedResources"]["storage"], "2Gi");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
    }
}
