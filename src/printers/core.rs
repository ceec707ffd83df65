//! Kinds of the core group other than pods and nodes, and events.

use jiff::Timestamp;
use serde_json::Value;
use sorting::CompactSort as _;

use super::cells::{
    age, annotation, at, containers, count, deleted, integer, joined, labels, list, name, quantity,
    since, text, text_or, time,
};
use super::printer::{
    AGE, Column, NAME, Printer, column, integer as number, printer, text as col, wide,
};

pub(super) const PRINTERS: &[Printer] = &[
    printer(
        "",
        "ComponentStatus",
        &[NAME, col("Status"), col("Message"), col("Error")],
        component_status,
    ),
    printer("", "ConfigMap", &[NAME, col("Data"), AGE], config_map),
    printer("", "Endpoints", &[NAME, col("Endpoints"), AGE], endpoints),
    printer("", "Event", EVENT, event),
    printer("events.k8s.io", "Event", EVENT, event),
    printer("", "Namespace", &[NAME, col("Status"), AGE], namespace),
    printer("", "PersistentVolume", VOLUME, persistent_volume),
    printer("", "PersistentVolumeClaim", CLAIM, claim),
    printer(
        "",
        "PodTemplate",
        &[NAME, col("Containers"), col("Images"), col("Pod Labels")],
        pod_template,
    ),
    printer("", "ReplicationController", CONTROLLER, replication_controller),
    printer("", "ResourceQuota", &[NAME, col("Request"), col("Limit"), AGE], resource_quota),
    printer("", "Secret", &[NAME, col("Type"), col("Data"), AGE], secret),
    printer("", "ServiceAccount", &[NAME, AGE], service_account),
    printer("", "Service", SERVICE, service),
    printer("", "Status", &[col("Status"), col("Reason"), col("Message")], status),
];

const EVENT: &[Column] = &[
    col("Last Seen"),
    col("Type"),
    col("Reason"),
    col("Object"),
    wide("Subobject"),
    wide("Source"),
    col("Message"),
    wide("First Seen"),
    wide("Count"),
    Column { name: "Name", kind: "string", format: "name", priority: 1 },
];
const VOLUME: &[Column] = &[
    NAME,
    col("Capacity"),
    col("Access Modes"),
    col("Reclaim Policy"),
    col("Status"),
    col("Claim"),
    col("StorageClass"),
    col("VolumeAttributesClass"),
    col("Reason"),
    AGE,
    wide("VolumeMode"),
];
const CLAIM: &[Column] = &[
    NAME,
    col("Status"),
    col("Volume"),
    col("Capacity"),
    col("Access Modes"),
    col("StorageClass"),
    col("VolumeAttributesClass"),
    AGE,
    wide("VolumeMode"),
];
const CONTROLLER: &[Column] = &[
    NAME,
    number("Desired"),
    number("Current"),
    number("Ready"),
    AGE,
    wide("Containers"),
    wide("Images"),
    wide("Selector"),
];
const SERVICE: &[Column] = &[
    NAME,
    col("Type"),
    col("Cluster-IP"),
    col("External-IP"),
    col("Port(s)"),
    AGE,
    column("Selector", "string", 1),
];

/// The annotation that named a storage class before the field did.
const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

fn component_status(o: &Value, _: Timestamp) -> Vec<Value> {
    let healthy = list(o, &["conditions"]).iter().find(|c| text(c, &["type"]) == "Healthy");
    let (status, message, error) = match healthy {
        Some(c) => (
            if text(c, &["status"]) == "True" { "Healthy" } else { "Unhealthy" },
            text(c, &["message"]),
            text(c, &["error"]),
        ),
        None => ("Unknown", "", ""),
    };
    vec![name(o), status.into(), message.into(), error.into()]
}

fn config_map(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), (count(o, &["data"]) + count(o, &["binaryData"])).into(), age(o, now)]
}

