//! Limits all pods together to what is allocatable, and the cgroups of the system and of Kubernetes
//! to what is reserved for them (upstream's `enforceNodeAllocatableCgroups`).

use std::collections::BTreeMap;

use api::Quantity;
use client::events::EventType;

use crate::cgroups::{Cgroups, ReservedGroupError, ReservedLimits};
use crate::config::Config;
use crate::config::enforcement::ReservedCgroup;
use crate::context::Node;
use crate::events;
use crate::machine::{Machine, ProcessCounts};
use crate::pods::resources::MemoryControl;

/// Why a group is not limited. The text is upstream's, and how to correct it.
#[derive(Debug, thiserror::Error)]
#[error("{message}; {fix}")]
pub struct EnforcementFailure {
    message: String,
    fix: String,
}

/// Creates the cgroup of all pods with the limits that follow from `allocatable`, or from what the
/// machine has if those are not enforced.
pub(super) fn set_up_cgroups(
    config: &Config,
    machine: &Machine,
    (capacity, allocatable): (&BTreeMap<String, Quantity>, &BTreeMap<String, Quantity>),
) -> std::io::Result<Cgroups> {
    let for_pods = allocatable.get("memory").map_or(0, |amount| amount.value());
    let control = MemoryControl::new(config.memory, machine, for_pods);
    let mut cgroups = Cgroups::new(&config.cgroup_root, control);
    let is_enforced = config.enforcement.pods;
    let cpu = if is_enforced { allocatable.get("cpu") } else { capacity.get("cpu") };
    // The limit of all pods together lies above the eviction threshold: pods are then evicted by
    // rank before the kernel's OOM killer picks a process.
    let reserved = |name: &str| {
        let amount = config.reserved_quantity(name).filter(|_| is_enforced);
        amount.map_or(0, |amount| amount.value())
    };
    let memory = machine.memory.saturating_sub(reserved("memory")).max(0);
    let pids = ProcessCounts::read().max.and_then(|max| i64::try_from(max).ok());
    let pids = pids.map(|max| max.saturating_sub(reserved("pid")).max(0));
    cgroups.setup(cpu.map_or(0, |cpu| cpu.milli_value()), memory, pids)?;
    Ok(cgroups)
}

/// The texts of one of the two reserved groups.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// As in the message of a failure.
    title: &'static str,
    /// As in the message of a success.
    name: &'static str,
    /// The level of `enforce-node-allocatable`, and the argument with the amounts.
    level: &'static str,
}

const SYSTEM: Group =
    Group { title: "System Reserved", name: "system reserved", level: "system-reserved" };
const KUBE: Group = Group { title: "Kube Reserved", name: "kube reserved", level: "kube-reserved" };

/// Limits the cgroups of the system and of Kubernetes that are configured, and records an event for
/// each.
///
/// # Errors
/// A group that does not exist, or whose limits cannot be set.
pub(super) async fn limit_reserved(node: &Node) -> Result<(), EnforcementFailure> {
    let config = &node.identity.config;
    for (group, cgroup, amounts) in [
        (SYSTEM, &config.enforcement.system_reserved, &config.reserved),
        (KUBE, &config.enforcement.kube_reserved, &config.kube_reserved),
    ] {
        let Some(cgroup) = cgroup else { continue };
        let limits = ReservedLimits::of(amounts, cgroup.only_compressible);
        let (cgroups, path) = (node.runtime.cgroups.clone(), cgroup.path.clone());
        let limited = base::tasks::blocking(move || cgroups.limit_reserved(&path, limits)).await;
        let limited = limited.unwrap_or_else(|error| Err(std::io::Error::other(error).into()));
        if let Err(error) = limited {
            let failure = failure(group, cgroup, &error);
            node.api.events.node_event(
                EventType::Warning,
                events::FAILED_NODE_ALLOCATABLE_ENFORCEMENT,
                failure.message.clone(),
            );
            return Err(failure);
        }
        let message = format!("Updated limits on {} cgroup {}", group.name, cgroup.path);
        node.api.events.node_event(EventType::Normal, events::NODE_ALLOCATABLE_ENFORCED, message);
    }
    Ok(())
}

fn failure(
    Group { title, level, .. }: Group,
    cgroup: &ReservedCgroup,
    error: &ReservedGroupError,
) -> EnforcementFailure {
    let ReservedCgroup { path, only_compressible } = cgroup;
    let compressible = if *only_compressible { "Compressible " } else { "" };
    let fix = match error {
        ReservedGroupError::NothingReserved(_) => {
            format!("reserve amounts with --kubelet-arg={level}=memory=256Mi,cpu=100m")
        }
        ReservedGroupError::MissingPaths { .. } | ReservedGroupError::Controllers { .. } => {
            format!("create the cgroup {path} before kube-lite starts")
        }
        ReservedGroupError::MissingControllers { .. } => {
            format!("enable the controllers in cgroup.subtree_control of the parent of {path}")
        }
        ReservedGroupError::Io(_) => {
            format!("reserve more with --kubelet-arg={level}, or use fewer processes in {path}")
        }
    };
    EnforcementFailure {
        message: format!(
            "Failed to enforce {title} {compressible}Cgroup Limits on {path:?}: {error}"
        ),
        fix: format!("{fix}, or remove {level} from enforce-node-allocatable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_texts_of_the_kubelet_and_a_fix() {
        let cgroup =
            |only_compressible| ReservedCgroup { path: "/a".to_owned(), only_compressible };
        let error = ReservedGroupError::MissingPaths {
            group: "[\"a\"]".to_owned(),
            paths: "/sys/fs/cgroup/cpu/a".to_owned(),
        };
        assert_eq!(
            failure(SYSTEM, &cgroup(false), &error).to_string(),
            "Failed to enforce System Reserved Cgroup Limits on \"/a\": cgroup [\"a\"] has some \
             missing paths: /sys/fs/cgroup/cpu/a; create the cgroup /a before kube-lite starts, or \
             remove system-reserved from enforce-node-allocatable"
        );
        let error = ReservedGroupError::NothingReserved("[\"a\"]".to_owned());
        assert_eq!(
            failure(KUBE, &cgroup(true), &error).to_string(),
            "Failed to enforce Kube Reserved Compressible Cgroup Limits on \"/a\": [\"a\"] cgroup \
             is not configured properly; reserve amounts with \
             --kubelet-arg=kube-reserved=memory=256Mi,cpu=100m, or remove kube-reserved from \
             enforce-node-allocatable"
        );
    }
}
