//! Requests and limits of a whole pod as they are in its status: what is allocated to it, and what
//! its group has.

use std::collections::BTreeMap;

use api::Quantity;
use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::api::resource::Quantity as Text;

use crate::cgroups::{PodGroupConfig, are_equal_shares};
use crate::pods::pod::{ContainerRole, Pod};
use crate::pods::resources::{self, CPU_PERIOD};

type List = BTreeMap<String, Text>;

/// Shares and thousandths of a core at which a request counts as the kernel's minimum
/// (`cm.MinShares`).
const REQUEST_MIN: i64 = 2;
/// Thousandths of a core at which a limit counts as the kernel's minimum (`cm.MinMilliCPULimit`).
const LIMIT_MIN: i64 = 10;

/// Which amounts of a list of resources are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Amounts {
    Requests,
    Limits,
}

impl Amounts {
    fn of(self, resources: Option<&core::ResourceRequirements>) -> Option<&List> {
        let resources = resources?;
        match self {
            Self::Requests => resources.requests.as_ref(),
            Self::Limits => resources.limits.as_ref(),
        }
    }
}

fn parse(text: &Text) -> Quantity {
    Quantity::parse(&text.0).unwrap_or_default()
}

fn get(list: Option<&List>, name: &str) -> Option<Quantity> {
    list.and_then(|list| list.get(name)).map(parse)
}

/// Whether a pod can set a resource for all its containers together
/// (`IsSupportedPodLevelResource`).
fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || resources::is_huge_pages(name)
}

/// Adds amounts; an amount that is alone keeps its text.
fn add(list: &mut List, amounts: Option<&List>) {
    for (name, text) in amounts.into_iter().flatten() {
        match list.get_mut(name) {
            Some(sum) => *sum = Text(parse(sum).plus(parse(text)).to_string()),
            None => {
                list.insert(name.clone(), text.clone());
            }
        }
    }
}

/// Raises amounts to those of another list.
fn raise(list: &mut List, amounts: &List) {
    for (name, text) in amounts {
        if get(Some(list), name).is_none_or(|amount| amount < parse(text)) {
            list.insert(name.clone(), text.clone());
        }
    }
}

/// The amounts of all containers together (`aggregateContainerResourcesByFn`).
fn of_containers(pod: &Pod, kind: Amounts) -> List {
    let (mut sum, mut sidecars, mut largest_init) = (List::new(), List::new(), List::new());
    for member in &pod.containers {
        let amounts = kind.of(member.container.resources.as_ref());
        match member.role {
            ContainerRole::Main => add(&mut sum, amounts),
            ContainerRole::Sidecar => {
                add(&mut sum, amounts);
                add(&mut sidecars, amounts);
                raise(&mut largest_init, &sidecars);
            }
            ContainerRole::Init => {
                let mut during = amounts.cloned().unwrap_or_default();
                add(&mut during, Some(&sidecars));
                raise(&mut largest_init, &during);
            }
            ContainerRole::Ephemeral => {}
        }
    }
    raise(&mut sum, &largest_init);
    sum
}

/// The amounts of a pod: those of the pod replace those of its containers; with overhead
/// (`PodRequests`, `PodLimits`).
fn of_pod(pod: &Pod, kind: Amounts) -> List {
    let mut list = of_containers(pod, kind);
    let level = kind.of(pod.spec().resources.as_ref()).into_iter().flatten();
    for (name, text) in level.filter(|(name, _)| is_pod_level(name)) {
        list.insert(name.clone(), text.clone());
    }
    let overhead = pod.spec().overhead.as_ref().into_iter().flatten();
    let counts = |name: &str| {
        kind == Amounts::Requests || get(Some(&list), name).is_some_and(|limit| !limit.is_zero())
    };
    let overhead = overhead.filter(|(name, _)| counts(name));
    let overhead: List = overhead.map(|(name, text)| (name.clone(), text.clone())).collect();
    add(&mut list, Some(&overhead));
    list
}

/// The requests that are allocated to a pod: `status.allocatedResources`.
pub(crate) fn allocated_requests(pod: &Pod) -> List {
    of_pod(pod, Amounts::Requests)
}

