//! Printers of disruption budgets, role bindings, certificates, priorities and flow control.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{
    age, at, condition, human_duration, integer, labels, list, name, text, text_or,
};
use super::printer::{
    AGE, Column, NAME, Printer, boolean, column, integer as number, printer, text as col, wide,
};

const CERTIFICATES: &str = "certificates.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";

pub(super) const PRINTERS: &[Printer] = &[
    printer("policy", "PodDisruptionBudget", BUDGET, disruption_budget),
    printer(RBAC, "RoleBinding", BINDING, role_binding),
    printer(RBAC, "ClusterRoleBinding", BINDING, role_binding),
    printer(CERTIFICATES, "CertificateSigningRequest", REQUEST, signing_request),
    printer(CERTIFICATES, "ClusterTrustBundle", &[NAME, col("SignerName")], trust_bundle),
    printer(CERTIFICATES, "PodCertificateRequest", POD_REQUEST, pod_certificate_request),
    printer("scheduling.k8s.io", "PriorityClass", PRIORITY, priority_class),
    printer(FLOW, "FlowSchema", FLOW_SCHEMA, flow_schema),
    printer(FLOW, "PriorityLevelConfiguration", LEVEL, priority_level),
];

const BUDGET: &[Column] =
    &[NAME, col("Min Available"), col("Max Unavailable"), number("Allowed Disruptions"), AGE];
const BINDING: &[Column] =
    &[NAME, col("Role"), AGE, wide("Users"), wide("Groups"), wide("ServiceAccounts")];
const REQUEST: &[Column] =
    &[NAME, AGE, col("SignerName"), col("Requestor"), col("RequestedDuration"), col("Condition")];
const POD_REQUEST: &[Column] = &[
    NAME,
    col("PodName"),
    col("ServiceAccountName"),
    col("NodeName"),
    col("SignerName"),
    col("State"),
    col("UnverifiedUserAnnotations"),
];
const PRIORITY: &[Column] = &[
    NAME,
    number("Value"),
    boolean("Global-Default"),
    AGE,
    column("PreemptionPolicy", "string", 0),
];
const FLOW_SCHEMA: &[Column] = &[
    NAME,
    col("PriorityLevel"),
    col("MatchingPrecedence"),
    col("DistinguisherMethod"),
    AGE,
    col("MissingPL"),
];
const LEVEL: &[Column] = &[
    NAME,
    col("Type"),
    col("NominalConcurrencyShares"),
    col("Queues"),
    col("HandSize"),
    col("QueueLengthLimit"),
    AGE,
];

/// A number or percentage, or `none` when absent.
fn or_text(value: &Value, none: &str) -> Value {
    match value {
        Value::Null => none.into(),
        Value::String(text) => text.clone().into(),
        other => other.to_string().into(),
    }
}

fn disruption_budget(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(o),
        or_text(at(o, &["spec", "minAvailable"]), "N/A"),
        or_text(at(o, &["spec", "maxUnavailable"]), "N/A"),
        integer(o, &["status", "disruptionsAllowed"]).into(),
        age(o, now),
    ]
}

fn role_binding(o: &Value, now: Timestamp) -> Vec<Value> {
    let of = |kind: &str| -> Value {
        let named = |s: &Value| {
            let title = text(s, &["name"]);
            if kind == "ServiceAccount" {
                format!("{}/{title}", text(s, &["namespace"]))
            } else {
                title.to_owned()
            }
        };
        let all: Vec<String> = list(o, &["subjects"])
            .iter()
            .filter(|s| text(s, &["kind"]) == kind)
            .map(named)
            .collect();
        all.join(", ").into()
    };
    let role = format!("{}/{}", text(o, &["roleRef", "kind"]), text(o, &["roleRef", "name"]));
    vec![name(o), role.into(), age(o, now), of("User"), of("Group"), of("ServiceAccount")]
}

fn signing_request(o: &Value, now: Timestamp) -> Vec<Value> {
    let has = |kind: &str| condition(o, kind).is_some();
    let mut state = match () {
        () if has("Denied") => "Denied",
        () if has("Approved") => "Approved",
        () => "Pending",
    }
    .to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !text(o, &["status", "certificate"]).is_empty() {
        state.push_str(",Issued");
    }
    let wanted = at(o, &["spec", "expirationSeconds"])
        .as_i64()
        .map_or_else(|| "<none>".to_owned(), human_duration);
    vec![
        name(o),
        age(o, now),
        text_or(o, &["spec", "signerName"], "<none>").into(),
        text(o, &["spec", "username"]).into(),
        wanted.into(),
        state.into(),
    ]
}

fn trust_bundle(o: &Value, _: Timestamp) -> Vec<Value> {
    vec![name(o), text_or(o, &["spec", "signerName"], "<none>").into()]
}

fn pod_certificate_request(o: &Value, _: Timestamp) -> Vec<Value> {
    let known =
        |c: &Value| ["Issued", "Denied", "Failed"].into_iter().find(|k| text(c, &["type"]) == *k);
    let state = list(o, &["status", "conditions"])
        .iter()
        .filter_map(known)
        .next_back()
        .unwrap_or("Pending");
    let spec = |field: &str| Value::from(text(o, &["spec", field]));
    vec![
        name(o),
        spec("podName"),
        spec("serviceAccountName"),
        spec("nodeName"),
        spec("signerName"),
        state.into(),
        labels(at(o, &["spec", "unverifiedUserAnnotations"])).into(),
    ]
}

fn priority_class(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(o),
        integer(o, &["value"]).into(),
        at(o, &["globalDefault"]).as_bool().unwrap_or_default().into(),
        age(o, now),
        text(o, &["preemptionPolicy"]).into(),
    ]
}

/// The sort key of flow schemas, which are printed in the order in which they match.
pub(super) fn flow_schema_order(o: &Value) -> (i64, String) {
    (integer(o, &["spec", "matchingPrecedence"]), text(o, &["metadata", "name"]).to_owned())
}

fn flow_schema(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(o),
        text(o, &["spec", "priorityLevelConfiguration", "name"]).into(),
        integer(o, &["spec", "matchingPrecedence"]).into(),
        text_or(o, &["spec", "distinguisherMethod", "type"], "<none>").into(),
        age(o, now),
        condition(o, "Dangling").map_or("?", |c| text(c, &["status"])).into(),
    ]
}

fn priority_level(o: &Value, now: Timestamp) -> Vec<Value> {
    let limited = at(o, &["spec", "limited"]);
    let queuing = at(limited, &["limitResponse", "queuing"]);
    let number = |of: &Value, field: &str| {
        if of.is_null() { "<none>".into() } else { Value::from(integer(of, &[field])) }
    };
    vec![
        name(o),
        text(o, &["spec", "type"]).into(),
        number(limited, "nominalConcurrencyShares"),
        number(queuing, "queues"),
        number(queuing, "handSize"),
        number(queuing, "queueLengthLimit"),
        age(o, now),
    ]
}
