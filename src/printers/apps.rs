//! Workloads of the apps group, scales and autoscalers.

use api::selector::LabelSelector;
use jiff::Timestamp;
use serde_json::Value;

use super::cells::{
    age, at, containers, flag, integer, labels, list, name, quantity, selector, text,
};
use super::printer::{AGE, Column, NAME, Printer, integer as number, printer, text as col, wide};

pub(super) const PRINTERS: &[Printer] = &[
    printer("apps", "Deployment", DEPLOYMENT, deployment),
    printer("apps", "ReplicaSet", REPLICA_SET, replica_set),
    printer(
        "apps",
        "StatefulSet",
        &[NAME, col("Ready"), AGE, wide("Containers"), wide("Images")],
        stateful_set,
    ),
    printer("apps", "DaemonSet", DAEMON_SET, daemon_set),
    printer(
        "apps",
        "ControllerRevision",
        &[NAME, col("Controller"), col("Revision"), AGE],
        controller_revision,
    ),
    printer(
        "autoscaling",
        "Scale",
        &[col("Name"), number("Desired"), number("Available"), AGE],
        scale,
    ),
    printer("autoscaling", "HorizontalPodAutoscaler", AUTOSCALER, autoscaler),
];

const DEPLOYMENT: &[Column] = &[
    NAME,
    col("Ready"),
    col("Up-to-date"),
    col("Available"),
    AGE,
    wide("Containers"),
    wide("Images"),
    wide("Selector"),
];
const REPLICA_SET: &[Column] = &[
    NAME,
    number("Desired"),
    number("Current"),
    number("Ready"),
    AGE,
    wide("Containers"),
    wide("Images"),
    wide("Selector"),
];
const DAEMON_SET: &[Column] = &[
    NAME,
    number("Desired"),
    number("Current"),
    number("Ready"),
    number("Up-to-date"),
    number("Available"),
    col("Node Selector"),
    AGE,
    wide("Containers"),
    wide("Images"),
    wide("Selector"),
];
const AUTOSCALER: &[Column] =
    &[NAME, col("Reference"), col("Targets"), col("MinPods"), col("MaxPods"), col("Replicas"), AGE];

fn template(o: &Value) -> [Value; 2] {
    containers(at(o, &["spec", "template", "spec"]))
}

fn ready(o: &Value) -> Value {
    format!("{}/{}", integer(o, &["status", "readyReplicas"]), integer(o, &["spec", "replicas"]))
        .into()
}

fn deployment(o: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = template(o);
    let chosen = LabelSelector::from_value(Some(at(o, &["spec", "selector"])))
        .map_or_else(|_| "<invalid>".to_owned(), |s| s.to_string());
    vec![
        name(o),
        ready(o),
        integer(o, &["status", "updatedReplicas"]).into(),
        integer(o, &["status", "availableReplicas"]).into(),
        age(o, now),
        names,
        images,
        chosen.into(),
    ]
}

fn replica_set(o: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = template(o);
    vec![
        name(o),
        integer(o, &["spec", "replicas"]).into(),
        integer(o, &["status", "replicas"]).into(),
        integer(o, &["status", "readyReplicas"]).into(),
        age(o, now),
        names,
        images,
        selector(at(o, &["spec", "selector"])).into(),
    ]
}

fn stateful_set(o: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = template(o);
    vec![name(o), ready(o), age(o, now), names, images]
}

fn daemon_set(o: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = template(o);
    let number = |field: &str| Value::from(integer(o, &["status", field]));
    vec![
        name(o),
        number("desiredNumberScheduled"),
        number("currentNumberScheduled"),
        number("numberReady"),
        number("updatedNumberScheduled"),
        number("numberAvailable"),
        labels(at(o, &["spec", "template", "spec", "nodeSelector"])).into(),
        age(o, now),
        names,
        images,
        selector(at(o, &["spec", "selector"])).into(),
    ]
}

