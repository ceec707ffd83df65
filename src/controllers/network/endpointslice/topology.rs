//! Hints for the annotation `service.kubernetes.io/topology-mode: Auto`, as upstream's
//! `k8s.io/endpointslice/topologycache` writes them: each zone gets a share of the endpoints in
//! proportion to the CPUs of its nodes.

use std::collections::{BTreeMap, BTreeSet};

use api::k8s::api::core::v1::{Node, Service};
use api::k8s::api::discovery::v1::{EndpointHints, EndpointSlice, ForZone};
use api::quantity::Quantity;
use sorting::CollectOrdered as _;

use api::Object;
use client::Change;
use client::informer::decode;

use crate::framework::keyed::Key;

use super::Plan;
use super::hints::is_ready;

/// `topology-aware-hints` is the older name, which wins.
const ANNOTATIONS: [&str; 2] =
    ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// Nodes with such a label do not count.
const EXCLUDED_LABELS: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// How much more than its share an endpoint may have to serve.
const OVERLOAD: f64 = 0.2;

/// Why endpoints have no hints.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoHints {
    #[error(
        "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
    )]
    Nodes,
    #[error("Insufficient number of endpoints ({endpoints} endpoints, {zones} zones)")]
    Endpoints { endpoints: usize, zones: usize },
    #[error(
        "Unable to allocate minimum required endpoints to each zone without exceeding overload \
         threshold ({endpoints} endpoints, {zones} zones)"
    )]
    Overload { endpoints: usize, zones: usize },
    #[error("One or more endpoints do not have a zone specified")]
    NoZone,
}

/// Whether a Service asks for such hints.
pub(super) fn is_auto(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let value = ANNOTATIONS.iter().find_map(|name| annotations?.get(*name));
    value.is_some_and(|value| value == "Auto" || value == "auto")
}

/// The keys of the Services that ask for such hints.
pub(super) fn services(all: &[Service]) -> Vec<Key> {
    let key = |service: &Service| {
        let meta = &service.metadata;
        (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    };
    all.iter().filter(|service| is_auto(service)).map(key).collect()
}

/// Whether a change of a node may change the shares.
pub(super) fn concerns(change: &Change) -> bool {
    let Change::Updated { old, new } = change else { return true };
    if old.label(ZONE_LABEL) != new.label(ZONE_LABEL) {
        return true;
    }
    let is_ready =
        |object: &Object| decode::<Node>(object).is_some_and(|node| is_node_ready(&node));
    is_ready(old) != is_ready(new)
}

/// The share of each zone in the CPUs of the nodes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shares(BTreeMap<String, f64>);

fn is_node_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|c| c.type_ == "Ready");
    ready.is_some_and(|c| c.status == "True")
}

impl Shares {
    /// The shares; none unless all ready nodes have a zone and CPUs, and there are two zones.
    pub(super) fn of(nodes: &[Node]) -> Option<Self> {
        let mut zones: BTreeMap<String, f64> = BTreeMap::new();
        for node in nodes {
            let labels = node.metadata.labels.as_ref();
            let has = |name: &&str| labels.is_some_and(|labels| labels.contains_key(*name));
            if EXCLUDED_LABELS.iter().any(has) || !is_node_ready(node) {
                continue;
            }
            let zone =
                labels.and_then(|labels| labels.get(ZONE_LABEL)).filter(|z| !z.is_empty())?;
            let cpu = node.status.as_ref()?.allocatable.as_ref()?.get("cpu")?;
            let cpu = millis(&cpu.0).filter(|cpu| *cpu > 0.0)?;
            *zones.entry(zone.clone()).or_default() += cpu;
        }
        let all: f64 = zones.values().sum();
        if zones.len() < 2 || all <= 0.0 {
            return None;
        }
        zones.values_mut().for_each(|cpu| *cpu /= all);
        Some(Self(zones))
    }
}

/// Thousandths of a CPU.
fn millis(text: &str) -> Option<f64> {
    let millis = Quantity::parse(text).ok()?.milli_value();
    i32::try_from(millis).ok().map(f64::from)
}

/// A number of endpoints, which is far below 2^32.
fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

/// The endpoints that a zone must have at least, and those that it should have.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Allocation {
    least: usize,
    most: usize,
    wanted: f64,
}

/// The smallest number of endpoints that keeps a zone with this share below the overload.
fn least(wanted: f64, endpoints: usize) -> usize {
    let bound = wanted / (1.0 + OVERLOAD);
    (0..=endpoints).find(|count| float(*count) >= bound).unwrap_or(endpoints)
}

