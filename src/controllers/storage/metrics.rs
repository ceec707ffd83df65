//! The metrics of ephemeral and persistent volumes, with upstream's names, labels and texts.

use std::collections::HashMap;

use api::Object;
use base::clock;
use base::metrics::Family;
use client::Error;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;

use super::attach_detach::metrics::OPERATION_BOUNDS;

const CLASS_LABELS: &[&str] = &["storage_class"];
const CLAIM_LABELS: &[&str] = &["namespace", "storage_class", "volume_attributes_class"];
const OPERATION_LABELS: &[&str] = &["operation_name", "plugin_name"];

/// What upstream writes for a plugin that its controller does not have.
const UNKNOWN_PLUGIN: &str = "N/A";

static EPHEMERAL_FAILURES: Family = Family::counter(
    "ephemeral_volume_controller_create_failures_total",
    "[ALPHA] Number of PersistentVolumeClaim creation requests",
    &[],
);

static EPHEMERAL_CREATES: Family = Family::counter(
    "ephemeral_volume_controller_create_total",
    "[ALPHA] Number of PersistentVolumeClaim creation requests",
    &[],
);

static BOUND_VOLUMES: Family = Family::gauge(
    "pv_collector_bound_pv_count",
    "[ALPHA] Gauge measuring number of persistent volume currently bound",
    CLASS_LABELS,
);

static BOUND_CLAIMS: Family = Family::gauge(
    "pv_collector_bound_pvc_count",
    "[ALPHA] Gauge measuring number of persistent volume claim currently bound",
    CLAIM_LABELS,
);

static VOLUMES: Family = Family::gauge(
    "pv_collector_total_pv_count",
    "[ALPHA] Gauge measuring total number of persistent volumes",
    &["plugin_name", "volume_mode"],
);

static UNBOUND_VOLUMES: Family = Family::gauge(
    "pv_collector_unbound_pv_count",
    "[ALPHA] Gauge measuring number of persistent volume currently unbound",
    CLASS_LABELS,
);

static UNBOUND_CLAIMS: Family = Family::gauge(
    "pv_collector_unbound_pvc_count",
    "[ALPHA] Gauge measuring number of persistent volume claim currently unbound",
    CLAIM_LABELS,
);

static DEFAULT_CLASS_ERRORS: Family = Family::counter(
    "retroactive_storageclass_errors_total",
    "[ALPHA] Total number of failed retroactive StorageClass assignments to persistent volume \
     claim",
    &[],
);

static DEFAULT_CLASSES: Family = Family::counter(
    "retroactive_storageclass_total",
    "[ALPHA] Total number of retroactive StorageClass assignments to persistent volume claim",
    &[],
);

static OPERATION_ERRORS: Family = Family::counter(
    "volume_operation_errors_total",
    "[ALPHA] Total volume operation errors",
    OPERATION_LABELS,
);

static OPERATION_DURATION: Family = Family::histogram(
    "volume_operation_total_seconds",
    "[BETA] Storage operation end to end duration in seconds",
    OPERATION_LABELS,
    &OPERATION_BOUNDS,
);

/// The families, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 11] = [
    &EPHEMERAL_FAILURES,
    &EPHEMERAL_CREATES,
    &BOUND_VOLUMES,
    &BOUND_CLAIMS,
    &VOLUMES,
    &UNBOUND_VOLUMES,
    &UNBOUND_CLAIMS,
    &DEFAULT_CLASS_ERRORS,
    &DEFAULT_CLASSES,
    &OPERATION_ERRORS,
    &OPERATION_DURATION,
];

/// Records a request to create the claim of an ephemeral volume.
pub(super) fn ephemeral_claim_requested(is_success: bool) {
    EPHEMERAL_CREATES.inc(&[]);
    if !is_success {
        EPHEMERAL_FAILURES.inc(&[]);
    }
}

