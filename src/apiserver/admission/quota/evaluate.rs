//! The usage of objects, and the quota resources and scopes that apply to them.

use api::quantity::Quantity;
use api::value::{at, get, has, int_at, is_empty, items, str_at, str_in};
use api::{Gvr, value};
use serde_json::Value;
use sorting::CompactSort as _;

use super::super::pod_resources::{Amounts, amounts, pod_level};
use super::super::{Operation, Request};
use super::device_claims::ClaimContext;
use super::pod_usage::pod_usage;
use super::selectors;

/// How the usage of a resource is calculated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evaluator {
    /// CPU, memory, storage and number of pods.
    Pods,
    /// Number, node ports and load balancers.
    Services,
    /// Number and requested storage, also per class.
    Claims,
    /// Number of ResourceClaims, devices per class, and extended resources that these serve.
    DeviceClaims,
    /// Number only.
    Count,
}

impl Evaluator {
    /// The evaluator of a resource.
    pub fn of(gvr: &Gvr) -> Self {
        match (&*gvr.group, &*gvr.resource) {
            ("", "pods") => Self::Pods,
            ("", "services") => Self::Services,
            ("", "persistentvolumeclaims") => Self::Claims,
            ("resource.k8s.io", "resourceclaims") => Self::DeviceClaims,
            _ => Self::Count,
        }
    }

    /// The evaluator, if this request can change the usage.
    pub(super) fn for_request(request: &Request<'_>, object: &Value) -> Option<Self> {
        let evaluator = Self::of(request.gvr);
        let (create, update) =
            (request.operation == Operation::Create, request.operation == Operation::Update);
        let handles = match (evaluator, request.subresource) {
            (Self::Pods, "") => {
                create
                    || update
                        && request.old.is_some_and(|old| terminating(old) != terminating(object))
            }
            (Self::Pods, "resize") => update,
            (Self::Services | Self::Claims | Self::DeviceClaims, "") => create || update,
            (Self::Claims, "status") => {
                update && request.old.is_some_and(|old| allocated(old) != allocated(object))
            }
            (Self::Count, "") => create,
            _ => false,
        };
        handles.then_some(evaluator)
    }
}

fn allocated(claim: &Value) -> &Value {
    at(claim, &["status", "allocatedResources", "storage"])
}

/// `count/deployments.apps`.
fn count_name(gvr: &Gvr) -> String {
    format!("count/{}", api::status::qualified(&gvr.group, &gvr.resource))
}

/// The legacy short name of a count, if any.
fn alias(gvr: &Gvr) -> Option<&str> {
    let known = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];
    (gvr.group.is_empty() && known.contains(&&*gvr.resource)).then_some(&*gvr.resource)
}

const CLASS: &str = ".storageclass.storage.k8s.io/";

/// Whether objects of this resource use the quota resource `name`.
pub(super) fn matching(
    evaluator: Evaluator,
    gvr: &Gvr,
    name: &str,
    claims: &ClaimContext<'_>,
) -> bool {
    if name
        .strip_prefix("count/")
        .is_some_and(|rest| rest == api::status::qualified(&gvr.group, &gvr.resource))
    {
        return true;
    }
    match evaluator {
        Evaluator::Pods => {
            let bare = name
                .strip_prefix("requests.")
                .or_else(|| name.strip_prefix("limits."))
                .unwrap_or(name);
            let native = !name.contains('/') || name.contains("kubernetes.io/");
            let device = name.starts_with("requests.deviceclass.resource.kubernetes.io/");
            name == "pods"
                || matches!(bare, "cpu" | "memory" | "ephemeral-storage")
                || bare.starts_with("hugepages-") && !name.starts_with("limits.")
                || name.starts_with("requests.") && (!native || device)
        }
        Evaluator::Services => {
            matches!(name, "services" | "services.nodeports" | "services.loadbalancers")
        }
        Evaluator::Claims => {
            let bare = name.split_once(CLASS).map_or(name, |(_, bare)| bare);
            matches!(bare, "persistentvolumeclaims" | "requests.storage")
        }
        Evaluator::DeviceClaims => claims.matches(name),
        Evaluator::Count => alias(gvr) == Some(name),
    }
}

/// The usage of one object.
pub(super) fn usage(
    evaluator: Evaluator,
    gvr: &Gvr,
    object: &Value,
    claims: &ClaimContext<'_>,
) -> Amounts {
    let mut used = Amounts::from([(count_name(gvr), Quantity::units(1))]);
    match evaluator {
        Evaluator::Pods => pod_usage(object, &mut used),
        Evaluator::Services => service_usage(object, &mut used),
        Evaluator::Claims => claim_usage(object, &mut used),
        Evaluator::DeviceClaims => claims.usage(object, &mut used),
        Evaluator::Count => {
            used.extend(alias(gvr).map(|name| (name.to_owned(), Quantity::units(1))))
        }
    }
    used
}

fn service_usage(service: &Value, used: &mut Amounts) {
    let spec = get(service, "spec");
    let ports = items(spec, "ports");
    let number = |count: usize| Quantity::units(i64::try_from(count).unwrap_or(i64::MAX));
    let (nodeports, balancers) = match str_at(spec, "type") {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" if get(spec, "allocateLoadBalancerNodePorts") == &Value::Bool(false) => {
            (ports.iter().filter(|p| int_at(p, "nodePort").unwrap_or_default() != 0).count(), 1)
        }
        "LoadBalancer" => (ports.len(), 1),
        _ => (0, 0),
    };
    used.insert("services".into(), Quantity::units(1));
    used.insert("services.nodeports".into(), number(nodeports));
    used.insert("services.loadbalancers".into(), number(balancers));
}

