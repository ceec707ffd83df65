//! The checks of the level `baseline`.

use api::validation::core::APP_ARMOR_ANNOTATION;
use api::value::{at, bool_at, entries, get, has, int_at, is_empty, items, str_at, str_in};
use serde_json::Value;

use super::{Pod, Violation, containers, quoted, set, setters};

type Check = Option<Violation>;

fn violation(reason: &'static str, detail: String) -> Check {
    Some(Violation { reason, detail })
}

/// All baseline checks in order; for `restricted`, without those that a stricter check replaces.
pub(super) fn checks(pod: &Pod<'_>, restricted: bool) -> Vec<Violation> {
    let replaced = |since: u32| restricted && pod.version >= since;
    let unless = |skip: bool, check: fn(&Pod<'_>) -> Check| if skip { None } else { check(pod) };
    [
        app_armor(pod),
        unless(replaced(22), capabilities),
        host_namespaces(pod),
        unless(replaced(0), host_paths),
        host_ports(pod),
        unless(pod.version < 34, probe_hosts),
        privileged(pod),
        unless(replaced(35) || pod.version >= 35 && pod.in_user_namespace(), proc_mount),
        selinux(pod),
        unless(replaced(19), seccomp),
        sysctls(pod),
        host_process(pod),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn context(container: &Value) -> &Value {
    get(container, "securityContext")
}

fn app_armor(pod: &Pod<'_>) -> Check {
    let profile = |context: &Value| {
        let profile = get(context, "appArmorProfile");
        let kind = str_at(profile, "type");
        (!profile.is_null() && !matches!(kind, "RuntimeDefault" | "Localhost"))
            .then(|| kind.to_owned())
    };
    let own = profile(pod.context());
    let bad = pod.bad(|c| profile(context(c)).is_some());
    let mut values =
        set(own.iter().cloned().chain(pod.containers().filter_map(|c| profile(context(c)))));
    let fine = |v: &str| v.is_empty() || v == "runtime/default" || v.starts_with("localhost/");
    let annotations = set(entries(pod.metadata, "annotations").filter_map(|(k, v)| {
        let value = v.as_str().unwrap_or_default();
        (k.starts_with(APP_ARMOR_ANNOTATION) && !fine(value))
            .then(|| format!("{k}={}", api::field::go_quote(value)))
    }));
    let mut subjects = setters(own.is_some(), &bad);
    if !annotations.is_empty() {
        let word = if annotations.len() == 1 { "annotation" } else { "annotations" };
        subjects =
            if subjects.is_empty() { word.to_owned() } else { format!("{subjects} and {word}") };
        values.extend(annotations);
    }
    if subjects.is_empty() {
        return None;
    }
    let reason = if values.len() == 1 {
        "forbidden AppArmor profile"
    } else {
        "forbidden AppArmor profiles"
    };
    violation(
        reason,
        format!("{subjects} must not set AppArmor profile type to {}", quoted(&values)),
    )
}

fn added<'v>(
    container: &'v Value,
    allowed: &'static [&'static str],
) -> impl Iterator<Item = &'v str> {
    let list = items(get(context(container), "capabilities"), "add");
    list.iter().filter_map(Value::as_str).filter(move |c| !allowed.contains(c))
}

/// The containers that add capabilities outside `allowed`, with the message.
pub(super) fn forbidden_capabilities(
    pod: &Pod<'_>,
    allowed: &'static [&'static str],
) -> Option<String> {
    let bad = pod.bad(|c| added(c, allowed).next().is_some());
    if bad.is_empty() {
        return None;
    }
    let names = set(pod.containers().flat_map(|c| added(c, allowed)));
    Some(format!(
        "{} must not include {} in securityContext.capabilities.add",
        containers(&bad),
        quoted(&names)
    ))
}

