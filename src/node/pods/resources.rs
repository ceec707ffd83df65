//! Requests and limits in the units of the kernel: shares, quotas, bytes, scores.

mod allocated;
mod memory_control;

use std::collections::BTreeMap;

use api::Quantity;
use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::api::resource::Quantity as Text;
use api::validation::names::qualified_name;
use proto::runtime::v1 as cri;
use sorting::CollectOrdered as _;

use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::priority;
pub(crate) use allocated::AllocatedResources;
pub(crate) use memory_control::{ClassRequests, Hierarchy, MemoryControl, Setting};

/// Length of a CFS period in microseconds (`cm.QuotaPeriod`).
pub(crate) const CPU_PERIOD: i64 = 100_000;
/// Minimum quota in microseconds (`cm.MinQuotaPeriod`).
const CPU_QUOTA_MIN: i64 = 1_000;
const SHARES_MIN: i64 = 2;
const SHARES_MAX: i64 = 262_144;

/// Quality-of-service class of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    /// The name in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

type List = BTreeMap<String, Text>;

fn parse(text: &Text) -> Quantity {
    Quantity::parse(&text.0).unwrap_or_else(|_| Quantity::from_int(0))
}

/// Returns a limit or request by name; `None` if it is not set.
fn get(list: Option<&List>, name: &str) -> Option<Quantity> {
    list.and_then(|l| l.get(name)).map(parse)
}

fn limits(c: &core::Container) -> Option<&List> {
    c.resources.as_ref().and_then(|r| r.limits.as_ref())
}

fn requests(c: &core::Container) -> Option<&List> {
    c.resources.as_ref().and_then(|r| r.requests.as_ref())
}

/// CPU shares of cgroup v1 for thousandths of a core.
pub(crate) fn shares(milli: i64) -> i64 {
    if milli == 0 {
        SHARES_MIN
    } else {
        (milli.saturating_mul(1024) / 1000).clamp(SHARES_MIN, SHARES_MAX)
    }
}

/// CFS quota for thousandths of a core; zero means no limit.
pub(crate) fn quota(milli: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(CPU_PERIOD) / 1000).max(CPU_QUOTA_MIN) }
}

/// Returns the pod's class, by the rules of `pkg/apis/core/v1/helper/qos`.
pub(crate) fn qos(pod: &Pod) -> Qos {
    let mut any = false;
    let mut guaranteed = true;
    let pod_level = pod.spec().resources.as_ref();
    let lists: Vec<(Option<&List>, Option<&List>)> = match pod_level {
        Some(r) if r.limits.is_some() || r.requests.is_some() => {
            vec![(r.limits.as_ref(), r.requests.as_ref())]
        }
        _ => pod
            .containers
            .iter()
            .filter(|m| m.role != ContainerRole::Ephemeral)
            .map(|m| (limits(&m.container), requests(&m.container)))
            .collect(),
    };
    for (limits, requests) in lists {
        for name in ["cpu", "memory"] {
            let limit = get(limits, name).filter(|q| !q.is_zero());
            let request = get(requests, name).filter(|q| !q.is_zero()).or(limit);
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && limit == request;
        }
    }
    match (any, guaranteed) {
        (false, _) => Qos::BestEffort,
        (true, true) => Qos::Guaranteed,
        (true, false) => Qos::Burstable,
    }
}

/// Resources of a whole pod: the maximum of its running containers and its largest init phase, plus
/// overhead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PodAmount {
    pub(crate) cpu_milli: i64,
    pub(crate) memory: i64,
    /// Whether each running container has a limit; only meaningful for limits.
    pub(crate) cpu_complete: bool,
    pub(crate) memory_complete: bool,
}

fn amount(
    pod: &Pod,
    of: impl Fn(&core::Container) -> Option<Quantity>,
    pod_level: Option<Quantity>,
) -> (Quantity, bool) {
    let zero = Quantity::from_int(0);
    if let Some(set) = pod_level {
        return (set, true);
    }
    let mut running = zero;
    let mut sidecars = zero;
    let mut largest_init = zero;
    let mut complete = true;
    for member in &pod.containers {
        let value = of(&member.container);
        let set = value.is_some_and(|q| !q.is_zero());
        let value = value.unwrap_or(zero);
        match member.role {
            ContainerRole::Main => {
                running = running.plus(value);
                complete &= set;
            }
            ContainerRole::Sidecar => {
                sidecars = sidecars.plus(value);
                complete &= set;
                largest_init = largest_init.max(sidecars);
            }
            ContainerRole::Init => largest_init = largest_init.max(value.plus(sidecars)),
            ContainerRole::Ephemeral => {}
        }
    }
    (running.plus(sidecars).max(largest_init), complete)
}

