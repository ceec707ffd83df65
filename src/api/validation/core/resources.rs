//! Validation of the resource requirements of containers and pods.

use std::collections::HashSet;

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::quantity::Quantity;
use crate::validation::numbers::quantity;
use crate::validation::{each, names};
use crate::value::{entries, get, items, str_at};

const STANDARD: [&str; 13] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
];
const STANDARD_MORE: [&str; 7] = [
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];

/// Reports whether the resource is huge pages of one size, such as `hugepages-2Mi`.
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Reports whether the resource name is a native one: without a domain, or with a domain that ends
/// in `kubernetes.io` (`IsNativeResource`).
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Reports whether the resource name is that of an extended resource, such as one of a device
/// plugin (`IsExtendedResourceName`).
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Reports whether the limits of the resource may exceed its requests (`IsOvercommitAllowed`).
pub(super) fn overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Reports whether the quantity of the resource is a number of objects.
pub(super) fn is_count(name: &str) -> bool {
    matches!(
        name,
        "pods"
            | "resourcequotas"
            | "services"
            | "replicationcontrollers"
            | "secrets"
            | "configmaps"
            | "persistentvolumeclaims"
            | "services.nodeports"
            | "services.loadbalancers"
    )
}

/// Reports whether the quantity of the resource has to be an integer (`IsIntegerResourceName`).
fn is_integer(name: &str) -> bool {
    is_count(name) || is_extended(name)
}

/// Validates a resource name of any object.
pub fn resource_name(name: &str, field: &Path) -> ErrorList {
    let errors: ErrorList = each(field, name, names::qualified_name(name)).collect();
    if !errors.is_empty() {
        return errors;
    }
    let known = STANDARD.contains(&name)
        || STANDARD_MORE.contains(&name)
        || is_huge_page(name)
        || name.starts_with("requests.hugepages-");
    if !name.contains('/') && !known {
        return vec![Error::invalid(
            field,
            name,
            "must be a standard resource type or fully qualified",
        )];
    }
    Vec::new()
}

/// Validates the name of a resource of containers (`ValidateContainerResourceName`).
pub(in crate::validation) fn container_resource_name(name: &str, field: &Path) -> ErrorList {
    let mut errors = resource_name(name, field);
    let container = matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_huge_page(name);
    if !name.contains('/') && !container {
        errors.push(Error::invalid(field, name, "must be a standard resource for containers"));
    } else if name.contains('/') && !is_native(name) && !is_extended(name) {
        errors.push(Error::invalid(field, name, "doesn't follow extended resource name standard"));
    }
    errors
}

fn pod_resource_name(name: &str, field: &Path) -> ErrorList {
    let errors = resource_name(name, field);
    if errors.is_empty() && !matches!(name, "cpu" | "memory") && !is_huge_page(name) {
        return vec![Error::not_supported(field, name, &["cpu", "hugepages-", "memory"])];
    }
    errors
}

/// Validates the quantity of a resource: it is not negative, and it is an integer if the resource
/// is counted (`ValidateResourceQuantityValue`).
pub fn quantity_value(name: &str, amount: Quantity, field: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if amount.sign() < 0 {
        errors.push(Error::invalid(field, amount.to_string(), super::super::numbers::NEGATIVE));
    }
    if is_integer(name) && amount.milli_value() % 1000 != 0 {
        errors.push(Error::invalid(field, amount.to_string(), "must be an integer"));
    }
    errors
}

fn huge_page_value(name: &str, amount: Quantity, field: &Path) -> Option<Error> {
    let size = Quantity::parse(name.strip_prefix("hugepages-")?).ok()?.value();
    let divisible = size > 0 && amount.sign() > 0 && amount.value() % size == 0;
    (!divisible && amount.sign() != 0 || size <= 0).then(|| {
        Error::invalid(
            field,
            amount.to_string(),
            format!("{amount} is not positive integer multiple of {name}"),
        )
    })
}

