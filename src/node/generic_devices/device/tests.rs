//! The rules of ids, of shared and missing devices, and of what containers get.

use super::*;

fn matched(id: &str, location: &str, nodes: &[&str]) -> MatchedDevice {
    MatchedDevice {
        id: id.to_owned(),
        location: location.to_owned(),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        count: 1,
        ..MatchedDevice::default()
    }
}

fn shared(id: &str, node: &str, count: usize) -> MatchedDevice {
    MatchedDevice { count, ..matched(id, "", &[node]) }
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn ids(devices: &[HostDevice]) -> Vec<&str> {
    devices.iter().map(|device| device.id.as_str()).collect()
}

fn listed(devices: &[HostDevice], allocated: &[&str]) -> Vec<String> {
    let list = list(devices, &set(allocated)).into_iter();
    list.map(|device| format!("{} {}", device.id, device.health)).collect()
}

fn specs(name: &str, devices: &[HostDevice], ids: &[&str]) -> Vec<(String, String)> {
    let response = response(name, devices, &set(ids)).unwrap();
    assert!(response.devices.iter().all(|spec| spec.permissions == "rw"));
    response.devices.into_iter().map(|spec| (spec.container_path, spec.host_path)).collect()
}

#[test]
fn devices_with_one_id_are_distinguished_by_their_location() {
    let all = [
        matched("0001", "1-1", &["/dev/a"]),
        matched("0001", "1-2", &["/dev/b"]),
        matched("0001", "1-2", &["/dev/c"]),
        matched("with space\n", "", &["/dev/d"]),
    ];
    let devices = assemble(all.to_vec(), 1000).devices;
    assert_eq!(ids(&devices), ["0001", "0001@1-2", "0001@1-2+2", "with_space_"]);
}

#[test]
fn a_device_that_two_selectors_match_is_one_device() {
    let all = vec![
        matched("usb", "", &["/dev/ttyUSB0", "/dev/bus/usb/001/002"]),
        matched("by-id", "", &["/dev/ttyUSB0"]),
        matched("without-nodes", "", &[]),
    ];
    assert_eq!(ids(&assemble(all, 1000).devices), ["usb"]);
}

#[test]
fn the_number_of_devices_is_limited_as_they_are_shared() {
    let all = vec![shared("a", "/dev/a", 3), shared("b", "/dev/b", 3), shared("c", "/dev/c", 3)];
    let limited = assemble(all, 6);
    assert_eq!((ids(&limited.devices), limited.left_out), (vec!["a", "b"], 1));
}

#[test]
fn the_first_place_of_a_device_does_not_depend_on_how_many_share_it() {
    let places = |count| {
        let devices = assemble(vec![shared("fuse", "/dev/fuse", count)], 1000).devices;
        devices.iter().flat_map(HostDevice::places).collect::<Vec<_>>()
    };
    assert_eq!(places(1), ["fuse"]);
    assert_eq!(places(3), ["fuse", "fuse::1", "fuse::2"]);
}

#[test]
fn a_missing_device_is_listed_as_unhealthy_while_a_container_has_it() {
    let devices = assemble(vec![matched("a", "", &["/dev/a"])], 1000).devices;
    assert_eq!(listed(&devices, &["a", "b"]), ["a Healthy", "b Unhealthy"]);
    assert_eq!(listed(&devices, &[]), ["a Healthy"]);
    assert_eq!(listed(&[], &[]), [""; 0]);
}

#[test]
fn the_numa_node_is_the_topology() {
    let device = MatchedDevice { numa_node: Some(1), ..matched("a", "", &["/dev/a"]) };
    let list = list(&assemble(vec![device], 1000).devices, &BTreeSet::new());
    let nodes = list[0].topology.as_ref().unwrap().nodes.iter().map(|node| node.id);
    assert_eq!(nodes.collect::<Vec<_>>(), [1]);
}

#[test]
fn a_container_gets_different_devices_and_the_least_used_ones() {
    let all = vec![shared("a", "/dev/a", 3), shared("b", "/dev/b", 3)];
    let devices = assemble(all, 1000).devices;
    let every = set(&["a", "a::1", "a::2", "b", "b::1", "b::2"]);
    let none = BTreeSet::new();
    assert_eq!(spread(&devices, &every, &none, 2), set(&["a", "b"]));
    assert_eq!(spread(&devices, &every, &set(&["a::1"]), 2), set(&["a::1", "b"]));
    assert_eq!(spread(&devices, &every, &none, 3), set(&["a", "b", "a::1"]));
    assert_eq!(spread(&devices, &set(&["a::2", "b::1", "b::2"]), &none, 1), set(&["b::1"]));
    assert_eq!(spread(&devices, &set(&["a"]), &none, 2), set(&["a"]));
}

#[test]
fn a_container_gets_the_stable_names_and_all_nodes() {
    let nodes = ["/dev/bus/usb/001/004", "/dev/hidraw3", "/dev/ttyUSB10", "/dev/ttyUSB9"];
    let stick =
        MatchedDevice { link: Some("/dev/serial/by-id/x".to_owned()), ..matched("s", "", &nodes) };
    let devices = assemble(vec![stick, matched("t", "", &["/dev/ttyUSB1"])], 1000).devices;
    let own = |path: &str| (path.to_owned(), path.to_owned());
    let to = |path: &str, node: &str| (path.to_owned(), node.to_owned());
    let of_stick = [
        to("/dev/zigbee", "/dev/ttyUSB9"),
        to("/dev/serial/by-id/x", "/dev/ttyUSB9"),
        own("/dev/ttyUSB9"),
        own("/dev/ttyUSB10"),
        own("/dev/hidraw3"),
        own("/dev/bus/usb/001/004"),
    ];
    assert_eq!(specs("zigbee", &devices, &["s"]), of_stick);
    let of_both = specs("zigbee", &devices, &["s", "t"]);
    assert_eq!(of_both[..6], of_stick);
    assert_eq!(of_both[6..], [to("/dev/zigbee-1", "/dev/ttyUSB1"), own("/dev/ttyUSB1")]);
}

#[test]
fn two_places_of_one_device_give_its_nodes_once() {
    let devices = assemble(vec![shared("fuse", "/dev/fuse", 4)], 1000).devices;
    let once = [("/dev/fuse".to_owned(), "/dev/fuse".to_owned())];
    assert_eq!(specs("fuse", &devices, &["fuse", "fuse::3"]), once);
    let missing = response("fuse", &devices, &set(&["fuse", "gone"])).unwrap_err();
    assert_eq!(missing.to_string(), "device gone is not present on this node; plug it in");
}