impl Shares {
    fn allocate(&self, endpoints: usize) -> Result<BTreeMap<&str, Allocation>, NoHints> {
        let zones = self.0.len();
        if zones > endpoints {
            return Err(NoHints::Endpoints { endpoints, zones });
        }
        let mut out = BTreeMap::new();
        let mut sum = 0;
        for (zone, share) in &self.0 {
            let wanted = share * float(endpoints);
            let least = least(wanted, endpoints);
            sum += least;
            let wanted = wanted.max(float(least));
            out.insert(zone.as_str(), Allocation { least, most: 0, wanted });
        }
        let Some(spare) = endpoints.checked_sub(sum) else {
            return Err(NoHints::Overload { endpoints, zones });
        };
        out.values_mut().for_each(|allocation| allocation.most = allocation.least + spare);
        Ok(out)
    }
}

/// The hints of an unchanged slice by zone; none if they do not fit the allocations.
fn kept(
    slice: &EndpointSlice,
    allocated: &BTreeMap<String, usize>,
    allocations: &BTreeMap<&str, Allocation>,
) -> Option<BTreeMap<String, usize>> {
    let mut out: BTreeMap<String, usize> = BTreeMap::new();
    for endpoint in slice.endpoints.iter().flatten().filter(|e| is_ready(e)) {
        let zones = endpoint.hints.as_ref()?.for_zones.as_ref().filter(|z| !z.is_empty())?;
        for zone in zones {
            allocations.get(zone.name.as_str())?;
            *out.entry(zone.name.clone()).or_default() += 1;
        }
    }
    let fits = |(zone, count): (&String, &usize)| {
        let before = allocated.get(zone).copied().unwrap_or(0);
        allocations.get(zone.as_str()).is_some_and(|a| before + count <= a.most)
    };
    out.iter().all(fits).then_some(out)
}

/// The zone that has most to give or to get; the first of several.
fn most(zones: &BTreeMap<String, f64>) -> Option<(String, f64)> {
    let mut out: Option<(String, f64)> = None;
    for (zone, count) in zones.iter().filter(|(_, count)| **count > 0.0) {
        if out.as_ref().is_none_or(|(_, most)| count > most) {
            out = Some((zone.clone(), *count));
        }
    }
    out
}

/// How many endpoints each zone gives to others, and how many each gets.
fn exchange(
    allocations: &BTreeMap<&str, Allocation>,
    allocated: &BTreeMap<String, usize>,
) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let (mut gives, mut gets) = (BTreeMap::new(), BTreeMap::new());
    for (zone, allocation) in allocations {
        let has = float(allocated.get(*zone).copied().unwrap_or(0));
        if has > allocation.wanted {
            gives.insert((*zone).to_owned(), has - allocation.wanted);
        } else if has < allocation.wanted {
            gets.insert((*zone).to_owned(), allocation.wanted - has);
        }
    }
    let mut out = (BTreeMap::new(), BTreeMap::new());
    while let (Some((from, give)), Some((to, get))) = (most(&gives), most(&gets)) {
        if (give < 1.0 && get < 1.0) || give < 0.5 || get < 0.5 {
            break;
        }
        *out.0.entry(from.clone()).or_default() += 1;
        gives.insert(from, give - 1.0);
        *out.1.entry(to.clone()).or_default() += 1;
        gets.insert(to, get - 1.0);
    }
    out
}

fn hint(zone: &str) -> Option<EndpointHints> {
    let zones = vec![ForZone { name: zone.to_owned() }];
    Some(EndpointHints { for_zones: Some(zones), for_nodes: None })
}

/// Takes one of a zone; false if none is left.
fn take(zones: &mut BTreeMap<String, usize>, zone: &str) -> bool {
    match zones.get_mut(zone) {
        Some(count) if *count > 1 => *count -= 1,
        Some(_) => drop(zones.remove(zone)),
        None => return false,
    }
    true
}

