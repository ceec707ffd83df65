//! Validation of the security contexts of pods and containers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::volumes::descending;
use crate::field::{Error, ErrorList, Path};
use crate::validation::{each, names, one_of};
use crate::value::{at, bool_at, get, has, int_at, items, str_at};

/// Maximum user and group ID: IDs have 31 bits.
const ID_MAX: i64 = i32::MAX as i64;
/// Maximum length in bytes of the name of a sysctl.
const SYSCTL_MAX: usize = 253;
/// Maximum length in bytes of the path of an AppArmor profile.
const PROFILE_MAX: usize = 4095;

fn ids(context: &Value, keys: &[&str], path: &Path) -> ErrorList {
    let present = keys.iter().filter_map(|key| Some((key, int_at(context, key)?)));
    let check = |(key, id): (&&str, i64)| {
        each(&path.child(key), id, names::in_range(id, 0, ID_MAX)).collect::<ErrorList>()
    };
    present.flat_map(check).collect()
}

/// Validates `securityContext` of a container (`ValidateSecurityContext`).
pub(super) fn container(context: &Value, host_users: bool, path: &Path) -> ErrorList {
    if !context.is_object() {
        return Vec::new();
    }
    let mut errors = ids(context, &["runAsUser", "runAsGroup"], path);
    if let Some(kind) = get(context, "procMount").as_str() {
        let field = path.child("procMount");
        errors.extend(one_of(kind, &["Default", "Unmasked"], &field));
        if host_users && kind == "Unmasked" {
            errors.push(Error::invalid(
                &field,
                kind,
                "`hostUsers` must be false to use `Unmasked`",
            ));
        }
    }
    errors.extend(seccomp(get(context, "seccompProfile"), &path.child("seccompProfile")));
    if get(context, "allowPrivilegeEscalation").as_bool() == Some(false) {
        if bool_at(context, "privileged") {
            let text = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(Error::invalid(path, context.clone(), text).printed_as("SecurityContext"));
        }
        for capability in items(get(context, "capabilities"), "add") {
            if capability == "CAP_SYS_ADMIN" {
                let text = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
                errors.push(
                    Error::invalid(path, context.clone(), text).printed_as("SecurityContext"),
                );
            }
        }
    }
    let windows = get(context, "windowsOptions");
    errors.extend(super::windows::options(windows, &path.child("windowsOptions")));
    errors.extend(app_armor(get(context, "appArmorProfile"), &path.child("appArmorProfile")));
    errors
}

/// Validates `securityContext` of a pod (`validatePodSpecSecurityContext`).
pub(super) fn pod(spec: &Value, path: &Path) -> ErrorList {
    let context = get(spec, "securityContext");
    if !context.is_object() {
        return Vec::new();
    }
    let mut errors = ids(context, &["fsGroup", "runAsUser", "runAsGroup"], path);
    for (index, group) in items(context, "supplementalGroups").iter().enumerate() {
        let id = group.as_i64().unwrap_or_default();
        errors.extend(each(
            &path.child("supplementalGroups").index(index),
            id,
            names::in_range(id, 0, ID_MAX),
        ));
    }
    errors.extend(sysctls(spec, &path.child("sysctls")));
    let choices: [(&str, &[&str]); 1] = [("fsGroupChangePolicy", &["Always", "OnRootMismatch"])];
    for (key, allowed) in choices {
        errors.extend(
            get(context, key).as_str().and_then(|value| one_of(value, allowed, &path.child(key))),
        );
    }
    errors.extend(seccomp(get(context, "seccompProfile"), &path.child("seccompProfile")));
    let windows = get(context, "windowsOptions");
    errors.extend(super::windows::options(windows, &path.child("windowsOptions")));
    errors.extend(app_armor(get(context, "appArmorProfile"), &path.child("appArmorProfile")));
    let choices: [(&str, &[&str]); 2] = [
        ("supplementalGroupsPolicy", &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &["MountOption", "Recursive"]),
    ];
    for (key, allowed) in choices {
        errors.extend(
            get(context, key).as_str().and_then(|value| one_of(value, allowed, &path.child(key))),
        );
    }
    errors
}

