//! The ResourceSlices of the cluster with the taints of DeviceTaintRules (upstream's resource slice
//! tracker), indexed by what a search asks for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::k8s::api::resource::v1::{DeviceTaintRule, DeviceTaintSelector};

use super::id::{DeviceId, PoolId};
use super::slice::{Nodes, Slice};

/// Slices sorted by name.
type Sorted = Vec<Arc<Slice>>;

/// The slices by node and by pool. A search holds one version; changes make a new one.
#[derive(Clone, Debug, Default)]
pub(crate) struct SliceIndex {
    by_node: HashMap<String, Sorted>,
    /// Slices for all nodes.
    everywhere: Sorted,
    /// Slices whose nodes depend on labels or on the device.
    selected: Sorted,
    by_pool: HashMap<PoolId, Sorted>,
}

fn insert(slices: &mut Sorted, slice: &Arc<Slice>) {
    match slices.binary_search_by(|other| other.name.cmp(&slice.name)) {
        Ok(at) => {
            if let Some(place) = slices.get_mut(at) {
                *place = Arc::clone(slice);
            }
        }
        Err(at) => slices.insert(at, Arc::clone(slice)),
    }
}

impl SliceIndex {
    /// The slices that may have devices for a node: those of the node first.
    pub(crate) fn for_node<'a>(&'a self, node: &str) -> impl Iterator<Item = &'a Slice> {
        let own = self.by_node.get(node).into_iter().flatten();
        own.chain(&self.everywhere).chain(&self.selected).map(Arc::as_ref)
    }

    /// All slices of a pool, of every generation.
    pub(crate) fn of_pool<'a>(&'a self, pool: &PoolId) -> impl Iterator<Item = &'a Slice> {
        self.by_pool.get(pool).into_iter().flatten().map(Arc::as_ref)
    }

    fn nodes_mut(&mut self, nodes: &Nodes) -> Option<&mut Sorted> {
        match nodes {
            Nodes::Named(node) => Some(self.by_node.entry(node.clone()).or_default()),
            Nodes::All => Some(&mut self.everywhere),
            Nodes::Selected(_) | Nodes::PerDevice => Some(&mut self.selected),
            Nodes::Unknown => None,
        }
    }

    fn add(&mut self, slice: &Arc<Slice>) {
        if let Some(slices) = self.nodes_mut(&slice.nodes) {
            insert(slices, slice);
        }
        insert(self.by_pool.entry(slice.pool.clone()).or_default(), slice);
    }

    fn remove(&mut self, slice: &Slice) {
        if let Some(slices) = self.nodes_mut(&slice.nodes) {
            slices.retain(|other| other.name != slice.name);
        }
        if let Nodes::Named(node) = &slice.nodes
            && self.by_node.get(node).is_some_and(Vec::is_empty)
        {
            self.by_node.remove(node);
        }
        if let Some(slices) = self.by_pool.get_mut(&slice.pool) {
            slices.retain(|other| other.name != slice.name);
            if slices.is_empty() {
                self.by_pool.remove(&slice.pool);
            }
        }
    }
}

/// Follows ResourceSlices and DeviceTaintRules.
#[derive(Clone, Debug, Default)]
pub(crate) struct SliceTracker {
    /// The slices as their drivers publish them, by name.
    own: BTreeMap<String, Arc<Slice>>,
    rules: BTreeMap<String, DeviceTaintRule>,
    index: Arc<SliceIndex>,
}

/// Whether a rule taints the device. A rule without selector taints none; an empty selector selects
/// all devices.
fn taints(selector: Option<&DeviceTaintSelector>, id: &DeviceId) -> bool {
    let Some(selector) = selector else { return false };
    let equal = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|w| w == have);
    equal(&selector.driver, &id.pool.driver)
        && equal(&selector.pool, &id.pool.pool)
        && equal(&selector.device, &id.device)
}

impl SliceTracker {
    /// The current version of the index.
    pub(crate) fn index(&self) -> Arc<SliceIndex> {
        Arc::clone(&self.index)
    }

    /// A slice was added or changed.
    pub(crate) fn set_slice(&mut self, slice: Slice) {
        self.remove_slice(&slice.name);
        let own = Arc::new(slice);
        let patched = self.patched(&own);
        Arc::make_mut(&mut self.index).add(&patched);
        self.own.insert(own.name.clone(), own);
    }

    /// A slice was deleted.
    pub(crate) fn remove_slice(&mut self, name: &str) {
        if let Some(old) = self.own.remove(name) {
            Arc::make_mut(&mut self.index).remove(&old);
        }
    }

