//! The allocation of a claim from the devices that the search has chosen.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use api::k8s::api::resource::v1 as resource;
use api::k8s::apimachinery::pkg::api::resource::Quantity as Text;

use super::AllocateError;
use super::device::ChosenDevice;
use super::search::ChosenClaim;
use crate::devices::request::{Alternative, ClaimRequests};
use crate::devices::slice::Nodes;

/// Builds the allocation of a claim on a node.
///
/// # Errors
///
/// A slice has a node selector that the API server would reject.
pub(super) fn build(
    claim: &ClaimRequests,
    found: &ChosenClaim<'_>,
    node: &str,
) -> Result<resource::AllocationResult, AllocateError> {
    let node_selector = node_selector(&found.devices, node)
        .map_err(|terms| AllocateError::NodeSelector { claim: claim.claim.name.clone(), terms })?;
    let configs = configs(claim, found);
    let results: Vec<_> = found.devices.iter().map(result).collect();
    let devices = resource::DeviceAllocationResult {
        config: (!configs.is_empty()).then_some(configs),
        results: (!results.is_empty()).then_some(results),
    };
    Ok(resource::AllocationResult {
        allocation_timestamp: None,
        devices: Some(devices),
        node_selector,
    })
}

fn result(chosen: &ChosenDevice<'_>) -> resource::DeviceRequestAllocationResult {
    let (request, device) = (chosen.request, chosen.device);
    let consumed: Option<BTreeMap<String, Text>> = chosen.share.as_ref().map(|share| {
        share.iter().map(|(name, amount)| (name.clone(), Text(amount.to_string()))).collect()
    });
    resource::DeviceRequestAllocationResult {
        request: request.full_name.clone(),
        driver: device.id.pool.driver.to_string(),
        pool: device.id.pool.pool.to_string(),
        device: device.id.device.to_string(),
        admin_access: request.has_admin_access.then_some(true),
        tolerations: request.tolerations.clone(),
        share_id: chosen.share.as_ref().map(|_| base::clock::random_uuid()),
        consumed_capacity: consumed.filter(|consumed| !consumed.is_empty()),
        binding_conditions: device.binding_conditions.clone(),
        binding_failure_conditions: device.binding_failure_conditions.clone(),
        skip_node_operations: None,
    }
}

/// The configurations of the classes, then those of the claim.
fn configs(
    claim: &ClaimRequests,
    found: &ChosenClaim<'_>,
) -> Vec<resource::DeviceAllocationConfiguration> {
    let selected = |at: usize| -> Option<&Alternative> {
        let (index, _) = found.requests.get(at)?;
        claim.requests.get(at)?.alternatives.get(*index)
    };
    let mut all = class_configs(found, &selected);
    let names = |requests: &[String], at: usize| {
        let is_named = |name: &str| requests.iter().any(|r| r == name);
        claim.requests.get(at).is_some_and(|request| is_named(&request.name))
            || selected(at).is_some_and(|alternative| is_named(&alternative.full_name))
    };
    for config in &claim.configs {
        let requests = config.requests.as_deref().unwrap_or_default();
        let mut indexes = 0..claim.requests.len();
        if requests.is_empty() || indexes.any(|at| names(requests, at)) {
            all.push(resource::DeviceAllocationConfiguration {
                opaque: config.opaque.clone(),
                requests: config.requests.clone(),
                source: "FromClaim".into(),
            });
        }
    }
    for config in &mut all {
        // No requests means all requests.
        let mut indexes = 0..claim.requests.len();
        let requests = config.requests.as_deref().unwrap_or_default();
        if indexes.all(|at| names(requests, at)) {
            config.requests = None;
        }
    }
    all
}

/// The configurations of each class once, for the requests with this class.
fn class_configs<'a>(
    found: &ChosenClaim<'_>,
    selected: &dyn Fn(usize) -> Option<&'a Alternative>,
) -> Vec<resource::DeviceAllocationConfiguration> {
    let mut all: Vec<resource::DeviceAllocationConfiguration> = Vec::new();
    let mut by_class: BTreeMap<&str, std::ops::Range<usize>> = BTreeMap::new();
    for (at, (_, data)) in found.requests.iter().enumerate() {
        let Some(alternative) = selected(at) else { continue };
        let request = alternative.full_name.clone();
        if let Some(range) = by_class.get(alternative.class.as_str()) {
            for config in all.get_mut(range.clone()).into_iter().flatten() {
                config.requests.get_or_insert_default().push(request.clone());
            }
            continue;
        }
        let start = all.len();
        for config in data.class.spec.iter().flat_map(|s| &s.config).flatten() {
            all.push(resource::DeviceAllocationConfiguration {
                opaque: config.opaque.clone(),
                requests: Some(vec![request.clone()]),
                source: "FromClass".into(),
            });
        }
        by_class.insert(&alternative.class, start..all.len());
    }
    all
}

/// The nodes on which all devices can be used; `None` if they can be used on every node.
///
/// # Errors
///
/// The number of terms of a selector with more than one.
fn node_selector(devices: &[ChosenDevice<'_>], node: &str) -> Result<Option<NodeSelector>, usize> {
    let mut term = NodeSelectorTerm::default();
    for chosen in devices {
        let nodes = chosen.slice.nodes_of(chosen.device);
        if chosen.device.binds_to_node || matches!(nodes, Nodes::Named(_)) {
            let name = NodeSelectorRequirement {
                key: "metadata.name".into(),
                operator: "In".into(),
                values: Some(vec![node.to_owned()]),
            };
            let term = NodeSelectorTerm { match_expressions: None, match_fields: Some(vec![name]) };
            return Ok(Some(NodeSelector { node_selector_terms: vec![term] }));
        }
        let Nodes::Selected(selector) = nodes else { continue };
        match selector.node_selector_terms.as_slice() {
            [] => {}
            [one] => {
                extend(&mut term.match_fields, one.match_fields.as_deref());
                extend(&mut term.match_expressions, one.match_expressions.as_deref());
            }
            several => return Err(several.len()),
        }
    }
    let is_empty = term.match_fields.is_none() && term.match_expressions.is_none();
    Ok((!is_empty).then(|| NodeSelector { node_selector_terms: vec![term] }))
}

/// Adds requirements that are not in the list; the order of values does not matter.
fn extend(to: &mut Option<Vec<NodeSelectorRequirement>>, from: Option<&[NodeSelectorRequirement]>) {
    let values = |r: &NodeSelectorRequirement| {
        r.values.iter().flatten().cloned().collect::<std::collections::BTreeSet<_>>()
    };
    for requirement in from.unwrap_or_default() {
        let same = |other: &NodeSelectorRequirement| {
            other.key == requirement.key
                && other.operator == requirement.operator
                && values(other) == values(requirement)
        };
        if !to.iter().flatten().any(same) {
            to.get_or_insert_default().push(requirement.clone());
        }
    }
}
