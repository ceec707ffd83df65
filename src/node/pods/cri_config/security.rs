//! Security contexts of pod and container, merged as upstream merges them.

use std::path::Path;

use api::k8s::api::core::v1 as core;
use proto::runtime::v1 as cri;
use proto::runtime::v1::security_profile::ProfileType;

use super::error::InvalidPodSpec;
use crate::pods::pod::{Pod, PodContainer};

/// Paths of `/proc` and `/sys` that are masked in containers, unless `procMount: Unmasked`.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Paths that are read-only in containers, unless `procMount: Unmasked`.
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

fn number(value: i64) -> Option<cri::Int64Value> {
    Some(cri::Int64Value { value })
}

fn selinux(options: &core::SELinuxOptions) -> cri::SeLinuxOption {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    cri::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

fn groups_policy(pod: Option<&core::PodSecurityContext>) -> i32 {
    match pod.and_then(|s| s.supplemental_groups_policy.as_deref()) {
        Some("Strict") => cri::SupplementalGroupsPolicy::Strict.into(),
        _ => cri::SupplementalGroupsPolicy::Merge.into(),
    }
}

fn groups(pod: Option<&core::PodSecurityContext>) -> Vec<i64> {
    let Some(s) = pod else { return Vec::new() };
    s.fs_group.into_iter().chain(s.supplemental_groups.iter().flatten().copied()).collect()
}

/// Namespaces of a pod's sandbox and containers, except the user namespace.
pub(crate) fn namespaces(pod: &Pod) -> cri::NamespaceOption {
    let spec = pod.spec();
    let pid = match (spec.host_pid, spec.share_process_namespace) {
        (Some(true), _) => cri::NamespaceMode::Node,
        (_, Some(true)) => cri::NamespaceMode::Pod,
        _ => cri::NamespaceMode::Container,
    };
    let ipc = if spec.host_ipc == Some(true) {
        cri::NamespaceMode::Node
    } else {
        cri::NamespaceMode::Pod
    };
    cri::NamespaceOption {
        network: network_mode(pod).into(),
        pid: pid.into(),
        ipc: ipc.into(),
        ..cri::NamespaceOption::default()
    }
}

pub(super) fn network_mode(pod: &Pod) -> cri::NamespaceMode {
    if pod.host_network() { cri::NamespaceMode::Node } else { cri::NamespaceMode::Pod }
}

/// Returns the security context of the sandbox.
pub(super) fn sandbox(
    pod: &Pod,
    user_namespace: cri::UserNamespace,
) -> Result<cri::LinuxSandboxSecurityContext, InvalidPodSpec> {
    let context = pod.spec().security_context.as_ref();
    let privileged = pod
        .containers
        .iter()
        .any(|m| m.container.security_context.as_ref().and_then(|s| s.privileged) == Some(true));
    let userns_options = Some(user_namespace);
    Ok(cri::LinuxSandboxSecurityContext {
        namespace_options: Some(cri::NamespaceOption { userns_options, ..namespaces(pod) }),
        run_as_user: context.and_then(|s| s.run_as_user).and_then(number),
        run_as_group: context.and_then(|s| s.run_as_group).and_then(number),
        selinux_options: context.and_then(|s| s.se_linux_options.as_ref()).map(selinux),
        supplemental_groups: groups(context),
        supplemental_groups_policy: groups_policy(context),
        privileged,
        seccomp: Some(profile(ProfileType::RuntimeDefault, "")),
        ..cri::LinuxSandboxSecurityContext::default()
    })
}

fn profile(type_: ProfileType, path: &str) -> cri::SecurityProfile {
    cri::SecurityProfile { profile_type: type_.into(), localhost_ref: path.to_owned() }
}

fn seccomp(
    profile_: Option<&core::SeccompProfile>,
    root: &Path,
    hardened: bool,
) -> Result<cri::SecurityProfile, InvalidPodSpec> {
    let Some(wanted) = profile_ else {
        // Like upstream's `seccompDefault`.
        let default = if hardened { ProfileType::RuntimeDefault } else { ProfileType::Unconfined };
        return Ok(profile(default, ""));
    };
    match wanted.type_.as_str() {
        "Unconfined" => Ok(profile(ProfileType::Unconfined, "")),
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault, "")),
        "Localhost" => {
            let file = wanted.localhost_profile.as_deref().unwrap_or_default();
            if file.is_empty()
                || Path::new(file).is_absolute()
                || file.split('/').any(|p| p == "..")
            {
                return Err(InvalidPodSpec(format!(
                    "localhost seccomp profile {file:?} must be a relative path without .."
                )));
            }
            Ok(profile(ProfileType::Localhost, &root.join(file).to_string_lossy()))
        }
        other => Err(InvalidPodSpec(format!("seccomp profile type {other:?} is not supported"))),
    }
}

