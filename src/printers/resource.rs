//! Dynamic resource allocation.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{age, at, deleted, list, name, since, text};
use super::printer::{AGE, Column, NAME, Printer, printer, text as col};

const GROUP: &str = "resource.k8s.io";

pub(super) const PRINTERS: &[Printer] = &[
    printer(GROUP, "DeviceClass", &[NAME, AGE], plain),
    printer(GROUP, "DeviceTaintRule", TAINT, taint_rule),
    printer(GROUP, "ResourceClaim", &[NAME, col("State"), AGE], claim),
    printer(GROUP, "ResourceClaimTemplate", &[NAME, AGE], plain),
    printer(GROUP, "ResourceSlice", &[NAME, col("Node"), col("Driver"), col("Pool"), AGE], slice),
];

const TAINT: &[Column] = &[NAME, col("Key"), col("Value"), col("Effect"), col("TimeAdded"), AGE];

fn plain(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), age(o, now)]
}

fn taint_rule(o: &Value, now: Timestamp) -> Vec<Value> {
    let taint = at(o, &["spec", "taint"]);
    let added = if at(taint, &["timeAdded"]).is_null() {
        String::new()
    } else {
        since(taint, &["timeAdded"], now)
    };
    let of = |field: &str| Value::from(text(taint, &[field]));
    vec![name(o), of("key"), of("value"), of("effect"), added.into(), age(o, now)]
}

fn claim(o: &Value, now: Timestamp) -> Vec<Value> {
    let mut states = Vec::new();
    if deleted(o) {
        states.push("deleted");
    }
    if at(o, &["status", "allocation"]).is_null() {
        if !deleted(o) {
            states.push("pending");
        }
    } else {
        states.push("allocated");
        if !list(o, &["status", "reservedFor"]).is_empty() {
            states.push("reserved");
        }
    }
    vec![name(o), states.join(",").into(), age(o, now)]
}

fn slice(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(o),
        text(o, &["spec", "nodeName"]).into(),
        text(o, &["spec", "driver"]).into(),
        text(o, &["spec", "pool", "name"]).into(),
        age(o, now),
    ]
}
