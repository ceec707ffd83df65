//! Validation of pods and pod templates.

use std::collections::BTreeSet;

use serde_json::Value;
use sorting::CompactSort as _;

use super::containers::{self, Surroundings};
use super::{resources, scheduling, security, volumes};
use crate::field::{Error, ErrorList, Path};
use crate::validation::labels::{validate_annotations, validate_labels};
use crate::validation::numbers::non_negative;
use crate::validation::{each, names, net, one_of};
use crate::value::{at, bool_at, get, has, int_at, items, remove, str_at, str_in};

/// Validates a new pod (`ValidatePodCreate`).
pub fn validate(pod: &Value) -> ErrorList {
    let mut errors = body(pod);
    let (spec, path) = (get(pod, "spec"), Path::new("spec"));
    if !items(spec, "ephemeralContainers").is_empty() {
        errors
            .push(Error::forbidden(&path.child("ephemeralContainers"), "cannot be set on create"));
    }
    if !str_at(spec, "nodeName").is_empty() && !items(spec, "schedulingGates").is_empty() {
        errors.push(Error::forbidden(
            &path.child("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        ));
    }
    errors
}

/// Validates the parts of a pod to which the same rules apply in a creation and in an update.
pub(super) fn body(pod: &Value) -> ErrorList {
    let (spec, path) = (get(pod, "spec"), Path::new("spec"));
    let mut errors = annotations(get(pod, "metadata"), spec, &Path::new("metadata"));
    errors.extend(pod_spec(spec, str_in(pod, &["metadata", "name"]), true, &path));
    if str_at(spec, "serviceAccountName").is_empty() {
        for (i, volume) in items(spec, "volumes").iter().enumerate() {
            for (j, source) in items(get(volume, "projected"), "sources").iter().enumerate() {
                if has(source, "serviceAccountToken") {
                    let at =
                        path.child("volumes").index(i).child("projected").child("sources").index(j);
                    let text = "must not be specified when serviceAccountName is not set";
                    errors.push(Error::forbidden(&at.child("serviceAccountToken"), text));
                }
            }
        }
    }
    errors.extend(non_negative(spec, "terminationGracePeriodSeconds", &path));
    for list in ["containers", "initContainers"] {
        let list_path = path.child(list);
        errors.extend(
            items(spec, list)
                .iter()
                .enumerate()
                .filter_map(|(i, c)| containers::image_spaces(c, &list_path.index(i))),
        );
    }
    errors
}

/// Validates the annotations that have a meaning for pods.
fn annotations(meta: &Value, spec: &Value, path: &Path) -> ErrorList {
    const MIRROR: &str = "kubernetes.io/config.mirror";
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    let mut errors = ErrorList::new();
    let (annotations, field) = (get(meta, "annotations"), path.child("annotations"));
    if let Some(value) = get(annotations, MIRROR).as_str() {
        if str_at(spec, "nodeName").is_empty() {
            errors.push(Error::invalid(
                &field.key(MIRROR),
                value,
                "must set spec.nodeName if mirror pod annotation is set",
            ));
        }
    }
    if let Some(cost) = get(annotations, COST).as_str() {
        let padded = cost.starts_with('+')
            || cost.starts_with("-0")
            || (cost.len() > 1 && cost.starts_with('0'));
        if padded || cost.parse::<i32>().is_err() {
            errors.push(Error::invalid(&field.key(COST), cost, "must be a 32bit integer"));
        }
    }
    errors
}

/// Validates `template` of a workload at `path` (`ValidatePodTemplateSpec`).
pub fn template(template: &Value, path: &Path) -> ErrorList {
    let (meta, spec) = (get(template, "metadata"), get(template, "spec"));
    let mut errors = validate_labels(meta, "labels", path);
    errors.extend(validate_annotations(meta, "annotations", path));
    errors.extend(annotations(meta, spec, path));
    errors.extend(pod_spec(spec, "", false, &path.child("spec")));
    if !items(spec, "ephemeralContainers").is_empty() {
        let text = "ephemeral containers not allowed in pod template";
        errors.push(Error::forbidden(&path.child("spec").child("ephemeralContainers"), text));
    }
    errors
}

/// Validates a pod spec (`ValidatePodSpec`). `pod` is false for the spec of a template.
fn pod_spec(spec: &Value, name: &str, pod: bool, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if !has(spec, "terminationGracePeriodSeconds") {
        errors.push(Error::required(&path.child("terminationGracePeriodSeconds"), ""));
    }
    let (known, volume_errors) = volumes::volumes(spec, name, path);
    errors.extend(volume_errors);
    errors.extend(resource_claims(spec, &path.child("resourceClaims")));
    let mut claims: Vec<&str> = items(spec, "resourceClaims")
        .iter()
        .map(|c| str_at(c, "name"))
        .filter(|n| !n.is_empty())
        .collect();
    claims.compact_sort();
    let around = Surroundings {
        volumes: known,
        claims,
        grace: int_at(spec, "terminationGracePeriodSeconds"),
        restart_policy: str_at(spec, "restartPolicy"),
        host_users: get(spec, "hostUsers").as_bool() != Some(false),
    };
    errors.extend(containers::all(spec, &around, path));
    if has(spec, "resources") {
        errors.extend(pod_resources(spec, &around.claims, path));
    }
    errors.extend(host_network_ports(spec, pod, &path.child("containers")));
    errors.extend(policies(spec, path));
    errors.extend(validate_labels(spec, "nodeSelector", path));
    errors.extend(security::pod(spec, &path.child("securityContext")));
    if bool_at(spec, "shareProcessNamespace") && bool_at(spec, "hostPID") {
        let text = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(Error::invalid(&path.child("shareProcessNamespace"), true, text));
    }
    errors.extend(scheduling::affinity(spec, &path.child("affinity")));
    errors.extend(dns_config(spec, &path.child("dnsConfig")));
    for (index, gate) in items(spec, "readinessGates").iter().enumerate() {
        let kind = str_at(gate, "conditionType");
        let field = path.child("readinessGates").index(index).child("conditionType");
        errors.extend(each(&field, kind, names::qualified_name(kind)));
    }
    errors.extend(scheduling_gates(spec, &path.child("schedulingGates")));
    errors.extend(scheduling::spread(spec, &path.child("topologySpreadConstraints")));
    errors.extend(security::host_process(spec, path));
    errors.extend(security::host(spec, path));
    errors.extend(host_names(spec, path));
    errors.extend(scheduling::tolerations(items(spec, "tolerations"), &path.child("tolerations")));
    errors.extend(host_aliases(spec, &path.child("hostAliases")));
    for key in ["priorityClassName", "runtimeClassName"] {
        if let Some(name) =
            get(spec, key).as_str().filter(|n| !n.is_empty() || key == "runtimeClassName")
        {
            errors.extend(each(&path.child(key), name, names::dns1123_subdomain(name)));
        }
    }
    match get(spec, "preemptionPolicy").as_str() {
        Some("") => errors.push(Error::required(&path.child("preemptionPolicy"), "")),
        Some(policy) => errors.extend(one_of(
            policy,
            &["PreemptLowerPriority", "Never"],
            &path.child("preemptionPolicy"),
        )),
        None => {}
    }
    let overhead = serde_json::json!({ "limits": get(spec, "overhead") });
    errors.extend(resources::requirements(&overhead, &path.child("overhead"), &[], false));
    errors.extend(security::operating_system(spec, path));
    errors.extend(volumes::file_key_volumes(spec, path));
    errors
}

fn policies(spec: &Value, path: &Path) -> ErrorList {
    let choices: [(&str, &[&str]); 2] = [
        ("restartPolicy", &["Always", "OnFailure", "Never"]),
        ("dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]),
    ];
    let check = |(key, allowed): (&str, &[&str])| match str_at(spec, key) {
        "" => Some(Error::required(&path.child(key), "")),
        value => one_of(value, allowed, &path.child(key)),
    };
    choices.into_iter().filter_map(check).collect()
}

fn resource_claims(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut seen = BTreeSet::new();
    for (index, claim) in items(spec, "resourceClaims").iter().enumerate() {
        let field = path.index(index);
        let name = str_at(claim, "name");
        if name.is_empty() {
            errors.push(Error::required(&field.child("name"), ""));
        } else if seen.contains(name) {
            errors.push(Error::duplicate(&field.child("name"), name));
        } else {
            errors.extend(each(&field.child("name"), name, names::dns1123_label(name)));
            seen.insert(name);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        match sources.iter().filter(|key| has(claim, key)).count() {
            2 => {
                let text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                errors.push(
                    Error::invalid(&field, claim.clone(), text).printed_as("PodResourceClaim"),
                );
            }
            0 => {
                let text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errors.push(
                    Error::invalid(&field, claim.clone(), text).printed_as("PodResourceClaim"),
                );
            }
            _ => {}
        }
        for key in sources {
            if let Some(name) = get(claim, key).as_str() {
                errors.extend(each(&field.child(key), name, names::dns1123_subdomain(name)));
            }
        }
    }
    errors
}

fn pod_resources(spec: &Value, claims: &[&str], path: &Path) -> ErrorList {
    let (own, field) = (get(spec, "resources"), path.child("resources"));
    if str_in(spec, &["os", "name"]) == "windows" {
        return vec![Error::forbidden(&field, "may not be set for a windows pod")];
    }
    let mut errors = ErrorList::new();
    if has(own, "claims") {
        errors.push(Error::forbidden(
            &field.child("claims"),
            "claims may not be set for Resources at pod-level",
        ));
    }
    errors.extend(resources::requirements(own, &field, claims, true));
    let amount = |holder: &Value, list: &str, name: &str| {
        crate::validation::numbers::quantity(at(holder, &[list, name]))
    };
    let mut filled = spec.clone();
    remove(&mut filled, "resources");
    for (name, sum) in crate::defaults::aggregate_requests(&filled) {
        if let Some(request) = amount(own, "requests", &name).filter(|request| sum > *request) {
            let text =
                format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.push(Error::invalid(
                &field.child("requests").key(&name),
                request.to_string(),
                text,
            ));
        }
    }
    for (index, container) in items(spec, "containers").iter().enumerate() {
        for (name, _) in crate::value::entries(get(container, "resources"), "limits") {
            let limit = amount(get(container, "resources"), "limits", name);
            if let (Some(limit), Some(pod)) = (limit, amount(own, "limits", name)) {
                if limit > pod {
                    let at = field.child("containers").index(index).key(name).child("limits");
                    errors.push(Error::invalid(
                        &at,
                        limit.to_string(),
                        format!("must be less than or equal to pod limits of {pod}"),
                    ));
                }
            }
        }
    }
    errors
}

fn host_network_ports(spec: &Value, pod: bool, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if !bool_at(spec, "hostNetwork") {
        return errors;
    }
    for (i, container) in items(spec, "containers").iter().enumerate() {
        for (j, port) in items(container, "ports").iter().enumerate() {
            let (host, own) = (
                int_at(port, "hostPort").unwrap_or_default(),
                int_at(port, "containerPort").unwrap_or_default(),
            );
            if (pod || host != 0) && host != own {
                let text = "must match `containerPort` when `hostNetwork` is true";
                errors.push(Error::invalid(
                    &path.index(i).child("ports").index(j).child("hostPort"),
                    host,
                    text,
                ));
            }
        }
    }
    errors
}

/// Maximum number of DNS name servers of a pod.
const NAMESERVERS_MAX: usize = 3;
/// Maximum number of DNS search paths of a pod.
const SEARCHES_MAX: usize = 32;
/// Maximum length in bytes of all DNS search paths of a pod.
const SEARCH_BYTES_MAX: usize = 2048;

fn dns_config(spec: &Value, path: &Path) -> ErrorList {
    let config = get(spec, "dnsConfig");
    let servers = items(config, "nameservers");
    if str_at(spec, "dnsPolicy") == "None" {
        if !config.is_object() {
            return vec![Error::required(
                path,
                "must provide `dnsConfig` when `dnsPolicy` is None",
            )];
        }
        if servers.is_empty() {
            let text = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return vec![Error::required(&path.child("nameservers"), text)];
        }
    }
    let mut errors = ErrorList::new();
    let field = path.child("nameservers");
    if servers.len() > NAMESERVERS_MAX {
        errors.push(Error::invalid(
            &field,
            servers.to_vec(),
            format!("must not have more than {NAMESERVERS_MAX} nameservers"),
        ));
    }
    for (index, server) in servers.iter().enumerate() {
        errors.extend(net::legacy_ip(
            &field.index(index),
            server.as_str().unwrap_or_default(),
            &[],
        ));
    }
    let (searches, field) = (items(config, "searches"), path.child("searches"));
    if searches.len() > SEARCHES_MAX {
        errors.push(Error::invalid(
            &field,
            searches.to_vec(),
            format!("must not have more than {SEARCHES_MAX} search paths"),
        ));
    }
    let bytes = searches
        .iter()
        .filter_map(Value::as_str)
        .map(|s| s.len() + 1)
        .sum::<usize>()
        .saturating_sub(1);
    if bytes > SEARCH_BYTES_MAX {
        let text = format!(
            "must not have more than {SEARCH_BYTES_MAX} characters (including spaces) in the search list"
        );
        errors.push(Error::invalid(&field, searches.to_vec(), text));
    }
    for (index, search) in searches.iter().enumerate() {
        let search = search.as_str().unwrap_or_default();
        if search != "." {
            let search = search.strip_suffix('.').unwrap_or(search);
            errors.extend(each(
                &field.index(index),
                search,
                names::subdomain_with_underscore(search),
            ));
        }
    }
    for (index, option) in items(config, "options").iter().enumerate() {
        if str_at(option, "name").is_empty() {
            errors.push(Error::required(&path.child("options").index(index), "must not be empty"));
        }
    }
    errors
}

fn scheduling_gates(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut seen = BTreeSet::new();
    for (index, gate) in items(spec, "schedulingGates").iter().enumerate() {
        let (field, name) = (path.index(index), str_at(gate, "name"));
        errors.extend(each(&field, name, names::qualified_name(name)));
        if !seen.insert(name) {
            errors.push(Error::duplicate(&field, name));
        }
    }
    errors
}

/// Maximum length in bytes of `hostnameOverride`.
const HOSTNAME_MAX: usize = 64;

fn host_names(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if let Some(name) = get(spec, "hostnameOverride").as_str() {
        let field = path.child("hostnameOverride");
        for (key, what) in
            [("setHostnameAsFQDN", "setHostnameAsFQDN"), ("hostNetwork", "hostNetwork")]
        {
            if bool_at(spec, key) {
                errors.push(Error::forbidden(
                    &field,
                    format!("may not be specified when {what} is true"),
                ));
            }
        }
        if name.len() > HOSTNAME_MAX {
            errors.push(Error::too_long(&field, HOSTNAME_MAX));
        }
        errors.extend(each(&field, name, names::dns1123_subdomain(name)));
    }
    for key in ["serviceAccountName", "nodeName"] {
        let name = str_at(spec, key);
        if !name.is_empty() {
            errors.extend(each(&path.child(key), name, names::dns1123_subdomain(name)));
        }
    }
    if let Some(seconds) = int_at(spec, "activeDeadlineSeconds") {
        errors.extend(each(
            &path.child("activeDeadlineSeconds"),
            seconds,
            names::in_range(seconds, 1, i64::from(i32::MAX)),
        ));
    }
    for key in ["hostname", "subdomain"] {
        let name = str_at(spec, key);
        if !name.is_empty() {
            errors.extend(each(&path.child(key), name, names::dns1123_label(name)));
        }
    }
    errors
}

fn host_aliases(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        let field = path.index(index);
        errors.extend(net::legacy_ip(&field.child("ip"), str_at(alias, "ip"), &[]));
        for (j, name) in items(alias, "hostnames").iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            errors.extend(each(
                &field.child("hostnames").index(j),
                name,
                names::dns1123_subdomain(name),
            ));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::super::pod_change::validate_change;
    use super::*;
    use serde_json::json;

    fn pod() -> Value {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "resources": {}}]}});
        crate::defaults::defaulter("", "v1", "Pod")(&mut pod);
        pod
    }

    #[test]
    fn a_minimal_pod_is_good_and_its_spec_stays() {
        assert_eq!(validate(&pod()), []);
        let mut changed = pod();
        changed["spec"]["containers"][0]["image"] = json!("other");
        assert_eq!(validate_change(&changed, &pod()), []);
        changed["spec"]["hostname"] = json!("h");
        let errors = validate_change(&changed, &pod());
        assert!(errors[0].to_string().starts_with("spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"));
    }

    /// The expected text is the response of kube-apiserver 1.37.1 to a template.
    #[test]
    fn claims_of_a_pods_own_resources_are_forbidden_and_no_more() {
        let mut bad = pod();
        bad["spec"]["resourceClaims"] = json!([{"name": "n", "resourceClaimName": "c"}]);
        bad["spec"]["resources"] = json!({"claims": [{"name": "n"}]});
        let texts: Vec<String> = validate(&bad).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            ["spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level"]
        );
    }

    #[test]
    fn errors_name_field_and_reason() {
        let mut bad = pod();
        bad["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "gone", "mountPath": "/x"}]);
        bad["spec"]["restartPolicy"] = json!("Sometimes");
        let texts: Vec<String> = validate(&bad).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.containers[0].volumeMounts[0].name: Not found: \"gone\"",
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ]
        );
    }
}
