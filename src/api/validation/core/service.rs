//! Validation of services.

use std::collections::BTreeSet;

use serde_json::Value;

use super::handlers::port;
use crate::field::{Error, ErrorList, Path, distinct};
use crate::validation::checks::repeated;
use crate::validation::labels::validate_labels;
use crate::validation::net::{self, is_v6, sloppy_ip};
use crate::validation::{IMMUTABLE, each, names, one_of};
use crate::value::{at, get, has, int_at, is_empty, items, str_at, str_in};

/// Maximum timeout of the client IP session affinity in seconds: one day.
const AFFINITY_MAX: i64 = 86_400;
const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";
const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// Reports whether clients outside the cluster can reach the service (`ExternallyAccessible`).
pub fn externally_accessible(spec: &Value) -> bool {
    match str_at(spec, "type") {
        "LoadBalancer" | "NodePort" => true,
        kind => kind == "ClusterIP" && !is_empty(spec, "externalIPs"),
    }
}

/// Reports whether the service needs a health-check node port (`NeedsHealthCheck`).
pub fn needs_health_check(spec: &Value) -> bool {
    str_at(spec, "type") == "LoadBalancer" && str_at(spec, "externalTrafficPolicy") == "Local"
}

fn headless(spec: &Value) -> bool {
    matches!(items(spec, "clusterIPs"), [one] if one == "None")
}

fn strings<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    items(value, key).iter().map(|v| v.as_str().unwrap_or_default()).collect()
}

/// Validates a new service (`ValidateServiceCreate`). The API server has allocated its addresses
/// and ports.
pub fn validate(object: &Value) -> ErrorList {
    service(object, &Value::Null)
}

/// Validates an update of a service (`ValidateServiceUpdate`).
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    let mut errors = addresses_stay(new, was);
    errors.extend(families_stay(new, was));
    let path = Path::new("spec");
    let both = [new, was].iter().all(|s| str_at(s, "type") == "LoadBalancer");
    if both && get(new, "loadBalancerClass") != get(was, "loadBalancerClass") {
        errors.push(Error::invalid(
            &path.child("loadBalancerClass"),
            get(new, "loadBalancerClass").clone(),
            "may not change once set",
        ));
    }
    let port = "healthCheckNodePort";
    if needs_health_check(new) && needs_health_check(was) && int_at(new, port) != int_at(was, port)
    {
        errors.push(Error::forbidden(&path.child(port), IMMUTABLE));
    }
    errors.extend(service(object, old));
    distinct(errors)
}

/// Validates a status update.
pub fn validate_subresource(subresource: &str, object: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    if subresource != "status" {
        return errors;
    }
    let ingress = at(object, &["status", "loadBalancer"]);
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let points = items(ingress, "ingress");
    if !points.is_empty() && str_in(object, &["spec", "type"]) != "LoadBalancer" {
        return vec![Error::forbidden(
            &path,
            "may only be used when `spec.type` is 'LoadBalancer'",
        )];
    }
    let known: Vec<&str> = items(at(old, &["status", "loadBalancer"]), "ingress")
        .iter()
        .map(|p| str_at(p, "ip"))
        .collect();
    for (index, point) in points.iter().enumerate() {
        let (field, ip, name) = (path.index(index), str_at(point, "ip"), str_at(point, "hostname"));
        if !ip.is_empty() {
            errors.extend(net::legacy_ip(&field.child("ip"), ip, &known));
        }
        match (ip.is_empty(), get(point, "ipMode").as_str()) {
            (false, None) => errors.push(Error::required(
                &field.child("ipMode"),
                "must be specified when `ip` is set",
            )),
            (true, Some(_)) => errors.push(Error::forbidden(
                &field.child("ipMode"),
                "may not be specified when `ip` is not set",
            )),
            (false, Some(mode)) => {
                errors.extend(one_of(mode, &["Proxy", "VIP"], &field.child("ipMode")))
            }
            (true, None) => {}
        }
        if !name.is_empty() {
            errors.extend(each(&field.child("hostname"), name, names::dns1123_subdomain(name)));
            if sloppy_ip(name).is_some() {
                errors.push(Error::invalid(
                    &field.child("hostname"),
                    name,
                    "must be a DNS name, not an IP address",
                ));
            }
        }
    }
    errors
}

