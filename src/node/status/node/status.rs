//! The content of the Node status.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Quantity;
use api::field::aggregate;
use api::k8s::api::core::v1 as core;
use proto::runtime::v1 as cri;
use serde_json::{Value, json};
use sorting::{CollectOrdered as _, CompactSort as _};

use super::allocatable::capacity_and_allocatable;
use super::extended;
use crate::context::{Node, RuntimeHandles};
use crate::events;
use crate::eviction::pressure::PressureConditions;
use crate::machine;
use crate::runtime::RuntimeError;

/// Maximum number of listed images (`nodeStatusMaxImages`), and of names of each.
const IMAGES_MAX: usize = 50;
const NAMES_MAX: usize = 5;

/// The features of upstream's registry (`nodedeclaredfeatures`) that this node has, in the order of
/// their names. `ExtendWebSocketsToKubelet` is missing: the API server translates WebSockets.
const DECLARED_FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

const SHUTTING_DOWN: &str = "node is shutting down";

fn texts(list: &BTreeMap<String, Quantity>) -> BTreeMap<&String, String> {
    list.iter().map(|(k, v)| (k, v.to_string())).collect_map()
}

fn condition(type_: &str, status: bool, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": if status { "True" } else { "False" }, "reason": reason,
        "message": message})
}

/// Returns the status without times, and whether the node is ready.
pub(super) async fn node_status(node: &Node) -> (Value, bool) {
    let (capacity, allocatable) =
        capacity_and_allocatable(&node.identity.config, &node.identity.machine);
    let (capacity_text, allocatable_text) = (texts(&capacity), texts(&allocatable));
    let mut status = json!({"capacity": capacity_text, "allocatable": allocatable_text});
    let devices = node.devices.capacity().await;
    let object = node.api.own_node.get("", &node.identity.config.node_name);
    extended::add(&mut status, &devices, object.as_ref().and_then(|node| node.status.as_ref()));
    let mut allocatable = allocatable.clone();
    allocatable.extend(devices.removed.into_iter().map(|name| (name, Quantity::ZERO)));
    node.caches.allocatable.store(Arc::new(allocatable));
    let runtime = node.runtime.cri.status().await;
    *node.caches.network_problem.lock() = network_problem(&runtime);
    let stops = node.identity.config.machine_shutdown.is_in_progress();
    let shutdown = stops.then(|| SHUTTING_DOWN.to_owned());
    let problem = one_of_several([runtime_problem(&runtime), node.csi.problem(), shutdown]);
    let ready = match &problem {
        None => condition("Ready", true, "KubeletReady", "kubelet is posting ready status"),
        Some(problem) => condition("Ready", false, "KubeletNotReady", problem),
    };
    let m = &node.identity.machine;
    let PressureConditions { memory, disk, pid } = node.caches.pressure.current();
    let [memory, disk, pid] = [(&MEMORY, memory), (&DISK, disk), (&PID, pid)]
        .map(|(texts, is_true)| texts.condition(is_true));
    status["conditions"] = json!([memory, disk, pid, ready]);
    status["addresses"] = addresses(&node.identity.config);
    status["images"] = images(&node.runtime).await;
    status["declaredFeatures"] = json!(DECLARED_FEATURES);
    let in_use = node.csi.volumes_in_use();
    // Null removes the list of the status.
    status["volumesInUse"] = if in_use.is_empty() { Value::Null } else { json!(in_use) };
    let port = node.identity.config.kubelet_api.as_ref().map_or(10250, |api| api.port);
    status["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": port}});
    status["nodeInfo"] = json!({
        "architecture": machine::architecture(), "operatingSystem": "linux",
        "bootID": m.boot_id, "machineID": m.machine_id, "systemUUID": m.system_uuid,
        "kernelVersion": m.kernel, "osImage": m.os_image,
        "containerRuntimeVersion": format!("{}://{}", node.runtime.version.name,
        node.runtime.version.version),
        "kubeletVersion": node.identity.config.version,
        "kubeProxyVersion": node.identity.config.version,
    });
    if m.swap != 0 {
        status["nodeInfo"]["swap"] = json!({"capacity": m.swap});
    }
    if let Ok(answer) = &runtime {
        node.user_namespaces.update_handlers(answer);
        status["runtimeHandlers"] = handlers(answer);
        status["features"] =
            json!({"supplementalGroupsPolicy": node.identity.features.runtime.strict_groups});
    }
    (status, problem.is_none())
}

