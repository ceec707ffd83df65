//! Devices by the links that udev makes with their names and serial numbers.

use std::path::Path;

use crate::generic_devices::device::MatchedDevice;
use crate::generic_devices::host_tree::HostTree;
use crate::generic_devices::pattern::Pattern;

/// Links to serial ports.
pub(super) const SERIAL: &str = "/dev/serial/by-id";
/// Links to cameras and tuners.
pub(super) const VIDEO: &str = "/dev/v4l/by-id";

/// The devices whose links in a directory match.
pub(super) fn find(tree: &HostTree, directory: &str, pattern: &Pattern) -> Vec<MatchedDevice> {
    let directory = Path::new(directory);
    let names = tree.names(directory).into_iter().filter(|name| pattern.matches(name));
    let device = |name: String| {
        let link = directory.join(&name);
        let node = tree.device_node(&link)?;
        let numa_node = tree.described_at(&node).and_then(|device| tree.numa_node(&device));
        let link = link.to_str().map(str::to_owned);
        Some(MatchedDevice { id: name, nodes: vec![node], link, numa_node, ..Default::default() })
    };
    names.filter_map(device).collect()
}
