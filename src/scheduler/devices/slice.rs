//! ResourceSlices in the form that allocation needs: quantities are parsed once per change.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use api::k8s::api::core::v1::NodeSelector;
use api::k8s::api::resource::v1 as resource;
use api::k8s::apimachinery::pkg::api::resource::Quantity as Text;
use api::quantity::{BadQuantity, Quantity};

use super::evaluation_error::EvaluationError;
use super::id::{DeviceId, PoolId};
use crate::node_info::NodeInfo;
use crate::node_selector::term_matches;

/// The nodes on which a slice or a device can be used.
#[derive(Clone, Debug, Default)]
pub(crate) enum Nodes {
    /// No field of this release is set: no node.
    #[default]
    Unknown,
    /// One node.
    Named(String),
    /// Every node.
    All,
    /// The nodes that the selector matches.
    Selected(NodeSelector),
    /// Each device of the slice has nodes of its own.
    PerDevice,
}

impl Nodes {
    fn new(name: Option<&String>, all: Option<bool>, selector: Option<&NodeSelector>) -> Self {
        match (name.filter(|name| !name.is_empty()), selector) {
            (Some(name), _) => Self::Named(name.clone()),
            (None, _) if all == Some(true) => Self::All,
            (None, Some(selector)) => Self::Selected(selector.clone()),
            (None, None) => Self::Unknown,
        }
    }

    /// Whether the node is one of them.
    pub(crate) fn contain(&self, node: &NodeInfo) -> bool {
        match self {
            Self::Unknown | Self::PerDevice => false,
            Self::Named(name) => *name == node.name,
            Self::All => true,
            Self::Selected(selector) => selects(selector, node),
        }
    }
}

/// Whether one of the selector's terms matches the node.
pub(crate) fn selects(selector: &NodeSelector, node: &NodeInfo) -> bool {
    let mut terms = selector.node_selector_terms.iter();
    terms.any(|term| term_matches(term, &node.name, &node.labels))
}

/// Amounts by counter.
pub(crate) type Counters = BTreeMap<String, Quantity>;

/// Counters that devices of a pool share.
#[derive(Clone, Debug)]
pub(crate) struct CounterSet {
    pub(crate) name: String,
    pub(crate) counters: Counters,
}

/// Values that a request for a capacity may have.
#[derive(Clone, Debug)]
pub(crate) enum ValidRequests {
    /// `validRange`.
    Range { min: Quantity, max: Option<Quantity>, step: Option<Quantity> },
    /// `validValues`, in ascending order.
    Values(Vec<Quantity>),
    /// Every value.
    Any,
}

/// `requestPolicy` of a capacity.
#[derive(Clone, Debug)]
pub(crate) struct RequestPolicy {
    pub(crate) default: Option<Quantity>,
    pub(crate) valid: ValidRequests,
}

/// A capacity of a device.
#[derive(Clone, Debug)]
pub(crate) struct Capacity {
    pub(crate) value: Quantity,
    /// The text of `value` in the object, for expressions.
    pub(crate) text: String,
    pub(crate) policy: Option<RequestPolicy>,
}

/// A device of a slice.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) id: DeviceId,
    pub(crate) attributes: BTreeMap<String, resource::DeviceAttribute>,
    pub(crate) capacity: BTreeMap<String, Capacity>,
    /// What the device takes from counter sets of its pool when it is allocated.
    pub(crate) consumes: Vec<CounterSet>,
    /// Its nodes, if those of the slice are [`Nodes::PerDevice`].
    pub(crate) nodes: Nodes,
    pub(crate) taints: Vec<resource::DeviceTaint>,
    pub(crate) binds_to_node: bool,
    pub(crate) binding_conditions: Option<Vec<String>>,
    pub(crate) binding_failure_conditions: Option<Vec<String>>,
    /// `allowMultipleAllocations`: several claims may each use a share.
    pub(crate) is_shareable: bool,
    /// The variable `device` of expressions; made when the first expression needs it.
    pub(crate) value: OnceLock<Result<kcel::Value<'static>, EvaluationError>>,
}

/// A ResourceSlice.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    pub(crate) name: String,
    pub(crate) pool: PoolId,
    pub(crate) generation: i64,
    /// `resourceSliceCount`: the number of slices of the pool in this generation.
    pub(crate) slice_count: i64,
    pub(crate) nodes: Nodes,
    pub(crate) devices: Vec<Device>,
    pub(crate) counter_sets: Vec<CounterSet>,
    /// A device declares compatibility groups, which this allocator does not support.
    pub(crate) uses_compatibility_groups: bool,
}

fn quantity(text: &Text) -> Result<Quantity, BadQuantity> {
    Quantity::parse(&text.0)
}

