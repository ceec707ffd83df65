//! How many devices the class of an extended resource has on a node, for scores.

use super::Allocator;
use super::checks::class_selectors;
use crate::devices::selectors::SelectorError;
use crate::devices::slice::{Device, Nodes, Slice};
use crate::node_info::NodeInfo;
use api::k8s::api::resource::v1::DeviceClass;

impl Allocator {
    /// The number of devices on the node that match the class which serves an extended resource,
    /// and how many of them are in use (`calculateDRAResourceTotals`). As upstream, slices of all
    /// generations count, and a selector that fails makes both numbers 0.
    pub(crate) fn totals(&self, resource: &str, node: &NodeInfo) -> (i64, i64) {
        let class = self.classes.serving(resource).and_then(|name| self.classes.get(name));
        let Some(class) = class else { return (0, 0) };
        let devices = || self.slices.for_node(&node.name).flat_map(|s| devices_on(s, node));
        let (mut all, mut in_use) = (0, 0);
        for device in devices() {
            match self.is_of(class, device) {
                Ok(true) => {
                    let id = &device.id;
                    all += 1;
                    let state = &self.allocated;
                    in_use += i64::from(state.is_dedicated(id) || state.is_shared(id));
                }
                Ok(false) => {}
                Err(_) => return (0, 0),
            }
        }
        (all, in_use)
    }

    fn is_of(&self, class: &DeviceClass, device: &Device) -> Result<bool, SelectorError> {
        for cel in class_selectors(class).iter().filter_map(|selector| selector.cel.as_ref()) {
            if !self.selectors.matches(&cel.expression, device)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The devices of a slice that can be used on the node.
fn devices_on<'a>(slice: &'a Slice, node: &'a NodeInfo) -> impl Iterator<Item = &'a Device> {
    let is_per_device = matches!(slice.nodes, Nodes::PerDevice);
    let is_usable = is_per_device || slice.nodes.contain(node);
    let devices = slice.devices.iter().filter(move |_| is_usable);
    devices.filter(move |device| !is_per_device || device.nodes.contain(node))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::devices::store::Devices;

    const RESOURCE: &str = "example.com/gpu";

    fn slice(name: &str, nodes: Value, devices: &[Value]) -> Slice {
        let mut spec = json!({"driver": "d", "devices": devices,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}});
        spec.as_object_mut().unwrap().extend(nodes.as_object().unwrap().clone());
        let slice = json!({"metadata": {"name": name}, "spec": spec});
        Slice::new(&serde_json::from_value(slice).unwrap()).unwrap()
    }

    fn plain(names: &[&str]) -> Vec<Value> {
        names.iter().map(|name| json!({"name": name})).collect()
    }

    fn in_zone(zone: &str) -> Value {
        json!({"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "zone", "operator": "In", "values": [zone]}]}]})
    }

    fn result(device: &str, share: Option<&str>) -> Value {
        let mut result = json!({"request": "r", "driver": "d", "pool": "p", "device": device});
        if let Some(share) = share {
            result["shareID"] = share.into();
        }
        result
    }

    /// The totals of the node `n` in zone `z`, by the explicit and the implicit resource.
    fn totals(expression: Option<&str>, slices: Vec<Slice>, results: &[Value]) -> (i64, i64) {
        let devices = Devices::default();
        let mut spec = json!({"extendedResourceName": RESOURCE});
        if let Some(expression) = expression {
            spec["selectors"] = json!([{"cel": {"expression": expression}}]);
        }
        let class = json!({"metadata": {"name": "class"}, "spec": spec});
        devices.set_class(serde_json::from_value(class).unwrap());
        slices.into_iter().for_each(|slice| devices.set_slice(slice));
        let claim = json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"},
            "status": {"allocation": {"devices": {"results": results}}}});
        devices.observe_claim(serde_json::from_value(claim).unwrap());
        let mut node = NodeInfo::default();
        let of = json!({"metadata": {"name": "n", "labels": {"zone": "z"}}});
        node.set_node(&serde_json::from_value(of).unwrap());
        let allocator = devices.allocator();
        let implicit = allocator.totals("deviceclass.resource.kubernetes.io/class", &node);
        assert_eq!(allocator.totals(RESOURCE, &node), implicit);
        assert_eq!(allocator.totals("example.com/other", &node), (0, 0));
        implicit
    }

    /// Rows of upstream's `TestCalculateResourceAllocatableRequest`.
    #[test]
    fn devices_of_the_class_count_and_those_in_use() {
        let on_node = |names: &[&str]| vec![slice("s", json!({"nodeName": "n"}), &plain(names))];
        assert_eq!(totals(None, vec![], &[]), (0, 0));
        assert_eq!(totals(None, on_node(&["a"]), &[]), (1, 0));
        let in_use = [result("a", None), result("b", Some("share"))];
        assert_eq!(totals(None, on_node(&["a", "b", "c"]), &in_use), (3, 2));
        assert_eq!(totals(Some("device.driver == 'd'"), on_node(&["a"]), &[]), (1, 0));
        assert_eq!(totals(Some("device.driver == 'x'"), on_node(&["a"]), &[]), (0, 0));
        let fails = Some("device.attributes['d'].x == 1");
        assert_eq!(totals(fails, on_node(&["a"]), &[]), (0, 0));
    }

    /// Rows of upstream's `TestCalculateResourceAllocatableRequest`.
    #[test]
    fn devices_count_that_can_be_used_on_the_node() {
        let per_device = [
            json!({"name": "a", "nodeName": "n"}),
            json!({"name": "b", "nodeName": "other"}),
            json!({"name": "c", "allNodes": true}),
            json!({"name": "d", "nodeSelector": in_zone("z")}),
            json!({"name": "e", "nodeSelector": in_zone("y")}),
        ];
        let slices = vec![slice("s", json!({"perDeviceNodeSelection": true}), &per_device)];
        assert_eq!(totals(None, slices, &[result("c", None), result("e", None)]), (3, 1));
        let slices = vec![
            slice("s", json!({"allNodes": true}), &plain(&["a"])),
            slice("t", json!({"nodeSelector": in_zone("z")}), &plain(&["b"])),
            slice("u", json!({"nodeSelector": in_zone("y")}), &plain(&["c"])),
            slice("v", json!({"nodeName": "other"}), &plain(&["d"])),
        ];
        assert_eq!(totals(None, slices, &[]), (2, 0));
    }
}
