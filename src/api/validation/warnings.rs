//! Warnings that the API server returns for accepted objects: deprecated, duplicate and ineffective
//! fields.

mod pod;
mod ports;
mod volumes;

use serde_json::Value;

pub use pod::{pod, template};

use super::names;
use super::net;
use crate::field::{Path, go_quote};
use crate::quantity::Quantity;
use crate::value::{at, entries, get, is_empty, items, str_at, str_in};

const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Deprecated labels of nodes and the texts of their warnings (`pkg/api/node/util.go`).
const OLD_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(label, _)| *label == key).map(|(_, text)| *text)
}

fn old_keys(expressions: &[Value], path: &Path) -> Vec<String> {
    let keys = expressions.iter().enumerate().filter_map(|(index, expression)| {
        let key = str_at(expression, "key");
        old_label(key).map(|text| format!("{}: {key} is {text}", path.index(index).child("key")))
    });
    keys.collect()
}

/// Returns the warnings for a term of a node selector. The label values are checked only in a
/// preferred term, because validation does not check them there.
fn node_term(term: &Value, preferred: bool, path: &Path) -> Vec<String> {
    let path = path.child("matchExpressions");
    let expressions = items(term, "matchExpressions");
    let mut list = old_keys(expressions, &path);
    for (index, expression) in expressions.iter().enumerate().filter(|_| preferred) {
        for (at, value) in items(expression, "values").iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            let field = path.index(index).child("values").index(at);
            list.extend(
                names::label_value(value)
                    .into_iter()
                    .map(|text| format!("{field}: {value} is invalid, {text}")),
            );
        }
    }
    list
}

fn required_terms(selector: &Value, path: &Path) -> Vec<String> {
    let path = path.child("nodeSelectorTerms");
    let terms = items(selector, "nodeSelectorTerms").iter().enumerate();
    terms.flat_map(|(index, term)| node_term(term, false, &path.index(index))).collect()
}

/// Returns a warning if a number of bytes is not an integer.
fn fraction(list: &Value, name: &str, path: &Path) -> Option<String> {
    let text = list.get(name)?.as_str()?;
    let amount = Quantity::parse(text).ok()?;
    (amount.milli_value() % 1000 != 0).then(|| {
        format!(
            "{}: fractional byte value {} is invalid, must be an integer",
            path.key(name),
            go_quote(text)
        )
    })
}

/// Returns a warning if the object's name, from which the names of its pods derive, is not a DNS
/// label.
fn pod_names(object: &Value) -> Option<String> {
    hostname(object, "Pod names and hostnames")
}

fn hostname(object: &Value, what: &str) -> Option<String> {
    let texts = names::dns1123_label(str_in(object, &["metadata", "name"]));
    (!texts.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in {what}, which can result in surprising behavior; a DNS label is recommended: [{}]",
            texts.join(" ")
        )
    })
}

fn counted_up(object: &Value, old: &Value) -> bool {
    let path = ["metadata", "generation"];
    at(object, &path) != at(old, &path)
}

fn in_spec() -> Path {
    Path::new("spec").child("template")
}

fn spec_template(object: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some_and(|old| !counted_up(object, old)) {
        return Vec::new();
    }
    template(at(object, &["spec", "template"]), &in_spec())
}

/// Returns the warnings for a deployment or a replica set.
pub fn workload(object: &Value, old: Option<&Value>) -> Vec<String> {
    let mut list: Vec<String> =
        if old.is_none() { pod_names(object) } else { None }.into_iter().collect();
    list.extend(spec_template(object, old));
    list
}

/// Returns the warnings for a replication controller. For an update, upstream checks the template
/// of the old object.
pub fn replication_controller(object: &Value, old: Option<&Value>) -> Vec<String> {
    match old {
        None => workload(object, None),
        Some(old) if counted_up(object, old) => {
            template(at(old, &["spec", "template"]), &in_spec())
        }
        Some(_) => Vec::new(),
    }
}

/// Returns the warnings for a daemon set.
pub fn daemon_set(object: &Value, old: Option<&Value>) -> Vec<String> {
    let path = ["spec", "template"];
    let same = |old: &Value| crate::value::semantic_equal(at(object, &path), at(old, &path));
    if old.is_some_and(same) { Vec::new() } else { template(at(object, &path), &in_spec()) }
}

/// Returns the warnings for a stateful set.
pub fn stateful_set(object: &Value, old: Option<&Value>) -> Vec<String> {
    let mut list = spec_template(object, old);
    let spec = get(object, "spec");
    for (index, claim) in items(spec, "volumeClaimTemplates").iter().enumerate() {
        let path = Path::new("spec").child("volumeClaimTemplates").index(index);
        let path = if old.is_some() { path.child("Spec") } else { path };
        list.extend(claim_spec(get(claim, "spec"), &path));
    }
    if get(spec, "revisionHistoryLimit").as_i64().is_some_and(|limit| limit < 0) {
        list.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .into(),
        );
    }
    list
}

