//! Validation of containers, init containers and ephemeral containers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sorting::CollectOrdered as _;

use super::{env, handlers, mounts, resources, security};
use crate::field::{Error, ErrorList, Path};
use crate::validation::{each, names, one_of};
use crate::value::{get, has, int_at, is_empty, items, str_at};

/// The parts of a pod spec that the validation of its containers uses.
pub(super) struct Surroundings<'a> {
    /// The valid volumes of the pod by name.
    pub(super) volumes: BTreeMap<&'a str, &'a Value>,
    /// Names of the pod's resource claims, sorted.
    pub(super) claims: Vec<&'a str>,
    /// `terminationGracePeriodSeconds` of the pod.
    pub(super) grace: Option<i64>,
    pub(super) restart_policy: &'a str,
    pub(super) host_users: bool,
}

/// Validates the regular, init and ephemeral containers of a pod spec.
pub(super) fn all(spec: &Value, around: &Surroundings<'_>, path: &Path) -> ErrorList {
    let mut errors = regular(items(spec, "containers"), around, &path.child("containers"));
    errors.extend(init(spec, around, &path.child("initContainers")));
    errors.extend(ephemeral(spec, around, &path.child("ephemeralContainers")));
    errors
}

fn regular(list: &[Value], around: &Surroundings<'_>, path: &Path) -> ErrorList {
    if list.is_empty() {
        return vec![Error::required(path, "")];
    }
    let mut errors = ErrorList::new();
    let mut names = BTreeSet::new();
    for (index, container) in list.iter().enumerate() {
        let field = path.index(index);
        errors.extend(common(container, around, &field));
        let name = str_at(container, "name");
        if !names.insert(name) {
            errors.push(Error::duplicate(&field.child("name"), name));
        }
        errors.extend(handlers::lifecycle(container, around.grace, &field));
        errors.extend(handlers::probes(container, around.grace, &field));
        errors.extend(restart_policy(container, &field));
    }
    errors.extend(host_ports(list, path));
    errors
}

fn init(spec: &Value, around: &Surroundings<'_>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut names: BTreeSet<&str> =
        items(spec, "containers").iter().map(|c| str_at(c, "name")).collect_set();
    for (index, container) in items(spec, "initContainers").iter().enumerate() {
        let field = path.index(index);
        errors.extend(common(container, around, &field));
        errors.extend(restart_policy(container, &field));
        let name = str_at(container, "name");
        if names.contains(name) {
            errors.push(Error::duplicate(&field.child("name"), name));
        } else if !name.is_empty() {
            names.insert(name);
        }
        errors.extend(host_ports(std::slice::from_ref(container), path));
        let sidecar = str_at(container, "restartPolicy") == "Always";
        if sidecar {
            errors.extend(handlers::lifecycle(container, around.grace, &field));
            errors.extend(handlers::probes(container, around.grace, &field));
        } else {
            let never = ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"]
                .into_iter()
                .filter(|key| has(container, key));
            errors.extend(never.map(|key| {
                Error::forbidden(
                    &field.child(key),
                    "may not be set for init containers without restartPolicy=Always",
                )
            }));
            for (i, policy) in items(container, "resizePolicy").iter().enumerate() {
                if str_at(policy, "restartPolicy") == "RestartContainer" {
                    let text =
                        "must not be set to 'RestartContainer' for non-sidecar initContainers";
                    errors.push(Error::invalid(
                        &field.child("resizePolicy").index(i).child("restartPolicy"),
                        "RestartContainer",
                        text,
                    ));
                }
            }
        }
    }
    errors
}

/// Fields that an ephemeral container cannot have.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "lifecycle",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
];

fn ephemeral(spec: &Value, around: &Surroundings<'_>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let others: BTreeSet<&str> = items(spec, "containers")
        .iter()
        .chain(items(spec, "initContainers"))
        .map(|c| str_at(c, "name"))
        .collect_set();
    let mut names = others.clone();
    for (index, container) in items(spec, "ephemeralContainers").iter().enumerate() {
        let field = path.index(index);
        errors.extend(common(container, around, &field));
        errors.extend(image_spaces(container, &field));
        let name = str_at(container, "name");
        if !names.insert(name) {
            errors.push(Error::duplicate(&field.child("name"), name));
        }
        let target = str_at(container, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            errors.push(Error::not_found(&field.child("targetContainerName"), target));
        }
        let refused = NOT_EPHEMERAL.iter().filter(|key| !is_empty(container, key));
        errors.extend(refused.map(|key| {
            Error::forbidden(&field.child(key), "cannot be set for an Ephemeral Container")
        }));
        for (i, mount) in items(container, "volumeMounts").iter().enumerate() {
            let at = field.child("volumeMounts").index(i);
            let set =
                ["subPath", "subPathExpr"].into_iter().filter(|key| !str_at(mount, key).is_empty());
            errors.extend(set.map(|key| {
                Error::forbidden(&at.child(key), "cannot be set for an Ephemeral Container")
            }));
        }
    }
    errors
}