/// Writes the hints of the slices of one address family in a plan.
///
/// # Errors
/// When there can be no hints; those of the slices are as they were.
fn of_family(plan: &mut Plan, family: &str, shares: Option<&Shares>) -> Result<(), NoHints> {
    let is_own = |slice: &&EndpointSlice| slice.address_type == family;
    let slices = plan.create.iter().chain(&plan.update).chain(&plan.unchanged).filter(is_own);
    let ready = slices.flat_map(|s| s.endpoints.iter().flatten()).filter(|e| is_ready(e)).count();
    let allocations = shares.ok_or(NoHints::Nodes)?.allocate(ready)?;
    let mut allocated: BTreeMap<String, usize> = BTreeMap::new();
    let mut unchanged = Vec::new();
    for slice in std::mem::take(&mut plan.unchanged) {
        if slice.address_type != family {
            unchanged.push(slice);
            continue;
        }
        match kept(&slice, &allocated, &allocations) {
            None => plan.update.push(slice),
            Some(hints) => {
                for (zone, count) in hints {
                    *allocated.entry(zone).or_default() += count;
                }
                unchanged.push(slice);
            }
        }
    }
    plan.unchanged = unchanged;
    let changed = || plan.create.iter().chain(&plan.update).filter(is_own);
    let endpoints = changed().flat_map(|slice| slice.endpoints.iter().flatten());
    for endpoint in endpoints.filter(|endpoint| is_ready(endpoint)) {
        let zone = endpoint.zone.as_ref().filter(|zone| !zone.is_empty()).ok_or(NoHints::NoZone)?;
        *allocated.entry(zone.clone()).or_default() += 1;
    }
    let (mut gives, mut gets) = exchange(&allocations, &allocated);
    let slices = plan.create.iter_mut().chain(&mut plan.update);
    for slice in slices.filter(|slice| slice.address_type == family) {
        for endpoint in slice.endpoints.iter_mut().flatten().filter(|e| is_ready(e)) {
            let Some(own) = endpoint.zone.clone() else { continue };
            endpoint.hints = hint(&own);
            let Some(to) = gets.keys().next().cloned() else { continue };
            if take(&mut gives, &own) {
                take(&mut gets, &to);
                endpoint.hints = hint(&to);
            }
        }
    }
    Ok(())
}

/// What happened to the hints of one address family.
pub(super) type Outcome = (String, Result<(), NoHints>);