/// Returns the problems as one text: a single one as it is, several as a list.
fn one_of_several(problems: [Option<String>; 3]) -> Option<String> {
    let problems: Vec<String> = problems.into_iter().flatten().collect();
    (!problems.is_empty()).then(|| aggregate(&problems))
}

/// Features of the runtime handlers, sorted by name.
fn handlers(answer: &cri::StatusResponse) -> Value {
    let mut handlers: Vec<&cri::RuntimeHandler> = answer.runtime_handlers.iter().collect();
    handlers.compact_sort_by(|a, b| a.name.cmp(&b.name));
    handlers
        .into_iter()
        .map(|h| {
            let f = h.features.unwrap_or_default();
            json!({"name": h.name, "features": {
                "recursiveReadOnlyMounts": f.recursive_read_only_mounts,
                "userNamespaces": f.user_namespaces}})
        })
        .collect()
}

/// Returns the runtime's message about a network that is not ready; `None` if the runtime does not
/// answer.
fn network_problem(runtime: &Result<cri::StatusResponse, RuntimeError>) -> Option<String> {
    let status = runtime.as_ref().ok()?.status.as_ref()?;
    let bad = status.conditions.iter().find(|c| c.r#type == "NetworkReady" && !c.status)?;
    Some(not_ready(bad))
}

fn not_ready(condition: &cri::RuntimeCondition) -> String {
    let cri::RuntimeCondition { r#type, reason, message, .. } = condition;
    let what = match r#type.as_str() {
        "NetworkReady" => "container runtime network",
        _ => "container runtime",
    };
    format!("{what} not ready: {type}=false reason:{reason} message:{message}")
}

fn runtime_problem(runtime: &Result<cri::StatusResponse, RuntimeError>) -> Option<String> {
    let status = match runtime {
        Ok(answer) => answer.status.as_ref(),
        Err(error) => return Some(format!("container runtime is down: {error}")),
    };
    let bad: Vec<String> = status
        .iter()
        .flat_map(|s| &s.conditions)
        .filter(|c| !c.status && matches!(c.r#type.as_str(), "RuntimeReady" | "NetworkReady"))
        .map(not_ready)
        .collect();
    (!bad.is_empty()).then(|| {
        format!("[{}]", bad.join(", "))
            .trim_matches(if bad.len() == 1 { &['[', ']'][..] } else { &[][..] })
            .to_owned()
    })
}

/// The texts of a condition of pressure (`pkg/kubelet/nodestatus/setters.go`).
struct PressureTexts {
    type_: &'static str,
    /// Reason and message while it is true, and the reason of the event.
    on: [&'static str; 3],
    /// The same while it is false.
    off: [&'static str; 3],
}

const MEMORY: PressureTexts = PressureTexts {
    type_: "MemoryPressure",
    on: [
        "KubeletHasInsufficientMemory",
        "kubelet has insufficient memory available",
        "NodeHasInsufficientMemory",
    ],
    off: [
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
        "NodeHasSufficientMemory",
    ],
};
const DISK: PressureTexts = PressureTexts {
    type_: "DiskPressure",
    on: ["KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"],
    off: ["KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"],
};
const PID: PressureTexts = PressureTexts {
    type_: "PIDPressure",
    on: [
        "KubeletHasInsufficientPID",
        "kubelet has insufficient PID available",
        "NodeHasInsufficientPID",
    ],
    off: [
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
        "NodeHasSufficientPID",
    ],
};

impl PressureTexts {
    fn condition(&self, is_true: bool) -> Value {
        let [reason, message, _] = if is_true { self.on } else { self.off };
        condition(self.type_, is_true, reason, message)
    }
}

/// Returns the reasons of the events of conditions of pressure that `written` has and the status
/// before it had not.
pub(super) fn pressure_events(before: &core::NodeStatus, written: &Value) -> Vec<&'static str> {
    let of = |texts: &PressureTexts| {
        let mut conditions = written["conditions"].as_array().into_iter().flatten();
        let status = conditions.find(|c| c["type"] == texts.type_)?["status"].as_str()?.to_owned();
        let mut conditions = before.conditions.iter().flatten();
        let before = conditions.find(|c| c.type_ == texts.type_);
        let [_, _, reason] = if status == "True" { texts.on } else { texts.off };
        before.is_none_or(|before| before.status != status).then_some(reason)
    };
    [&MEMORY, &DISK, &PID].into_iter().filter_map(of).collect()
}

fn addresses(config: &crate::Config) -> Value {
    let of = |type_: &'static str| {
        move |ip: &std::net::IpAddr| {
            json!({"type": type_,
        "address": ip.to_string()})
        }
    };
    let mut out: Vec<Value> = config.node_ips().iter().map(of("InternalIP")).collect();
    if !config.external_cloud {
        out.extend(config.external_ips.iter().map(of("ExternalIP")));
    }
    out.push(json!({"type": "Hostname", "address": config.hostname}));
    if !config.external_cloud {
        let of = |type_: &'static str| move |name: &String| json!({"type": type_, "address": name});
        out.extend(config.internal_dns.iter().map(of("InternalDNS")));
        out.extend(config.external_dns.iter().map(of("ExternalDNS")));
    }
    // Merging by type would lose the second address of a type.
    out.push(json!({"$patch": "replace"}));
    Value::Array(out)
}

async fn images(runtime: &RuntimeHandles) -> Value {
    let mut images = runtime.cri.images().await.unwrap_or_default();
    images.compact_sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    images
        .into_iter()
        .take(IMAGES_MAX)
        .map(|image| {
            let mut names: Vec<String> =
                image.repo_digests.into_iter().chain(image.repo_tags).collect();
            names.truncate(NAMES_MAX);
            json!({"names": names, "sizeBytes": image.size})
        })
        .collect()
}

/// Leaves the addresses of a node to the cloud controller once it has any, as upstream's kubelet
/// does.
pub(super) fn leave_addresses(status: &mut Value, before: Option<&core::NodeStatus>) {
    let addresses = before.and_then(|status| status.addresses.as_ref());
    if addresses.is_some_and(|addresses| !addresses.is_empty())
        && let Some(status) = status.as_object_mut()
    {
        status.remove("addresses");
    }
}

/// Whether another component set the condition `Ready` to unknown.
pub(super) fn is_unknown(status: Option<&core::NodeStatus>) -> bool {
    let conditions = status.and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "Unknown")
}

/// Returns the reason of an event if the condition `Ready` changed.
pub(super) fn readiness_event(before: &core::NodeStatus, ready: bool) -> Option<&'static str> {
    let condition = before.conditions.iter().flatten().find(|c| c.type_ == "Ready");
    match (condition.map(|c| c.status.as_str()), ready) {
        (Some("True"), true) | (Some("False") | None, false) => None,
        (_, true) => Some(events::NODE_READY),
        (Some(_), false) => Some(events::NODE_NOT_READY),
    }
}

/// Returns the message of an event if the machine rebooted since the node's last status.
pub(super) fn reboot(before: &core::NodeStatus, node: &str, boot_id: &str) -> Option<String> {
    let last = before.node_info.as_ref().map(|info| info.boot_id.as_str()).unwrap_or_default();
    (!last.is_empty() && last != boot_id)
        .then(|| format!("Node {node} has been rebooted, boot id: {boot_id}"))
}

/// Adds heartbeat and transition times to the conditions.
pub(super) fn with_times(status: &Value, before: &core::NodeStatus) -> Value {
    let mut out = status.clone();
    let now = jiff::Timestamp::from_second(
        i64::try_from(base::clock::unix_time().as_secs()).unwrap_or_default(),
    )
    .map(|t| t.to_string())
    .unwrap_or_default();
    for condition in out["conditions"].as_array_mut().into_iter().flatten() {
        let same = before
            .conditions
            .iter()
            .flatten()
            .find(|c| condition["type"] == *c.type_ && condition["status"] == *c.status);
        let since = same.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0.to_string());
        condition["lastHeartbeatTime"] = now.clone().into();
        condition["lastTransitionTime"] = since.unwrap_or_else(|| now.clone()).into();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: Value) -> core::NodeStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_change_of_readiness_is_an_event() {
        let with =
            |ready: &str| status(json!({"conditions": [{"type": "Ready", "status": ready}]}));
        let new = status(json!({}));
        for (before, ready, expected) in [
            (&with("True"), true, None),
            (&with("False"), false, None),
            (&with("False"), true, Some("NodeReady")),
            (&with("Unknown"), true, Some("NodeReady")),
            (&with("True"), false, Some("NodeNotReady")),
            (&with("Unknown"), false, Some("NodeNotReady")),
            (&new, true, Some("NodeReady")),
            (&new, false, None),
        ] {
            assert_eq!(readiness_event(before, ready), expected, "{before:?} {ready}");
        }
    }

    #[test]
    fn a_change_of_pressure_is_an_event() {
        let written = json!({"conditions": [MEMORY.condition(false), DISK.condition(true)]});
        let events = |conditions: Value| {
            pressure_events(&status(json!({"conditions": conditions})), &written)
        };
        let new = ["NodeHasSufficientMemory", "NodeHasDiskPressure"];
        assert_eq!(events(json!([])), new, "a new node");
        assert_eq!(events(written["conditions"].clone()), [""; 0]);
        assert_eq!(
            events(json!([{"type": "MemoryPressure", "status": "Unknown"},
                {"type": "DiskPressure", "status": "False"}])),
            new
        );
        assert_eq!(PID.condition(true)["message"], "kubelet has insufficient PID available");
    }

    #[test]
    fn addresses_have_the_types_of_the_flags() {
        let ip = |text: &str| text.parse().unwrap();
        let mut config = crate::Config::new("n", ip("192.0.2.1"), "/d".into(), "/r".into());
        config.external_ips = vec![ip("203.0.113.1"), ip("2001:db8::1")];
        config.internal_dns = vec!["n.internal".into()];
        config.external_dns = vec!["n.example.com".into()];
        let types = |config: &crate::Config| {
            let list = addresses(config);
            let list = list.as_array().unwrap().iter();
            let texts = list.filter_map(|a| Some((a.get("type")?.clone(), a["address"].clone())));
            let texts =
                texts.map(|(t, a)| format!("{} {}", t.as_str().unwrap(), a.as_str().unwrap()));
            texts.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(
            types(&config),
            "InternalIP 192.0.2.1, ExternalIP 203.0.113.1, ExternalIP 2001:db8::1, Hostname n, \
             InternalDNS n.internal, ExternalDNS n.example.com"
        );
        config.external_cloud = true;
        assert_eq!(types(&config), "InternalIP 192.0.2.1, Hostname n");
        let mut own = json!({"addresses": addresses(&config), "x": 1});
        leave_addresses(&mut own, Some(&status(json!({}))));
        assert!(own.get("addresses").is_some());
        let known = status(json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}));
        leave_addresses(&mut own, Some(&known));
        assert_eq!(own, json!({"x": 1}));
    }

    #[test]
    fn a_reboot_is_detected_by_the_boot_id() {
        let info = |boot: &str| {
            status(json!({"nodeInfo": {"bootID": boot, "architecture": "",
                    "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                "operatingSystem": "", "osImage": "", "systemUUID": ""}}))
        };
        assert_eq!(reboot(&info("a"), "n", "a"), None);
        assert_eq!(reboot(&status(json!({})), "n", "a"), None, "its first start");
        assert_eq!(reboot(&info(""), "n", "a"), None);
        let message = "Node n has been rebooted, boot id: b";
        assert_eq!(reboot(&info("a"), "n", "b").as_deref(), Some(message));
    }

    #[test]
    fn a_network_that_is_not_ready_is_the_only_problem() {
        let condition = |r#type: &str, status| cri::RuntimeCondition {
            r#type: r#type.to_owned(),
            status,
            reason: "R".to_owned(),
            message: "M".to_owned(),
        };
        let answer = |network| {
            let conditions =
                vec![condition("RuntimeReady", false), condition("NetworkReady", network)];
            let status = Some(cri::RuntimeStatus { conditions });
            Ok(cri::StatusResponse { status, ..cri::StatusResponse::default() })
        };
        let text = "container runtime network not ready: NetworkReady=false reason:R message:M";
        assert_eq!(network_problem(&answer(false)).as_deref(), Some(text));
        assert_eq!(network_problem(&answer(true)), None);
    }
}