fn sysctls(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut seen = BTreeSet::new();
    for (index, sysctl) in items(get(spec, "securityContext"), "sysctls").iter().enumerate() {
        let (field, name) = (path.index(index).child("name"), str_at(sysctl, "name"));
        if name.is_empty() {
            errors.push(Error::required(&field, ""));
        } else if !sysctl_name(name) {
            let text = format!(
                "must have at most {SYSCTL_MAX} characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
            );
            errors.push(Error::invalid(&field, name, text));
        } else if seen.contains(name) {
            errors.push(Error::duplicate(&field, name));
        }
        let dotted = name.replace('/', ".");
        let ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."]
            .iter()
            .any(|p| dotted.starts_with(p));
        if bool_at(spec, "hostNetwork") && dotted.starts_with("net.") {
            errors.push(Error::invalid(
                &field,
                name,
                "may not be specified when 'hostNetwork' is true",
            ));
        } else if bool_at(spec, "hostIPC") && ipc {
            errors.push(Error::invalid(
                &field,
                name,
                "may not be specified when 'hostIPC' is true",
            ));
        }
        seen.insert(name);
    }
    errors
}

fn sysctl_name(name: &str) -> bool {
    let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    name.len() <= SYSCTL_MAX
        && name.split(['.', '/']).all(|part| {
            let bytes = part.as_bytes();
            end(bytes.first())
                && end(bytes.last())
                && bytes.iter().all(|b| {
                    b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_')
                })
        })
}

fn seccomp(profile: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if !profile.is_object() {
        return errors;
    }
    let (kind, file) = (str_at(profile, "type"), get(profile, "localhostProfile").as_str());
    if kind.is_empty() {
        errors.push(Error::required(
            &path.child("type"),
            "type is required when seccompProfile is set",
        ));
    } else {
        errors.extend(one_of(
            kind,
            &["Localhost", "RuntimeDefault", "Unconfined"],
            &path.child("type"),
        ));
    }
    let field = path.child("localhostProfile");
    match (kind == "Localhost", file) {
        (true, None) => {
            errors.push(Error::required(&field, "must be set when seccomp type is Localhost"))
        }
        (true, Some(file)) => errors.extend(descending(file, &field)),
        (false, Some(_)) => errors.push(
            Error::invalid(
                &field,
                profile.clone(),
                "can only be set when seccomp type is Localhost",
            )
            .printed_as("SeccompProfile"),
        ),
        (false, None) => {}
    }
    errors
}

/// Begins the key of the annotation that preceded the AppArmor profile of a container, whose name
/// follows (KEP 24).
pub const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
/// The warning about such an annotation.
pub const APP_ARMOR_DEPRECATED: &str =
    "deprecated since v1.30; use the \"appArmorProfile\" field instead";