/// Writes the hints of all slices in a plan; those of a family that can have none are removed.
pub(super) fn reconcile(plan: &mut Plan, shares: Option<&Shares>) -> Vec<Outcome> {
    let all = plan.create.iter().chain(&plan.update).chain(&plan.unchanged);
    let families: BTreeSet<String> = all.map(|slice| slice.address_type.clone()).collect_set();
    let mut out = Vec::new();
    for family in families {
        let result = of_family(plan, &family, shares);
        if result.is_err() {
            super::hints::remove(plan, &family);
        }
        out.push((family, result));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::k8s::api::discovery::v1::Endpoint;
    use serde_json::json;

    fn node(zone: &str, cpu: &str, ready: &str, labels: &[&str]) -> Node {
        let mut node = json!({"metadata": {"labels": {}}, "status": {"allocatable": {"cpu": cpu},
            "conditions": [{"type": "Ready", "status": ready}]}});
        for label in labels {
            node["metadata"]["labels"][*label] = "".into();
        }
        if !zone.is_empty() {
            node["metadata"]["labels"][ZONE_LABEL] = zone.into();
        }
        serde_json::from_value(node).unwrap()
    }

    fn shares(zones: &[(&str, f64)]) -> Shares {
        Shares(zones.iter().map(|(zone, share)| ((*zone).to_owned(), *share)).collect())
    }

    // Cases of upstream's `TestSetNodes`.
    #[test]
    fn shares_follow_the_cpus_of_ready_nodes() {
        let two = [node("a", "1", "True", &[]), node("b", "3000m", "True", &[])];
        assert_eq!(Shares::of(&two), Some(shares(&[("a", 0.25), ("b", 0.75)])));
        for more in [
            node("c", "4", "False", &[]),
            node("", "4", "True", &["node-role.kubernetes.io/control-plane"]),
        ] {
            let all = [two[0].clone(), two[1].clone(), more];
            assert_eq!(Shares::of(&all), Some(shares(&[("a", 0.25), ("b", 0.75)])));
        }
        for bad in [node("", "1", "True", &[]), node("b", "0", "True", &[])] {
            assert_eq!(Shares::of(&[two[0].clone(), two[1].clone(), bad]), None);
        }
        assert_eq!(Shares::of(&two[..1]), None);
    }

    // Cases of upstream's `TestGetAllocations`.
    #[test]
    fn allocations_keep_endpoints_below_the_overload() {
        let even = shares(&[("a", 0.5), ("b", 0.5)]);
        let got = even.allocate(2).unwrap();
        assert_eq!(got["a"], Allocation { least: 1, most: 1, wanted: 1.0 });
        let thirds = shares(&[("a", 0.35), ("b", 0.33), ("c", 0.32)]);
        assert_eq!(thirds.allocate(2), Err(NoHints::Endpoints { endpoints: 2, zones: 3 }));
        let got = thirds.allocate(3).unwrap();
        assert_eq!(got["a"], Allocation { least: 1, most: 1, wanted: 3.0 * 0.35 });
        let got = thirds.allocate(9).unwrap();
        assert_eq!((got["a"].least, got["a"].most), (3, 3));
        let uneven = shares(&[("a", 0.9), ("b", 0.1)]);
        assert_eq!(uneven.allocate(2), Err(NoHints::Overload { endpoints: 2, zones: 2 }));
        let got = uneven.allocate(10).unwrap();
        assert_eq!((got["a"].least, got["a"].most, got["b"].least), (8, 9, 1));
    }

    fn slice(name: &str, endpoints: &[(&str, bool, Option<&str>)]) -> EndpointSlice {
        let one = |(zone, ready, hint): &(&str, bool, Option<&str>)| {
            let hints = hint.map(|zone| json!({"forZones": [{"name": zone}]}));
            let zone = (!zone.is_empty()).then_some(*zone);
            json!({"addresses": ["10.0.0.1"], "conditions": {"ready": ready}, "zone": zone,
                "hints": hints})
        };
        let list: Vec<_> = endpoints.iter().map(one).collect();
        serde_json::from_value(json!({"metadata": {"name": name}, "addressType": "IPv4",
            "endpoints": list}))
        .unwrap()
    }

    fn hints(slices: &[EndpointSlice]) -> String {
        let zone = |endpoint: &Endpoint| {
            let zones = endpoint.hints.as_ref().and_then(|h| h.for_zones.clone());
            zones.map_or("-".into(), |z| z.iter().map(|z| z.name.clone()).collect::<String>())
        };
        slices.iter().flat_map(|s| s.endpoints.iter().flatten()).map(zone).collect()
    }

    // Cases of upstream's `TestAddHints`.
    #[test]
    fn endpoints_are_given_to_zones_that_have_too_few() {
        let even = shares(&[("a", 0.5), ("b", 0.5)]);
        let ready = |zones: &str| -> EndpointSlice {
            let zones: Vec<String> = zones.chars().map(String::from).collect();
            let list: Vec<_> = zones.iter().map(|zone| (zone.as_str(), true, None)).collect();
            slice("s", &list)
        };
        for (zones, want) in [("ab", "ab"), ("aaaa", "bbaa"), ("aabb", "aabb"), ("aaab", "baab")] {
            let mut plan = Plan { create: vec![ready(zones)], ..Plan::default() };
            assert_eq!(reconcile(&mut plan, Some(&even)), [("IPv4".into(), Ok(()))]);
            assert_eq!(hints(&plan.create), want, "{zones}");
        }
        // A slice whose hints fit stays as it is, and one without hints is written.
        let good = slice("good", &[("a", true, Some("a")), ("a", true, Some("b"))]);
        let none = slice("none", &[("a", true, None), ("b", false, None), ("b", true, None)]);
        let mut plan = Plan { unchanged: vec![good.clone(), none], ..Plan::default() };
        assert_eq!(reconcile(&mut plan, Some(&even))[0].1, Ok(()));
        assert_eq!((plan.unchanged, hints(&plan.update).as_str()), (vec![good], "a-b"));
    }

    #[test]
    fn hints_are_removed_where_there_can_be_none() {
        let even = shares(&[("a", 0.5), ("b", 0.5)]);
        let with = |zone: &str| slice("s", &[("a", true, Some("a")), (zone, true, None)]);
        for (slice, shares, want) in [
            (with("b"), None, NoHints::Nodes),
            (
                slice("s", &[("a", true, Some("a"))]),
                Some(&even),
                NoHints::Endpoints { endpoints: 1, zones: 2 },
            ),
            (with(""), Some(&even), NoHints::NoZone),
        ] {
            let mut plan = Plan { unchanged: vec![slice], ..Plan::default() };
            assert_eq!(reconcile(&mut plan, shares)[0].1, Err(want));
            assert!(plan.unchanged.is_empty());
            assert!(!hints(&plan.update).contains(['a', 'b']), "{:?}", plan.update);
        }
    }

    #[test]
    fn the_annotation_asks_for_them() {
        for (annotations, want) in [
            (json!({"service.kubernetes.io/topology-mode": "Auto"}), true),
            (json!({"service.kubernetes.io/topology-aware-hints": "auto"}), true),
            (
                json!({"service.kubernetes.io/topology-aware-hints": "Disabled",
                    "service.kubernetes.io/topology-mode": "Auto"}),
                false,
            ),
            (json!({}), false),
        ] {
            let service = json!({"metadata": {"annotations": annotations}});
            assert_eq!(is_auto(&serde_json::from_value(service).unwrap()), want, "{annotations}");
        }
    }
}