/// Rejects an image name with leading or trailing whitespace. Applies to pods, not to pod
/// templates.
pub(super) fn image_spaces(container: &Value, path: &Path) -> Option<Error> {
    let image = str_at(container, "image");
    (image.trim() != image).then(|| {
        Error::invalid(&path.child("image"), image, "must not have leading or trailing whitespace")
    })
}

fn common(container: &Value, around: &Surroundings<'_>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let name = str_at(container, "name");
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    } else {
        errors.extend(each(&path.child("name"), name, names::dns1123_label(name)));
    }
    if str_at(container, "image").is_empty() {
        errors.push(Error::required(&path.child("image"), ""));
    }
    let field = path.child("terminationMessagePolicy");
    match str_at(container, "terminationMessagePolicy") {
        "" => errors.push(Error::required(&field, "")),
        policy => errors.extend(one_of(policy, &["File", "FallbackToLogsOnError"], &field)),
    }
    errors.extend(ports(container, path));
    errors.extend(env::env(container, path));
    errors.extend(env::env_from(container, path));
    errors.extend(mounts::mounts(container, &around.volumes, path));
    errors.extend(mounts::devices(container, &around.volumes, path));
    errors.extend(super::image::pull_policy(
        str_at(container, "imagePullPolicy"),
        &path.child("imagePullPolicy"),
    ));
    errors.extend(resources::requirements(
        get(container, "resources"),
        &path.child("resources"),
        &around.claims,
        false,
    ));
    errors.extend(resize_policy(container, around.restart_policy, &path.child("resizePolicy")));
    errors.extend(security::container(
        get(container, "securityContext"),
        around.host_users,
        &path.child("securityContext"),
    ));
    errors
}

fn ports(container: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut known = BTreeSet::new();
    for (index, port) in items(container, "ports").iter().enumerate() {
        let field = path.child("ports").index(index);
        let name = str_at(port, "name");
        if !name.is_empty() {
            let bad = names::port_name(name);
            if bad.is_empty() && !known.insert(name) {
                errors.push(Error::duplicate(&field.child("name"), name));
            }
            errors.extend(each(&field.child("name"), name, bad));
        }
        match int_at(port, "containerPort").unwrap_or_default() {
            0 => errors.push(Error::required(&field.child("containerPort"), "")),
            number => errors.extend(each(
                &field.child("containerPort"),
                number,
                names::port_number(number),
            )),
        }
        let host = int_at(port, "hostPort").unwrap_or_default();
        if host != 0 {
            errors.extend(each(&field.child("hostPort"), host, names::port_number(host)));
        }
        match str_at(port, "protocol") {
            "" => errors.push(Error::required(&field.child("protocol"), "")),
            protocol => {
                errors.extend(one_of(protocol, &["SCTP", "TCP", "UDP"], &field.child("protocol")))
            }
        }
    }
    errors
}

fn host_ports(list: &[Value], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut taken = BTreeSet::new();
    for (i, container) in list.iter().enumerate() {
        for (j, port) in items(container, "ports").iter().enumerate() {
            let number = int_at(port, "hostPort").unwrap_or_default();
            if number == 0 {
                continue;
            }
            let key = format!("{}/{}/{number}", str_at(port, "protocol"), str_at(port, "hostIP"));
            if !taken.insert(key.clone()) {
                errors.push(Error::duplicate(
                    &path.index(i).child("ports").index(j).child("hostPort"),
                    key,
                ));
            }
        }
    }
    errors
}

fn resize_policy(container: &Value, pod_policy: &str, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut seen = BTreeSet::new();
    for (index, policy) in items(container, "resizePolicy").iter().enumerate() {
        let (resource, restart) = (str_at(policy, "resourceName"), str_at(policy, "restartPolicy"));
        if !seen.insert(resource) {
            errors.push(Error::duplicate(&path.index(index), resource));
        }
        for (value, allowed) in
            [(resource, ["cpu", "memory"]), (restart, ["NotRequired", "RestartContainer"])]
        {
            if value.is_empty() {
                errors.push(Error::required(path, ""));
            } else {
                errors.extend(one_of(value, &allowed, path));
            }
        }
        if pod_policy == "Never" && restart != "NotRequired" {
            errors.push(Error::invalid(
                path,
                restart,
                "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
            ));
        }
    }
    errors
}

/// Maximum number of restart rules of a container.
const RULES_MAX: usize = 20;
/// Maximum number of exit codes of a restart rule.
const EXIT_CODES_MAX: usize = 255;

