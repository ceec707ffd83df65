//! Validation of container statuses: state transitions, users and allocated device resources.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::quantity::Quantity;
use crate::validation::names;
use crate::validation::numbers::quantity;
use crate::value::{at, get, items, str_at, str_in};

/// Maximum length in bytes of the health message of a device resource.
const MESSAGE_MAX: usize = 1024;
/// Health values, in the order in which errors list them.
const HEALTH: [&str; 3] = ["Healthy", "Unhealthy", "Unknown"];
/// Maximum group ID.
const GROUP_MAX: i64 = 2_147_483_647;
/// Maximum user ID of the Linux kernel.
const USER_MAX: i64 = 4_294_967_295;

const LISTS: [(&str, &str); 3] = [
    ("containerStatuses", "containers"),
    ("initContainerStatuses", "initContainers"),
    ("ephemeralContainerStatuses", "ephemeralContainers"),
];

/// Rejects a status in which a terminated container is not terminated, if the restart policy does
/// not permit a restart.
pub(super) fn transitions(status: &Value, was: &Value, spec: &Value, path: &Path) -> ErrorList {
    // One `RestartAllContainers` rule permits every regular and init container to restart.
    let together = ["containers", "initContainers"].into_iter().any(|list| {
        items(spec, list).iter().flat_map(|c| items(c, "restartPolicyRules")).any(restarts_all)
    });
    let mut errors = ErrorList::new();
    for (key, list) in LISTS {
        let ephemeral = list == "ephemeralContainers";
        if together && !ephemeral {
            continue;
        }
        let running: HashSet<&str> = items(status, key)
            .iter()
            .filter(|c| !at(c, &["state", "terminated"]).is_object())
            .map(|c| str_at(c, "name"))
            .collect();
        let containers = by_name(items(spec, list));
        for (index, before) in items(was, key).iter().enumerate() {
            let ended = at(before, &["state", "terminated"]);
            let name = str_at(before, "name");
            if !ended.is_object() || !running.contains(name) {
                continue;
            }
            let code = get(ended, "exitCode").as_i64().unwrap_or_default();
            let own = containers.get(name);
            if ephemeral || !own.is_some_and(|own| restarts(own, spec, code)) {
                let text = "may not be transitioned to non-terminated state";
                errors.push(Error::forbidden(&path.child(key).index(index).child("state"), text));
            }
        }
    }
    errors
}

/// Returns the first container of each name.
fn by_name(containers: &[Value]) -> HashMap<&str, &Value> {
    let mut named = HashMap::with_capacity(containers.len());
    for container in containers {
        named.entry(str_at(container, "name")).or_insert(container);
    }
    named
}

fn restarts_all(rule: &Value) -> bool {
    str_at(rule, "action") == "RestartAllContainers"
}

/// Reports whether the kubelet restarts a container that exited with `code`: its restart rules
/// apply first, then its own restart policy, then that of the pod.
fn restarts(container: &Value, spec: &Value, code: i64) -> bool {
    let by_policy = |policy: &str| match policy {
        "Never" => Some(false),
        "OnFailure" => Some(code != 0),
        "Always" => Some(true),
        _ => None,
    };
    let pod = || by_policy(str_at(spec, "restartPolicy")).unwrap_or(true);
    let Some(own) = get(container, "restartPolicy").as_str() else { return pod() };
    let matching = items(container, "restartPolicyRules").iter().find(|rule| {
        let codes = get(rule, "exitCodes");
        let named = items(codes, "values").iter().any(|value| value.as_i64() == Some(code));
        match str_at(codes, "operator") {
            "In" => named,
            "NotIn" => !named,
            _ => false,
        }
    });
    if matching.is_some_and(|rule| str_at(rule, "action") == "Restart" || restarts_all(rule)) {
        return true;
    }
    by_policy(own).unwrap_or_else(pod)
}

/// Validates the Linux user of each container status: its IDs are in range, and a Windows pod has
/// none.
pub(super) fn users(status: &Value, spec: &Value, path: &Path) -> ErrorList {
    let system = str_in(spec, &["os", "name"]);
    let mut errors = ErrorList::new();
    for (key, _) in LISTS {
        for (index, one) in items(status, key).iter().enumerate() {
            let linux = at(one, &["user", "linux"]);
            if !linux.is_object() {
                continue;
            }
            let field = path.child(key).index(index).child("user").child("linux");
            match system {
                "windows" => {
                    errors.push(Error::forbidden(&field, "cannot be set for a windows pod"));
                }
                "" | "linux" => errors.extend(ids(linux, &field)),
                _ => {}
            }
        }
    }
    errors
}