/// Gives a container without a seccomp profile the runtime's, as upstream's `seccompDefault`.
pub(super) fn apply_seccomp_default(
    pod: &Pod,
    member: &PodContainer,
    context: &mut cri::LinuxContainerSecurityContext,
) {
    let own = member.container.security_context.as_ref();
    let of_pod = pod.spec().security_context.as_ref();
    let is_set = own.is_some_and(|s| s.seccomp_profile.is_some())
        || of_pod.is_some_and(|s| s.seccomp_profile.is_some());
    let is_privileged = own.is_some_and(|s| s.privileged == Some(true));
    if !is_set && !is_privileged {
        context.seccomp = Some(profile(ProfileType::RuntimeDefault, ""));
    }
}

fn apparmor(
    profile_: Option<&core::AppArmorProfile>,
) -> Result<Option<cri::SecurityProfile>, InvalidPodSpec> {
    let Some(wanted) = profile_ else { return Ok(None) };
    Ok(Some(match wanted.type_.as_str() {
        "Unconfined" => profile(ProfileType::Unconfined, ""),
        "RuntimeDefault" => profile(ProfileType::RuntimeDefault, ""),
        "Localhost" => {
            profile(ProfileType::Localhost, wanted.localhost_profile.as_deref().unwrap_or_default())
        }
        other => {
            return Err(InvalidPodSpec(format!(
                "AppArmor profile type {other:?} is not supported"
            )));
        }
    }))
}

/// Returns added and dropped capabilities. Under the hardened profile a container has no raw
/// sockets unless it adds them: with raw sockets it can impersonate others on its link (ARP, router
/// advertisements: CVE-2020-10749).
fn capabilities(
    own: Option<&core::Capabilities>,
    privileged: bool,
    hardened: bool,
) -> Option<cri::Capability> {
    let list = |of: fn(&core::Capabilities) -> &Option<Vec<String>>| {
        own.and_then(|c| of(c).clone()).unwrap_or_default()
    };
    let (add, mut drop) = (list(|c| &c.add), list(|c| &c.drop));
    let names = |c: &String| {
        let c = c.to_ascii_uppercase();
        matches!(c.strip_prefix("CAP_").unwrap_or(&c), "NET_RAW" | "ALL")
    };
    if hardened && !privileged && !add.iter().any(names) && !drop.iter().any(names) {
        drop.push("NET_RAW".to_owned());
    } else if own.is_none() {
        return None;
    }
    Some(cri::Capability {
        add_capabilities: add,
        drop_capabilities: drop,
        ..cri::Capability::default()
    })
}

/// Returns the security context of a container; `image_user` is the user of its image, a number or
/// a name.
pub(super) fn container(
    pod: &Pod,
    member: &PodContainer,
    image_user: &(Option<i64>, String),
    seccomp_root: &Path,
    hardened: bool,
) -> Result<cri::LinuxContainerSecurityContext, InvalidPodSpec> {
    let default = core::SecurityContext::default();
    let own = member.container.security_context.as_ref().unwrap_or(&default);
    let of_pod = pod.spec().security_context.as_ref();
    let user = own.run_as_user.or_else(|| of_pod.and_then(|s| s.run_as_user));
    let non_root = own.run_as_non_root.or_else(|| of_pod.and_then(|s| s.run_as_non_root));
    if non_root == Some(true) {
        check_non_root(member, user, image_user)?;
    }
    let options =
        own.se_linux_options.as_ref().or_else(|| of_pod.and_then(|s| s.se_linux_options.as_ref()));
    let seccomp_profile =
        own.seccomp_profile.as_ref().or_else(|| of_pod.and_then(|s| s.seccomp_profile.as_ref()));
    let privileged = own.privileged == Some(true);
    let seccomp = if privileged && own.seccomp_profile.is_none() {
        profile(ProfileType::Unconfined, "")
    } else {
        seccomp(seccomp_profile, seccomp_root, hardened)?
    };
    let app_armor = own
        .app_armor_profile
        .as_ref()
        .or_else(|| of_pod.and_then(|s| s.app_armor_profile.as_ref()));
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |list: &[&str]| -> Vec<String> {
        if unmasked { Vec::new() } else { list.iter().map(|p| (*p).to_owned()).collect() }
    };
    Ok(cri::LinuxContainerSecurityContext {
        capabilities: capabilities(own.capabilities.as_ref(), privileged, hardened),
        privileged,
        namespace_options: Some(namespaces(pod)),
        selinux_options: options.map(selinux),
        run_as_user: user.or(image_user.0).and_then(number),
        run_as_group: own
            .run_as_group
            .or_else(|| of_pod.and_then(|s| s.run_as_group))
            .and_then(number),
        run_as_username: if user.is_none() { image_user.1.clone() } else { String::new() },
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: groups(of_pod),
        supplemental_groups_policy: groups_policy(of_pod),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(seccomp),
        apparmor: apparmor(app_armor)?,
        ..cri::LinuxContainerSecurityContext::default()
    })
}

