//! Larger claims: asks the resizer of the volume's driver, which is the one of an in-tree plugin's
//! replacement where there is one (`pkg/controller/volume/expand`). Upstream has no volumes left
//! that its controller enlarges itself.

use api::csi_translation::Plugin;
use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use api::quantity::Quantity;
use client::events::EventType;
use client::informer::decode;
use client::{Action, Change, Client, Error, EventRecorder, Informer, Patch};
use serde_json::json;

use super::provisioning::{annotation, key};
use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};

const CONTROLLER: &str = "persistentvolume-expander-controller";
/// Service account and source of events.
const ACCOUNT: &str = "expand-controller";
const EVENTS: &str = "volume_expand";
/// Annotation of a claim with the driver whose resizer enlarges the volume.
const RESIZER: &str = "volume.kubernetes.io/storage-resizer";
/// Annotation of a volume whose file system has not grown yet.
const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

struct Expander {
    client: Client,
    recorder: EventRecorder,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(ACCOUNT);
    let recorder = context.recorder(&client, EVENTS);
    let (claims, volumes) = (context.informers.of(), context.informers.of());
    let mut keyed = Keyed::new();
    keyed.waits_for_sync(&volumes);
    keyed.watches(&claims, |change| grown(change).into_iter().collect());
    let expander = std::sync::Arc::new(Expander { client, recorder, claims, volumes });
    keyed.run(&context.tasks, CONTROLLER, 1, move |(namespace, name)| {
        let expander = std::sync::Arc::clone(&expander);
        async move { expander.reconcile(&namespace, &name).await }
    });
}

/// The requested size of a claim, and the one that it has.
fn sizes(claim: &PersistentVolumeClaim) -> (Option<Quantity>, Option<Quantity>) {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    let [request, size] = [requests, capacity]
        .map(|list| list.and_then(|list| Quantity::parse(&list.get("storage")?.0).ok()));
    (request, size)
}

/// The key of a bound claim that is new, or whose request or size has grown.
fn grown(change: &Change) -> Option<Key> {
    let claim: PersistentVolumeClaim = decode(change.object())?;
    if claim.status.as_ref()?.phase.as_deref() != Some("Bound") {
        return None;
    }
    let is_due = match change {
        Change::Added(_) => true,
        Change::Updated { old, .. } => {
            let ((request, size), old) = (sizes(&claim), sizes(&decode(old)?));
            request > old.0 || size > old.1
        }
        Change::Deleted(_) => false,
    };
    is_due.then(|| key(change.object()))
}

/// What is due for a claim.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// The driver enlarges the volume by itself.
    External,
    /// The driver that replaces this plugin is to enlarge it.
    Migrated(Plugin),
}

fn due(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Due {
    let Some(spec) = volume.spec.as_ref() else { return Due::Nothing };
    let is_bound = spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.namespace == claim.metadata.namespace && reference.uid == claim.metadata.uid
    });
    let (request, size) = sizes(claim);
    let is_pending = annotation(&volume.metadata.annotations, PRE_RESIZE_CAPACITY).is_some();
    if !is_bound || (request <= size && !is_pending) {
        return Due::Nothing;
    }
    Plugin::of_volume(spec).map_or(Due::External, Due::Migrated)
}

impl Expander {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let Some(claim) = self.claims.get(namespace, name) else { return Ok(Action::Done) };
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let volume = volume.and_then(|name| self.volumes.get("", name));
        let Some(volume) = volume else { return Ok(Action::Done) };
        let plugin = match due(&claim, &volume) {
            Due::Nothing => return Ok(Action::Done),
            Due::External => {
                let text = "waiting for an external controller to expand this PVC";
                self.tell(&claim, text.to_owned());
                return Ok(Action::Done);
            }
            Due::Migrated(plugin) => plugin,
        };
        let name_of_plugin = plugin.name();
        self.tell(
            &claim,
            format!(
                "CSI migration enabled for {name_of_plugin}; waiting for external resizer to \
                 expand the pvc"
            ),
        );
        let driver = plugin.driver();
        if annotation(&claim.metadata.annotations, RESIZER) == Some(driver) {
            return Ok(Action::Done);
        }
        let patch = json!({"metadata": {"annotations": {RESIZER: driver},
            "resourceVersion": claim.metadata.resource_version}});
        let patch = Patch::Merge(&patch);
        let answer =
            self.client.patch::<PersistentVolumeClaim>(namespace, name, "status", &patch).await;
        match answer {
            // The claim changed, but perhaps not its sizes: its event may not queue it.
            Err(error) if error.is_conflict() => Err(error),
            answer => settled(answer).map(|()| Action::Done),
        }
    }

    fn tell(&self, claim: &PersistentVolumeClaim, text: String) {
        self.recorder.event(claim, EventType::Normal, "ExternalExpanding", text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Object;
    use serde_json::Value;
    use std::sync::Arc;

    fn claim(request: &str, size: &str) -> Value {
        json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"},
            "spec": {"volumeName": "pv", "resources": {"requests": {"storage": request}}},
            "status": {"phase": "Bound", "capacity": {"storage": size}}})
    }

    fn volume(source: Value, uid: &str) -> PersistentVolume {
        let mut spec = source;
        spec["claimRef"] = json!({"namespace": "n", "name": "c", "uid": uid});
        serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap()
    }

    /// The cases of upstream's `TestSyncHandler`.
    #[test]
    fn the_driver_of_the_volume_enlarges_it() {
        let of = |claim: Value, volume: &PersistentVolume| {
            due(&serde_json::from_value(claim).unwrap(), volume)
        };
        let disk = volume(json!({"awsElasticBlockStore": {"volumeID": "vol-1"}}), "u");
        assert_eq!(of(claim("2Gi", "1Gi"), &disk), Due::Migrated(Plugin::AwsEbs));
        assert_eq!(of(claim("1Gi", "1Gi"), &disk), Due::Nothing);
        let csi = volume(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), "u");
        assert_eq!(of(claim("2Gi", "1Gi"), &csi), Due::External);
        let other = volume(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), "other");
        assert_eq!(of(claim("2Gi", "1Gi"), &other), Due::Nothing);
        let mut pending = csi;
        let annotations = [(PRE_RESIZE_CAPACITY.to_owned(), "1Gi".to_owned())];
        pending.metadata.annotations = Some(annotations.into());
        assert_eq!(of(claim("1Gi", "1Gi"), &pending), Due::External);
    }

    #[test]
    fn only_growth_wakes_a_bound_claim() {
        let object = |value: Value| Arc::new(Object::from_value(value).unwrap());
        let change = |old: Value, new: Value| {
            grown(&Change::Updated { old: object(old), new: object(new) }).is_some()
        };
        assert!(change(claim("1Gi", "1Gi"), claim("2Gi", "1Gi")));
        assert!(change(claim("2Gi", "1Gi"), claim("2Gi", "2Gi")));
        assert!(!change(claim("2Gi", "1Gi"), claim("2Gi", "1Gi")));
        assert!(grown(&Change::Added(object(claim("2Gi", "1Gi")))).is_some());
        let mut pending = claim("2Gi", "1Gi");
        pending["status"]["phase"] = "Pending".into();
        assert!(grown(&Change::Added(object(pending))).is_none());
    }
}
