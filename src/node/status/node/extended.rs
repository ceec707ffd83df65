//! Extended resources in the Node status: those of device plugins, and those that others set.

use api::k8s::api::core::v1 as core;
use serde_json::Value;

use crate::devices::DeviceCapacity;
use crate::pods::resources;

/// Adds the devices of plugins to capacity and allocatable of `status`. Resources whose plugins are
/// gone for long are shown with 0, which distinguishes them from resources of the whole cluster.
///
/// `object` is the status of the Node object: what others set as capacity there becomes
/// allocatable, and what they removed is removed from allocatable, as with the kubelet.
pub(super) fn add(status: &mut Value, devices: &DeviceCapacity, object: Option<&core::NodeStatus>) {
    for (list, amounts) in [("capacity", &devices.capacity), ("allocatable", &devices.allocatable)]
    {
        for (name, count) in amounts {
            status[list][name] = count.to_string().into();
        }
        for name in &devices.removed {
            status[list][name] = "0".into();
        }
    }
    let Some(object) = object else { return };
    let known = object.capacity.as_ref();
    for (name, amount) in extended(known) {
        if status["capacity"].get(name).is_none() {
            status["allocatable"][name] = amount.into();
        }
    }
    for (name, _) in extended(object.allocatable.as_ref()) {
        let is_known = known.is_some_and(|capacity| capacity.contains_key(name));
        if !is_known && status["capacity"].get(name).is_none() {
            status["allocatable"][name] = Value::Null;
        }
    }
}

/// Sets the extended resources of the Node object that no plugin of this node lists to 0: they are
/// those of an earlier machine with the name of this node.
pub(super) fn reset(status: &mut Value, object: Option<&core::NodeStatus>) {
    for (name, _) in extended(object.and_then(|object| object.capacity.as_ref())) {
        if status["capacity"].get(name).is_none() {
            status["capacity"][name] = "0".into();
            status["allocatable"][name] = "0".into();
        }
    }
}

type Amounts =
    std::collections::BTreeMap<String, api::k8s::apimachinery::pkg::api::resource::Quantity>;

/// The extended resources of a list.
fn extended(list: Option<&Amounts>) -> impl Iterator<Item = (&str, &str)> {
    let all = list.into_iter().flatten().map(|(name, amount)| (name.as_str(), amount.0.as_str()));
    all.filter(|(name, _)| resources::is_extended(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(capacity: Value, allocatable: Value) -> core::NodeStatus {
        let status = json!({"capacity": capacity, "allocatable": allocatable});
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn devices_of_plugins_are_capacity_and_healthy_ones_allocatable() {
        let devices = DeviceCapacity {
            capacity: [("example.com/a".to_owned(), 3)].into(),
            allocatable: [("example.com/a".to_owned(), 2)].into(),
            removed: ["example.com/gone".to_owned()].into(),
        };
        let mut status = json!({"capacity": {"cpu": "2"}, "allocatable": {"cpu": "1"}});
        let object = object(
            json!({"example.com/a": "7", "example.com/gone": "7"}),
            json!({"example.com/a": "7", "example.com/gone": "7"}),
        );
        add(&mut status, &devices, Some(&object));
        let expected = json!({
            "capacity": {"cpu": "2", "example.com/a": "3", "example.com/gone": "0"},
            "allocatable": {"cpu": "1", "example.com/a": "2", "example.com/gone": "0"},
        });
        assert_eq!(status, expected);
    }

    #[test]
    fn capacity_that_others_set_is_allocatable() {
        let mut status = json!({"capacity": {"cpu": "2"}, "allocatable": {"cpu": "1"}});
        let object = object(
            json!({"cpu": "9", "example.com/set": "4"}),
            json!({"example.com/removed": "4", "hugepages-2Mi": "0"}),
        );
        add(&mut status, &DeviceCapacity::default(), Some(&object));
        let expected = json!({
            "capacity": {"cpu": "2"},
            "allocatable": {"cpu": "1", "example.com/set": "4", "example.com/removed": null},
        });
        assert_eq!(status, expected);
    }

    #[test]
    fn extended_resources_of_an_earlier_machine_are_reset() {
        let devices = DeviceCapacity {
            capacity: [("example.com/a".to_owned(), 1)].into(),
            allocatable: [("example.com/a".to_owned(), 1)].into(),
            ..DeviceCapacity::default()
        };
        let before = json!({"example.com/a": "7", "example.com/b": "7"});
        let object = object(before.clone(), before);
        let mut status = json!({"capacity": {}, "allocatable": {}});
        add(&mut status, &devices, Some(&object));
        reset(&mut status, Some(&object));
        let expected = json!({"example.com/a": "1", "example.com/b": "0"});
        assert_eq!(status, json!({"capacity": expected, "allocatable": expected}));
    }
}
