//! Memory of the NUMA nodes: how much there is, and how much containers have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::machine_topology::MachineTopology;
use super::super::numa_mask::NumaMask;
use super::reservation::ReservedMemory;
use super::{MEMORY, MemoryRequests};
use crate::pods::resources::huge_page_resource;

/// Why a recorded state cannot be used; texts as upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidState {
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    AssignmentsOnly,
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses the NUMA \
         that does not exist"
    )]
    Node { pod: String, container: String },
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses memory \
         resource that does not exist"
    )]
    Resource { pod: String, container: String },
    #[error("[memorymanager] the expected machine state is different from the real one")]
    Different,
}

/// One resource of a node, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MemoryTable {
    #[serde(rename = "total")]
    pub(crate) total: u64,
    pub(crate) system_reserved: u64,
    pub(crate) allocatable: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
}

/// A NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeState {
    /// One for each resource of each container.
    #[serde(rename = "numberOfAssignments")]
    pub(crate) assignments: i64,
    #[serde(rename = "memoryMap")]
    pub(crate) memory: BTreeMap<String, MemoryTable>,
    /// The nodes that containers use together with this one, which is included.
    pub(crate) cells: Vec<usize>,
}

/// Memory of one resource that a container has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryBlock {
    #[serde(rename = "numaAffinity")]
    pub(crate) nodes: Vec<usize>,
    #[serde(rename = "type")]
    pub(crate) resource: String,
    /// Bytes.
    pub(crate) size: u64,
}

impl MemoryBlock {
    pub(crate) fn mask(&self) -> NumaMask {
        NumaMask::new(self.nodes.iter().copied())
    }
}

/// Memory of containers: by uid of the pod and name.
pub(crate) type MemoryAssignments = BTreeMap<String, BTreeMap<String, Vec<MemoryBlock>>>;

/// The nodes by number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineState(pub(crate) BTreeMap<usize, NodeState>);

impl MachineState {
    /// The state of a machine without containers.
    pub(crate) fn unused(machine: &MachineTopology, reserved: &ReservedMemory) -> Self {
        let mut out = Self::default();
        for (number, node) in &machine.nodes {
            let of = |resource: &str| reserved.bytes(*number, resource);
            let table = |resource: &str, total: u64, used: u64| {
                let system_reserved = of(resource);
                let allocatable = total.saturating_sub(system_reserved).saturating_sub(used);
                MemoryTable { total, system_reserved, allocatable, reserved: 0, free: allocatable }
            };
            let mut memory = BTreeMap::new();
            let mut huge = 0_u64;
            for (size, pages) in &node.huge_pages {
                let total = size.saturating_mul(*pages);
                huge = huge.saturating_add(total);
                let name = huge_page_resource(i64::try_from(*size).unwrap_or(i64::MAX));
                memory.insert(name.clone(), table(&name, total, 0));
            }
            memory.insert(MEMORY.to_owned(), table(MEMORY, node.memory, huge));
            let state = NodeState { assignments: 0, memory, cells: vec![*number] };
            out.0.insert(*number, state);
        }
        out
    }

    /// Charges an allocation of one resource to nodes, in ascending order.
    pub(crate) fn charge(&mut self, mask: NumaMask, resource: &str, bytes: u64) {
        let mut left = bytes;
        let nodes: Vec<usize> = mask.nodes().collect();
        for number in &nodes {
            let Some(node) = self.0.get_mut(number) else { continue };
            node.assignments += 1;
            node.cells.clone_from(&nodes);
            if let Some(table) = node.memory.get_mut(resource) {
                let taken = table.free.min(left);
                table.free -= taken;
                table.reserved += taken;
                left -= taken;
            }
        }
    }

    /// Gives an allocation of one resource back.
    pub(crate) fn release(&mut self, block: &MemoryBlock) {
        let mut left = block.size;
        for number in &block.nodes {
            let Some(node) = self.0.get_mut(number) else { continue };
            node.assignments -= 1;
            if node.assignments == 0 {
                node.cells = vec![*number];
            }
            if let Some(table) = node.memory.get_mut(&block.resource) {
                let given = table.reserved.min(left);
                table.reserved -= given;
                table.free += given;
                left -= given;
            }
        }
    }

    /// The sum of a value over the nodes of a mask.
    pub(crate) fn sum(
        &self,
        mask: NumaMask,
        resource: &str,
        of: impl Fn(&MemoryTable) -> u64,
    ) -> u64 {
        let tables = mask.nodes().filter_map(|node| self.0.get(&node)?.memory.get(resource));
        tables.map(of).fold(0, u64::saturating_add)
    }

    /// Whether the nodes have enough free memory.
    pub(crate) fn has_free(&self, mask: NumaMask, requests: &MemoryRequests) -> bool {
        requests.iter().all(|(resource, size)| self.sum(mask, resource, |t| t.free) >= *size)
    }

    /// Whether several nodes would be used together of which containers use some otherwise.
    pub(crate) fn is_violated_by(&self, mask: NumaMask) -> bool {
        let mut used = mask.nodes().filter_map(|node| self.0.get(&node));
        mask.count() > 1
            && used.any(|node| {
                let group = NumaMask::new(node.cells.iter().copied());
                node.assignments > 0 && (group.count() == 1 || group != mask)
            })
    }

    /// Compares a recorded state with that which follows from the assignments.
    pub(crate) fn check(
        &self,
        unused: Self,
        assignments: &MemoryAssignments,
    ) -> Result<(), InvalidState> {
        let mut expected = unused;
        for (pod, containers) in assignments {
            for (container, blocks) in containers {
                for block in blocks {
                    expected.check_block(block, pod, container)?;
                    expected.charge(block.mask(), &block.resource, block.size);
                }
            }
        }
        let is_equal = self.0.len() == expected.0.len()
            && self.0.iter().all(|(number, node)| {
                let other = expected.0.get(number);
                other.is_some_and(|other| self.is_equal_node(node, &expected, other))
            });
        if is_equal { Ok(()) } else { Err(InvalidState::Different) }
    }

    fn check_block(
        &self,
        block: &MemoryBlock,
        pod: &str,
        container: &str,
    ) -> Result<(), InvalidState> {
        for node in &block.nodes {
            let (pod, container) = (pod.to_owned(), container.to_owned());
            let Some(node) = self.0.get(node) else {
                return Err(InvalidState::Node { pod, container });
            };
            if !node.memory.contains_key(&block.resource) {
                return Err(InvalidState::Resource { pod, container });
            }
        }
        Ok(())
    }

    /// Compares two nodes. What is free is compared by groups: charges depend on the order.
    fn is_equal_node(&self, node: &NodeState, others: &Self, other: &NodeState) -> bool {
        let group = NumaMask::new(node.cells.iter().copied());
        node.assignments == other.assignments
            && group == NumaMask::new(other.cells.iter().copied())
            && node.memory.len() == other.memory.len()
            && node.memory.iter().all(|(resource, table)| {
                let sums = |state: &Self| {
                    let sum = |of: fn(&MemoryTable) -> u64| state.sum(group, resource, of);
                    (sum(|t| t.free), sum(|t| t.reserved))
                };
                let fixed = |t: &MemoryTable| (t.total, t.system_reserved, t.allocatable);
                other.memory.get(resource).map(fixed) == Some(fixed(table))
                    && sums(self) == sums(others)
            })
    }
}