/// Records that a claim without a class was given the default one.
pub(super) fn default_class_assigned(is_success: bool) {
    DEFAULT_CLASSES.inc(&[]);
    if !is_success {
        DEFAULT_CLASS_ERRORS.inc(&[]);
    }
}

/// The fields of volumes and claims that are counted.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Counted {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    annotations: Option<Annotations>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "volume.beta.kubernetes.io/storage-class")]
    class: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    storage_class_name: Option<String>,
    volume_attributes_class_name: Option<String>,
    volume_mode: Option<String>,
    host_path: Option<IgnoredAny>,
    nfs: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    phase: Option<String>,
}

impl Counted {
    fn of(object: &Object) -> Self {
        serde_json::from_slice(object.raw()).unwrap_or_default()
    }

    fn is_bound(&self) -> bool {
        self.status.phase.as_deref() == Some("Bound")
    }
}

/// Counts the volumes and claims (`pvAndPVCCountCollector`). As upstream, whose controller of
/// volumes has the plugins that provision or recycle itself, other plugins are `N/A`.
pub(super) fn count_volumes<'a>(
    volumes: impl Iterator<Item = &'a Object>,
    claims: impl Iterator<Item = &'a Object>,
) {
    let counted = [&VOLUMES, &BOUND_VOLUMES, &UNBOUND_VOLUMES, &BOUND_CLAIMS, &UNBOUND_CLAIMS]
        .map(Family::empty);
    let [total, bound, unbound, bound_claims, unbound_claims] = counted;
    for volume in volumes.map(Counted::of) {
        let plugin = match (&volume.spec.host_path, &volume.spec.nfs) {
            (Some(_), _) => "kubernetes.io/host-path",
            (None, Some(_)) => "kubernetes.io/nfs",
            (None, None) => UNKNOWN_PLUGIN,
        };
        total.inc(&[plugin, volume.spec.volume_mode.as_deref().unwrap_or("Filesystem")]);
        let family = if volume.is_bound() { &bound } else { &unbound };
        family.inc(&[volume.spec.storage_class_name.as_deref().unwrap_or_default()]);
    }
    for object in claims {
        let claim = Counted::of(object);
        let annotated = claim.metadata.annotations.as_ref().and_then(|a| a.class.as_deref());
        let class = annotated.or(claim.spec.storage_class_name.as_deref()).unwrap_or_default();
        let attributes = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
        let family = if claim.is_bound() { &bound_claims } else { &unbound_claims };
        family.inc(&[&object.key.namespace, class, attributes]);
    }
    VOLUMES.replace(total);
    BOUND_VOLUMES.replace(bound);
    UNBOUND_VOLUMES.replace(unbound);
    BOUND_CLAIMS.replace(bound_claims);
    UNBOUND_CLAIMS.replace(unbound_claims);
}

/// A volume that is provisioned or deleted.
#[derive(Debug)]
struct Operation {
    name: &'static str,
    plugin: String,
    began: Instant,
}

/// Operations from their start until their result is seen, by the key of the claim that is
/// provisioned for or the name of the volume that is deleted (`OperationStartTimeCache`). Each
/// ends with its object.
#[derive(Debug, Default)]
pub(super) struct Operations(Mutex<HashMap<String, Operation>>);

impl Operations {
    /// Begins an operation, unless one runs; without a plugin it is unknown.
    pub(super) fn begin(&self, key: &str, name: &'static str, plugin: Option<&str>) {
        let mut running = self.0.lock();
        if !running.contains_key(key) {
            let plugin = plugin.unwrap_or(UNKNOWN_PLUGIN).to_owned();
            running.insert(key.to_owned(), Operation { name, plugin, began: clock::now() });
        }
    }

    /// Records an error of an operation, which continues.
    pub(super) fn failed(&self, key: &str) {
        if let Some(Operation { name, plugin, .. }) = self.0.lock().get(key) {
            OPERATION_ERRORS.inc(&[name, plugin]);
        }
    }

