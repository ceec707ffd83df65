//! Validation of the status of pods: addresses, conditions, resource claims and container statuses
//! (`ValidatePodStatusUpdate`).

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::container_status as containers;
use crate::field::{Error, ErrorList, Path};
use crate::validation::{each, names, net};
use crate::value::{get, has, int_at, items, str_at, str_in};

/// Validates a status update.
pub(super) fn validate(pod: &Value, old: &Value) -> ErrorList {
    let (status, was, path) = (get(pod, "status"), get(old, "status"), Path::new("status"));
    let (spec, old_spec) = (get(pod, "spec"), get(old, "spec"));
    let mut errors = conditions(items(status, "conditions"), &path.child("conditions"));
    if str_at(spec, "nodeName") != str_at(old_spec, "nodeName") {
        errors.push(Error::forbidden(&path.child("nodeName"), "may not be changed directly"));
    }
    let (name, field) = (str_at(status, "nominatedNodeName"), path.child("nominatedNodeName"));
    if !name.is_empty() && name != str_at(was, "nominatedNodeName") {
        errors.extend(each(&field, name, names::dns1123_subdomain(name)));
        if !str_at(old_spec, "nodeName").is_empty() {
            let text = "may not be set on pods that are already bound to a node";
            errors.push(Error::forbidden(&field, text));
        }
    }
    errors.extend(generation(status, &path));
    let class = str_at(status, "qosClass");
    if class != str_at(was, "qosClass") {
        let field = path.child("qosClass");
        errors.push(Error::invalid(&field, class, crate::validation::IMMUTABLE));
    }
    errors.extend(containers::transitions(status, was, old_spec, &path));
    let field = path.child("resourceClaimStatuses");
    errors.extend(claims(items(status, "resourceClaimStatuses"), spec, &field));
    let field = path.child("extendedResourceClaimStatus");
    errors.extend(extended(get(status, "extendedResourceClaimStatus"), spec, &field));
    errors.extend(pod_addresses(status, was, &path.child("podIPs")));
    errors.extend(host_addresses(status, was, &path.child("hostIPs")));
    errors.extend(containers::users(status, spec, &path));
    errors.extend(containers::allocated(status, spec, &path));
    errors
}

fn generation(object: &Value, path: &Path) -> Option<Error> {
    let key = "observedGeneration";
    let generation = int_at(object, key).filter(|generation| *generation < 0)?;
    Some(Error::invalid(&path.child(key), generation, "must be a non-negative integer"))
}

fn conditions(list: &[Value], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (index, condition) in list.iter().enumerate() {
        let (field, kind) = (path.index(index), str_at(condition, "type"));
        errors.extend(generation(condition, &field));
        if !["PodScheduled", "Ready", "Initialized"].contains(&kind) {
            errors.extend(each(&field.child("Type"), kind, names::qualified_name(kind)));
        }
    }
    errors
}

/// Validates `resourceClaimStatuses`: each entry belongs to one resource claim of the spec.
fn claims(list: &[Value], spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let known: HashSet<&str> =
        items(spec, "resourceClaims").iter().map(|claim| str_at(claim, "name")).collect();
    let mut seen = HashSet::new();
    for (index, one) in list.iter().enumerate() {
        let (field, name) = (path.index(index), str_at(one, "name"));
        let place = field.child("name");
        if !known.contains(name) {
            let text = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(Error::invalid(&place, name, text));
        }
        if !seen.insert(name) {
            errors.push(Error::duplicate(&place, name));
        }
        if let Some(claim) = get(one, "resourceClaimName").as_str() {
            let field = field.child("resourceClaimName");
            errors.extend(each(&field, claim, names::dns1123_subdomain(claim)));
        }
    }
    errors
}

