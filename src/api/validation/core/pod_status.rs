//! The status of pods: addresses, conditions, and what may not come back to life.

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::validation::{each, names, net};
use crate::value::{at, get, items, str_at, str_in};

pub(super) fn validate(pod: &Value, old: &Value) -> ErrorList {
    let (status, path) = (get(pod, "status"), Path::new("status"));
    let mut errors = ErrorList::new();
    let name = str_at(status, "nominatedNodeName");
    if !name.is_empty() {
        errors.extend(each(&path.child("nominatedNodeName"), name, names::dns1123_subdomain(name)));
    }
    let node = str_in(pod, &["spec", "nodeName"]);
    if node != str_in(old, &["spec", "nodeName"]) {
        errors.push(Error::forbidden(&path.child("nodeName"), "may not be changed directly"));
    }
    errors.extend(addresses(status, get(old, "status"), "podIPs", "podIP", &path));
    errors.extend(addresses(status, get(old, "status"), "hostIPs", "hostIP", &path));
    for (index, condition) in items(status, "conditions").iter().enumerate() {
        let kind = str_at(condition, "type");
        if !SYSTEM_CONDITIONS.contains(&kind) {
            errors.extend(each(
                &path.child("conditions").index(index).child("Type"),
                kind,
                names::qualified_name(kind),
            ));
        }
    }
    if str_in(pod, &["spec", "restartPolicy"]) != "Always" {
        errors.extend(terminated_stays(
            status,
            get(old, "status"),
            pod,
            &path.child("containerStatuses"),
        ));
    }
    let class = str_at(get(old, "status"), "qosClass");
    if !class.is_empty() && str_at(status, "qosClass") != class {
        errors.push(Error::invalid(
            &path.child("qosClass"),
            str_at(status, "qosClass"),
            crate::validation::IMMUTABLE,
        ));
    }
    errors
}

const SYSTEM_CONDITIONS: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "DisruptionTarget",
    "PodReadyToStartContainers",
    "PodResizePending",
    "PodResizeInProgress",
];

fn addresses(status: &Value, old: &Value, list: &str, single: &str, path: &Path) -> ErrorList {
    let field = path.child(list);
    let known: Vec<&str> = items(old, list).iter().map(|ip| str_at(ip, "ip")).collect();
    let all: Vec<&str> = items(status, list).iter().map(|ip| str_at(ip, "ip")).collect();
    let mut errors = ErrorList::new();
    if let Some(first) = all.first() {
        if *first != str_at(status, single) {
            errors.push(Error::invalid(
                &field.index(0).child("ip"),
                *first,
                format!("must be equal to `{single}`"),
            ));
        }
    }
    for (index, ip) in all.iter().enumerate() {
        errors.extend(net::legacy_ip(&field.index(index), ip, &known));
    }
    let sixes = all.iter().filter_map(|ip| net::sloppy_ip(ip)).filter(net::is_v6).count();
    if all.len() > 2 || (all.len() == 2 && sixes != 1) {
        let text = "may specify no more than one IP for each IP family";
        errors.push(Error::invalid(&field, get(status, list).clone(), text));
    }
    errors
}

/// A container that ended for good does not run again.
fn terminated_stays(new: &Value, old: &Value, pod: &Value, path: &Path) -> ErrorList {
    let policy = str_in(pod, &["spec", "restartPolicy"]);
    let mut errors = ErrorList::new();
    for was in items(old, "containerStatuses") {
        let ended = at(was, &["state", "terminated"]);
        let failed = get(ended, "exitCode").as_i64().unwrap_or_default() != 0;
        if !ended.is_object() || (failed && policy == "OnFailure") {
            continue;
        }
        let name = str_at(was, "name");
        let now = items(new, "containerStatuses").iter().position(|c| str_at(c, "name") == name);
        let own_policy = items(get(pod, "spec"), "containers")
            .iter()
            .any(|c| str_at(c, "name") == name && c.get("restartPolicy").is_some());
        if let Some(index) = now.filter(|_| !own_policy) {
            let state = items(new, "containerStatuses")
                .get(index)
                .map_or(&Value::Null, |c| at(c, &["state", "terminated"]));
            if !state.is_object() {
                let text = "may not be transitioned to non-terminated state";
                errors.push(Error::forbidden(&path.index(index).child("state"), text));
            }
        }
    }
    errors
}