fn service(object: &Value, old: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    let annotations = at(object, &["metadata", "annotations"]);
    if let (Some(hints), Some(mode)) =
        (get(annotations, HINTS).as_str(), get(annotations, MODE).as_str())
    {
        if hints != mode {
            let text = format!("must match annotations[{HINTS}] when both are specified");
            errors.push(Error::invalid(
                &Path::new("metadata").child("annotations").key(MODE),
                mode,
                text,
            ));
        }
    }
    errors.extend(by_type(spec, &path));
    let ports = items(spec, "ports");
    let mut known = BTreeSet::new();
    for (index, one) in ports.iter().enumerate() {
        errors.extend(service_port(
            one,
            ports.len() > 1,
            &mut known,
            &path.child("ports").index(index),
        ));
    }
    errors.extend(validate_labels(spec, "selector", &path));
    errors.extend(affinity(spec, &path));
    errors.extend(addresses(spec, get(old, "spec"), &path));
    errors.extend(external_ips(spec, old, &path));
    let kind = str_at(spec, "type");
    match kind {
        "" => errors.push(Error::required(&path.child("type"), "")),
        _ => errors.extend(one_of(
            kind,
            &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
            &path.child("type"),
        )),
    }
    errors.extend(port_numbers(spec, &path.child("ports")));
    errors.extend(source_ranges(object, old, &path));
    if kind != "LoadBalancer" && has(spec, "allocateLoadBalancerNodePorts") {
        errors.push(Error::forbidden(
            &path.child("allocateLoadBalancerNodePorts"),
            "may only be used when `type` is 'LoadBalancer'",
        ));
    }
    if kind == "LoadBalancer" && !has(spec, "allocateLoadBalancerNodePorts") {
        errors.push(Error::required(&Path::new("allocateLoadBalancerNodePorts"), ""));
    }
    if let Some(class) = get(spec, "loadBalancerClass").as_str() {
        let field = path.child("loadBalancerClass");
        if kind == "LoadBalancer" {
            errors.extend(each(&field, class, names::qualified_name(class)));
        } else {
            errors.push(Error::forbidden(&field, "may only be used when `type` is 'LoadBalancer'"));
        }
    }
    errors.extend(traffic(spec, &path));
    errors
}

fn external_ips(spec: &Value, old: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let before = strings(get(old, "spec"), "externalIPs");
    for (index, ip) in strings(spec, "externalIPs").into_iter().enumerate() {
        let field = path.child("externalIPs").index(index);
        let bad = net::legacy_ip(&field, ip, &before);
        if bad.is_empty() {
            errors.extend(
                sloppy_ip(ip)
                    .map(|address| net::special_address(&field, ip, &address))
                    .unwrap_or_default(),
            );
        }
        errors.extend(bad);
    }
    errors
}

fn by_type(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let kind = str_at(spec, "type");
    if is_empty(spec, "ports") && !headless(spec) && kind != "ExternalName" {
        errors.push(Error::required(&path.child("ports"), ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless(spec) => {
            let text = format!("may not be set to 'None' for {kind} services");
            errors.push(Error::invalid(&path.child("clusterIPs").index(0), "None", text));
        }
        "ExternalName" => {
            for key in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if !is_empty(spec, key) {
                    errors.push(Error::forbidden(
                        &path.child(key),
                        "may not be set for ExternalName services",
                    ));
                }
            }
            let name = str_at(spec, "externalName");
            let name = name.strip_suffix('.').unwrap_or(name);
            if name.is_empty() {
                errors.push(Error::required(&path.child("externalName"), ""));
            } else {
                errors.extend(each(
                    &path.child("externalName"),
                    name,
                    names::dns1123_subdomain(name),
                ));
            }
        }
        _ => {}
    }
    errors
}

fn service_port<'a>(
    one: &'a Value,
    name_required: bool,
    known: &mut BTreeSet<&'a str>,
    path: &Path,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let name = str_at(one, "name");
    if name.is_empty() {
        if name_required {
            errors.push(Error::required(&path.child("name"), ""));
        }
    } else {
        errors.extend(each(&path.child("name"), name, names::dns1123_label(name)));
        if !known.insert(name) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
    }
    let number = int_at(one, "port").unwrap_or_default();
    errors.extend(each(&path.child("port"), number, names::port_number(number)));
    match str_at(one, "protocol") {
        "" => errors.push(Error::required(&path.child("protocol"), "")),
        protocol => {
            errors.extend(one_of(protocol, &["SCTP", "TCP", "UDP"], &path.child("protocol")))
        }
    }
    errors.extend(port(get(one, "targetPort"), &path.child("targetPort")));
    if let Some(protocol) = get(one, "appProtocol").as_str() {
        errors.extend(each(&path.child("appProtocol"), protocol, names::qualified_name(protocol)));
    }
    errors
}