/// Validates `extendedResourceClaimStatus`, the claim for the extended resources of the pod.
fn extended(status: &Value, spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if !status.is_object() {
        return errors;
    }
    let (list, field) = (items(status, "requestMappings"), path.child("requestMappings"));
    if list.is_empty() {
        errors.push(Error::required(&field, "at least one request mapping is required"));
    }
    let keys = ["containerName", "resourceName", "requestName"];
    let key = |mapping| keys.map(|key| str_at(mapping, key));
    let mut containers = HashMap::new();
    for container in items(spec, "containers").iter().chain(items(spec, "initContainers")) {
        containers.entry(str_at(container, "name")).or_insert(container);
    }
    let mut seen = HashSet::new();
    for (index, mapping) in list.iter().enumerate() {
        let place = field.index(index);
        let [name, resource, request] = key(mapping);
        match containers.get(name) {
            Some(container) if !has(get(get(container, "resources"), "requests"), resource) => {
                let text = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
                errors.push(Error::invalid(&place.child("resourceName"), resource, text));
            }
            Some(_) => {}
            None => {
                let text = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.push(Error::invalid(&place.child("containerName"), name, text));
            }
        }
        errors.extend(each(&path.child("requestName"), request, names::dns1123_label(request)));
        if !seen.insert(key(mapping)) {
            let fields = keys.into_iter().zip(key(mapping));
            errors.extend(fields.map(|(key, value)| Error::duplicate(&place.child(key), value)));
        }
    }
    let (claim, field) = (str_at(status, "resourceClaimName"), path.child("resourceClaimName"));
    if claim.is_empty() {
        errors.push(Error::required(&field, ""));
    } else {
        errors.extend(each(&field, claim, names::dns1123_subdomain(claim)));
    }
    errors
}

fn pod_addresses(status: &Value, old: &Value, field: &Path) -> ErrorList {
    let mut errors = addresses(status, old, "podIPs", field);
    let (single, list) = (str_at(status, "podIP"), items(status, "podIPs"));
    match list.first().map(|first| str_at(first, "ip")) {
        first if first.is_none() != single.is_empty() => {
            let text = "podIP and podIPs must either both be set or both be unset";
            let shown = get(status, "podIPs").clone();
            errors.push(Error::invalid(field, shown, text).printed_as("[PodIP"));
        }
        Some(first) if first != single => {
            let place = field.index(0).child("ip");
            errors.push(Error::invalid(&place, first, "must be equal to `podIP`"));
        }
        _ => {}
    }
    errors
}

fn host_addresses(status: &Value, old: &Value, field: &Path) -> ErrorList {
    let Some(first) = items(status, "hostIPs").first().map(|first| str_at(first, "ip")) else {
        return ErrorList::new();
    };
    let mut errors = ErrorList::new();
    if first != str_in(status, &["hostIP"]) {
        let place = field.index(0).child("ip");
        errors.push(Error::invalid(&place, first, "must be equal to `hostIP`"));
    }
    errors.extend(addresses(status, old, "hostIPs", field));
    errors
}