    /// A rule was added or changed (`Some`) or deleted. Returns whether the taints of a device
    /// changed.
    pub(crate) fn set_rule(&mut self, name: &str, rule: Option<DeviceTaintRule>) -> bool {
        let old = match rule {
            Some(rule) => self.rules.insert(name.to_owned(), rule),
            None => self.rules.remove(name),
        };
        let new = self.rules.get(name);
        let old_effect = old.as_ref().map(|r| (&r.spec.device_selector, &r.spec.taint));
        if old_effect == new.map(|r| (&r.spec.device_selector, &r.spec.taint)) {
            return false;
        }
        let concerned = |slice: &&Arc<Slice>| {
            let rules = old.iter().chain(new);
            let selectors: Vec<_> = rules.map(|r| r.spec.device_selector.as_ref()).collect();
            let mut devices = slice.devices.iter();
            devices.any(|device| selectors.iter().any(|s| taints(*s, &device.id)))
        };
        let concerned: Vec<Arc<Slice>> = self.own.values().filter(concerned).cloned().collect();
        for slice in &concerned {
            let patched = self.patched(slice);
            Arc::make_mut(&mut self.index).add(&patched);
        }
        !concerned.is_empty()
    }

    /// The slice with the taints of all rules after those of its driver.
    fn patched(&self, slice: &Arc<Slice>) -> Arc<Slice> {
        let mut patched: Option<Slice> = None;
        for rule in self.rules.values() {
            for (at, device) in slice.devices.iter().enumerate() {
                if !taints(rule.spec.device_selector.as_ref(), &device.id) {
                    continue;
                }
                let patched = patched.get_or_insert_with(|| (**slice).clone());
                if let Some(device) = patched.devices.get_mut(at) {
                    device.taints.push(rule.spec.taint.clone());
                }
            }
        }
        patched.map_or_else(|| Arc::clone(slice), Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(name: &str, node: &str) -> Slice {
        let taint = json!({"key": "own", "effect": "NoSchedule"});
        let slice = json!({
            "metadata": {"name": name},
            "spec": {
                "driver": "driver", "nodeName": node,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "a", "taints": [taint]}, {"name": "b"}],
            },
        });
        Slice::new(&serde_json::from_value(slice).unwrap()).unwrap()
    }

    fn rule(key: &str, selector: serde_json::Value) -> Option<DeviceTaintRule> {
        let taint = json!({"key": key, "effect": "NoExecute"});
        let rule = json!({"spec": {"deviceSelector": selector, "taint": taint}});
        Some(serde_json::from_value(rule).unwrap())
    }

    /// The keys of the taints of each device, as the search sees them.
    fn keys(tracker: &SliceTracker, node: &str) -> Vec<String> {
        let index = tracker.index();
        let devices = index.for_node(node).flat_map(|slice| &slice.devices);
        devices
            .map(|d| d.taints.iter().map(|t| t.key.as_str()).collect::<Vec<_>>().join("+"))
            .collect()
    }

    /// Rows of upstream's `resourceslice/tracker/tracker_test.go`.
    #[test]
    fn rules_add_taints_after_those_of_the_driver() {
        let mut tracker = SliceTracker::default();
        tracker.set_slice(slice("one", "n"));
        assert_eq!(keys(&tracker, "n"), ["own", ""]);
        for (name, selector, changed, expected) in [
            ("nil", json!(null), false, ["own", ""]),
            ("other", json!({"driver": "other"}), false, ["own", ""]),
            ("device", json!({"device": "b"}), true, ["own", "device"]),
            (
                "pool",
                json!({"driver": "driver", "pool": "one", "device": "a"}),
                true,
                ["own+pool", "device"],
            ),
        ] {
            assert_eq!(tracker.set_rule(name, rule(name, selector)), changed, "{name}");
            assert_eq!(keys(&tracker, "n"), expected, "{name}");
        }
        assert!(tracker.set_rule("all", rule("all", json!({}))));
        assert_eq!(keys(&tracker, "n"), ["own+all+pool", "all+device"]);
        tracker.set_slice(slice("one", "n"));
        assert_eq!(keys(&tracker, "n"), ["own+all+pool", "all+device"], "an update keeps them");
        assert!(!tracker.set_rule("unknown", None));
        assert!(tracker.set_rule("all", None));
        assert_eq!(keys(&tracker, "n"), ["own+pool", "device"]);
    }

    #[test]
    fn slices_are_found_by_node_until_they_are_deleted() {
        let mut tracker = SliceTracker::default();
        tracker.set_slice(slice("one", "n"));
        let before = tracker.index();
        tracker.set_slice(slice("one", "m"));
        assert_eq!(keys(&tracker, "n"), [""; 0]);
        assert_eq!(keys(&tracker, "m").len(), 2);
        assert_eq!(before.for_node("n").count(), 1, "a cycle keeps its version");
        tracker.remove_slice("one");
        assert_eq!(tracker.index().of_pool(&PoolId::new("driver", "one")).count(), 0);
        assert!(tracker.index().by_node.is_empty());
    }
}