fn affinity(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let kind = str_at(spec, "sessionAffinity");
    let field = path.child("sessionAffinity");
    match kind {
        "" => errors.push(Error::required(&field, "")),
        _ => errors.extend(one_of(kind, &["ClientIP", "None"], &field)),
    }
    let field = path.child("sessionAffinityConfig");
    match kind {
        "ClientIP" => {
            let seconds =
                at(spec, &["sessionAffinityConfig", "clientIP", "timeoutSeconds"]).as_i64();
            let at = field.child("clientIP").child("timeoutSeconds");
            match seconds {
                None => errors.push(Error::required(&at, "when session affinity type is ClientIP")),
                Some(s) if !(1..=AFFINITY_MAX).contains(&s) => {
                    errors.push(Error::invalid(
                        &at,
                        s,
                        format!("must be greater than 0 and less than {AFFINITY_MAX}"),
                    ));
                }
                Some(_) => {}
            }
        }
        "None" if has(spec, "sessionAffinityConfig") => {
            errors.push(Error::forbidden(&field, "must not be set when session affinity is None"));
        }
        _ => {}
    }
    errors
}

/// Validates the cluster IPs, IP families and IP family policy only. Upstream also runs this
/// validation before it allocates addresses.
pub fn validate_addresses(object: &Value, old: &Value) -> ErrorList {
    addresses(get(object, "spec"), get(old, "spec"), &Path::new("spec"))
}

/// Checks that `clusterIP` is the first value of `clusterIPs`.
fn first_address(spec: &Value, field: &Path) -> Option<Error> {
    let (single, all) = (str_at(spec, "clusterIP"), strings(spec, "clusterIPs"));
    let shown = || get(spec, "clusterIPs").clone();
    match (single.is_empty(), all.first()) {
        (false, None) => Some(Error::required(field, "")),
        (false, Some(first)) if *first != single => {
            Some(Error::invalid(field, shown(), "first value must match `clusterIP`"))
        }
        (true, Some(_)) => {
            Some(Error::invalid(field, shown(), "must be empty when `clusterIP` is not specified"))
        }
        _ => None,
    }
}

fn address_families(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let families = strings(spec, "ipFamilies");
    let again = repeated(families.iter());
    for (index, family) in families.iter().enumerate() {
        let at = path.child("ipFamilies").index(index);
        errors.extend(one_of(family, &["IPv4", "IPv6"], &at));
        if again.at(index) {
            errors.push(Error::duplicate(&at, *family));
        }
    }
    let policy = get(spec, "ipFamilyPolicy").as_str();
    errors.extend(policy.and_then(|p| {
        one_of(
            p,
            &["PreferDualStack", "RequireDualStack", "SingleStack"],
            &path.child("ipFamilyPolicy"),
        )
    }));
    errors
}

