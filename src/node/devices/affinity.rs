//! Splits devices by their NUMA nodes, by the rules of the kubelet's `filterByAffinity`.

use std::collections::{BTreeMap, BTreeSet};

/// Devices by their relation to the preferred NUMA nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// On a preferred node.
    pub(crate) aligned: BTreeSet<String>,
    /// On other nodes.
    pub(crate) unaligned: BTreeSet<String>,
    /// Without topology, or all if there is no preference.
    pub(crate) without_affinity: BTreeSet<String>,
}

/// Splits devices by the `preferred` NUMA nodes. `nodes` returns those of a device, none for one
/// without topology.
///
/// Of the nodes of a device, the first in this order counts: preferred ones before others, and
/// among each of these the one with the fewest devices. Nodes with equally many devices are in the
/// order of their numbers; upstream's order of these is arbitrary.
pub(crate) fn split<'a>(
    devices: &BTreeSet<String>,
    preferred: &BTreeSet<i64>,
    nodes: impl Fn(&str) -> &'a [i64],
) -> Candidates {
    let mut devices_on: BTreeMap<i64, usize> = BTreeMap::new();
    for id in devices {
        for node in nodes(id) {
            *devices_on.entry(*node).or_default() += 1;
        }
    }
    let rank = |node: i64| {
        (!preferred.contains(&node), devices_on.get(&node).copied().unwrap_or_default(), node)
    };
    let mut out = Candidates::default();
    for id in devices {
        let first = nodes(id).iter().copied().min_by_key(|node| rank(*node));
        let list = match first {
            Some(node) if preferred.contains(&node) => &mut out.aligned,
            Some(_) => &mut out.unaligned,
            None => &mut out.without_affinity,
        };
        list.insert(id.clone());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_on_several_nodes_is_aligned_with_the_preferred_one() {
        let nodes = |id: &str| -> &'static [i64] {
            match id {
                "dev1" => &[1],
                "dev2" => &[1, 2],
                "dev3" | "dev4" => &[2],
                _ => &[],
            }
        };
        let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let split = |ids: &[&str]| split(&set(ids), &BTreeSet::from([2]), nodes);
        let two = split(&["dev1", "dev2"]);
        assert_eq!((two.aligned, two.unaligned), (set(&["dev2"]), set(&["dev1"])));
        let all = split(&["dev1", "dev2", "dev3", "dev4", "dev5"]);
        assert_eq!(all.aligned, set(&["dev2", "dev3", "dev4"]));
        assert_eq!((all.unaligned, all.without_affinity), (set(&["dev1"]), set(&["dev5"])));
    }
}