/// What the RuntimeClass of a pod takes besides its containers.
fn overhead(pod: &Pod, name: &str) -> Quantity {
    get(pod.spec().overhead.as_ref(), name).unwrap_or_default()
}

/// Returns the request of a pod without its overhead.
fn request_of_containers(pod: &Pod, name: &str) -> Quantity {
    let level = pod.spec().resources.as_ref().and_then(|r| r.requests.as_ref());
    amount(pod, |c| container_request(c, name), get(level, name)).0
}

/// Returns the limit of a pod, with overhead if there is one, and whether it is complete.
fn limit_of_pod(pod: &Pod, name: &str, level: Option<Quantity>) -> (Quantity, bool) {
    let (limit, complete) = amount(pod, |c| get(limits(c), name), level);
    let limit = if limit.is_zero() { limit } else { limit.plus(overhead(pod, name)) };
    (limit, complete)
}

/// Returns the request of a container for a resource; a limit replaces a missing request.
pub(crate) fn container_request(c: &core::Container, name: &str) -> Option<Quantity> {
    get(requests(c), name).or_else(|| get(limits(c), name))
}

/// Returns the limit of a container on a resource.
pub(crate) fn container_limit(c: &core::Container, name: &str) -> Option<Quantity> {
    get(limits(c), name)
}

/// Returns the requests of a container for memory and huge pages by name; a limit replaces a
/// missing request.
pub(crate) fn memory_requests(c: &core::Container) -> BTreeMap<String, Quantity> {
    let names = requests(c).into_iter().chain(limits(c)).flat_map(BTreeMap::keys);
    let names = names.filter(|name| *name == "memory" || name.starts_with(HUGE_PAGES));
    names.filter_map(|name| Some((name.clone(), container_request(c, name)?))).collect()
}

/// Whether a pod sets resources for all its containers together.
pub(crate) fn has_pod_level(pod: &Pod) -> bool {
    let level = pod.spec().resources.as_ref();
    let is_set = |list: &Option<List>| list.as_ref().is_some_and(|list| !list.is_empty());
    level.is_some_and(|level| is_set(&level.limits) || is_set(&level.requests))
}

/// Whether a pod limits a resource of all its containers together.
fn has_level_limit(pod: &Pod, name: &str) -> bool {
    let level = pod.spec().resources.as_ref().and_then(|r| r.limits.as_ref());
    get(level, name).is_some_and(|limit| !limit.is_zero())
}

/// Returns the requests; a limit replaces a missing request.
pub(crate) fn pod_requests(pod: &Pod) -> PodAmount {
    PodAmount {
        cpu_milli: pod_request(pod, "cpu").milli_value(),
        memory: pod_request(pod, "memory").value(),
        ..PodAmount::default()
    }
}

/// Returns the request of the whole pod for a resource, in units.
pub(crate) fn pod_request(pod: &Pod, name: &str) -> Quantity {
    request_of_containers(pod, name).plus(overhead(pod, name))
}

/// Whether a container of the pod limits a resource.
pub(crate) fn has_limit(pod: &Pod, name: &str) -> bool {
    let of = |m: &&PodContainer| m.role != ContainerRole::Ephemeral;
    pod.containers.iter().filter(of).any(|m| get(limits(&m.container), name).is_some())
}

/// Returns the limit of all containers together on a resource that cannot be limited for the whole
/// pod (`AggregateContainerLimits`); `None` if no container limits it.
pub(crate) fn pod_limit(pod: &Pod, name: &str) -> Option<Quantity> {
    has_limit(pod, name).then(|| limit_of_pod(pod, name, None).0)
}

/// Returns the names of all resources that a pod requests or limits.
pub(crate) fn pod_resource_names(pod: &Pod) -> std::collections::BTreeSet<String> {
    let of = |c: &PodContainer| {
        requests(&c.container)
            .into_iter()
            .chain(limits(&c.container))
            .flat_map(|l| l.keys().cloned())
            .collect::<Vec<_>>()
    };
    let level = pod.spec().resources.as_ref();
    let level = level.into_iter().flat_map(|r| r.requests.iter().chain(&r.limits));
    pod.containers.iter().flat_map(of).chain(level.flat_map(|l| l.keys().cloned())).collect()
}

/// Whether a resource is an extended one (`IsExtendedResourceName`): it has a valid name outside of
/// Kubernetes' domains.
pub(crate) fn is_extended(name: &str) -> bool {
    name.contains('/')
        && !name.contains("kubernetes.io/")
        && !name.starts_with("requests.")
        && qualified_name(&format!("requests.{name}")).is_empty()
}

