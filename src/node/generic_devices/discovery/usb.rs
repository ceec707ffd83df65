//! USB devices by their ids and serial numbers, with all nodes that their drivers make.

use std::path::{Path, PathBuf};

use crate::generic_devices::device::MatchedDevice;
use crate::generic_devices::host_tree::HostTree;
use crate::generic_devices::pattern::Pattern;

/// The directory of USB devices and their interfaces.
const DEVICES: &str = "/sys/bus/usb/devices";
/// The directory of the nodes of USB devices themselves, in one directory for each bus.
const NODES: &str = "/dev/bus/usb";
/// Maximum depth of the directories of a device, and their number: a sound card with many controls
/// has a hundred.
const DEPTH_MAX: usize = 16;
const DIRECTORIES_MAX: usize = 4096;

/// The devices with this vendor and product, and with such a serial number.
pub(super) fn find(
    tree: &HostTree,
    (vendor, product): (&str, &str),
    serial: Option<&Pattern>,
) -> Vec<MatchedDevice> {
    let mut out = Vec::new();
    for name in tree.names(Path::new(DEVICES)) {
        let Some(device) = tree.real(&Path::new(DEVICES).join(&name)) else { continue };
        let attribute = |name: &str| tree.attribute(&device.join(name));
        // Interfaces have no such attributes.
        if attribute("idVendor").as_deref() != Some(vendor)
            || attribute("idProduct").as_deref() != Some(product)
        {
            continue;
        }
        let own_serial = attribute("serial");
        let is_match = |own: &str| serial.is_none_or(|pattern| pattern.matches(own));
        if !is_match(own_serial.as_deref().unwrap_or_default()) {
            continue;
        }
        let location = location(&device, &name);
        let id = match own_serial {
            Some(serial) => format!("{vendor}:{product}:{serial}"),
            None => format!("{vendor}:{product}@{location}"),
        };
        let (nodes, numa_node) = (nodes(tree, &device), tree.numa_node(&device));
        out.push(MatchedDevice { id, location, nodes, numa_node, ..Default::default() });
    }
    out
}

/// The port of a device: the controller, and the ports of the hubs. The number of the bus is not a
/// part of it, as it depends on the order in which controllers are found.
fn location(device: &Path, name: &str) -> String {
    let is_bus = |path: &&Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix("usb").is_some_and(|n| n.parse::<u32>().is_ok())
    };
    let controller = device.ancestors().find(is_bus).and_then(Path::parent);
    let controller = controller.and_then(Path::file_name).and_then(|name| name.to_str());
    match (controller, name.split_once('-')) {
        (Some(controller), Some((_, port))) => format!("{controller}-usb-{port}"),
        _ => name.to_owned(),
    }
}

/// The device nodes of a device and of its interfaces. Devices behind a hub are devices of their
/// own.
fn nodes(tree: &HostTree, device: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut open = vec![(device.to_owned(), 0_usize)];
    let mut visited = 0_usize;
    while let Some((directory, depth)) = open.pop() {
        let name = tree.node_name(&directory);
        let node = name.and_then(|name| tree.device_node(&Path::new("/dev").join(name)));
        out.extend(node);
        visited += 1;
        if depth >= DEPTH_MAX || visited >= DIRECTORIES_MAX {
            continue;
        }
        for name in tree.directories(&directory) {
            let inner = directory.join(name);
            if tree.attribute(&inner.join("idVendor")).is_none() {
                open.push((inner, depth + 1));
            }
        }
    }
    out
}

/// The directories of the nodes of USB devices.
pub(super) fn directories(tree: &HostTree) -> Vec<PathBuf> {
    let buses = tree.directories(Path::new(NODES)).into_iter();
    let mut out: Vec<PathBuf> = buses.map(|bus| Path::new(NODES).join(bus)).collect();
    out.push(PathBuf::from(NODES));
    out
}