fn addresses(spec: &Value, old: &Value, path: &Path) -> ErrorList {
    if str_at(spec, "type") == "ExternalName" {
        return Vec::new();
    }
    let mut errors = ErrorList::new();
    let field = path.child("clusterIPs");
    let all = strings(spec, "clusterIPs");
    let shown = get(spec, "clusterIPs").clone();
    errors.extend(first_address(spec, &field));
    errors.extend(address_families(spec, path));
    let families = strings(spec, "ipFamilies");
    let before = strings(old, "clusterIPs");
    let mut bad = false;
    for (index, ip) in all.iter().enumerate() {
        if index == 0 && *ip == "None" {
            if all.len() > 1 {
                bad = true;
                errors.push(Error::invalid(
                    &field,
                    shown.clone(),
                    "'None' must be the first and only value",
                ));
            }
            continue;
        }
        let own = net::legacy_ip(&field.index(index), ip, &before);
        bad |= !own.is_empty();
        errors.extend(own);
    }
    if all.len() > 2 {
        errors.push(Error::invalid(&field, shown.clone(), "may only hold up to 2 values"));
    }
    if bad {
        return errors;
    }
    let sixes: Vec<bool> = all.iter().map(|ip| sloppy_ip(ip).is_some_and(|a| is_v6(&a))).collect();
    if all.len() > 1 && (all.len() != 2 || sixes.first() == sixes.last()) {
        errors.push(Error::invalid(
            &field,
            shown,
            "may specify no more than one IP for each IP family",
        ));
    }
    if !headless(spec) {
        for (index, ((ip, six), family)) in all.iter().zip(&sixes).zip(&families).enumerate() {
            if (*family == "IPv4" && *six) || (*family == "IPv6" && !*six) {
                let text =
                    format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
                errors.push(Error::invalid(&field.index(index), *ip, text));
            }
        }
    }
    errors
}