/// Returns the warnings for a `PodTemplate` object.
pub fn pod_template(object: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some_and(|old| !counted_up(object, old)) {
        return Vec::new();
    }
    template(get(object, "template"), &Path::new("template"))
}

/// The `completions` and the `parallelism` above which an indexed job has a warning
/// (`pkg/api/job/warnings.go`).
const INDEXED: (i64, i64) = (100_000, 10_000);

fn job_spec(spec: &Value, path: &Path) -> Vec<String> {
    let number = |key: &str| get(spec, key).as_i64().unwrap_or_default();
    let mut list = Vec::new();
    if str_at(spec, "completionMode") == "Indexed"
        && number("completions") > INDEXED.0
        && number("parallelism") > INDEXED.1
    {
        list.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might \
             not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    list.extend(template(get(spec, "template"), &path.child("template")));
    list
}

/// Returns the warnings for a job.
pub fn job(object: &Value, old: Option<&Value>) -> Vec<String> {
    let Some(old) = old else {
        let mut list: Vec<String> = pod_names(object).into_iter().collect();
        list.extend(job_spec(get(object, "spec"), &Path::new("spec")));
        return list;
    };
    if counted_up(object, old) {
        job_spec(get(object, "spec"), &Path::new("spec"))
    } else {
        Vec::new()
    }
}

/// Returns the warnings for a cron job.
pub fn cron_job(object: &Value, old: Option<&Value>) -> Vec<String> {
    let spec = at(object, &["spec", "jobTemplate", "spec"]);
    let path = Path::new("spec").child("jobTemplate").child("spec");
    let mut list = Vec::new();
    match old {
        None => list.extend(pod_names(object)),
        Some(old) if !counted_up(object, old) => return zone(object),
        Some(_) => {}
    }
    list.extend(job_spec(spec, &path));
    if old.is_some() {
        list.extend(zone(object));
    }
    list
}

fn zone(object: &Value) -> Vec<String> {
    if !str_in(object, &["spec", "schedule"]).contains("TZ") {
        return Vec::new();
    }
    vec![
        "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
            .into(),
    ]
}

fn claim_spec(spec: &Value, path: &Path) -> Vec<String> {
    let resources = get(spec, "resources");
    let kinds = ["requests", "limits"].into_iter();
    kinds
        .filter_map(|kind| {
            fraction(get(resources, kind), "storage", &path.child("resources").child(kind))
        })
        .collect()
}

/// Returns the warnings for a persistent volume claim.
pub fn claim(object: &Value, _: Option<&Value>) -> Vec<String> {
    let mut list = Vec::new();
    if at(object, &["metadata", "annotations"]).get(CLASS_ANNOTATION).is_some() {
        list.push(format!(
            "metadata.annotations[{CLASS_ANNOTATION}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
        ));
    }
    list.extend(claim_spec(get(object, "spec"), &Path::new("spec")));
    list
}

/// Removed volume plugins and the texts of their warnings for persistent volumes.
const OLD_VOLUMES: [(&str, &str); 6] = [
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Returns the warnings for a persistent volume.
pub fn volume(object: &Value, _: Option<&Value>) -> Vec<String> {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let annotations = at(object, &["metadata", "annotations"]);
    let mut list = Vec::new();
    for (key, text) in [
        (CLASS_ANNOTATION, "deprecated since v1.8; use \"storageClassName\" attribute instead"),
        (
            "volume.beta.kubernetes.io/mount-options",
            "deprecated since v1.31; use \"mountOptions\" attribute instead",
        ),
    ] {
        if annotations.get(key).is_some() {
            list.push(format!("metadata.annotations[{key}]: {text}"));
        }
    }
    if str_at(spec, "persistentVolumeReclaimPolicy") == "Recycle" {
        list.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".into());
    }
    let required = path.child("nodeAffinity").child("required");
    list.extend(required_terms(at(spec, &["nodeAffinity", "required"]), &required));
    for (key, text) in OLD_VOLUMES {
        if get(spec, key).is_object() {
            // Upstream's text spells this field differently from its JSON name.
            let shown = if key == "storageos" { "storageOS" } else { key };
            list.push(format!("{}: {text}", path.child(shown)));
        }
    }
    list
}

/// Returns the warnings for a storage class.
pub fn storage_class(object: &Value, _: Option<&Value>) -> Vec<String> {
    let mut list = Vec::new();
    for (index, topology) in items(object, "allowedTopologies").iter().enumerate() {
        let path = Path::new("allowedTopologies").index(index).child("matchLabelExpressions");
        for (index, expression) in items(topology, "matchLabelExpressions").iter().enumerate() {
            let field = path.index(index).child("key");
            list.extend(
                old_label(str_at(expression, "key")).map(|text| format!("{field}: {text}")),
            );
        }
    }
    list
}

/// Returns the warnings for a CSI storage capacity.
pub fn storage_capacity(object: &Value, _: Option<&Value>) -> Vec<String> {
    let (topology, path) = (get(object, "nodeTopology"), Path::new("nodeTopology"));
    let mut list = old_keys(items(topology, "matchExpressions"), &path.child("matchExpressions"));
    for (key, _) in entries(topology, "matchLabels") {
        let field = path.child("matchLabels").child(key);
        list.extend(old_label(key).map(|text| format!("{field}: {text}")));
    }
    list
}

/// Returns the warnings for a runtime class.
pub fn runtime_class(object: &Value, _: Option<&Value>) -> Vec<String> {
    entries(get(object, "scheduling"), "nodeSelector")
        .filter_map(|(key, _)| old_label(key))
        .map(|text| format!("scheduling.nodeSelector: {text}"))
        .collect()
}

/// Returns the warnings for a node.
pub fn node(object: &Value, _: Option<&Value>) -> Vec<String> {
    let spec = get(object, "spec");
    let mut list = Vec::new();
    if get(spec, "configSource").is_object() {
        list.push("spec.configSource: the feature is removed".to_owned());
    }
    if !is_empty(spec, "externalID") {
        list.push(
            "spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned(),
        );
    }
    for (index, range) in items(spec, "podCIDRs").iter().enumerate() {
        let field = Path::new("spec").child("podCIDRs").index(index);
        list.extend(net::cidr_warnings(&field, range.as_str().unwrap_or_default()));
    }
    list
}

/// Returns the warnings for a network policy.
pub fn network_policy(object: &Value, _: Option<&Value>) -> Vec<String> {
    let mut list = Vec::new();
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(get(object, "spec"), rules).iter().enumerate() {
            let path = Path::new("spec").child(rules).index(index).child(peers);
            for (index, peer) in items(rule, peers).iter().enumerate() {
                let (block, path) = (get(peer, "ipBlock"), path.index(index).child("ipBlock"));
                list.extend(net::cidr_warnings(&path.child("cidr"), str_at(block, "cidr")));
                for (index, range) in items(block, "except").iter().enumerate() {
                    let field = path.child("except").index(index);
                    list.extend(net::cidr_warnings(&field, range.as_str().unwrap_or_default()));
                }
            }
        }
    }
    list
}

/// Returns the warnings for an ingress.
pub fn ingress(object: &Value, old: Option<&Value>) -> Vec<String> {
    const KEY: &str = "kubernetes.io/ingress.class";
    let marked = at(object, &["metadata", "annotations"]).get(KEY).is_some();
    if old.is_some() || !marked || get(get(object, "spec"), "ingressClassName").is_string() {
        return Vec::new();
    }
    vec![format!("annotation \"{KEY}\" is deprecated, please use 'spec.ingressClassName' instead")]
}

fn managed_by<'a>(object: &'a Value, key: &str) -> &'a str {
    str_in(object, &["metadata", "labels", key])
}

