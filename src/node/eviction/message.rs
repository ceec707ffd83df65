//! The text and the annotations of the eviction of a pod.

use std::collections::BTreeMap;

use api::Quantity;

use crate::config::thresholds::ScarceResource;
use crate::eviction::ranking::{ContainerUsage, PodUsage};
use crate::pods::pod::{ContainerRole, Pod};
use crate::pods::resources;

/// Why a pod is evicted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct EvictionMessage {
    /// The message of the pod's status and of the event.
    pub(super) text: String,
    /// Annotations of the event.
    pub(super) annotations: BTreeMap<String, String>,
}

/// Formats the message for a pod, with the threshold's quantity and what is available
/// (`evictionMessage`).
pub(super) fn message(
    pod: &Pod,
    used: Option<&PodUsage>,
    resource: ScarceResource,
    threshold: Option<(Quantity, Quantity)>,
) -> EvictionMessage {
    let name = resource.name();
    let mut out = EvictionMessage {
        text: format!("The node was low on resource: {name}. "),
        annotations: BTreeMap::new(),
    };
    if let Some((quantity, available)) = threshold {
        out.text.push_str(&format!("Threshold quantity: {quantity}, available: {available}. "));
    }
    let Some(used) = used else { return out };
    if resource == ScarceResource::Memory {
        add_pod(&mut out, pod, used);
    }
    let (mut names, mut amounts) = (Vec::new(), Vec::new());
    for container in &used.containers {
        let Some((usage, request)) = excess(pod, container, resource) else { continue };
        out.text.push_str(&format!(
            "Container {} was using {usage}, request is {request}, has larger consumption of \
             {name}. ",
            container.name
        ));
        names.push(container.name.as_str());
        amounts.push(usage.to_string());
    }
    let annotations = [
        ("offending_containers", names.join(",")),
        ("offending_containers_usage", amounts.join(",")),
        ("starved_resource", name.to_owned()),
    ];
    out.annotations.extend(annotations.map(|(key, value)| (key.to_owned(), value)));
    out
}

/// Adds the memory of a pod that sets its resources as a whole, also if it is below the request.
fn add_pod(out: &mut EvictionMessage, pod: &Pod, used: &PodUsage) {
    let requests = pod.spec().resources.as_ref().and_then(|r| r.requests.as_ref());
    let request = requests.and_then(|requests| requests.get("memory"));
    let request = request.filter(|_| resources::has_pod_level(pod));
    let Some(request) = request.and_then(|text| Quantity::parse(&text.0).ok()) else { return };
    let (name, usage) = (pod.name(), Quantity::bytes(used.memory).to_string());
    out.text.push_str(&format!(
        "Pod {name} was using {usage}, request is {request}, has larger consumption of memory. "
    ));
    out.annotations.insert("offending_pod".to_owned(), name.to_owned());
    out.annotations.insert("offending_pod_usage".to_owned(), usage);
}