/// Returns the extended resources that a container limits, in whole units. Their requests are
/// equal to their limits.
pub(crate) fn extended_limits(c: &core::Container) -> BTreeMap<&str, i64> {
    let all = limits(c).into_iter().flatten();
    all.filter(|(name, _)| is_extended(name))
        .map(|(n, q)| (n.as_str(), parse(q).value()))
        .collect_map()
}

/// Prefix of huge page resources; the page size follows.
const HUGE_PAGES: &str = "hugepages-";

/// The resource name of a page size, such as `hugepages-2Mi`.
pub(crate) fn huge_page_resource(size: i64) -> String {
    format!("{HUGE_PAGES}{}", Quantity::bytes(size))
}

/// Whether a resource is huge pages of one size.
pub(crate) fn is_huge_pages(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

/// The page size in the file names of the kernel's `hugetlb` controller, such as `2MB`.
pub(crate) fn huge_page_unit(size: i64) -> String {
    match size {
        s if s >= 1 << 30 => format!("{}GB", s >> 30),
        s if s >= 1 << 20 => format!("{}MB", s >> 20),
        s => format!("{}KB", s >> 10),
    }
}

/// The page sizes in bytes of the huge pages that a pod or its containers request.
pub(crate) fn huge_page_sizes(pod: &Pod) -> std::collections::BTreeSet<i64> {
    let names = pod_resource_names(pod).into_iter();
    let sizes = names.filter_map(|name| Quantity::parse(name.strip_prefix(HUGE_PAGES)?).ok());
    sizes.map(|size| size.value()).collect()
}

/// Bytes of huge pages of a size in a list.
fn huge_pages_in(list: Option<&List>, size: i64) -> Option<i64> {
    let of_size = |name: &str| {
        let page = name.strip_prefix(HUGE_PAGES).and_then(|p| Quantity::parse(p).ok());
        page.is_some_and(|p| p.value() == size)
    };
    list?.iter().find(|(name, _)| of_size(name)).map(|(_, amount)| parse(amount).value())
}

/// Limits of a container for each page size of the kernel: its own, else the pod's, else zero
/// (`GetHugepageLimitsFromResources`).
pub(crate) fn huge_page_limits(
    pod: &Pod,
    member: &PodContainer,
    sizes: &[i64],
) -> Vec<cri::HugepageLimit> {
    let level = pod.spec().resources.as_ref().and_then(|r| r.limits.as_ref());
    let limit = |size: i64| {
        let own = huge_pages_in(limits(&member.container), size);
        own.or_else(|| huge_pages_in(level, size)).unwrap_or(0)
    };
    let of = |size: &i64| cri::HugepageLimit {
        page_size: huge_page_unit(*size),
        limit: u64::try_from(limit(*size)).unwrap_or_default(),
    };
    sizes.iter().map(of).collect()
}

/// Returns the limits.
pub(crate) fn pod_limits(pod: &Pod) -> PodAmount {
    let level = pod.spec().resources.as_ref().and_then(|r| r.limits.as_ref());
    let of = |name| limit_of_pod(pod, name, get(level, name));
    let ((cpu, cpu_complete), (memory, memory_complete)) = (of("cpu"), of("memory"));
    PodAmount {
        cpu_milli: cpu.milli_value(),
        memory: memory.value(),
        cpu_complete,
        memory_complete,
    }
}

/// `oom_score_adj` of a container, by the formula of `pkg/kubelet/qos`.
pub(crate) fn oom_score(pod: &Pod, member: &PodContainer, capacity: i64) -> i64 {
    if pod.spec().priority.is_some_and(|p| p >= priority::NODE_CRITICAL) {
        return -997;
    }
    match qos(pod) {
        Qos::Guaranteed => return -997,
        Qos::BestEffort => return 1000,
        Qos::Burstable => {}
    }
    let request = |m: &PodContainer| {
        get(requests(&m.container), "memory")
            .or_else(|| get(limits(&m.container), "memory"))
            .map_or(0, |q| q.value())
    };
    let capacity = capacity.max(1);
    let score = |bytes: i64| {
        1000 - i64::try_from(i128::from(bytes) * 1000 / i128::from(capacity)).unwrap_or(1000)
    };
    let mut adjust = score(request(member));
    if member.role == ContainerRole::Sidecar {
        let least = pod.with_role(ContainerRole::Main).map(request).min().unwrap_or(0);
        adjust = adjust.min(score(least));
    }
    // Keep the score above guaranteed pods and below best-effort ones.
    if adjust < 3 {
        return 3;
    }
    if adjust == 1000 { 999 } else { adjust }
}

/// Returns the resources of a container for the runtime.
pub(crate) fn linux(
    pod: &Pod,
    member: &PodContainer,
    memory: &MemoryControl,
) -> cri::LinuxContainerResources {
    let c = &member.container;
    let level = pod.spec().resources.as_ref().and_then(|r| r.limits.as_ref());
    let limit =
        |name: &str| get(limits(c), name).filter(|q| !q.is_zero()).or_else(|| get(level, name));
    let cpu_limit = limit("cpu").map_or(0, |q| q.milli_value());
    let cpu_request = get(requests(c), "cpu").map_or(cpu_limit, |q| q.milli_value());
    let memory_limit = limit("memory").map_or(0, |q| q.value());
    let unified = memory.of_container(pod, member).into_iter();
    cri::LinuxContainerResources {
        cpu_period: CPU_PERIOD,
        cpu_quota: quota(cpu_limit),
        cpu_shares: shares(cpu_request),
        memory_limit_in_bytes: memory_limit,
        memory_swap_limit_in_bytes: memory.memory_and_swap_limit(memory_limit),
        oom_score_adj: oom_score(pod, member, memory.capacity),
        unified: unified.map(|(file, value)| (file.to_owned(), value)).collect(),
        ..cri::LinuxContainerResources::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn qos_classes_depend_on_limits_and_requests() {
        let class =
            |resources| qos(&pod(json!({"containers": [{"name": "a", "resources": resources}]})));
        assert_eq!(class(json!({})), Qos::BestEffort);
        assert_eq!(class(json!({"requests": {"cpu": "1"}})), Qos::Burstable);
        assert_eq!(class(json!({"limits": {"cpu": "1", "memory": "1Gi"}})), Qos::Guaranteed);
        assert_eq!(
            class(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})),
            Qos::Burstable
        );
    }

    #[test]
    fn huge_pages_without_a_limit_are_limited_to_zero() {
        let p = pod(json!({
            "containers": [
                {"name": "a", "resources": {"limits": {"hugepages-2Mi": "4Mi"}}},
                {"name": "b"},
            ],
            "resources": {"limits": {"hugepages-1Gi": "2Gi", "hugepages-2Mi": "8Mi"}},
        }));
        let limits = |at: usize| -> Vec<(String, u64)> {
            let limits = huge_page_limits(&p, &p.containers[at], &[64 << 10, 2 << 20, 1 << 30]);
            limits.into_iter().map(|l| (l.page_size, l.limit)).collect()
        };
        let of = |name: &str, limit| (name.to_owned(), limit);
        assert_eq!(limits(0), [of("64KB", 0), of("2MB", 4 << 20), of("1GB", 2 << 30)]);
        assert_eq!(limits(1), [of("64KB", 0), of("2MB", 8 << 20), of("1GB", 2 << 30)]);
        let names = [64 << 10, 2 << 20, 1 << 30].map(huge_page_resource);
        assert_eq!(names, ["hugepages-64Ki", "hugepages-2Mi", "hugepages-1Gi"]);
        let names = pod_resource_names(&p);
        assert!(names.contains("hugepages-1Gi") && names.contains("hugepages-2Mi"));
    }

    #[test]
    fn extended_resources_have_a_domain_that_is_not_of_kubernetes() {
        for name in ["example.com/foo", "nvidia.com/gpu", "a.b/c_D.1"] {
            assert!(is_extended(name), "{name}");
        }
        for name in [
            "cpu",
            "example.com",
            "kubernetes.io/foo",
            "node.kubernetes.io/foo",
            "requests.example.com/foo",
            "/foo",
            "example.com/",
            "example.com/a/b",
            "EX_.com/foo",
        ] {
            assert!(!is_extended(name), "{name}");
        }
        let container = json!({"name": "a", "resources": {"limits":
            {"cpu": "1", "example.com/foo": "2", "example.com/bar": "1500m"}}});
        let container = serde_json::from_value(container).unwrap();
        let limits = extended_limits(&container);
        assert_eq!(limits, BTreeMap::from([("example.com/bar", 2), ("example.com/foo", 2)]));
    }

    #[test]
    fn kernel_units_are_those_of_upstream() {
        assert_eq!((shares(0), shares(1), shares(1000), shares(10_000_000)), (2, 2, 1024, 262_144));
        assert_eq!((quota(0), quota(5), quota(500)), (0, 1000, 50_000));
        let p = pod(json!({
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "3"}}}],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
            "overhead": {"cpu": "100m"},
        }));
        let amount = pod_requests(&p);
        assert_eq!((amount.cpu_milli, amount.memory), (3100, 1 << 30));
        assert_eq!(oom_score(&p, &p.containers[1], 4 << 30), 750);
    }
}