fn endpoints(o: &Value, now: Timestamp) -> Vec<Value> {
    let mut all: Vec<String> = Vec::new();
    for subset in list(o, &["subsets"]) {
        let addresses = || list(subset, &["addresses"]).iter().map(|a| text(a, &["ip"]));
        let ports = list(subset, &["ports"]);
        if ports.is_empty() {
            all.extend(addresses().map(str::to_owned));
        }
        for port in ports {
            let port = integer(port, &["port"]);
            all.extend(addresses().map(|ip| {
                if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
            }));
        }
    }
    let shown = all.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(",");
    let shown = match all.len() {
        _ if list(o, &["subsets"]).is_empty() => "<none>".into(),
        0..=3 => shown,
        n => format!("{shown} + {} more...", n - 3),
    };
    vec![name(o), shown.into(), age(o, now)]
}

/// Prints an Event of either group; the newer group renames most fields.
fn event(o: &Value, now: Timestamp) -> Vec<Value> {
    let newer = o.get("regarding").is_some()
        || o.get("note").is_some()
        || o.get("deprecatedFirstTimestamp").is_some();
    let pick = |old: &'static str, new: &'static str| if newer { new } else { old };
    let seen = |field: &str| time(o, &[field]).is_some().then(|| since(o, &[field], now));
    let first = seen(pick("firstTimestamp", "deprecatedFirstTimestamp"))
        .unwrap_or_else(|| since(o, &["eventTime"], now));
    let mut last =
        seen(pick("lastTimestamp", "deprecatedLastTimestamp")).unwrap_or_else(|| first.clone());
    let mut times = integer(o, &[pick("count", "deprecatedCount")]);
    if at(o, &["series"]).is_null() {
        times = times.max(1);
    } else {
        last = since(o, &["series", "lastObservedTime"], now);
        times = integer(o, &["series", "count"]);
    }
    let about = at(o, &[pick("involvedObject", "regarding")]);
    let kind = text(about, &["kind"]).to_lowercase();
    let target = match text(about, &["name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let source = at(o, &[pick("source", "deprecatedSource")]);
    let component = text_or(
        source,
        &["component"],
        text(o, &[pick("reportingComponent", "reportingController")]),
    );
    let source = match text_or(source, &["host"], text(o, &["reportingInstance"])) {
        "" => component.to_owned(),
        instance => format!("{component}, {instance}"),
    };
    vec![
        last.into(),
        text(o, &["type"]).into(),
        text(o, &["reason"]).into(),
        target.into(),
        text(about, &["fieldPath"]).into(),
        source.into(),
        text(o, &[pick("message", "note")]).trim().into(),
        first.into(),
        times.into(),
        name(o),
    ]
}

fn namespace(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), text(o, &["status", "phase"]).into(), age(o, now)]
}

/// `RWO,ROX` in upstream's fixed order.
fn access_modes(o: &Value, path: &[&str]) -> String {
    let modes = list(o, path);
    [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ]
    .iter()
    .filter(|(long, _)| modes.iter().any(|m| m.as_str() == Some(long)))
    .map(|(_, short)| *short)
    .collect::<Vec<_>>()
    .join(",")
}

fn phase(o: &Value) -> &str {
    if deleted(o) { "Terminating" } else { text(o, &["status", "phase"]) }
}

fn persistent_volume(o: &Value, now: Timestamp) -> Vec<Value> {
    let claim = at(o, &["spec", "claimRef"]);
    let claim = if claim.is_null() {
        String::new()
    } else {
        format!("{}/{}", text(claim, &["namespace"]), text(claim, &["name"]))
    };
    vec![
        name(o),
        quantity(at(o, &["spec", "capacity", "storage"])).into(),
        access_modes(o, &["spec", "accessModes"]).into(),
        text(o, &["spec", "persistentVolumeReclaimPolicy"]).into(),
        phase(o).into(),
        claim.into(),
        annotation(o, BETA_STORAGE_CLASS)
            .unwrap_or_else(|| text(o, &["spec", "storageClassName"]))
            .into(),
        text_or(o, &["spec", "volumeAttributesClassName"], "<unset>").into(),
        text(o, &["status", "reason"]).into(),
        age(o, now),
        text_or(o, &["spec", "volumeMode"], "<unset>").into(),
    ]
}