fn ids(linux: &Value, field: &Path) -> ErrorList {
    let outside = |value: &Value, max: i64, field: Path| {
        let id = value.as_i64().unwrap_or_default();
        let good = (0..=max).contains(&id);
        (!good).then(|| Error::invalid(&field, id, names::range_text(0, max)))
    };
    let mut errors = ErrorList::new();
    errors.extend(outside(get(linux, "uid"), USER_MAX, field.child("uid")));
    errors.extend(outside(get(linux, "gid"), GROUP_MAX, field.child("gid")));
    let groups = items(linux, "supplementalGroups").iter().enumerate();
    errors.extend(groups.filter_map(|(index, group)| {
        outside(group, GROUP_MAX, field.child("supplementalGroups").index(index))
    }));
    errors
}

/// Validates `allocatedResourcesStatus`: the names of the resources and the health of their
/// devices.
pub(super) fn allocated(status: &Value, spec: &Value, path: &Path) -> ErrorList {
    const KEY: &str = "allocatedResourcesStatus";
    let extended = get(status, "extendedResourceClaimStatus");
    let mut errors = ErrorList::new();
    for (key, list) in LISTS {
        let containers = by_name(items(spec, list));
        for (index, one) in items(status, key).iter().enumerate() {
            let field = path.child(key).index(index).child(KEY);
            let all = items(one, KEY);
            if list == "ephemeralContainers" {
                if !all.is_empty() {
                    let text = "must not be specified in container status";
                    errors.push(Error::forbidden(&field, text));
                }
                continue;
            }
            let name = str_at(one, "name");
            // The names are not checked in the status of a container that is not in the spec.
            let container = containers.get(name).filter(|_| !all.is_empty());
            let granted = container.map(|container| Granted::of(container, extended));
            for (index, resource) in all.iter().enumerate() {
                let field = field.index(index);
                errors.extend(granted.as_ref().and_then(|granted| granted.check(resource, &field)));
                errors.extend(health(resource, &field.child("resources")));
            }
        }
    }
    errors
}

/// The resources that a container requests.
struct Granted<'a> {
    container: &'a Value,
    /// Names of claims: `claim/request` if the container names a request, otherwise `claim`.
    claims: HashSet<String>,
    /// Names of the requests in the claim for extended resources that are mapped to this container.
    mapped: HashSet<&'a str>,
    extended: &'a Value,
}

impl<'a> Granted<'a> {
    fn of(container: &'a Value, extended: &'a Value) -> Self {
        let resources = get(container, "resources");
        let claim = |one: &Value| match (str_at(one, "name"), str_at(one, "request")) {
            (own, "") => own.to_owned(),
            (own, request) => format!("{own}/{request}"),
        };
        let requests = get(resources, "requests");
        let own = str_at(container, "name");
        let mapped = |mapping: &&Value| {
            str_at(mapping, "containerName") == own
                && quantity(get(requests, str_at(mapping, "resourceName"))).is_some_and(is_some)
        };
        let mappings = items(extended, "requestMappings").iter().filter(mapped);
        Self {
            container,
            claims: items(resources, "claims").iter().map(claim).collect(),
            mapped: mappings.map(|mapping| str_at(mapping, "requestName")).collect(),
            extended,
        }
    }

    /// Checks that the container requests the resource.
    fn check(&self, resource: &Value, field: &Path) -> Option<Error> {
        let name = str_at(resource, "name");
        let (found, text) = if let Some(claim) = name.strip_prefix("claim:") {
            let text = "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty";
            (self.claims.contains(claim) || self.is_mapped(claim), text)
        } else {
            let requests = get(get(self.container, "resources"), "requests");
            let text = "must match one of the container's resource requests";
            (has_key(requests, name), text)
        };
        (!found).then(|| Error::invalid(&field.child("name"), name, text))
    }

    fn is_mapped(&self, claim: &str) -> bool {
        let Some((claim, request)) = claim.split_once('/') else { return false };
        !request.is_empty()
            && claim == str_at(self.extended, "resourceClaimName")
            && self.mapped.contains(request)
    }
}

fn has_key(map: &Value, key: &str) -> bool {
    map.as_object().is_some_and(|map| map.contains_key(key))
}

fn is_some(amount: Quantity) -> bool {
    amount.sign() != 0
}