    /// Records the success of an operation.
    pub(super) fn succeeded(&self, key: &str) {
        if let Some(Operation { name, plugin, began }) = self.0.lock().remove(key) {
            OPERATION_DURATION.took(&[name, &plugin], clock::now() - began);
        }
    }

    /// Records the result of a step that may end an operation.
    pub(super) fn ended(&self, key: &str, result: &Result<(), Error>) {
        match result {
            Ok(()) => self.succeeded(key),
            Err(_) => self.failed(key),
        }
    }

    /// Forgets an operation whose object is gone.
    pub(super) fn forget(&self, key: &str) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn volumes_and_claims_are_counted_by_state() {
        let volume = |name: &str, source: &str, class: &str, phase: &str| {
            object(json!({"kind": "PersistentVolume", "apiVersion": "v1",
                "metadata": {"name": name},
                "spec": {source: {}, "storageClassName": class, "volumeMode": "Block"},
                "status": {"phase": phase}}))
        };
        let claim = |name: &str, annotated: Value, phase: &str| {
            object(json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1",
                "metadata": {"name": name, "namespace": "n", "annotations": annotated},
                "spec": {"storageClassName": "fast", "volumeAttributesClassName": "gold"},
                "status": {"phase": phase}}))
        };
        let volumes = [
            volume("a", "csi", "fast", "Bound"),
            volume("b", "csi", "fast", "Released"),
            volume("c", "nfs", "", "Bound"),
            volume("d", "hostPath", "", "Available"),
        ];
        let beta = json!({"volume.beta.kubernetes.io/storage-class": "slow"});
        let claims = [
            claim("a", json!({}), "Bound"),
            claim("b", json!({}), "Pending"),
            claim("c", beta, "Lost"),
        ];
        count_volumes(volumes.iter(), claims.iter());
        for (family, labels, want) in [
            (&VOLUMES, &["N/A", "Block"][..], 2.0),
            (&VOLUMES, &["kubernetes.io/nfs", "Block"], 1.0),
            (&VOLUMES, &["kubernetes.io/host-path", "Block"], 1.0),
            (&BOUND_VOLUMES, &["fast"], 1.0),
            (&BOUND_VOLUMES, &[""], 1.0),
            (&UNBOUND_VOLUMES, &["fast"], 1.0),
            (&UNBOUND_VOLUMES, &[""], 1.0),
            (&BOUND_CLAIMS, &["n", "fast", "gold"], 1.0),
            (&UNBOUND_CLAIMS, &["n", "fast", "gold"], 1.0),
            (&UNBOUND_CLAIMS, &["n", "slow", "gold"], 1.0),
        ] {
            assert_eq!(family.read(labels), want, "{family:?} {labels:?}");
        }
        count_volumes(volumes[2..3].iter(), claims[..0].iter());
        let mut page = String::new();
        [&VOLUMES, &BOUND_CLAIMS, &UNBOUND_CLAIMS].iter().for_each(|f| f.render(&mut page));
        assert!(!page.contains("N/A") && !page.contains("namespace="), "{page}");
    }

    #[test]
    fn an_operation_lasts_until_its_success_and_counts_errors() {
        let operations = Operations::default();
        let read = |family: &Family| family.read(&["provision", "of-this-test"]);
        operations.failed("n/c");
        operations.begin("n/c", "provision", Some("of-this-test"));
        operations.begin("n/c", "provision", Some("another"));
        operations.ended("n/c", &Err(Error::Transport("refused".to_owned())));
        assert_eq!((read(&OPERATION_ERRORS), read(&OPERATION_DURATION)), (1.0, 0.0));
        operations.ended("n/c", &Ok(()));
        operations.ended("n/c", &Ok(()));
        assert_eq!((read(&OPERATION_ERRORS), read(&OPERATION_DURATION)), (1.0, 1.0));
        operations.begin("n/d", "provision", Some("of-this-test"));
        operations.forget("n/d");
        operations.succeeded("n/d");
        assert_eq!(read(&OPERATION_DURATION), 1.0);
    }
}
