//! Storage classes, drivers and attachments.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{age, annotation, at, count, flag, joined, list, name, text, text_or, time};
use super::printer::{
    AGE, Column, NAME, Printer, boolean, integer as number, printer, text as col,
};

const GROUP: &str = "storage.k8s.io";

pub(super) const PRINTERS: &[Printer] = &[
    printer(GROUP, "StorageClass", CLASS, storage_class),
    printer(GROUP, "VolumeAttributesClass", &[NAME, col("DriverName"), AGE], attributes_class),
    printer(GROUP, "CSIDriver", DRIVER, csi_driver),
    printer(GROUP, "CSINode", &[NAME, number("Drivers"), AGE], csi_node),
    printer(GROUP, "VolumeAttachment", ATTACHMENT, attachment),
];

const CLASS: &[Column] = &[
    NAME,
    col("Provisioner"),
    col("ReclaimPolicy"),
    col("VolumeBindingMode"),
    col("AllowVolumeExpansion"),
    AGE,
];
const DRIVER: &[Column] = &[
    NAME,
    boolean("AttachRequired"),
    boolean("PodInfoOnMount"),
    boolean("StorageCapacity"),
    col("TokenRequests"),
    boolean("RequiresRepublish"),
    col("Modes"),
    AGE,
];
const ATTACHMENT: &[Column] = &[
    NAME,
    Column { name: "Attacher", kind: "string", format: "name", priority: 0 },
    col("PV"),
    col("Node"),
    boolean("Attached"),
    AGE,
];

/// The default StorageClass: the newest of those marked as default, by name when equally old.
pub(super) fn default_class(classes: &[Value]) -> Option<&str> {
    let marked = |o: &&Value| {
        [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ]
        .iter()
        .any(|key| annotation(o, key) == Some("true"))
    };
    let title = |o: &Value| std::cmp::Reverse(text(o, &["metadata", "name"]).to_owned());
    let newest = classes
        .iter()
        .filter(marked)
        .max_by_key(|o| (time(o, &["metadata", "creationTimestamp"]), title(o)))?;
    Some(text(newest, &["metadata", "name"]))
}

fn storage_class(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(o),
        text(o, &["provisioner"]).into(),
        text_or(o, &["reclaimPolicy"], "Delete").into(),
        text_or(o, &["volumeBindingMode"], "Immediate").into(),
        flag(o, &["allowVolumeExpansion"]).into(),
        age(o, now),
    ]
}

fn attributes_class(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), text(o, &["driverName"]).into(), age(o, now)]
}

fn csi_driver(o: &Value, now: Timestamp) -> Vec<Value> {
    let modes = joined(o, &["spec", "volumeLifecycleModes"], ",");
    let requests = at(o, &["spec", "tokenRequests"]);
    let audiences = if requests.is_null() {
        "<unset>".to_owned()
    } else {
        list(requests, &[]).iter().map(|r| text(r, &["audience"])).collect::<Vec<_>>().join(",")
    };
    vec![
        name(o),
        at(o, &["spec", "attachRequired"]).as_bool().unwrap_or(true).into(),
        flag(o, &["spec", "podInfoOnMount"]).into(),
        flag(o, &["spec", "storageCapacity"]).into(),
        audiences.into(),
        flag(o, &["spec", "requiresRepublish"]).into(),
        if modes.is_empty() { "<none>".into() } else { modes.into() },
        age(o, now),
    ]
}

fn csi_node(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), count(o, &["spec", "drivers"]).into(), age(o, now)]
}

fn attachment(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(o),
        text(o, &["spec", "attacher"]).into(),
        text(o, &["spec", "source", "persistentVolumeName"]).into(),
        text(o, &["spec", "nodeName"]).into(),
        flag(o, &["status", "attached"]).into(),
        age(o, now),
    ]
}