/// The requests and limits that are allocated to a pod (`getEffectiveAllocatedResources`).
fn allocated(pod: &Pod) -> core::ResourceRequirements {
    core::ResourceRequirements {
        requests: Some(allocated_requests(pod)),
        limits: Some(of_pod(pod, Amounts::Limits)),
        ..pod.spec().resources.clone().unwrap_or_default()
    }
}

/// Sets the amount that the group has, or keeps that of the previous status if it is unknown.
fn set(list: &mut List, name: &str, has: Option<Quantity>, previous: Option<&List>) {
    match (has, previous.and_then(|list| list.get(name))) {
        (Some(has), _) if get(Some(list), name) == Some(has) => {}
        (Some(has), _) => {
            list.insert(name.to_owned(), Text(has.to_string()));
        }
        (None, Some(previous)) => {
            list.insert(name.to_owned(), previous.clone());
        }
        (None, None) => {}
    }
}

/// `status.resources` of a pod (`convertToAPIPodLevelResourcesStatus`): of a running pod what its
/// `group` has, otherwise what is allocated to it. `previous` is the status before, which counts
/// for a pod that ran already.
pub(crate) fn actual(
    pod: &Pod,
    is_running: bool,
    group: PodGroupConfig,
    previous: &core::PodStatus,
) -> core::ResourceRequirements {
    if !is_running {
        return allocated(pod);
    }
    let ran = previous.phase.as_deref() == Some("Running");
    let previous = previous.resources.as_ref().filter(|_| ran);
    let mut resources = pod.spec().resources.clone().unwrap_or_default();
    let mut requests = resources.requests.take().unwrap_or_default();
    let mut limits = resources.limits.take().unwrap_or_default();
    let milli = |list: &List| get(Some(list), "cpu").unwrap_or_default().milli_value();

    let (requested, has) = (milli(&requests), group.shares.map(milli_of_shares));
    let is_minimal = has.is_some_and(|has| has <= REQUEST_MIN && requested <= REQUEST_MIN);
    let written = group.shares.filter(|has| are_equal_shares(resources::shares(requested), *has));
    if !is_minimal && written.is_none() {
        let old = Amounts::Requests.of(previous);
        set(&mut requests, "cpu", has.map(Quantity::millis), old);
    }
    if !requests.contains_key("memory")
        && let Some(text) = allocated_requests(pod).remove("memory")
    {
        requests.insert("memory".to_owned(), text);
    }
    let has = group.quota.map(|quota| quota.saturating_mul(1000) / CPU_PERIOD);
    let old = Amounts::Limits.of(previous);
    if has.is_none_or(|has| has > LIMIT_MIN || milli(&limits) > LIMIT_MIN) {
        set(&mut limits, "cpu", has.map(Quantity::millis), old);
    }
    set(&mut limits, "memory", group.memory.map(Quantity::bytes), old);
    core::ResourceRequirements { requests: Some(requests), limits: Some(limits), ..resources }
}

/// Thousandths of a core for CPU shares (`SharesToMilliCPU`).
fn milli_of_shares(shares: i64) -> i64 {
    shares.saturating_mul(1000).saturating_add(1023) / 1024
}

/// The resources that were allocated to a pod as a whole, from its status; `None` if they are those
/// of its specification. A resize that was deferred stays so across a restart of the node.
pub(crate) fn restored(pod: &Pod) -> Option<core::ResourceRequirements> {
    let mut level = pod.spec().resources.clone()?;
    let status = pod.api_status()?;
    let overhead = pod.spec().overhead.as_ref();
    let without_overhead = |list: Option<&List>, name: &str| {
        Some(get(list, name)?.minus(get(overhead, name).unwrap_or_default()))
    };
    let has = status.allocated_resources.as_ref();
    let differs = ["cpu", "memory"].iter().any(|name| {
        let requested = get(level.requests.as_ref(), name);
        requested.is_some() && without_overhead(has, name).is_some_and(|has| Some(has) != requested)
    });
    if !differs {
        return None;
    }
    let limits = Amounts::Limits.of(status.resources.as_ref());
    for (list, of) in [(&mut level.requests, has), (&mut level.limits, limits)] {
        for (name, text) in list.iter_mut().flatten() {
            if matches!(name.as_str(), "cpu" | "memory")
                && let Some(has) = without_overhead(of, name)
            {
                *text = Text(has.to_string());
            }
        }
    }
    Some(level)
}

#[cfg(test)]
mod tests;
