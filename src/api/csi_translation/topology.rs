//! Topology of PersistentVolumes: zones of nodes become the topology keys of drivers
//! (`plugins/in_tree_volume.go`).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume};
use sorting::CollectOrdered as _;

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Between the zones in a label of a regional volume.
pub(super) const ZONES_SEPARATOR: &str = "__";

fn terms(volume: &PersistentVolume) -> &[NodeSelectorTerm] {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.map_or(&[], |required| required.node_selector_terms.as_slice())
}

fn expressions(volume: &PersistentVolume) -> impl Iterator<Item = &NodeSelectorRequirement> {
    terms(volume).iter().flat_map(|term| term.match_expressions.iter().flatten())
}

fn terms_mut(volume: &mut PersistentVolume) -> Option<&mut Vec<NodeSelectorTerm>> {
    let affinity = volume.spec.as_mut()?.node_affinity.as_mut()?;
    Some(&mut affinity.required.as_mut()?.node_selector_terms)
}

/// The value of a label of a volume.
pub(super) fn label<'a>(volume: &'a PersistentVolume, key: &str) -> Option<&'a str> {
    volume.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// The zones in the labels of a volume, of the earlier label first.
pub(super) fn label_zones(volume: &PersistentVolume) -> Vec<String> {
    let of = |key| label(volume, key).filter(|zones| !zones.is_empty());
    let zones = of(BETA_ZONE).or_else(|| of(ZONE));
    zones.into_iter().flat_map(|zones| zones.split(ZONES_SEPARATOR)).map(str::to_owned).collect()
}

/// The keys of zone and region that a volume uses (`getTopologyLabel`).
fn keys(volume: &PersistentVolume) -> (&'static str, &'static str) {
    let selects = |key: &str| expressions(volume).any(|e| e.key == key);
    let has_beta_label = label(volume, ZONE).is_none() && label(volume, BETA_ZONE).is_some();
    if !selects(ZONE) && (selects(BETA_ZONE) || has_beta_label) {
        (BETA_ZONE, BETA_REGION)
    } else {
        (ZONE, REGION)
    }
}

/// Whether the affinity has values for a key.
fn has_values(volume: &PersistentVolume, key: &str) -> bool {
    expressions(volume).any(|e| e.key == key && e.values.iter().flatten().next().is_some())
}

fn replace(volume: &mut PersistentVolume, old: &str, new: &str) {
    for term in terms_mut(volume).into_iter().flatten() {
        for expression in term.match_expressions.iter_mut().flatten() {
            if expression.key == old {
                new.clone_into(&mut expression.key);
            }
        }
    }
}

/// Adds a requirement to each term; without a value, nothing changes.
fn add(volume: &mut PersistentVolume, key: &str, values: &[&str]) {
    let values = values.iter().map(|v| v.trim()).filter(|v| !v.is_empty());
    let values: BTreeSet<&str> = values.collect_set();
    if values.is_empty() {
        return;
    }
    let requirement = NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(values.into_iter().map(str::to_owned).collect()),
    };
    let spec = volume.spec.get_or_insert_default();
    let affinity = spec.node_affinity.get_or_insert_default();
    let required = affinity.required.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_expressions.get_or_insert_default().push(requirement.clone());
    }
}

/// Moves zones of the affinity, or else of the labels, to the key of a driver with one topology
/// key.
pub(super) fn translate(volume: &mut PersistentVolume, driver_key: &str) {
    let (zone, region) = keys(volume);
    if has_values(volume, zone) {
        replace(volume, zone, driver_key);
    } else if let Some(zones) = label(volume, zone).map(str::to_owned) {
        add(volume, driver_key, &zones.split(ZONES_SEPARATOR).collect::<Vec<_>>());
    }
    if region == BETA_REGION && has_values(volume, region) {
        replace(volume, region, REGION);
    }
}

/// As [`translate`], for a driver with keys for zones and regions, whose labels have one value.
pub(super) fn translate_both(volume: &mut PersistentVolume, zone_key: &str, region_key: &str) {
    // Before the zone is replaced.
    let (zone, region) = keys(volume);
    one(volume, zone, zone_key);
    one(volume, region, region_key);
}

fn one(volume: &mut PersistentVolume, key: &str, driver_key: &str) {
    if has_values(volume, key) {
        replace(volume, key, driver_key);
    } else if let Some(value) = label(volume, key).map(str::to_owned) {
        add(volume, driver_key, &[&value]);
    }
}