fn claim(o: &Value, now: Timestamp) -> Vec<Value> {
    let bound = !text(o, &["spec", "volumeName"]).is_empty();
    let (capacity, modes) = if bound {
        (
            quantity(at(o, &["status", "capacity", "storage"])),
            access_modes(o, &["status", "accessModes"]),
        )
    } else {
        (String::new(), String::new())
    };
    vec![
        name(o),
        phase(o).into(),
        text(o, &["spec", "volumeName"]).into(),
        capacity.into(),
        modes.into(),
        annotation(o, BETA_STORAGE_CLASS)
            .unwrap_or_else(|| text(o, &["spec", "storageClassName"]))
            .into(),
        text_or(o, &["spec", "volumeAttributesClassName"], "<unset>").into(),
        age(o, now),
        text_or(o, &["spec", "volumeMode"], "<unset>").into(),
    ]
}

fn pod_template(o: &Value, _: Timestamp) -> Vec<Value> {
    let [names, images] = containers(at(o, &["template", "spec"]));
    vec![name(o), names, images, labels(at(o, &["template", "metadata", "labels"])).into()]
}

fn replication_controller(o: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(at(o, &["spec", "template", "spec"]));
    vec![
        name(o),
        integer(o, &["spec", "replicas"]).into(),
        integer(o, &["status", "replicas"]).into(),
        integer(o, &["status", "readyReplicas"]).into(),
        age(o, now),
        names,
        images,
        labels(at(o, &["spec", "selector"])).into(),
    ]
}

fn resource_quota(o: &Value, now: Timestamp) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, hard) in at(o, &["status", "hard"]).as_object().into_iter().flatten() {
        let used = quantity(at(o, &["status", "used", resource]));
        let line = format!("{resource}: {used}/{}", quantity(hard));
        if resource.starts_with("limits.") { limits.push(line) } else { requests.push(line) }
    }
    vec![name(o), requests.join(", ").into(), limits.join(", ").into(), age(o, now)]
}

fn secret(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), text(o, &["type"]).into(), count(o, &["data"]).into(), age(o, now)]
}

fn service_account(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), age(o, now)]
}

fn status(o: &Value, _: Timestamp) -> Vec<Value> {
    ["status", "reason", "message"].iter().map(|f| text(o, &[f]).into()).collect()
}

/// Addresses of a load balancer, each once, sorted.
pub(super) fn load_balancer(o: &Value) -> String {
    let mut all: Vec<&str> = list(o, &["status", "loadBalancer", "ingress"])
        .iter()
        .map(|i| text_or(i, &["ip"], text(i, &["hostname"])))
        .filter(|a| !a.is_empty())
        .collect();
    all.compact_sort();
    all.dedup();
    all.join(",")
}

fn external_ip(o: &Value) -> String {
    let external = joined(o, &["spec", "externalIPs"], ",");
    match text(o, &["spec", "type"]) {
        "ClusterIP" | "NodePort" if external.is_empty() => "<none>".into(),
        "ClusterIP" | "NodePort" => external,
        "LoadBalancer" => match (load_balancer(o), external) {
            (given, external) if given.is_empty() && external.is_empty() => "<pending>".into(),
            (given, external) if given.is_empty() => external,
            (given, external) if external.is_empty() => given,
            (given, external) => format!("{given},{external}"),
        },
        "ExternalName" => text(o, &["spec", "externalName"]).to_owned(),
        _ => "<unknown>".into(),
    }
}

fn service(o: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = list(o, &["spec", "ports"])
        .iter()
        .map(|p| {
            let (port, node, protocol) =
                (integer(p, &["port"]), integer(p, &["nodePort"]), text(p, &["protocol"]));
            if node > 0 {
                format!("{port}:{node}/{protocol}")
            } else {
                format!("{port}/{protocol}")
            }
        })
        .collect();
    let cluster_ip =
        list(o, &["spec", "clusterIPs"]).first().and_then(Value::as_str).unwrap_or("<none>");
    vec![
        name(o),
        text(o, &["spec", "type"]).into(),
        cluster_ip.into(),
        external_ip(o).into(),
        if ports.is_empty() { "<none>".into() } else { ports.join(",").into() },
        age(o, now),
        labels(at(o, &["spec", "selector"])).into(),
    ]
}
