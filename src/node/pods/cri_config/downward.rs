//! Fields of a pod as text, for environment variables and downward API volumes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::Quantity;
use api::k8s::api::core::v1 as core;

use super::error::InvalidPodSpec;
use crate::pods::pod::{Pod, PodContainer};

/// State outside of the pod object that fields refer to.
#[derive(Debug, Clone)]
pub(crate) struct FieldContext<'a> {
    pub(crate) pod_ips: &'a [String],
    pub(crate) node_ips: &'a [IpAddr],
    /// Replaces a limit that is not set.
    pub(crate) allocatable: &'a BTreeMap<String, Quantity>,
}

/// Formats a map as `key="value"` lines, quoted as by Go's `%q`.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(k, v)| format!("{k}={}", go_quote(v))).collect();
    lines.join("\n")
}

/// Go's `strconv.Quote`.
fn go_quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7f => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)))
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns the value of a `fieldRef`.
///
/// # Errors
///
/// A path that does not exist.
pub(crate) fn field(
    pod: &Pod,
    path: &str,
    fields: &FieldContext<'_>,
) -> Result<String, InvalidPodSpec> {
    let meta = &pod.object.metadata;
    let joined = |ips: &[IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.labels" => meta.labels.as_ref(),
            "metadata.annotations" => meta.annotations.as_ref(),
            _ => {
                return Err(InvalidPodSpec(format!(
                    "fieldPath {path:?} does not support subscript"
                )));
            }
        };
        return Ok(map.and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => pod.name().to_owned(),
        "metadata.namespace" => pod.namespace().to_owned(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        "spec.nodeName" => pod.spec().node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => pod.spec().service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => fields.node_ips.first().map(ToString::to_string).unwrap_or_default(),
        "status.hostIPs" => joined(fields.node_ips),
        "status.podIP" => fields.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => fields.pod_ips.join(","),
        _ => return Err(InvalidPodSpec(format!("unsupported fieldPath: {path}"))),
    })
}

/// The limit that a container without one has: that of the pod, else what the node has to allocate
/// (`defaultPodLimitsForDownwardAPI`).
fn default_limit(pod: &Pod, name: &str, fields: &FieldContext<'_>) -> Option<Quantity> {
    let node = fields.allocatable.get(name).copied()?;
    let level = pod.spec().resources.as_ref().and_then(|r| r.limits.as_ref());
    let level = level.and_then(|limits| limits.get(name));
    let level = level.and_then(|limit| Quantity::parse(&limit.0).ok()).filter(|q| !q.is_zero());
    let counts = matches!(name, "cpu" | "memory");
    Some(level.filter(|_| counts).unwrap_or(node))
}

/// Returns the value of a `resourceFieldRef`, in units of its divisor, rounded up.
///
/// # Errors
///
/// An unknown container or resource, or a divisor that is no quantity.
pub(crate) fn resource(
    pod: &Pod,
    own: Option<&PodContainer>,
    selector: &core::ResourceFieldSelector,
    fields: &FieldContext<'_>,
) -> Result<String, InvalidPodSpec> {
    let member = match selector.container_name.as_deref().filter(|n| !n.is_empty()) {
        Some(name) => pod
            .container(name)
            .ok_or_else(|| InvalidPodSpec(format!("container {name} not found")))?,
        None => {
            own.ok_or_else(|| InvalidPodSpec("resourceFieldRef needs a containerName".to_owned()))?
        }
    };
    let (list, name) = selector.resource.split_once('.').ok_or_else(|| {
        InvalidPodSpec(format!("unsupported container resource : {}", selector.resource))
    })?;
    let resources = member.container.resources.as_ref();
    let set = |list: Option<
        &BTreeMap<String, api::k8s::apimachinery::pkg::api::resource::Quantity>,
    >| { list.and_then(|l| l.get(name)).and_then(|q| Quantity::parse(&q.0).ok()) };
    let limit = set(resources.and_then(|r| r.limits.as_ref()));
    let value = match list {
        "limits" => limit.filter(|q| !q.is_zero()).or_else(|| default_limit(pod, name, fields)),
        "requests" => set(resources.and_then(|r| r.requests.as_ref())).or(limit),
        _ => {
            return Err(InvalidPodSpec(format!(
                "unsupported container resource : {}",
                selector.resource
            )));
        }
    }
    .unwrap_or_else(|| Quantity::from_int(0));
    let divisor = selector
        .divisor
        .as_ref()
        .map(|d| d.0.as_str())
        .filter(|d| !d.is_empty() && *d != "0")
        .unwrap_or("1");
    let divisor = Quantity::parse(divisor)
        .map_err(|e| InvalidPodSpec(format!("divisor {divisor:?}: {e}")))?;
    // CPU is divided in thousandths, everything else in units.
    let (amount, unit) = if name == "cpu" {
        (value.milli_value(), divisor.milli_value())
    } else {
        (value.value(), divisor.value())
    };
    Ok((amount.saturating_add(unit.max(1) - 1) / unit.max(1)).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn fields_and_resources_are_formatted_as_in_the_kubelet() {
        let p = pod(json!({"nodeName": "n", "containers": [{"name": "a",
                "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}}}]}));
        let allocatable = BTreeMap::from([("ephemeral-storage".to_owned(), Quantity::bytes(7))]);
        let fields = FieldContext {
            pod_ips: &["10.0.0.1".into(), "fd00::1".into()],
            node_ips: &[[192, 0, 2, 1].into()],
            allocatable: &allocatable,
        };
        assert_eq!(field(&p, "status.podIPs", &fields).unwrap(), "10.0.0.1,fd00::1");
        assert_eq!(field(&p, "metadata.annotations['x']", &fields).unwrap(), "");
        assert!(field(&p, "spec.x", &fields).is_err());
        let value = |resource: &str, divisor: &str| {
            let selector =
                serde_json::from_value(json!({"resource": resource, "divisor": divisor})).unwrap();
            super::resource(&p, Some(&p.containers[0]), &selector, &fields).unwrap()
        };
        assert_eq!(value("limits.cpu", "1"), "2");
        assert_eq!(value("limits.cpu", "1m"), "1500");
        assert_eq!(value("requests.memory", "1Mi"), "64");
        assert_eq!(value("limits.ephemeral-storage", "1"), "7");
        let level =
            pod(json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}],
            "resources": {"limits": {"cpu": "2", "memory": "64Mi"}}}));
        let allocatable =
            ["cpu", "memory"].map(|name| (name.to_owned(), Quantity::bytes(9 << 30))).into();
        let fields = FieldContext { allocatable: &allocatable, ..fields };
        let value = |resource: &str| {
            let selector = serde_json::from_value(json!({"resource": resource})).unwrap();
            super::resource(&level, Some(&level.containers[0]), &selector, &fields).unwrap()
        };
        assert_eq!((value("limits.cpu"), value("limits.memory")), ("1".into(), "67108864".into()));
        assert_eq!(go_quote("a\"b\n"), "\"a\\\"b\\n\"");
    }
}