fn counters(all: &BTreeMap<String, resource::Counter>) -> Result<Counters, BadQuantity> {
    all.iter().map(|(name, counter)| Ok((name.clone(), quantity(&counter.value)?))).collect()
}

fn policy(policy: &resource::CapacityRequestPolicy) -> Result<RequestPolicy, BadQuantity> {
    let optional = |text: &Option<Text>| text.as_ref().map(quantity).transpose();
    let valid = match (&policy.valid_range, &policy.valid_values) {
        (Some(range), _) => ValidRequests::Range {
            min: quantity(&range.min)?,
            max: optional(&range.max)?,
            step: optional(&range.step)?,
        },
        (None, Some(values)) if !values.is_empty() => {
            ValidRequests::Values(values.iter().map(quantity).collect::<Result<_, _>>()?)
        }
        (None, _) => ValidRequests::Any,
    };
    Ok(RequestPolicy { default: optional(&policy.default)?, valid })
}

/// Converts the capacities of a device.
///
/// # Errors
///
/// A quantity that the API server would reject.
pub(crate) fn capacities(
    all: Option<&BTreeMap<String, resource::DeviceCapacity>>,
) -> Result<BTreeMap<String, Capacity>, BadQuantity> {
    let convert = |(name, capacity): (&String, &resource::DeviceCapacity)| {
        let converted = Capacity {
            value: quantity(&capacity.value)?,
            text: capacity.value.0.clone(),
            policy: capacity.request_policy.as_ref().map(policy).transpose()?,
        };
        Ok((name.clone(), converted))
    };
    all.into_iter().flatten().map(convert).collect()
}

fn device(device: &resource::Device, pool: &PoolId) -> Result<Device, BadQuantity> {
    let consumes = device.consumes_counters.iter().flatten();
    let consumes = consumes
        .map(|c| Ok(CounterSet { name: c.counter_set.clone(), counters: counters(&c.counters)? }));
    Ok(Device {
        id: DeviceId { pool: pool.clone(), device: device.name.as_str().into() },
        attributes: device.attributes.clone().unwrap_or_default(),
        capacity: capacities(device.capacity.as_ref())?,
        consumes: consumes.collect::<Result<_, BadQuantity>>()?,
        nodes: Nodes::new(
            device.node_name.as_ref(),
            device.all_nodes,
            device.node_selector.as_ref(),
        ),
        taints: device.taints.clone().unwrap_or_default(),
        binds_to_node: device.binds_to_node == Some(true),
        binding_conditions: device.binding_conditions.clone(),
        binding_failure_conditions: device.binding_failure_conditions.clone(),
        is_shareable: device.allow_multiple_allocations == Some(true),
        value: OnceLock::new(),
    })
}

impl Slice {
    /// Converts a ResourceSlice.
    ///
    /// # Errors
    ///
    /// A quantity that the API server would reject.
    pub(crate) fn new(slice: &resource::ResourceSlice) -> Result<Self, BadQuantity> {
        let spec = &slice.spec;
        let pool = PoolId::new(&spec.driver, &spec.pool.name);
        let all = spec.devices.iter().flatten();
        let sets = spec.shared_counters.iter().flatten();
        let sets =
            sets.map(|s| Ok(CounterSet { name: s.name.clone(), counters: counters(&s.counters)? }));
        let nodes =
            Nodes::new(spec.node_name.as_ref(), spec.all_nodes, spec.node_selector.as_ref());
        let grouped = |d: &resource::Device| {
            let mut consumed = d.consumes_counters.iter().flatten();
            consumed.any(|c| c.compatibility_groups.as_ref().is_some_and(|g| !g.is_empty()))
        };
        Ok(Self {
            name: slice.metadata.name.clone().unwrap_or_default(),
            generation: spec.pool.generation,
            slice_count: spec.pool.resource_slice_count,
            nodes: match nodes {
                Nodes::Unknown if spec.per_device_node_selection == Some(true) => Nodes::PerDevice,
                nodes => nodes,
            },
            uses_compatibility_groups: all.clone().any(grouped),
            devices: all.map(|d| device(d, &pool)).collect::<Result<_, _>>()?,
            counter_sets: sets.collect::<Result<_, BadQuantity>>()?,
            pool,
        })
    }

    /// Whether one of its devices can be used on the node.
    pub(crate) fn is_for(&self, node: &NodeInfo) -> bool {
        match &self.nodes {
            Nodes::PerDevice => self.devices.iter().any(|device| device.nodes.contain(node)),
            nodes => nodes.contain(node),
        }
    }

    /// The nodes of one of its devices.
    pub(crate) fn nodes_of<'a>(&'a self, device: &'a Device) -> &'a Nodes {
        match &self.nodes {
            Nodes::PerDevice => &device.nodes,
            nodes => nodes,
        }
    }
}