fn controller_revision(o: &Value, now: Timestamp) -> Vec<Value> {
    let owner = list(o, &["metadata", "ownerReferences"]).iter().find(|r| flag(r, &["controller"]));
    let owner = owner.map_or_else(
        || "<none>".to_owned(),
        |r| {
            let group = text(r, &["apiVersion"]).split_once('/').map_or("", |(group, _)| group);
            format!(
                "{}/{}",
                api::status::qualified(group, text(r, &["kind"])).to_lowercase(),
                text(r, &["name"])
            )
        },
    );
    vec![name(o), owner.into(), integer(o, &["revision"]).into(), age(o, now)]
}

fn scale(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(o),
        integer(o, &["spec", "replicas"]).into(),
        integer(o, &["status", "replicas"]).into(),
        age(o, now),
    ]
}

const UNKNOWN: &str = "<unknown>";

/// One metric of an autoscaler, `current/target`.
fn metric(spec: &Value, status: &Value) -> String {
    let (field, named) = match text(spec, &["type"]) {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".into(),
    };
    let (target, current) = (at(spec, &[field, "target"]), at(status, &[field, "current"]));
    let known = !at(status, &[field]).is_null();
    let show = |value: &Value, certain: bool| {
        if certain || !value.is_null() { quantity(value) } else { UNKNOWN.into() }
    };
    let average = !at(target, &["averageValue"]).is_null();
    let resource = text(spec, &[field, "name"]);
    match (field, average) {
        // Upstream assumes that a status of pods or resources has an average value.
        ("pods", _) => format!(
            "{}/{}",
            show(at(current, &["averageValue"]), known),
            quantity(at(target, &["averageValue"]))
        ),
        (_, true) if named => {
            format!(
                "{resource}: {}/{}",
                show(at(current, &["averageValue"]), known),
                quantity(at(target, &["averageValue"]))
            )
        }
        (_, true) => format!(
            "{}/{} (avg)",
            show(at(current, &["averageValue"]), false),
            quantity(at(target, &["averageValue"]))
        ),
        (_, false) if named => {
            let percent = |v: &Value, none: &str| {
                v.as_i64().map_or_else(|| none.to_owned(), |p| format!("{p}%"))
            };
            let want = percent(at(target, &["averageUtilization"]), "<auto>");
            format!("{resource}: {}/{want}", percent(at(current, &["averageUtilization"]), UNKNOWN))
        }
        (_, false) => {
            format!("{}/{}", show(at(current, &["value"]), known), quantity(at(target, &["value"])))
        }
    }
}

fn metrics(o: &Value) -> String {
    let statuses = list(o, &["status", "currentMetrics"]);
    let mut all: Vec<String> = list(o, &["spec", "metrics"])
        .iter()
        .enumerate()
        .map(|(i, spec)| metric(spec, statuses.get(i).unwrap_or(&Value::Null)))
        .collect();
    // autoscaling/v1 has only one metric: CPU in percent.
    if let Some(target) = at(o, &["spec", "targetCPUUtilizationPercentage"]).as_i64() {
        let current = at(o, &["status", "currentCPUUtilizationPercentage"]).as_i64();
        all.push(format!(
            "cpu: {}/{target}%",
            current.map_or_else(|| UNKNOWN.to_owned(), |c| format!("{c}%"))
        ));
    }
    match all.len() {
        0 => "<none>".into(),
        1 | 2 => all.join(", "),
        n => format!("{} + {} more...", all.get(..2).unwrap_or_default().join(", "), n - 2),
    }
}

fn autoscaler(o: &Value, now: Timestamp) -> Vec<Value> {
    let target = at(o, &["spec", "scaleTargetRef"]);
    let least = at(o, &["spec", "minReplicas"])
        .as_i64()
        .map_or_else(|| "<unset>".to_owned(), |n| n.to_string());
    vec![
        name(o),
        format!("{}/{}", text(target, &["kind"]), text(target, &["name"])).into(),
        metrics(o).into(),
        least.into(),
        integer(o, &["spec", "maxReplicas"]).into(),
        integer(o, &["status", "currentReplicas"]).into(),
        age(o, now),
    ]
}