fn claim_usage(claim: &Value, used: &mut Amounts) {
    let annotated =
        str_in(claim, &["metadata", "annotations", "volume.beta.kubernetes.io/storage-class"]);
    let class =
        if annotated.is_empty() { str_in(claim, &["spec", "storageClassName"]) } else { annotated };
    let mut charge = |name: &str, amount: Quantity| {
        used.insert(name.to_owned(), amount);
        if !class.is_empty() {
            used.insert(format!("{class}{CLASS}{name}"), amount);
        }
    };
    charge("persistentvolumeclaims", Quantity::units(1));
    let requested =
        Quantity::from_value(at(claim, &["spec", "resources", "requests", "storage"])).ok();
    let allocated = Quantity::from_value(allocated(claim)).ok();
    if let Some(requested) = requested {
        charge(
            "requests.storage",
            allocated.map_or(requested, |allocated| allocated.max(requested)),
        );
    }
}

/// Containers do not set resources that the quota limits. The message is upstream's.
#[derive(Debug, thiserror::Error)]
#[error("must specify {}", .0.join("; "))]
pub(super) struct MissingResources(Vec<String>);

/// Checks that containers set the resources that the quota limits; applies to CPU and memory only,
/// and not to pods with pod-level resources.
pub(super) fn constraints(
    evaluator: Evaluator,
    names: &[&str],
    object: &Value,
) -> Result<(), MissingResources> {
    let spec = get(object, "spec");
    if evaluator != Evaluator::Pods || pod_level(spec) {
        return Ok(());
    }
    let mut missing: Vec<String> = Vec::new();
    let mut sorted = names.to_vec();
    sorted.compact_sort();
    for name in
        sorted.into_iter().filter(|n| matches!(n.rsplit('.').next(), Some("cpu" | "memory")))
    {
        let (field, resource) = name.split_once('.').unwrap_or(("requests", name));
        let lacks = |c: &&Value| !has(get(get(c, "resources"), field), resource);
        let mut bad: Vec<&str> = items(spec, "containers")
            .iter()
            .chain(items(spec, "initContainers"))
            .filter(lacks)
            .map(|c| str_at(c, "name"))
            .collect();
        bad.compact_sort();
        bad.dedup();
        if !bad.is_empty() {
            missing.push(format!("{name} for: {}", bad.join(",")));
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(MissingResources(missing)) }
}

fn terminating(pod: &Value) -> bool {
    int_at(get(pod, "spec"), "activeDeadlineSeconds").is_some_and(|seconds| seconds >= 0)
}

/// Whether no container requests or limits CPU or memory.
fn best_effort(pod: &Value) -> bool {
    let spec = get(pod, "spec");
    let asks = |resources: &Value| {
        ["requests", "limits"].iter().any(|side| {
            amounts(resources, side)
                .iter()
                .any(|(name, q)| matches!(name.as_str(), "cpu" | "memory") && !q.is_zero())
        })
    };
    let containers = items(spec, "containers").iter().chain(items(spec, "initContainers"));
    !asks(get(spec, "resources")) && !containers.map(|c| get(c, "resources")).any(asks)
}

fn crosses_namespaces(pod: &Value) -> bool {
    let affinity = at(pod, &["spec", "affinity"]);
    ["podAffinity", "podAntiAffinity"].iter().map(|kind| get(affinity, kind)).any(|rules| {
        let hard = items(rules, "requiredDuringSchedulingIgnoredDuringExecution").iter();
        let soft = items(rules, "preferredDuringSchedulingIgnoredDuringExecution")
            .iter()
            .map(|w| get(w, "podAffinityTerm"));
        hard.chain(soft).any(|term| !is_empty(term, "namespaces") || has(term, "namespaceSelector"))
    })
}

/// Evaluates `Exists`, `DoesNotExist`, `In` and `NotIn` for the names that an object has.
fn selected(operator: &str, values: &[Value], names: &[&str]) -> bool {
    let listed = || names.iter().any(|name| values.iter().any(|v| v == name));
    match operator {
        "Exists" => !names.is_empty(),
        "DoesNotExist" => names.is_empty(),
        "In" => listed(),
        "NotIn" => names.is_empty() || !listed(),
        _ => false,
    }
}

/// Whether the object matches every scope of the quota.
pub(super) fn scopes_match(evaluator: Evaluator, quota: &Value, object: &Value) -> bool {
    selectors(quota).all(|(scope, operator, values)| match (evaluator, scope) {
        (Evaluator::Pods, "Terminating") => terminating(object),
        (Evaluator::Pods, "NotTerminating") => !terminating(object),
        (Evaluator::Pods, "BestEffort") => best_effort(object),
        (Evaluator::Pods, "NotBestEffort") => !best_effort(object),
        (Evaluator::Pods, "CrossNamespacePodAffinity") => crosses_namespaces(object),
        (Evaluator::Pods, "PriorityClass") => {
            let class = str_in(object, &["spec", "priorityClassName"]);
            selected(
                operator,
                values,
                if class.is_empty() { &[] } else { std::slice::from_ref(&class) },
            )
        }
        (Evaluator::Claims, "VolumeAttributesClass") => {
            let paths: [&[&str]; 3] = [
                &["spec", "volumeAttributesClassName"],
                &["status", "currentVolumeAttributesClassName"],
                &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
            ];
            let names: Vec<&str> = paths
                .iter()
                .map(|path| value::str_in(object, path))
                .filter(|n| !n.is_empty())
                .collect();
            selected(operator, values, &names)
        }
        _ => false,
    })
}