/// Validates `resources` of a container, or of a pod if `pod` is true
/// (`ValidateContainerResourceRequirements`). `claims` contains the sorted names of the pod's
/// resource claims.
pub fn requirements(resources: &Value, path: &Path, claims: &[&str], pod: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let (limits, requests) = (path.child("limits"), path.child("requests"));
    let name_rule = if pod { pod_resource_name } else { container_resource_name };
    let (mut compute, mut huge) = (false, false);
    for (name, amount) in entries(resources, "limits") {
        let Some(amount) = quantity(amount) else { continue };
        let field = limits.key(name);
        errors.extend(name_rule(name, &field));
        errors.extend(quantity_value(name, amount, &field));
        errors.extend(huge_page_value(name, amount, &field));
        compute |= matches!(name.as_str(), "cpu" | "memory");
        huge |= is_huge_page(name);
    }
    for (name, amount) in entries(resources, "requests") {
        let Some(amount) = quantity(amount) else { continue };
        let field = requests.key(name);
        errors.extend(name_rule(name, &field));
        errors.extend(quantity_value(name, amount, &field));
        match quantity(get(get(resources, "limits"), name)) {
            Some(limit) if amount != limit && !overcommit_allowed(name) => {
                errors.push(Error::invalid(
                    &requests,
                    amount.to_string(),
                    format!("must be equal to {name} limit of {limit}"),
                ));
            }
            Some(limit) if amount > limit => {
                let text = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(Error::invalid(&requests, amount.to_string(), text));
            }
            None if !overcommit_allowed(name) => {
                errors.push(Error::required(
                    &limits,
                    "Limit must be set for non overcommitable resources",
                ));
            }
            _ => {}
        }
        errors.extend(huge_page_value(name, amount, &field));
        compute |= matches!(name.as_str(), "cpu" | "memory");
        huge |= is_huge_page(name);
    }
    if huge && !compute {
        errors.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
    errors.extend(claim_names(resources, path, claims));
    errors
}

/// Number of bytes after which an error's list of claim names is cut. Otherwise each of many errors
/// would repeat all of the names.
const LISTED_MAX: usize = 1024;

fn listed(names: &[&str]) -> String {
    let mut text = String::new();
    for (index, name) in names.iter().enumerate() {
        if text.len() > LISTED_MAX {
            text.push_str(", ...");
            break;
        }
        if index > 0 {
            text.push_str(", ");
        }
        text.push_str(name);
    }
    text
}

/// Validates `resources.claims`. `known` contains the sorted names of the pod's resource claims.
fn claim_names(resources: &Value, path: &Path, known: &[&str]) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut seen: HashSet<String> = HashSet::new();
    // Names of the claims of which the container uses a single request.
    let mut partly: HashSet<&str> = HashSet::new();
    for (index, claim) in items(resources, "claims").iter().enumerate() {
        let field = path.child("claims").index(index);
        let (name, request) = (str_at(claim, "name"), str_at(claim, "request"));
        if name.is_empty() {
            errors.push(Error::required(&field, ""));
            continue;
        }
        let key = if request.is_empty() { name.to_owned() } else { format!("{name}/{request}") };
        if !request.is_empty() {
            errors.extend(each(&field.child("request"), request, names::dns1123_label(request)));
        }
        let covered = request.is_empty() && partly.contains(name);
        if seen.contains(&key) || seen.contains(name) || covered {
            errors.push(Error::duplicate(&field, key.as_str()));
        }
        if let Some((claim, _)) = key.split_once('/') {
            partly.extend(name.get(..claim.len()));
        }
        seen.insert(key);
        if known.binary_search(&name).is_err() {
            let mut error = Error::not_found(&field, name);
            let list = if known.is_empty() {
                " which is empty".to_owned()
            } else {
                format!(": {}", listed(known))
            };
            error.detail = format!("must be one of the names in pod.spec.resourceClaims{list}");
            errors.push(error);
        }
    }
    errors
}

/// Reports whether a resize changes the QoS class of the pod, which depends on the requests and
/// limits of cpu and memory.
pub(super) fn quality_changed(new: &Value, old: &Value) -> bool {
    let shape = |spec: &Value| -> Vec<bool> {
        let containers = items(spec, "initContainers").iter().chain(items(spec, "containers"));
        let lists = ["limits", "requests"]
            .into_iter()
            .flat_map(|list| ["cpu", "memory"].map(|name| (list, name)));
        containers
            .flat_map(|c| {
                let resources = get(c, "resources");
                let amount = |list: &str, name: &str| quantity(get(get(resources, list), name));
                let equal = ["cpu", "memory"].into_iter().all(|n| {
                    amount("limits", n).is_some() && amount("limits", n) == amount("requests", n)
                });
                let any = lists.clone().any(|(list, name)| amount(list, name).is_some());
                [equal, any]
            })
            .collect()
    };
    let class = |spec: &Value| {
        let flags = shape(spec);
        let (all_equal, any) =
            (flags.iter().step_by(2).all(|f| *f), flags.iter().skip(1).step_by(2).any(|f| *f));
        (any, any && all_equal)
    };
    class(new) != class(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_stay_below_limits() {
        let resources = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}});
        let errors = requirements(&resources, &Path::new("r"), &[], false);
        assert_eq!(
            errors[0].to_string(),
            "r.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1"
        );
        let errors = requirements(&json!({"limits": {"x": "1"}}), &Path::new("r"), &[], false);
        assert_eq!(
            errors[0].to_string(),
            "r.limits[x]: Invalid value: \"x\": must be a standard resource type or fully qualified"
        );
    }
}