/// Returns the AppArmor profile that the value of an annotation names, whose validity is not
/// checked (`ApparmorFieldForAnnotation`).
pub fn app_armor_profile(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let name = annotation.strip_prefix("localhost/").filter(|name| !name.is_empty())?;
            Some(json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

/// Validates an AppArmor profile (`ValidateAppArmorProfileField`).
pub fn app_armor(profile: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if !profile.is_object() {
        return errors;
    }
    const MISSING: &str = "must be set when AppArmor type is Localhost";
    let (kind, file) = (str_at(profile, "type"), get(profile, "localhostProfile").as_str());
    let field = path.child("localhostProfile");
    match (kind, file) {
        ("Localhost", None | Some("")) => errors.push(Error::required(&field, MISSING)),
        ("Localhost", Some(file)) => {
            if file.trim() != file {
                errors.push(Error::invalid(&field, file, "must not be padded with whitespace"));
            }
            if file.len() > PROFILE_MAX {
                errors.push(Error::too_long(&field, PROFILE_MAX));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(file)) => {
            errors.push(Error::invalid(
                &field,
                file,
                "can only be set when AppArmor type is Localhost",
            ));
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => errors.push(Error::required(
            &path.child("type"),
            "type is required when appArmorProfile is set",
        )),
        (other, _) => {
            errors.push(Error::not_supported(
                &path.child("type"),
                other,
                &["Localhost", "RuntimeDefault", "Unconfined"],
            ));
        }
    }
    errors
}

/// Rejects host namespaces and block devices in a pod with its own user namespace (`hostUsers:
/// false`).
pub(super) fn host(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if get(spec, "hostUsers").as_bool() == Some(false) {
        for (key, shown) in
            [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")]
        {
            if bool_at(spec, key) {
                errors.push(Error::forbidden(&path.child(shown), "when `hostUsers` is false"));
            }
        }
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            for (index, container) in items(spec, list).iter().enumerate() {
                if !items(container, "volumeDevices").is_empty() {
                    errors.push(Error::forbidden(
                        &path.child(list).index(index).child("volumeDevices"),
                        "when `hostUsers` is false",
                    ));
                }
            }
        }
    }
    errors
}

/// Validates `os` of a pod, and rejects the fields that do not apply to this operating system.
pub(super) fn operating_system(spec: &Value, path: &Path) -> ErrorList {
    let Some(os) = spec.get("os").filter(|os| os.is_object()) else { return Vec::new() };
    let field = path.child("os");
    let name = str_at(os, "name");
    match name {
        "" => return vec![Error::required(&field.child("name"), "")],
        "linux" | "windows" => {}
        other => return vec![Error::not_supported(&field, other, &["linux", "windows"])],
    }
    let (keys, text): (&[&str], &str) = if name == "linux" {
        (&["windowsOptions"], "windows options cannot be set for a linux pod")
    } else {
        (&WINDOWS_NEVER, "cannot be set for a windows pod")
    };
    let mut errors = ErrorList::new();
    let mut refuse = |context: &Value, path: Path| {
        errors.extend(
            keys.iter()
                .filter(|key| has(context, key))
                .map(|key| Error::forbidden(&path.child(key), text)),
        );
    };
    refuse(get(spec, "securityContext"), path.child("securityContext"));
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in items(spec, list).iter().enumerate() {
            refuse(
                get(container, "securityContext"),
                path.child(list).index(index).child("securityContext"),
            );
        }
    }
    if name == "windows" {
        let pod = [
            ("hostUsers", has(spec, "hostUsers")),
            ("hostPID", bool_at(spec, "hostPID")),
            ("hostIPC", bool_at(spec, "hostIPC")),
        ];
        let shared = ("shareProcessNamespace", has(spec, "shareProcessNamespace"));
        let set = pod.into_iter().chain([shared]).filter(|(_, set)| *set);
        errors.extend(set.map(|(key, _)| Error::forbidden(&path.child(key), text)));
    }
    errors
}

const WINDOWS_NEVER: [&str; 15] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
];

/// Checks that either all containers or none are Windows `HostProcess` containers, and that a pod
/// with such containers uses the host network (`validateWindowsHostProcessPod`).
pub(super) fn host_process(spec: &Value, path: &Path) -> ErrorList {
    let pod = at(spec, &["securityContext", "windowsOptions", "hostProcess"]).as_bool();
    let (mut errors, mut all, mut such) = (ErrorList::new(), 0_usize, 0_usize);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in items(spec, list).iter().enumerate() {
            let own =
                at(container, &["securityContext", "windowsOptions", "hostProcess"]).as_bool();
            all += 1;
            if let (Some(pod), Some(own)) = (pod, own)
                && pod != own
            {
                let options = path.child(list).index(index).child("securityContext");
                errors.push(Error::invalid(
                    &options.child("windowsOptions").child("hostProcess"),
                    own,
                    format!(
                        "pod hostProcess value must be identical if both are specified, was {pod}"
                    ),
                ));
            }
            such += usize::from(own.or(pod) == Some(true));
        }
    }
    if such > 0 && such != all {
        let text = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(Error::invalid(path, "", text));
    }
    if such > 0 && !bool_at(spec, "hostNetwork") {
        let text = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(Error::invalid(&path.child("hostNetwork"), false, text));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases of `validateWindowsHostProcessPod` in `pkg/apis/core/validation`.
    #[test]
    fn host_processes_are_all_or_none_and_on_the_network_of_the_host() {
        let told = |spec: Value| -> Vec<String> {
            host_process(&spec, &Path::new("spec")).iter().map(ToString::to_string).collect()
        };
        let options = |is: bool| json!({"windowsOptions": {"hostProcess": is}});
        assert_eq!(
            told(json!({"containers": [{"securityContext": options(true)}, {}]})),
            [
                "spec: Invalid value: \"\": If pod contains any hostProcess containers then all containers must be HostProcess containers",
                "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers"
            ]
        );
        assert_eq!(
            told(
                json!({"hostNetwork": true, "securityContext": options(true), "containers": [{"securityContext": options(false)}, {}]})
            ),
            [
                "spec.containers[0].securityContext.windowsOptions.hostProcess: Invalid value: false: pod hostProcess value must be identical if both are specified, was true",
                "spec: Invalid value: \"\": If pod contains any hostProcess containers then all containers must be HostProcess containers"
            ]
        );
        assert!(
            told(
                json!({"hostNetwork": true, "securityContext": options(true), "containers": [{}]})
            )
            .is_empty()
        );
    }
}