fn restart_policy(container: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let rules = items(container, "restartPolicyRules");
    let field = path.child("restartPolicy");
    match get(container, "restartPolicy").as_str() {
        None if rules.is_empty() => return errors,
        None => errors.push(Error::required(
            &field,
            "must specify restartPolicy when restart rules are used",
        )),
        Some(policy) => errors.extend(one_of(policy, &["Always", "Never", "OnFailure"], &field)),
    }
    let list = path.child("restartPolicyRules");
    if rules.len() > RULES_MAX {
        errors.push(Error::too_many(&list, rules.len(), RULES_MAX));
    }
    for (index, rule) in rules.iter().enumerate() {
        let field = list.index(index);
        errors.extend(one_of(
            str_at(rule, "action"),
            &["Restart", "RestartAllContainers"],
            &field.child("action"),
        ));
        let codes = get(rule, "exitCodes");
        if codes.is_object() {
            let at = field.child("exitCodes");
            errors.extend(one_of(
                str_at(codes, "operator"),
                &["In", "NotIn"],
                &at.child("operator"),
            ));
            let count = items(codes, "values").len();
            if count > EXIT_CODES_MAX {
                errors.push(Error::too_many(&at.child("values"), count, EXIT_CODES_MAX));
            }
        } else {
            errors.push(Error::required(&field.child("exitCodes"), "must be specified"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::{same, with};
    use serde_json::json;

    fn container(changes: Value) -> Value {
        let base = json!({"name": "c", "image": "i", "imagePullPolicy": "Always",
            "terminationMessagePolicy": "File"});
        with(&base, &changes)
    }

    fn check(spec: Value, expected: &[&str]) {
        let around = Surroundings {
            volumes: BTreeMap::new(),
            claims: Vec::new(),
            grace: Some(30),
            restart_policy: "Always",
            host_users: true,
        };
        same(&all(&spec, &around, &Path::new("spec")), expected);
    }

    fn one(changes: Value, expected: &[&str]) {
        check(json!({"containers": [container(changes)]}), expected);
    }

    /// `validateContainers` and `validateContainerCommon` of `pkg/apis/core/validation`.
    #[test]
    fn containers_have_unique_names_and_an_image() {
        one(json!({}), &[]);
        check(json!({}), &["spec.containers: Required value"]);
        one(
            json!({"name": null, "image": null}),
            &[
                "spec.containers[0].name: Required value",
                "spec.containers[0].image: Required value",
            ],
        );
        one(
            json!({"name": "a.b"}),
            &["spec.containers[0].name: Invalid value: \"a.b\": must not contain dots"],
        );
        one(
            json!({"name": "Cap"}),
            &["spec.containers[0].name: Invalid value: \"Cap\": a lowercase RFC 1123 label..."],
        );
        check(
            json!({"containers": [container(json!({})), container(json!({}))]}),
            &["spec.containers[1].name: Duplicate value: \"c\""],
        );
        one(
            json!({"terminationMessagePolicy": null}),
            &["spec.containers[0].terminationMessagePolicy: Required value"],
        );
        one(
            json!({"terminationMessagePolicy": "Unknown"}),
            &["spec.containers[0].terminationMessagePolicy: Unsupported value: \"Unknown\": \
               supported values: \"File\", \"FallbackToLogsOnError\""],
        );
    }

    /// `validateContainerPorts` and `checkHostPortConflicts` of `pkg/apis/core/validation`.
    #[test]
    fn ports_are_numbers_and_host_ports_unique() {
        let check = |ports: Value, expected: &[&str]| one(json!({ "ports": ports }), expected);
        const AT: &str = "spec.containers[0].ports";
        let port = |number: i64| json!({"containerPort": number, "protocol": "TCP"});
        check(json!([port(80), port(80)]), &[]);
        check(
            json!([{"containerPort": 0}]),
            &[
                &format!("{AT}[0].containerPort: Required value"),
                &format!("{AT}[0].protocol: Required value"),
            ],
        );
        check(
            json!([port(65_536)]),
            &[&format!(
                "{AT}[0].containerPort: Invalid value: 65536: \
                 must be between 1 and 65535, inclusive"
            )],
        );
        check(
            json!([with(&port(1), &json!({"protocol": "ICMP"}))]),
            &[&format!(
                "{AT}[0].protocol: Unsupported value: \"ICMP\": \
                 supported values: \"SCTP\", \"TCP\", \"UDP\""
            )],
        );
        let named = with(&port(1), &json!({"name": "web"}));
        check(json!([named, named]), &[&format!("{AT}[1].name: Duplicate value: \"web\"")]);
        let host = with(&port(1), &json!({"hostPort": 80}));
        check(json!([host, host]), &[&format!("{AT}[1].hostPort: Duplicate value: \"TCP//80\"")]);
        let other = with(&host, &json!({"hostIP": "10.0.0.1"}));
        check(json!([host, other]), &[]);
    }

    /// `validateInitContainers` of `pkg/apis/core/validation`.
    #[test]
    fn init_containers_without_restart_have_no_hooks_and_probes() {
        let init = |changes: Value, expected: &[&str]| {
            let changes = with(&json!({"name": "i"}), &changes);
            check(
                json!({"containers": [container(json!({}))],
                    "initContainers": [container(changes)]}),
                expected,
            );
        };
        const TEXT: &str = "may not be set for init containers without restartPolicy=Always";
        init(json!({}), &[]);
        init(json!({"name": "c"}), &["spec.initContainers[0].name: Duplicate value: \"c\""]);
        let probe = json!({"exec": {"command": ["a"]}, "successThreshold": 1});
        for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
            let text = format!("spec.initContainers[0].{key}: Forbidden: {TEXT}");
            init(json!({ key: probe }), &[&text]);
            init(json!({ key: probe, "restartPolicy": "Always" }), &[]);
        }
        init(
            json!({"lifecycle": {}}),
            &[&format!("spec.initContainers[0].lifecycle: Forbidden: {TEXT}")],
        );
        init(
            json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}),
            &["spec.initContainers[0].resizePolicy[0].restartPolicy: \
               Invalid value: \"RestartContainer\": \
               must not be set to 'RestartContainer' for non-sidecar initContainers"],
        );
    }

    /// `validateEphemeralContainers` of `pkg/apis/core/validation`.
    #[test]
    fn ephemeral_containers_have_no_ports_and_name_their_target() {
        let ephemeral = |changes: Value, expected: &[&str]| {
            let changes = with(&json!({"name": "e"}), &changes);
            check(
                json!({"containers": [container(json!({}))],
                    "ephemeralContainers": [container(changes)]}),
                expected,
            );
        };
        const AT: &str = "spec.ephemeralContainers[0]";
        ephemeral(json!({"targetContainerName": "c"}), &[]);
        ephemeral(
            json!({"targetContainerName": "e"}),
            &[&format!("{AT}.targetContainerName: Not found: \"e\"")],
        );
        ephemeral(json!({"name": "c"}), &[&format!("{AT}.name: Duplicate value: \"c\"")]);
        ephemeral(
            json!({"image": " i"}),
            &[&format!(
                "{AT}.image: Invalid value: \" i\": \
                 must not have leading or trailing whitespace"
            )],
        );
        ephemeral(
            json!({"ports": [{"containerPort": 80, "protocol": "TCP"}]}),
            &[&format!("{AT}.ports: Forbidden: cannot be set for an Ephemeral Container")],
        );
    }

    /// `validateContainerRestartPolicy` and `validateResizePolicy` of
    /// `pkg/apis/core/validation`.
    #[test]
    fn restart_rules_need_a_policy_and_exit_codes() {
        const AT: &str = "spec.containers[0]";
        let codes = json!({"operator": "In", "values": [1]});
        let rule = json!({"action": "Restart", "exitCodes": codes});
        one(json!({"restartPolicy": "Never", "restartPolicyRules": [rule]}), &[]);
        let with_action = |action: &str| {
            let rule = json!({"action": action, "exitCodes": codes});
            json!({"restartPolicy": "Never", "restartPolicyRules": [rule]})
        };
        one(with_action("RestartAllContainers"), &[]);
        one(
            with_action("Stop"),
            &[&format!(
                "{AT}.restartPolicyRules[0].action: Unsupported value: \"Stop\": \
                 supported values: \"Restart\", \"RestartAllContainers\""
            )],
        );
        one(
            json!({"restartPolicyRules": [rule]}),
            &[&format!(
                "{AT}.restartPolicy: Required value: \
                 must specify restartPolicy when restart rules are used"
            )],
        );
        one(
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}),
            &[&format!("{AT}.restartPolicyRules[0].exitCodes: Required value: must be specified")],
        );
        one(
            json!({"restartPolicy": "Never", "restartPolicyRules": vec![rule; 21]}),
            &[&format!("{AT}.restartPolicyRules: Too many: 21: must have at most 20 items")],
        );
        one(
            json!({"restartPolicy": "Sometimes"}),
            &[&format!(
                "{AT}.restartPolicy: Unsupported value: \"Sometimes\": \
                 supported values: \"Always\", \"Never\", \"OnFailure\""
            )],
        );
        let resize = json!({"resourceName": "cpu", "restartPolicy": "NotRequired"});
        one(
            json!({"resizePolicy": [resize, resize]}),
            &[&format!("{AT}.resizePolicy[1]: Duplicate value: \"cpu\"")],
        );
    }
}