/// Verifies `runAsNonRoot`: the user must be a number other than zero, as the uid of a name is
/// unknown.
fn check_non_root(
    member: &PodContainer,
    user: Option<i64>,
    image: &(Option<i64>, String),
) -> Result<(), InvalidPodSpec> {
    let name = member.name();
    match (user, image) {
        (Some(0), _) => Err(InvalidPodSpec(format!(
            "container's runAsUser breaks non-root policy (container: {name})"
        ))),
        (Some(_), _) => Ok(()),
        (None, (Some(0), _)) => Err(InvalidPodSpec(format!(
            "container has runAsNonRoot and image will run as root (container: {name})"
        ))),
        (None, (None, user)) if !user.is_empty() => Err(InvalidPodSpec(format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify \
             user is non-root (container: {name})"
        ))),
        (None, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn run_as_non_root_rejects_uid_0() {
        let of = |security: serde_json::Value, image: (Option<i64>, &str)| {
            let p = pod(json!({"containers": [{"name": "a", "securityContext": security}]}));
            let image = (image.0, image.1.to_owned());
            container(&p, &p.containers[0], &image, Path::new("/"), false).map_err(|e| e.0)
        };
        let must = json!({"runAsNonRoot": true});
        assert!(of(must.clone(), (Some(0), "")).unwrap_err().contains("image will run as root"));
        assert!(of(must.clone(), (None, "www")).unwrap_err().contains("non-numeric user (www)"));
        assert_eq!(of(must, (Some(5), "")).unwrap().run_as_user.unwrap().value, 5);
        let own = json!({"runAsNonRoot": true, "runAsUser": 7});
        assert_eq!(of(own, (Some(0), "")).unwrap().run_as_user.unwrap().value, 7);
        let root = json!({"runAsNonRoot": true, "runAsUser": 0});
        assert!(of(root, (Some(5), "")).unwrap_err().contains("runAsUser breaks non-root policy"));
    }

    /// The runtime's profile is the default, there are no raw sockets, and an empty profile
    /// (CVE-2023-2431) is none.
    #[test]
    fn hardened_containers_have_a_seccomp_profile_and_no_raw_sockets() {
        let of = |spec: serde_json::Value, hardened| {
            let p = pod(json!({"containers": [{"name": "a", "securityContext": spec}]}));
            let image = (None, String::new());
            container(&p, &p.containers[0], &image, Path::new("/s"), hardened).map(|c| {
                let capabilities = c.capabilities.unwrap_or_default();
                (c.seccomp.unwrap().profile_type(), capabilities.drop_capabilities)
            })
        };
        let none: Vec<String> = Vec::new();
        let raw = vec!["NET_RAW".to_owned()];
        assert_eq!(of(json!({}), false).unwrap(), (ProfileType::Unconfined, none.clone()));
        assert_eq!(of(json!({}), true).unwrap(), (ProfileType::RuntimeDefault, raw.clone()));
        let own = json!({"seccompProfile": {"type": "Unconfined"},
            "capabilities": {"add": ["SYS_TIME"]}});
        assert_eq!(of(own, true).unwrap(), (ProfileType::Unconfined, raw));
        for capability in ["NET_RAW", "CAP_NET_RAW", "ALL"] {
            let own = json!({"capabilities": {"add": [capability]}});
            assert_eq!(of(own, true).unwrap().1, none, "{capability}");
        }
        let privileged = json!({"privileged": true});
        assert_eq!(of(privileged, true).unwrap(), (ProfileType::Unconfined, none));
        for path in ["", "/etc/passwd", "../x"] {
            let own = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": path}});
            assert!(of(own, false).is_err(), "{path:?}");
        }
    }
}