fn health(resource: &Value, path: &Path) -> ErrorList {
    let list = items(resource, "resources");
    let mut errors = ErrorList::new();
    let mut seen = HashSet::new();
    for (index, one) in list.iter().enumerate() {
        let field = path.index(index);
        let health = str_at(one, "health");
        if !HEALTH.contains(&health) {
            errors.push(Error::not_supported(&field.child("health"), health, &HEALTH));
        }
        match get(one, "message").as_str() {
            Some("") => {
                let text = "must be non-empty if specified";
                errors.push(Error::required(&field.child("message"), text));
            }
            Some(message) if message.len() > MESSAGE_MAX => {
                errors.push(Error::too_long(&field.child("message"), MESSAGE_MAX));
            }
            _ => {}
        }
        let id = str_at(one, "resourceID");
        if !seen.insert(id) {
            errors.push(Error::duplicate(&field.child("resourceID"), id));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(errors: ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    /// Cases of upstream's `TestValidateContainerStateTransition` and of its restart rules.
    #[test]
    fn who_ended_for_good_stays() {
        let ended = |code: i64| json!({"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": code}}}]});
        let runs = json!({"containerStatuses": [{"name": "c", "state": {"running": {}}}]});
        let stays = |spec: Value, code: i64| {
            !transitions(&runs, &ended(code), &spec, &Path::new("status")).is_empty()
        };
        let pod = |policy: &str, container: Value| {
            let mut container = container;
            container["name"] = json!("c");
            json!({"restartPolicy": policy, "containers": [container]})
        };
        assert!(!stays(pod("Always", json!({})), 0));
        assert!(stays(pod("OnFailure", json!({})), 0));
        assert!(!stays(pod("OnFailure", json!({})), 1));
        assert!(stays(pod("Never", json!({})), 1));
        assert!(!stays(pod("Never", json!({"restartPolicy": "Always"})), 0));
        assert!(stays(pod("Always", json!({"restartPolicy": "Never"})), 1));
        let rule = |action: &str| {
            json!({"restartPolicy": "Never", "restartPolicyRules":
                [{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]})
        };
        assert!(!stays(pod("Never", rule("Restart")), 42));
        assert!(stays(pod("Never", rule("Restart")), 1));
        assert!(!stays(pod("Never", rule("RestartAllContainers")), 1));
        let errors = transitions(&runs, &ended(0), &pod("Never", json!({})), &Path::new("status"));
        assert_eq!(
            texts(errors),
            [
                "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"
            ]
        );
    }

    /// The expected texts are a response of kube-apiserver 1.37.1 and texts of its source.
    #[test]
    fn resources_are_asked_for_and_well_or_not() {
        let spec = json!({"containers": [{"name": "c", "resources": {"claims": [{"name": "a", "request": "r"}], "requests": {"e.com/g": "1"}}}]});
        let of = |resources: Value| json!([{"name": "c", "allocatedResourcesStatus": resources}]);
        let health = json!([{"resourceID": "x", "health": "healthValue"}, {"resourceID": "x", "health": "Healthy", "message": ""}]);
        let status = json!({
            "containerStatuses": of(json!([{"name": "claim:a/r"}, {"name": "e.com/g", "resources": health}, {"name": "claim:a"}, {"name": "cpu"}])),
            "initContainerStatuses": of(json!([{"name": "n"}])),
            "ephemeralContainerStatuses": of(json!([{"name": "n"}])),
        });
        let at = "status.containerStatuses[0].allocatedResourcesStatus";
        assert_eq!(
            texts(allocated(&status, &spec, &Path::new("status"))),
            [
                format!("{at}[1].resources[0].health: Unsupported value: \"healthValue\": supported values: \"Healthy\", \"Unhealthy\", \"Unknown\""),
                format!("{at}[1].resources[1].message: Required value: must be non-empty if specified"),
                format!("{at}[1].resources[1].resourceID: Duplicate value: \"x\""),
                format!("{at}[2].name: Invalid value: \"claim:a\": must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty"),
                format!("{at}[3].name: Invalid value: \"cpu\": must match one of the container's resource requests"),
                "status.ephemeralContainerStatuses[0].allocatedResourcesStatus: Forbidden: must not be specified in container status".to_owned(),
            ]
        );
    }

    #[test]
    fn ids_are_in_their_range() {
        let status = json!({"containerStatuses": [{"user": {"linux": {"uid": 4_294_967_296_i64, "gid": -1, "supplementalGroups": [0, 2_147_483_648_i64]}}}]});
        assert_eq!(
            texts(users(&status, &json!({}), &Path::new("status"))),
            [
                "status.containerStatuses[0].user.linux.uid: Invalid value: 4294967296: must be between 0 and 4294967295, inclusive",
                "status.containerStatuses[0].user.linux.gid: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                "status.containerStatuses[0].user.linux.supplementalGroups[1]: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive",
            ]
        );
    }
}