/// Usage and request of a container that uses more than it requests.
fn excess(
    pod: &Pod,
    container: &ContainerUsage,
    resource: ScarceResource,
) -> Option<(Quantity, Quantity)> {
    let usage = match resource {
        ScarceResource::Memory => container.memory?,
        ScarceResource::Storage => container.layer?.plus(container.logs?).bytes,
        ScarceResource::Inodes | ScarceResource::Pids => return None,
    };
    // Ephemeral containers cannot request resources.
    let member = pod.container(&container.name).filter(|m| m.role != ContainerRole::Ephemeral)?;
    let requests = member.container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let request = requests.and_then(|requests| requests.get(resource.name()));
    let request = request.and_then(|text| Quantity::parse(&text.0).ok()).unwrap_or(Quantity::ZERO);
    let usage = Quantity::bytes(usage);
    (usage > request).then_some((usage, request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::ranking::DiskAmount;
    use crate::pods::pod::tests::pod;
    use serde_json::{Value, json};

    const MIB: i64 = 1 << 20;

    fn container(name: &str, request: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"memory": request}}})
    }

    fn sidecar(name: &str, request: &str) -> Value {
        let mut out = container(name, request);
        out["restartPolicy"] = "Always".into();
        out
    }

    /// Working sets in MiB by container.
    fn used(memory: &[(&str, i64)]) -> PodUsage {
        let of = |(name, mebibytes): &(&str, i64)| ContainerUsage {
            name: (*name).to_owned(),
            memory: Some(mebibytes * MIB),
            ..ContainerUsage::default()
        };
        PodUsage { containers: memory.iter().map(of).collect(), ..PodUsage::default() }
    }

    fn threshold() -> Option<(Quantity, Quantity)> {
        Some((Quantity::parse("2Gi").unwrap(), Quantity::parse("1500Mi").unwrap()))
    }

    const BASE: &str =
        "The node was low on resource: memory. Threshold quantity: 2Gi, available: 1500Mi. ";

    /// Upstream's `TestEvictionMessage`.
    #[test]
    fn containers_above_their_requests_are_named() {
        let spec = json!({
            "initContainers": [container("init1", "100Mi"), sidecar("restartable1", "100Mi"),
                sidecar("restartable2", "200Mi"), {"name": "bare", "restartPolicy": "Always"}],
            "containers": [container("regular1", "200Mi"), container("regular2", "200Mi"),
                container("regular3", "300Mi")],
            "ephemeralContainers": [{"name": "debug"}],
        });
        let of = |memory: &[(&str, i64)]| {
            message(&pod(spec.clone()), Some(&used(memory)), ScarceResource::Memory, threshold())
        };
        let within = of(&[("init1", 50), ("regular1", 200), ("debug", 900)]);
        assert_eq!(within.text, BASE);
        assert_eq!(within.annotations["offending_containers"], "");
        assert_eq!(within.annotations["starved_resource"], "memory");
        assert_eq!(
            of(&[("init1", 150)]).text,
            format!(
                "{BASE}Container init1 was using 150Mi, request is 100Mi, has larger consumption \
                 of memory. "
            )
        );
        assert!(
            of(&[("bare", 1)]).text.contains("Container bare was using 1Mi, request is 0, has")
        );
        let several = of(&[
            ("restartable1", 150),
            ("restartable2", 250),
            ("regular1", 100),
            ("regular2", 250),
            ("regular3", 400),
        ]);
        let names = "restartable1,restartable2,regular2,regular3";
        assert_eq!(several.annotations["offending_containers"], names);
        let usage = "150Mi,250Mi,250Mi,400Mi";
        assert_eq!(several.annotations["offending_containers_usage"], usage);
    }

    #[test]
    fn a_pod_with_resources_of_its_own_is_named_before_its_containers() {
        let whole = pod(json!({"resources": {"requests": {"memory": "250Mi"}},
            "containers": [container("c", "100Mi")]}));
        let used = PodUsage { memory: 600 * MIB, ..used(&[("c", 150)]) };
        let out = message(&whole, Some(&used), ScarceResource::Memory, None);
        assert_eq!(
            out.text,
            "The node was low on resource: memory. Pod p was using 600Mi, request is 250Mi, has \
             larger consumption of memory. Container c was using 150Mi, request is 100Mi, has \
             larger consumption of memory. "
        );
        assert_eq!(out.annotations["offending_pod_usage"], "600Mi");
    }

    /// Upstream's `TestPIDPressure_VerifyPodStatus` and `TestDiskPressureNodeFs_VerifyPodStatus`.
    #[test]
    fn the_message_depends_on_the_resource() {
        let disk = pod(json!({"containers": [{"name": "c",
            "resources": {"requests": {"ephemeral-storage": "100Mi"}}}]}));
        let amount = |mebibytes: i64| Some(DiskAmount { bytes: mebibytes * MIB, inodes: 5 });
        let container = ContainerUsage {
            name: "c".into(),
            layer: amount(400),
            logs: amount(300),
            ..ContainerUsage::default()
        };
        let mut used = PodUsage { containers: vec![container], ..PodUsage::default() };
        let of = |used: Option<&PodUsage>, resource| message(&disk, used, resource, None);
        assert_eq!(
            of(Some(&used), ScarceResource::Storage).text,
            "The node was low on resource: ephemeral-storage. Container c was using 700Mi, \
             request is 100Mi, has larger consumption of ephemeral-storage. "
        );
        let inodes = of(Some(&used), ScarceResource::Inodes);
        assert_eq!(inodes.text, "The node was low on resource: inodes. ");
        used.containers[0].logs = None;
        let unknown = of(Some(&used), ScarceResource::Storage);
        assert_eq!(unknown.text, "The node was low on resource: ephemeral-storage. ");
        let unmeasured = of(None, ScarceResource::Pids);
        assert_eq!(unmeasured.text, "The node was low on resource: pids. ");
        assert!(unmeasured.annotations.is_empty());
    }
}
