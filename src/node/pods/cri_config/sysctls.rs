//! Sysctls of a pod: the safe ones and those that the administrator allows, in namespaces that the
//! pod does not share with the host (`pkg/kubelet/sysctl`).

use std::collections::HashMap;

use super::error::InvalidPodSpec;
use crate::pods::pod::Pod;

/// Sysctls that are safe without the administrator's permission.
const SAFE: [&str; 14] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_notsent_lowat",
];

/// A sysctl that the node does not set for a pod; the texts are those of upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForbiddenSysctl {
    #[error("forbidden sysctl: {0:?} not allowlisted")]
    NotAllowed(String),
    /// The pod shares the namespace of the sysctl with the host.
    #[error("forbidden sysctl: {name:?} not allowed with host {namespace} enabled")]
    HostNamespace { name: String, namespace: &'static str },
}

/// Writes a name with dots between its parts. In a name that begins with a slash-separated part,
/// dots belong to the parts, as in `net/ipv4/conf/eth0.1/forwarding`.
fn normalized(name: &str) -> String {
    let first = name.find(['.', '/']).and_then(|at| name.get(at..)?.chars().next());
    if first != Some('/') {
        return name.to_owned();
    }
    let swapped = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swapped).collect()
}

/// The namespace of the kernel that a sysctl belongs to, if the pod shares it with the host.
fn host_namespace(pod: &Pod, name: &str) -> Option<&'static str> {
    let spec = pod.spec();
    let shared = |namespace, is_shared: bool| is_shared.then_some(namespace);
    match name.split('.').next() {
        Some("net") => shared("Net", pod.host_network()),
        Some("user") => shared("User", spec.host_users != Some(false)),
        Some("kernel" | "fs") => shared("IPC", spec.host_ipc == Some(true)),
        _ => None,
    }
}

/// Returns the first sysctl of a pod that is neither safe nor allowed, or belongs to the host.
/// `allowed` has names, and prefixes with `*`.
pub(crate) fn forbidden(pod: &Pod, allowed: &[String]) -> Option<ForbiddenSysctl> {
    let is_allowed = |name: &str| {
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        };
        SAFE.contains(&name) || allowed.iter().any(matches)
    };
    let list = pod.spec().security_context.as_ref().and_then(|s| s.sysctls.as_ref());
    list.into_iter().flatten().map(|s| normalized(&s.name)).find_map(|name| {
        if !is_allowed(&name) {
            return Some(ForbiddenSysctl::NotAllowed(name));
        }
        let namespace = host_namespace(pod, &name)?;
        Some(ForbiddenSysctl::HostNamespace { name, namespace })
    })
}

/// Returns the sysctls of the sandbox.
///
/// # Errors
///
/// A sysctl is forbidden.
pub(super) fn of_sandbox(
    pod: &Pod,
    allowed: &[String],
) -> Result<HashMap<String, String>, InvalidPodSpec> {
    if let Some(error) = forbidden(pod, allowed) {
        return Err(InvalidPodSpec(error.to_string()));
    }
    let list = pod.spec().security_context.as_ref().and_then(|s| s.sysctls.as_ref());
    Ok(list.into_iter().flatten().map(|s| (normalized(&s.name), s.value.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::{Value, json};

    #[test]
    fn sysctls_are_safe_or_allowed_and_not_those_of_the_host() {
        let allowed = ["kernel.msg*", "user.max_user_namespaces", "net.core.*"].map(str::to_owned);
        let of = |name: &str, spec: Value| {
            let mut spec = spec;
            spec["containers"] = json!([{"name": "a"}]);
            spec["securityContext"] = json!({"sysctls": [{"name": name, "value": "1"}]});
            forbidden(&pod(spec), &allowed).map(|error| error.to_string())
        };
        let none = || json!({});
        let no_list = |name: &str| Some(format!("forbidden sysctl: {name:?} not allowlisted"));
        let shared = |name: &str, namespace: &str| {
            let text = format!("not allowed with host {namespace} enabled");
            Some(format!("forbidden sysctl: {name:?} {text}"))
        };
        assert_eq!(of("kernel.shm_rmid_forced", none()), None);
        assert_eq!(of("net/ipv4/tcp_syncookies", none()), None);
        assert_eq!(of("kernel.msgmax", none()), None);
        assert_eq!(of("net.core.somaxconn", none()), None);
        assert_eq!(of("kernel.sem", none()), no_list("kernel.sem"));
        assert_eq!(of("net.core", none()), no_list("net.core"));
        let host = || json!({"hostNetwork": true, "hostIPC": true});
        assert_eq!(of("net.core.somaxconn", host()), shared("net.core.somaxconn", "Net"));
        assert_eq!(of("net/ipv4/tcp_syncookies", host()), shared("net.ipv4.tcp_syncookies", "Net"));
        assert_eq!(of("kernel.msgmax", host()), shared("kernel.msgmax", "IPC"));
        let user = "user.max_user_namespaces";
        assert_eq!(of(user, none()), shared(user, "User"));
        assert_eq!(of(user, json!({"hostUsers": true})), shared(user, "User"));
        assert_eq!(of(user, json!({"hostUsers": false})), None);
        let other = "user.max_pid_namespaces";
        assert_eq!(of(other, json!({"hostUsers": false})), no_list(other));
    }

    #[test]
    fn names_with_slashes_keep_the_dots_of_their_parts() {
        assert_eq!(normalized("kernel/shm_rmid_forced"), "kernel.shm_rmid_forced");
        assert_eq!(
            normalized("net.ipv4.conf.eth0/1.forwarding"),
            "net.ipv4.conf.eth0/1.forwarding"
        );
        assert_eq!(
            normalized("net/ipv4/conf/eth0.1/forwarding"),
            "net.ipv4.conf.eth0/1.forwarding"
        );
        assert_eq!(normalized("net"), "net");
        assert_eq!(normalized(""), "");
    }
}
