//! Printers of admission configuration, custom resource definitions, API services and storage
//! migrations.

use jiff::Timestamp;
use serde_json::Value;
use sorting::CompactSort as _;

use super::cells::{
    age, at, condition, count, created_at, flag, is_true, joined, list, name, text,
};
use super::printer::{
    AGE, Column, NAME, Printer, column, integer as number, printer, text as col, wide,
};

const ADMISSION: &str = "admissionregistration.k8s.io";

pub(super) const PRINTERS: &[Printer] = &[
    printer(
        ADMISSION,
        "MutatingAdmissionPolicy",
        &[NAME, number("Mutations"), col("ParamKind"), AGE],
        mutating_policy,
    ),
    printer(
        ADMISSION,
        "ValidatingAdmissionPolicy",
        &[NAME, number("Validations"), col("ParamKind"), AGE],
        validating_policy,
    ),
    printer(ADMISSION, "MutatingAdmissionPolicyBinding", BINDING, policy_binding),
    printer(ADMISSION, "ValidatingAdmissionPolicyBinding", BINDING, policy_binding),
    printer(ADMISSION, "MutatingWebhookConfiguration", &[NAME, number("Webhooks"), AGE], webhooks),
    printer(
        ADMISSION,
        "ValidatingWebhookConfiguration",
        &[NAME, number("Webhooks"), AGE],
        webhooks,
    ),
    printer("apiextensions.k8s.io", "CustomResourceDefinition", DEFINITION, definition),
    printer(
        "apiregistration.k8s.io",
        "APIService",
        &[NAME, col("Service"), col("Available"), AGE],
        api_service,
    ),
    printer(
        "storagemigration.k8s.io",
        "StorageVersionMigration",
        &[col("Name"), col("Resource"), col("Status")],
        migration,
    ),
];

const BINDING: &[Column] = &[NAME, col("PolicyName"), col("ParamRef"), AGE];
const DEFINITION: &[Column] = &[
    NAME,
    col("Scope"),
    col("Versions"),
    column("Created At", "date", 0),
    wide("Group"),
    wide("Kind"),
    wide("ShortNames"),
    column("Established", "boolean", 1),
];

fn policy(o: &Value, now: Timestamp, what: &str) -> Vec<Value> {
    let kind = at(o, &["spec", "paramKind"]);
    let kind = if kind.is_null() {
        "<unset>".to_owned()
    } else {
        format!("{}/{}", text(kind, &["apiVersion"]), text(kind, &["kind"]))
    };
    vec![name(o), count(o, &["spec", what]).into(), kind.into(), age(o, now)]
}

fn mutating_policy(o: &Value, now: Timestamp) -> Vec<Value> {
    policy(o, now, "mutations")
}

fn validating_policy(o: &Value, now: Timestamp) -> Vec<Value> {
    policy(o, now, "validations")
}

/// A label selector as Go's generated code prints it.
fn go_selector(value: &Value) -> String {
    let labels: String = at(value, &["matchLabels"])
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}: {},", v.as_str().unwrap_or_default()))
        .collect();
    let expressions: String = list(value, &["matchExpressions"])
        .iter()
        .map(|e| {
            let values = joined(e, &["values"], " ");
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},",
                text(e, &["key"]),
                text(e, &["operator"])
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

fn policy_binding(o: &Value, now: Timestamp) -> Vec<Value> {
    let reference = at(o, &["spec", "paramRef"]);
    let (title, namespace) = (text(reference, &["name"]), text(reference, &["namespace"]));
    let shown = match () {
        () if !title.is_empty() && !namespace.is_empty() => format!("{namespace}/{title}"),
        () if !title.is_empty() => format!("*/{title}"),
        () if !at(reference, &["selector"]).is_null() => go_selector(at(reference, &["selector"])),
        () => "<unset>".into(),
    };
    vec![name(o), text(o, &["spec", "policyName"]).into(), shown.into(), age(o, now)]
}

fn webhooks(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), count(o, &["webhooks"]).into(), age(o, now)]
}

fn definition(o: &Value, _: Timestamp) -> Vec<Value> {
    let mut versions: Vec<String> = list(o, &["spec", "versions"])
        .iter()
        .filter(|v| flag(v, &["served"]))
        .map(|v| {
            format!(
                "{}{}",
                text(v, &["name"]),
                if flag(v, &["storage"]) { "(storage)" } else { "" }
            )
        })
        .collect();
    versions.compact_sort();
    vec![
        name(o),
        text(o, &["spec", "scope"]).into(),
        versions.join(",").into(),
        created_at(o),
        text(o, &["spec", "group"]).into(),
        text(o, &["spec", "names", "kind"]).into(),
        joined(o, &["spec", "names", "shortNames"], ",").into(),
        is_true(o, "Established").into(),
    ]
}

fn api_service(o: &Value, now: Timestamp) -> Vec<Value> {
    let service = at(o, &["spec", "service"]);
    let service = if service.is_null() {
        "Local".to_owned()
    } else {
        format!("{}/{}", text(service, &["namespace"]), text(service, &["name"]))
    };
    let available = match condition(o, "Available") {
        None => "Unknown".to_owned(),
        Some(c) => match (text(c, &["status"]), text(c, &["reason"])) {
            (status, reason) if status == "True" || reason.is_empty() => status.to_owned(),
            (status, reason) => format!("{status} ({reason})"),
        },
    };
    vec![name(o), service.into(), available.into(), age(o, now)]
}

fn migration(o: &Value, _: Timestamp) -> Vec<Value> {
    let resource = api::status::qualified(
        text(o, &["spec", "resource", "group"]),
        text(o, &["spec", "resource", "resource"]),
    );
    let known = |c: &Value| {
        ["Running", "Failed", "Succeeded"]
            .into_iter()
            .find(|k| text(c, &["type"]) == *k && text(c, &["status"]) == "True")
    };
    let state = list(o, &["status", "conditions"])
        .iter()
        .filter_map(known)
        .next_back()
        .unwrap_or("Unknown");
    vec![name(o), resource.into(), state.into()]
}