/// Returns the warnings for endpoints. Endpoints that the endpoints controller manages are not
/// checked.
pub fn endpoints(object: &Value, _: Option<&Value>) -> Vec<String> {
    if managed_by(object, "endpoints.kubernetes.io/managed-by") == "endpoint-controller" {
        return Vec::new();
    }
    let mut list = Vec::new();
    for (index, subset) in items(object, "subsets").iter().enumerate() {
        for key in ["addresses", "notReadyAddresses"] {
            let path = Path::new("subsets").index(index).child(key);
            for (at, address) in items(subset, key).iter().enumerate() {
                let field = path.index(at).child("ip");
                list.extend(net::ip_warning(&field, str_at(address, "ip")));
            }
        }
    }
    list
}

/// Returns the warnings for an endpoint slice. The addresses of a slice that the endpoint slice
/// controller or the endpoint slice mirroring controller manages are not checked.
pub fn slice(object: &Value, old: Option<&Value>) -> Vec<String> {
    let mut list = Vec::new();
    if old.is_none() && str_at(object, "addressType") == "FQDN" {
        list.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
    }
    let by = managed_by(object, "endpointslice.kubernetes.io/managed-by");
    if matches!(by, "endpointslice-controller.k8s.io" | "endpointslicemirroring-controller.k8s.io")
    {
        return list;
    }
    for (index, endpoint) in items(object, "endpoints").iter().enumerate() {
        let path = Path::new("endpoints").index(index).child("addresses");
        for (at, address) in items(endpoint, "addresses").iter().enumerate() {
            list.extend(net::ip_warning(&path.index(at), address.as_str().unwrap_or_default()));
        }
    }
    list
}

/// Returns the warnings for a resource slice.
pub fn resource_slice(object: &Value, _: Option<&Value>) -> Vec<String> {
    let driver = str_in(object, &["spec", "driver"]);
    if !driver.chars().any(char::is_uppercase) {
        return Vec::new();
    }
    vec![format!(
        "spec.driver: driver names should be lowercase; {} contains uppercase characters",
        go_quote(driver)
    )]
}

#[cfg(test)]
mod tests;