/// Validates a list of addresses: it has at most one address of each family. Invalid addresses that
/// the old status has are accepted.
fn addresses(status: &Value, old: &Value, key: &str, field: &Path) -> ErrorList {
    let known: Vec<&str> = items(old, key).iter().map(|ip| str_at(ip, "ip")).collect();
    let all: Vec<&str> = items(status, key).iter().map(|ip| str_at(ip, "ip")).collect();
    let mut errors = ErrorList::new();
    for (index, ip) in all.iter().enumerate() {
        errors.extend(net::legacy_ip(&field.index(index), ip, &known));
    }
    if all.len() < 2 {
        return errors;
    }
    let (mut families, mut wrong) = ([false; 2], false);
    for (index, ip) in all.iter().enumerate() {
        match net::sloppy_ip(ip) {
            Some(address) if net::is_v6(&address) => families[1] = true,
            Some(_) => families[0] = true,
            None => {
                let why =
                    format!("failed to check for dual stack with error:invalid IP[{index}]: {ip}");
                errors.push(Error::internal(field, why));
                wrong = true;
                break;
            }
        }
    }
    if wrong || all.len() > 2 || families != [true; 2] {
        let text = "may specify no more than one IP for each IP family";
        let kind = if key == "podIPs" { "[PodIP" } else { "[HostIP" };
        let shown = get(status, key).clone();
        errors.push(Error::invalid(field, shown, text).printed_as(kind));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(spec: Value, status: Value, was: Value) -> Vec<String> {
        let pod = json!({"spec": spec, "status": status});
        let old = json!({"spec": spec, "status": was});
        validate(&pod, &old).iter().map(ToString::to_string).collect()
    }

    /// The expected texts are responses of kube-apiserver 1.37.1 and texts of its source.
    #[test]
    fn claims_are_those_of_the_spec() {
        let status = json!({
            "resourceClaimStatuses": [{"name": "n", "resourceClaimName": "x_y"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": [
                {"containerName": "a", "resourceName": "e.com/r", "requestName": "r"},
                {"containerName": "c", "resourceName": "e.com/r", "requestName": "r"},
                {"containerName": "c", "resourceName": "e.com/r", "requestName": "r"}]},
        });
        let subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        let at = "status.extendedResourceClaimStatus.requestMappings";
        let resource = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
        assert_eq!(
            said(json!({"containers": [{"name": "c"}]}), status, json!({})),
            [
                "status.resourceClaimStatuses[0].name: Invalid value: \"n\": must match the name of an entry in `spec.resourceClaims`".to_owned(),
                format!("status.resourceClaimStatuses[0].resourceClaimName: Invalid value: \"x_y\": {subdomain}"),
                format!("{at}[0].containerName: Invalid value: \"a\": must match the name of an entry in spec.initContainers.name or spec.containers.name"),
                format!("{at}[1].resourceName: Invalid value: \"e.com/r\": {resource}"),
                format!("{at}[2].resourceName: Invalid value: \"e.com/r\": {resource}"),
                format!("{at}[2].containerName: Duplicate value: \"c\""),
                format!("{at}[2].resourceName: Duplicate value: \"e.com/r\""),
                format!("{at}[2].requestName: Duplicate value: \"r\""),
            ]
        );
    }

    #[test]
    fn addresses_are_one_of_each_family() {
        let ips = |list: &[&str]| -> Value { list.iter().map(|ip| json!({"ip": ip})).collect() };
        assert_eq!(
            said(
                json!({}),
                json!({"podIP": "1.1.1.1", "podIPs": ips(&["1.1.1.1", "::1"])}),
                json!({})
            ),
            [""; 0]
        );
        assert_eq!(
            said(
                json!({}),
                json!({"podIP": "1.1.1.1", "podIPs": ips(&["1.1.1.2", "1.1.1.1"]), "hostIPs": ips(&["1.1.1.2"])}),
                json!({})
            ),
            [
                "status.podIPs: Invalid value: [{\"IP\":\"1.1.1.2\"},{\"IP\":\"1.1.1.1\"}]: may specify no more than one IP for each IP family",
                "status.podIPs[0].ip: Invalid value: \"1.1.1.2\": must be equal to `podIP`",
                "status.hostIPs[0].ip: Invalid value: \"1.1.1.2\": must be equal to `hostIP`",
            ]
        );
        assert_eq!(
            said(json!({}), json!({"podIP": "1.1.1.1"}), json!({})),
            [
                "status.podIPs: Invalid value: null: podIP and podIPs must either both be set or both be unset"
            ]
        );
    }

    #[test]
    fn a_bound_pod_is_not_nominated() {
        let spec = json!({"nodeName": "n"});
        assert_eq!(
            said(spec.clone(), json!({"nominatedNodeName": "m"}), json!({})),
            [
                "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node"
            ]
        );
        let same = json!({"nominatedNodeName": "m"});
        assert_eq!(said(spec, same.clone(), same), [""; 0]);
    }
}
