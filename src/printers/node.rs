//! Nodes, leases and runtime classes.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{age, at, condition, flag, list, name, text, text_or};
use super::printer::{AGE, Column, NAME, Printer, printer, text as col, wide};

pub(super) const PRINTERS: &[Printer] = &[
    printer("", "Node", NODE, node),
    printer("coordination.k8s.io", "Lease", &[NAME, col("Holder"), AGE], lease),
    printer("node.k8s.io", "RuntimeClass", &[NAME, col("Handler"), AGE], runtime_class),
];

const NODE: &[Column] = &[
    NAME,
    col("Status"),
    col("Roles"),
    AGE,
    col("Version"),
    wide("Internal-IP"),
    wide("External-IP"),
    wide("OS-Image"),
    wide("Kernel-Version"),
    wide("Container-Runtime"),
];

fn roles(o: &Value) -> String {
    let labels = at(o, &["metadata", "labels"]).as_object();
    let roles: BTreeSet<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() { "<none>".into() } else { roles.into_iter().collect::<Vec<_>>().join(",") }
}

fn address<'a>(o: &'a Value, kind: &str) -> &'a str {
    list(o, &["status", "addresses"])
        .iter()
        .find(|a| text(a, &["type"]) == kind)
        .map_or("<none>", |a| text(a, &["address"]))
}

fn node(o: &Value, now: Timestamp) -> Vec<Value> {
    let mut status = match condition(o, "Ready") {
        Some(c) if text(c, &["status"]) == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".into(),
        None => "Unknown".into(),
    };
    if flag(o, &["spec", "unschedulable"]) {
        status.push_str(",SchedulingDisabled");
    }
    let info = at(o, &["status", "nodeInfo"]);
    let mut kernel = text_or(info, &["kernelVersion"], "<unknown>").to_owned();
    let architecture = text(info, &["architecture"]);
    if !architecture.is_empty() {
        kernel.push_str(&format!(" ({architecture})"));
    }
    vec![
        name(o),
        status.into(),
        roles(o).into(),
        age(o, now),
        text(info, &["kubeletVersion"]).into(),
        address(o, "InternalIP").into(),
        address(o, "ExternalIP").into(),
        text_or(info, &["osImage"], "<unknown>").into(),
        kernel.into(),
        text_or(info, &["containerRuntimeVersion"], "<unknown>").into(),
    ]
}

fn lease(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), text(o, &["spec", "holderIdentity"]).into(), age(o, now)]
}

fn runtime_class(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), text(o, &["handler"]).into(), age(o, now)]
}
