//! Table rows of ingresses, network policies, addresses and endpoint slices.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{age, annotation, at, first_three, joined, list, name, selector, text, text_or};
use super::core::load_balancer;
use super::printer::{AGE, Column, NAME, Printer, printer, text as col};

const GROUP: &str = "networking.k8s.io";

pub(super) const PRINTERS: &[Printer] = &[
    printer(GROUP, "Ingress", INGRESS, ingress),
    printer(
        GROUP,
        "IngressClass",
        &[NAME, col("Controller"), col("Parameters"), AGE],
        ingress_class,
    ),
    printer(GROUP, "NetworkPolicy", &[NAME, col("Pod-Selector"), AGE], network_policy),
    printer(GROUP, "ServiceCIDR", &[NAME, col("CIDRs"), AGE], service_cidr),
    printer(GROUP, "IPAddress", &[NAME, col("ParentRef")], ip_address),
    printer("discovery.k8s.io", "EndpointSlice", SLICE, endpoint_slice),
];

const INGRESS: &[Column] = &[NAME, col("Class"), col("Hosts"), col("Address"), col("Ports"), AGE];
const SLICE: &[Column] = &[NAME, col("AddressType"), col("Ports"), col("Endpoints"), AGE];

/// At most three hosts of the rules; `*` if no rule has a host. As in upstream (`formatHosts`), the
/// number of further hosts counts rules without a host, too.
fn hosts(o: &Value) -> String {
    let rules = list(o, &["spec", "rules"]);
    let mut shown: Vec<&str> = Vec::new();
    let mut more = false;
    for rule in rules {
        more |= shown.len() == 3;
        let host = text(rule, &["host"]);
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match shown.join(",") {
        no_hosts if no_hosts.is_empty() => "*".into(),
        shown if more => format!("{shown} + {} more...", rules.len() - 3),
        shown => shown,
    }
}

fn ingress(o: &Value, now: Timestamp) -> Vec<Value> {
    let ports = if list(o, &["spec", "tls"]).is_empty() { "80" } else { "80, 443" };
    vec![
        name(o),
        text_or(o, &["spec", "ingressClassName"], "<none>").into(),
        hosts(o).into(),
        load_balancer(o).into(),
        ports.into(),
        age(o, now),
    ]
}

fn ingress_class(o: &Value, now: Timestamp) -> Vec<Value> {
    let mut title = text(o, &["metadata", "name"]).to_owned();
    if annotation(o, "ingressclass.kubernetes.io/is-default-class") == Some("true") {
        title.push_str(" (default)");
    }
    let parameters = at(o, &["spec", "parameters"]);
    let shown = if parameters.is_null() {
        "<none>".to_owned()
    } else {
        let group =
            at(parameters, &["apiGroup"]).as_str().map_or_else(String::new, |g| format!(".{g}"));
        format!("{}{group}/{}", text(parameters, &["kind"]), text(parameters, &["name"]))
    };
    vec![title.into(), text(o, &["spec", "controller"]).into(), shown.into(), age(o, now)]
}

fn network_policy(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), selector(at(o, &["spec", "podSelector"])).into(), age(o, now)]
}

fn service_cidr(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), joined(o, &["spec", "cidrs"], ",").into(), age(o, now)]
}

/// Upstream's row also has the age, although the table has no column for it.
fn ip_address(o: &Value, now: Timestamp) -> Vec<Value> {
    let parent = at(o, &["spec", "parentRef"]);
    let shown = if parent.is_null() {
        "<none>".to_owned()
    } else {
        let resource =
            api::status::qualified(text(parent, &["group"]), text(parent, &["resource"]))
                .to_lowercase();
        let namespace = text(parent, &["namespace"]);
        let namespace = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
        format!("{resource}{namespace}/{}", text(parent, &["name"]))
    };
    vec![name(o), shown.into(), age(o, now)]
}

/// A port is shown by its number, otherwise by its name, otherwise as `*`.
fn endpoint_slice(o: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = list(o, &["ports"])
        .iter()
        .map(|p| {
            at(p, &["port"]).as_i64().map_or_else(
                || at(p, &["name"]).as_str().unwrap_or("*").to_owned(),
                |n| n.to_string(),
            )
        })
        .collect();
    let endpoints: Vec<String> = list(o, &["endpoints"])
        .iter()
        .flat_map(|e| list(e, &["addresses"]))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    vec![
        name(o),
        text(o, &["addressType"]).into(),
        first_three(&ports).into(),
        first_three(&endpoints).into(),
        age(o, now),
    ]
}
