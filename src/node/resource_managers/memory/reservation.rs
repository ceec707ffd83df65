//! `reservedMemory`: how the memory that is reserved on the node is spread over its NUMA nodes.

use std::collections::{BTreeMap, BTreeSet};

use api::Quantity;

use super::super::machine_topology::MachineTopology;

/// The resource of which every request has some.
pub(crate) const MEMORY: &str = "memory";

const HUGE_PAGES: &str = "hugepages-";

/// Why the reservation is invalid; texts as upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReservedMemory {
    /// The text has another form.
    #[error(
        "the reserved memory has incorrect format, expected \
         numaNodeID:type=quantity[,type=quantity...], got {0}"
    )]
    Format(String),
    /// The resource is neither memory nor huge pages.
    #[error(
        "invalid configuration: the limit type {resource:?} for NUMA node {node} is not supported, \
         only [memory hugepages-<HugePageSize>] is accepted"
    )]
    Type {
        /// Number of the node.
        node: usize,
        /// The resource.
        resource: String,
    },
    /// The amount is zero.
    #[error(
        "invalid configuration: reserved memory may not be zero for NUMA node {node} and resource \
         {resource:?}"
    )]
    Zero {
        /// Number of the node.
        node: usize,
        /// The resource.
        resource: String,
    },
    /// The resource of a node occurs twice.
    #[error(
        "invalid configuration: the reserved memory has a duplicate value for NUMA node {node} and \
         resource {resource:?}"
    )]
    Duplicate {
        /// Number of the node.
        node: usize,
        /// The resource.
        resource: String,
    },
}

/// Why the reservation does not fit the machine; texts as upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReservationError {
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this \
         machine"
    )]
    Node(usize),
    #[error(
        "the total amount {sum:?} of type {resource:?} is not equal to the value {reserved:?} \
         determined by Node Allocatable feature"
    )]
    Sum { sum: String, resource: String, reserved: String },
    #[error("[memorymanager] you should specify the system reserved memory")]
    NoMemory,
}

/// Reserved bytes by number of the node and resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservedMemory(BTreeMap<usize, BTreeMap<String, u64>>);

impl ReservedMemory {
    /// Parses `0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=1Gi`.
    ///
    /// # Errors
    ///
    /// The text has another form, or an amount is not allowed.
    pub fn parse(text: &str) -> Result<Self, InvalidReservedMemory> {
        let format = || InvalidReservedMemory::Format(text.to_owned());
        let mut out: BTreeMap<usize, BTreeMap<String, u64>> = BTreeMap::new();
        for part in text.split(';').filter(|part| !part.is_empty()) {
            let (node, limits) = part.split_once(':').ok_or_else(format)?;
            let node: usize = node.trim().parse().map_err(|_| format())?;
            for limit in limits.split(',') {
                let (resource, amount) = limit.split_once('=').ok_or_else(format)?;
                let resource = resource.trim().to_owned();
                let amount = Quantity::parse(amount.trim()).map_err(|_| format())?;
                let bytes = u64::try_from(amount.value()).map_err(|_| format())?;
                if resource != MEMORY && !resource.starts_with(HUGE_PAGES) {
                    return Err(InvalidReservedMemory::Type { node, resource });
                }
                if bytes == 0 {
                    return Err(InvalidReservedMemory::Zero { node, resource });
                }
                let resources = out.entry(node).or_default();
                if resources.insert(resource.clone(), bytes).is_some() {
                    return Err(InvalidReservedMemory::Duplicate { node, resource });
                }
            }
        }
        Ok(Self(out))
    }

    /// Reserved bytes of a resource on one node.
    pub(crate) fn bytes(&self, node: usize, resource: &str) -> u64 {
        self.0.get(&node).and_then(|all| all.get(resource)).copied().unwrap_or_default()
    }

    /// Compares the reservation with the machine and with what the node reserves of `memory`: the
    /// sums must be equal. Huge pages cannot be reserved on the node.
    ///
    /// # Errors
    ///
    /// A node does not exist, a sum differs, or no memory is reserved.
    pub(crate) fn check(
        &self,
        machine: &MachineTopology,
        memory: i64,
    ) -> Result<(), ReservationError> {
        if let Some(node) = self.0.keys().find(|node| !machine.nodes.contains_key(node)) {
            return Err(ReservationError::Node(*node));
        }
        let names = self.0.values().flat_map(BTreeMap::keys).map(String::as_str);
        let names: BTreeSet<&str> = names.chain([MEMORY]).collect();
        for resource in names {
            let amounts = self.0.values().filter_map(|all| all.get(resource));
            let sum = amounts.fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
            let sum = i64::try_from(sum).unwrap_or(i64::MAX);
            let reserved = if resource == MEMORY { memory } else { 0 };
            if sum != reserved {
                return Err(ReservationError::Sum {
                    sum: Quantity::bytes(sum).to_string(),
                    resource: resource.to_owned(),
                    reserved: Quantity::bytes(reserved).to_string(),
                });
            }
        }
        if memory == 0 { Err(ReservationError::NoMemory) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::machine_topology::NumaNode;
    use super::*;

    #[test]
    fn reservations_are_parsed_and_refused_by_name() {
        let both = ReservedMemory::parse("0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=2Gi").unwrap();
        assert_eq!((both.bytes(0, "hugepages-2Mi"), both.bytes(1, "memory")), (4 << 20, 2 << 30));
        assert_eq!(ReservedMemory::parse(""), Ok(ReservedMemory::default()));
        for (text, want) in [
            ("memory=1Gi", "the reserved memory has incorrect format"),
            ("0:memory", "the reserved memory has incorrect format"),
            ("x:memory=1Gi", "the reserved memory has incorrect format"),
            ("0:cpu=1", "the limit type \"cpu\" for NUMA node 0 is not supported, only"),
            ("0:memory=0", "may not be zero for NUMA node 0 and resource \"memory\""),
            ("0:memory=1,memory=1", "has a duplicate value for NUMA node 0 and resource"),
            ("0:memory=1;0:memory=1", "has a duplicate value for NUMA node 0 and resource"),
        ] {
            let error = ReservedMemory::parse(text).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn reservations_must_equal_those_of_the_node() {
        let nodes = BTreeMap::from([(0, NumaNode::default()), (1, NumaNode::default())]);
        let machine = MachineTopology { nodes, ..MachineTopology::default() };
        let check = |text: &str, memory: i64| {
            let checked = ReservedMemory::parse(text).unwrap().check(&machine, memory);
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check("0:memory=5;1:memory=7", 12), Ok(()));
        assert_eq!(
            check("0:memory=12", 17).unwrap_err(),
            "the total amount \"12\" of type \"memory\" is not equal to the value \"17\" \
             determined by Node Allocatable feature"
        );
        assert!(check("0:memory=12,hugepages-2Mi=5", 12).unwrap_err().contains("hugepages-2Mi"));
        assert!(check("2:memory=12", 12).unwrap_err().contains("NUMA node 2 that does not exist"));
        assert!(check("", 12).unwrap_err().contains("\"0\" of type \"memory\""));
        assert!(check("", 0).unwrap_err().contains("you should specify"));
    }
}
