//! The checks of the level `restricted` beyond `baseline`.

use api::value::{get, has, items, str_at};
use serde_json::Value;

use super::baseline::{bad_seccomp, forbidden_capabilities, proc_mount, seccomp};
use super::{Pod, Violation, containers, quoted, set, setters};

/// All restricted checks in order.
pub(super) fn checks(pod: &Pod<'_>) -> Vec<Violation> {
    // Since 1.25, Windows pods may omit Linux-only fields; since 1.35, root in a user namespace is
    // unprivileged.
    let windows = pod.version >= 25 && pod.windows();
    let mapped = pod.version >= 35 && pod.in_user_namespace();
    let when = |applies: bool, check: fn(&Pod<'_>) -> Option<Violation>| {
        if applies { check(pod) } else { None }
    };
    [
        when(pod.version >= 8 && !windows, privilege_escalation),
        when(pod.version >= 22 && !windows, capabilities),
        when(pod.version >= 35, proc_mount),
        volumes(pod),
        when(!mapped, non_root),
        when(pod.version >= 23 && !mapped, root_user),
        when(pod.version >= 19 && !windows, seccomp_required),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn context(container: &Value) -> &Value {
    get(container, "securityContext")
}

fn privilege_escalation(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.bad(|c| get(context(c), "allowPrivilegeEscalation") != &Value::Bool(false));
    let detail =
        format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&bad));
    (!bad.is_empty()).then_some(Violation { reason: "allowPrivilegeEscalation != false", detail })
}

fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let keeps =
        |c: &Value| !items(get(context(c), "capabilities"), "drop").iter().any(|d| d == "ALL");
    let bad = pod.bad(keeps);
    let mut details = Vec::new();
    if !bad.is_empty() {
        details.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            containers(&bad)
        ));
    }
    details.extend(forbidden_capabilities(pod, &["NET_BIND_SERVICE"]));
    (!details.is_empty())
        .then(|| Violation { reason: "unrestricted capabilities", detail: details.join("; ") })
}

const ALLOWED: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

const FORBIDDEN: [&str; 21] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

fn volumes(pod: &Pod<'_>) -> Option<Violation> {
    let bad: Vec<&Value> = items(pod.spec, "volumes")
        .iter()
        .filter(|v| !ALLOWED.iter().any(|kind| has(v, kind)))
        .collect();
    if bad.is_empty() {
        return None;
    }
    let kinds = set(bad
        .iter()
        .map(|v| FORBIDDEN.into_iter().find(|kind| has(v, kind)).unwrap_or("unknown")));
    let names: Vec<&str> = bad.iter().map(|v| str_at(v, "name")).collect();
    let (noun, verb) = if names.len() == 1 { ("volume", "uses") } else { ("volumes", "use") };
    let word = if kinds.len() == 1 { "restricted volume type" } else { "restricted volume types" };
    let detail = format!("{noun} {} {verb} {word} {}", quoted(&names), quoted(&kinds));
    Some(Violation { reason: "restricted volume types", detail })
}

fn non_root(pod: &Pod<'_>) -> Option<Violation> {
    let reason = "runAsNonRoot != true";
    let field = |context: &Value| get(context, "runAsNonRoot").as_bool();
    let own = field(pod.context());
    let explicit = pod.bad(|c| field(context(c)) == Some(false));
    if own == Some(false) || !explicit.is_empty() {
        let detail = format!(
            "{} must not set securityContext.runAsNonRoot=false",
            setters(own == Some(false), &explicit)
        );
        return Some(Violation { reason, detail });
    }
    let implicit = pod.bad(|c| own != Some(true) && field(context(c)).is_none());
    let detail =
        format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&implicit));
    (!implicit.is_empty()).then_some(Violation { reason, detail })
}

fn root_user(pod: &Pod<'_>) -> Option<Violation> {
    let root = |context: &Value| get(context, "runAsUser").as_i64() == Some(0);
    let bad = pod.bad(|c| root(context(c)));
    let own = root(pod.context());
    (own || !bad.is_empty()).then(|| Violation {
        reason: "runAsUser=0",
        detail: format!("{} must not set runAsUser=0", setters(own, &bad)),
    })
}

fn seccomp_required(pod: &Pod<'_>) -> Option<Violation> {
    if let Some(bad) = seccomp(pod) {
        return Some(bad);
    }
    let own = has(pod.context(), "seccompProfile") && bad_seccomp(pod.context()).is_none();
    let implicit = pod.bad(|c| !own && !has(context(c), "seccompProfile"));
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        containers(&implicit)
    );
    (!implicit.is_empty()).then_some(Violation { reason: "seccompProfile", detail })
}
