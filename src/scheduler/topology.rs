//! The domains of a topology key: the values of a label of nodes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::node_info::NodeInfo;

/// The domain of each node under one label.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    /// The number of the domain by index of the node; `None` without the label.
    domains: Vec<Option<u32>>,
    /// The number of domains.
    count: usize,
}

impl Topology {
    /// The domains of these nodes, which are in the order of their indexes.
    pub(crate) fn new(key: &str, nodes: &[Arc<NodeInfo>]) -> Self {
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let mut domains = Vec::with_capacity(nodes.len());
        for node in nodes {
            let Some(value) = node.labels.get(key) else {
                domains.push(None);
                continue;
            };
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            domains.push(Some(*numbers.entry(value.as_str()).or_insert(next)));
        }
        Self { domains, count: numbers.len() }
    }

    /// The number of the domain of a node, below [`Self::len`]; `None` without the label.
    pub(crate) fn domain(&self, node: &NodeInfo) -> Option<usize> {
        self.domain_at(node.index)
    }

    /// The number of the domain of the node with this index.
    pub(crate) fn domain_at(&self, node: usize) -> Option<usize> {
        let domain = self.domains.get(node).copied().flatten()?;
        usize::try_from(domain).ok()
    }

    /// The number of domains.
    pub(crate) fn len(&self) -> usize {
        self.count
    }
}