fn capabilities(pod: &Pod<'_>) -> Check {
    const ALLOWED: &[&str] = &[
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    violation("non-default capabilities", forbidden_capabilities(pod, ALLOWED)?)
}

fn host_namespaces(pod: &Pod<'_>) -> Check {
    let fields =
        ["hostNetwork", "hostPID", "hostIPC"].iter().filter(|field| bool_at(pod.spec, field));
    let bad: Vec<String> = fields.map(|field| format!("{field}=true")).collect();
    if bad.is_empty() { None } else { violation("host namespaces", bad.join(", ")) }
}

fn host_paths(pod: &Pod<'_>) -> Check {
    let bad: Vec<&str> = items(pod.spec, "volumes")
        .iter()
        .filter(|v| has(v, "hostPath"))
        .map(|v| str_at(v, "name"))
        .collect();
    let word = if bad.len() == 1 { "volume" } else { "volumes" };
    if bad.is_empty() {
        None
    } else {
        violation("hostPath volumes", format!("{word} {}", quoted(&bad)))
    }
}

fn host_ports(pod: &Pod<'_>) -> Check {
    fn ports(container: &Value) -> impl Iterator<Item = i64> {
        items(container, "ports").iter().filter_map(|p| int_at(p, "hostPort")).filter(|p| *p != 0)
    }
    let bad = pod.bad(|c| ports(c).next().is_some());
    if bad.is_empty() {
        return None;
    }
    let numbers = set(pod.containers().flat_map(ports).map(|p| p.to_string()));
    let (verb, noun) = (
        if bad.len() == 1 { "uses" } else { "use" },
        if numbers.len() == 1 { "hostPort" } else { "hostPorts" },
    );
    violation("hostPort", format!("{} {verb} {noun} {}", containers(&bad), numbers.join(", ")))
}

fn probe_hosts(pod: &Pod<'_>) -> Check {
    fn hosts(container: &Value) -> Vec<&str> {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"]
            .into_iter()
            .map(|p| get(container, p));
        let hooks = ["postStart", "preStop"].into_iter().map(|h| at(container, &["lifecycle", h]));
        let handlers = probes.chain(hooks).flat_map(|h| {
            ["httpGet", "tcpSocket"].into_iter().map(move |kind| str_in(h, &[kind, "host"]))
        });
        handlers.filter(|host| !host.is_empty()).collect()
    }
    let bad = set(pod.bad(|c| !hosts(c).is_empty()));
    if bad.is_empty() {
        return None;
    }
    let names = set(pod.containers().flat_map(hosts));
    let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
    let verb = if bad.len() == 1 { "uses" } else { "use" };
    let noun =
        if names.len() == 1 { "probe or lifecycle host" } else { "probe or lifecycle hosts" };
    violation(
        "probe or lifecycle host",
        format!("{} {verb} {noun} {}", containers(&bad), quoted(&names)),
    )
}

fn privileged(pod: &Pod<'_>) -> Check {
    let bad = pod.bad(|c| bool_at(context(c), "privileged"));
    if bad.is_empty() {
        None
    } else {
        violation(
            "privileged",
            format!("{} must not set securityContext.privileged=true", containers(&bad)),
        )
    }
}

/// Rejects any `procMount` other than the default.
pub(super) fn proc_mount(pod: &Pod<'_>) -> Check {
    let kind = |c: &Value| {
        get(context(c), "procMount").as_str().filter(|kind| *kind != "Default").map(str::to_owned)
    };
    let bad = pod.bad(|c| kind(c).is_some());
    if bad.is_empty() {
        return None;
    }
    let kinds = set(pod.containers().filter_map(kind));
    violation(
        "procMount",
        format!(
            "{} must not set securityContext.procMount to {}",
            containers(&bad),
            quoted(&kinds)
        ),
    )
}

fn selinux(pod: &Pod<'_>) -> Check {
    let engine = pod.version >= 31;
    let allowed = |kind: &str| {
        matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || engine && kind == "container_engine_t"
    };
    let all: Vec<&Value> = std::iter::once(pod.context())
        .chain(pod.containers().map(context))
        .map(|c| get(c, "seLinuxOptions"))
        .collect();
    let wrong =
        |o: &Value| !allowed(str_at(o, "type")) || !is_empty(o, "user") || !is_empty(o, "role");
    let own = wrong(get(pod.context(), "seLinuxOptions"));
    let bad = pod.bad(|c| wrong(get(context(c), "seLinuxOptions")));
    if !own && bad.is_empty() {
        return None;
    }
    let kinds = set(all.iter().map(|o| str_at(o, "type")).filter(|kind| !allowed(kind)));
    let mut parts = Vec::new();
    if !kinds.is_empty() {
        parts.push(format!(
            "{} {}",
            if kinds.len() == 1 { "type" } else { "types" },
            quoted(&kinds)
        ));
    }
    for field in ["user", "role"] {
        if all.iter().any(|o| !is_empty(o, field)) {
            parts.push(format!("{field} may not be set"));
        }
    }
    violation(
        "seLinuxOptions",
        format!(
            "{} set forbidden securityContext.seLinuxOptions: {}",
            setters(own, &bad),
            parts.join("; ")
        ),
    )
}

/// The type of a seccomp profile that is set and not allowed.
pub(super) fn bad_seccomp(context: &Value) -> Option<&str> {
    let profile = get(context, "seccompProfile");
    let kind = str_at(profile, "type");
    (!profile.is_null() && !matches!(kind, "RuntimeDefault" | "Localhost")).then_some(kind)
}

/// Rejects forbidden seccomp profiles of the pod or its containers.
pub(super) fn seccomp(pod: &Pod<'_>) -> Check {
    if pod.version < 19 {
        return seccomp_annotations(pod);
    }
    let own = bad_seccomp(pod.context());
    let bad = pod.bad(|c| bad_seccomp(context(c)).is_some());
    if own.is_none() && bad.is_empty() {
        return None;
    }
    let kinds =
        set(own.into_iter().chain(pod.containers().filter_map(|c| bad_seccomp(context(c)))));
    let subjects = setters(own.is_some(), &bad);
    violation(
        "seccompProfile",
        format!(
            "{subjects} must not set securityContext.seccompProfile.type to {}",
            quoted(&kinds)
        ),
    )
}

/// Before 1.19, annotations set the profile.
fn seccomp_annotations(pod: &Pod<'_>) -> Check {
    let fine =
        |v: &str| v == "runtime/default" || v == "docker/default" || v.starts_with("localhost/");
    let names = pod
        .containers()
        .map(|c| format!("container.seccomp.security.alpha.kubernetes.io/{}", str_at(c, "name")));
    let keys = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_owned()).chain(names);
    let bad = set(keys.filter_map(|key| {
        let value = get(get(pod.metadata, "annotations"), &key).as_str()?;
        (!fine(value)).then(|| format!("{key}={}", api::field::go_quote(value)))
    }));
    let word = if bad.len() == 1 { "annotation" } else { "annotations" };
    if bad.is_empty() {
        None
    } else {
        violation("seccompProfile", format!("forbidden {word} {}", bad.join(", ")))
    }
}

/// Safe sysctls, each with the version that allowed it.
const SYSCTLS: [(&str, u32); 14] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
    ("net.ipv4.tcp_slow_start_after_idle", 37),
    ("net.ipv4.tcp_notsent_lowat", 37),
];

fn sysctls(pod: &Pod<'_>) -> Check {
    let allowed =
        |name: &str| SYSCTLS.iter().any(|(known, since)| *known == name && pod.version >= *since);
    let names = items(pod.context(), "sysctls").iter().map(|s| str_at(s, "name"));
    let bad: Vec<&str> = names.filter(|name| !allowed(name)).collect();
    if bad.is_empty() { None } else { violation("forbidden sysctls", bad.join(", ")) }
}

fn host_process(pod: &Pod<'_>) -> Check {
    let set = |context: &Value| bool_at(get(context, "windowsOptions"), "hostProcess");
    let own = set(pod.context());
    let bad = pod.bad(|c| set(context(c)));
    if !own && bad.is_empty() {
        return None;
    }
    violation(
        "hostProcess",
        format!(
            "{} must not set securityContext.windowsOptions.hostProcess=true",
            setters(own, &bad)
        ),
    )
}