fn port_numbers(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (mut node_ports, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for (index, one) in items(spec, "ports").iter().enumerate() {
        let (field, protocol) = (path.index(index), str_at(one, "protocol"));
        let node = int_at(one, "nodePort").unwrap_or_default();
        if node != 0 && str_at(spec, "type") == "ClusterIP" {
            errors.push(Error::forbidden(
                &field.child("nodePort"),
                "may not be used when `type` is 'ClusterIP'",
            ));
        }
        if node != 0 && !node_ports.insert((protocol, node)) {
            errors.push(Error::duplicate(&field.child("nodePort"), node));
        }
        let number = int_at(one, "port").unwrap_or_default();
        if !ports.insert((protocol, number)) {
            // Upstream's error contains only the fields of the port that have to be unique.
            let shown = serde_json::json!({"protocol": protocol, "port": number});
            errors.push(Error::duplicate(&field, shown).printed_as("ServicePort"));
        }
    }
    errors
}

fn source_ranges(object: &Value, old: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = get(object, "spec");
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    let balanced = str_at(spec, "type") == "LoadBalancer";
    let ranges = strings(spec, "loadBalancerSourceRanges");
    if !ranges.is_empty() {
        let field = path.child("LoadBalancerSourceRanges");
        if !balanced {
            errors.push(Error::forbidden(&field, ONLY));
        }
        let before: Vec<&str> = strings(get(old, "spec"), "loadBalancerSourceRanges")
            .into_iter()
            .map(str::trim)
            .collect();
        for (index, range) in ranges.iter().enumerate() {
            errors.extend(net::legacy_cidr(&field.index(index), range.trim(), &before));
        }
    } else if let Some(value) = at(object, &["metadata", "annotations", RANGES]).as_str() {
        let field = Path::new("metadata").child("annotations").key(RANGES);
        if !balanced {
            errors.push(Error::forbidden(&field, ONLY));
        }
        if str_in(old, &["metadata", "annotations", RANGES]) != value && !value.trim().is_empty() {
            errors.extend(
                value.split(',').flat_map(|range| net::legacy_cidr(&field, range.trim(), &[])),
            );
        }
    }
    errors
}

fn traffic(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let external = str_at(spec, "externalTrafficPolicy");
    let field = path.child("externalTrafficPolicy");
    match (externally_accessible(spec), external) {
        (false, "") => {}
        (false, policy) => errors.push(Error::invalid(
            &field,
            policy,
            "may only be set for externally-accessible services",
        )),
        (true, "") => errors.push(Error::required(&field, "")),
        (true, policy) => errors.extend(one_of(policy, &["Cluster", "Local"], &field)),
    }
    let field = path.child("healthCheckNodePort");
    match (needs_health_check(spec), int_at(spec, "healthCheckNodePort").unwrap_or_default()) {
        (false, 0) => {}
        (false, number) => {
            let text = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.push(Error::invalid(&field, number, text));
        }
        (true, 0) => errors.push(Error::required(&field, "")),
        (true, number) => errors.extend(each(&field, number, names::port_number(number))),
    }
    let field = path.child("internalTrafficPolicy");
    match get(spec, "internalTrafficPolicy").as_str() {
        None if matches!(str_at(spec, "type"), "NodePort" | "LoadBalancer" | "ClusterIP") => {
            errors.push(Error::required(&field, ""))
        }
        None => {}
        Some(policy) => errors.extend(one_of(policy, &["Cluster", "Local"], &field)),
    }
    let distribution = get(spec, "trafficDistribution").as_str();
    let known = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    errors.extend(distribution.and_then(|d| one_of(d, &known, &path.child("trafficDistribution"))));
    errors
}

const STAYS: &str = "may not change once set";

fn unrelated(new: &Value, old: &Value) -> bool {
    [new, old].iter().any(|s| str_at(s, "type") == "ExternalName")
}

fn addresses_stay(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    if unrelated(new, old) || (headless(new) && headless(old)) {
        return errors;
    }
    let (now, was) = (strings(new, "clusterIPs"), strings(old, "clusterIPs"));
    let (field, path) = (Path::new("spec").child("clusterIPs"), Path::new("spec"));
    let shown = get(new, "clusterIPs").clone();
    if now.len() == was.len() {
        for (index, _) in now.iter().zip(&was).enumerate().filter(|(_, (a, b))| a != b) {
            errors.push(Error::invalid(&field.index(index), shown.clone(), STAYS));
        }
        return errors;
    }
    match (now.first(), was.first()) {
        (None, Some(_)) => errors.push(Error::invalid(
            &field.index(0),
            shown,
            "primary clusterIP can not be unset",
        )),
        (Some(a), Some(b)) if a != b => errors.push(Error::invalid(&field.index(0), shown, STAYS)),
        _ => {}
    }
    if was.len() > now.len() && now.len() == 1 && str_at(new, "ipFamilyPolicy") != "SingleStack" {
        let text = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        errors.push(Error::invalid(
            &path.child("ipFamilyPolicy"),
            get(new, "ipFamilyPolicy").clone(),
            text,
        ));
    }
    errors
}

fn families_stay(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    if unrelated(new, old) || headless(new) || headless(old) {
        return errors;
    }
    let (now, was) = (strings(new, "ipFamilies"), strings(old, "ipFamilies"));
    let (path, first) = (Path::new("spec"), Path::new("spec").child("ipFamilies").index(0));
    if now.len() == was.len() {
        for _ in now.iter().zip(&was).filter(|(a, b)| a != b) {
            errors.push(Error::invalid(&first, get(new, "ipFamilies").clone(), STAYS));
        }
        return errors;
    }
    if was.len() > now.len() && is_empty(new, "clusterIPs") {
        errors.push(Error::invalid(
            &first,
            get(new, "ipFamilies").clone(),
            "primary ipFamily can not be unset",
        ));
    }
    if let (Some(a), Some(b)) = (now.first(), was.first()) {
        if a != b {
            errors.push(Error::invalid(&first, get(new, "clusterIPs").clone(), STAYS));
        }
    }
    if was.len() > now.len() && now.len() == 1 && str_at(new, "ipFamilyPolicy") != "SingleStack" {
        let text = "must be set to 'SingleStack' when releasing the secondary ipFamily";
        errors.push(Error::invalid(
            &path.child("ipFamilyPolicy"),
            get(new, "ipFamilyPolicy").clone(),
            text,
        ));
    }
    errors
}

#[cfg(test)]
mod tests;
