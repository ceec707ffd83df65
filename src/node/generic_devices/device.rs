//! Devices of one resource: their ids, their places for several containers, and what a container
//! gets. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use proto::deviceplugin as plugin;
use sorting::CompactSort as _;

use crate::devices::CallError;

/// The text of a device that containers can get.
const HEALTHY: &str = "Healthy";
/// The text of a device that a container has and that is no longer on the machine.
const UNHEALTHY: &str = "Unhealthy";
/// Permissions of containers: they read and write, and make no further nodes of the device.
const PERMISSIONS: &str = "rw";
/// Maximum number of characters of the parts of an id.
const ID_MAX: usize = 255;

/// A device that a selector matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MatchedDevice {
    /// What identifies the device after it was unplugged and plugged in again.
    pub(crate) id: String,
    /// Where the device is: distinguishes devices with one id.
    pub(crate) location: String,
    /// Its device nodes, at least one.
    pub(crate) nodes: Vec<String>,
    /// A path below `/dev` that stays the same when the device gets another node.
    pub(crate) link: Option<String>,
    pub(crate) numa_node: Option<i64>,
    /// How many containers share it.
    pub(crate) count: usize,
}

/// A device of a resource; its id is unique in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostDevice {
    pub(crate) id: String,
    /// Its device nodes, the main one first.
    nodes: Vec<String>,
    link: Option<String>,
    numa_node: Option<i64>,
    count: usize,
}

/// The devices of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResourceDevices {
    pub(crate) devices: Vec<HostDevice>,
    /// Number of devices left out because of the limit.
    pub(crate) left_out: usize,
}

/// Replaces the characters that an id must not have: it is part of statuses and of files.
fn clean(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '\\' | '`');
    text.chars().take(ID_MAX).map(|c| if is_plain(c) { c } else { '_' }).collect()
}

/// The order of device nodes: those that programs open for the function of the device first.
fn node_order(node: &str) -> (u8, usize, &str) {
    let name = node.strip_prefix("/dev/").unwrap_or(node);
    let rank = match name {
        _ if name.starts_with("tty") => 0,
        _ if name.starts_with("video") => 1,
        _ if name.starts_with("bus/usb/") => 3,
        _ => 2,
    };
    // Of names with numbers, the shorter one has the smaller number.
    (rank, name.len(), node)
}

/// Gives the matched devices unique ids. A device with a node of an earlier one is left out: both
/// are the same device. `max` limits the number of devices, each counted as often as it is shared.
pub(crate) fn assemble(matched: Vec<MatchedDevice>, max: usize) -> ResourceDevices {
    let mut out = ResourceDevices::default();
    let (mut ids, mut used, mut places) = (BTreeSet::new(), BTreeSet::new(), 0_usize);
    for mut device in matched {
        if device.nodes.is_empty() || device.nodes.iter().any(|node| used.contains(node)) {
            continue;
        }
        places = places.saturating_add(device.count);
        if places > max {
            out.left_out += 1;
            continue;
        }
        used.extend(device.nodes.iter().cloned());
        let id = unique(&ids, &clean(&device.id), &clean(&device.location));
        ids.insert(id.clone());
        device.nodes.compact_sort_by(|a, b| node_order(a).cmp(&node_order(b)));
        let MatchedDevice { nodes, link, numa_node, count, .. } = device;
        out.devices.push(HostDevice { id, nodes, link, numa_node, count });
    }
    out
}

/// An id that no other device has.
fn unique(taken: &BTreeSet<String>, id: &str, location: &str) -> String {
    if !taken.contains(id) {
        return id.to_owned();
    }
    let with_location = format!("{id}@{location}");
    let numbered = (2..).map(|number: u32| format!("{with_location}+{number}"));
    let mut all = std::iter::once(with_location.clone()).chain(numbered);
    all.find(|id| !taken.contains(id)).unwrap_or(with_location)
}

impl HostDevice {
    /// The ids that the device has as devices of the plugin: one for each container that may share
    /// it. The first one does not depend on their number, so that it can be changed.
    pub(crate) fn places(&self) -> impl Iterator<Item = String> {
        let shared = (1..self.count).map(|place| format!("{}::{place}", self.id));
        std::iter::once(self.id.clone()).chain(shared)
    }
}

/// The device by each of its ids as devices of the plugin.
fn by_place(devices: &[HostDevice]) -> BTreeMap<String, &HostDevice> {
    let mut out = BTreeMap::new();
    for device in devices {
        for place in device.places() {
            out.entry(place).or_insert(device);
        }
    }
    out
}

/// The list of the plugin: the devices, and as unhealthy ones those that containers have although
/// they are gone. Others that are gone are not listed.
pub(crate) fn list(devices: &[HostDevice], allocated: &BTreeSet<String>) -> Vec<plugin::Device> {
    let present = by_place(devices);
    let topology = |node: i64| plugin::TopologyInfo { nodes: vec![plugin::NumaNode { id: node }] };
    let healthy = present.iter().map(|(id, device)| plugin::Device {
        id: id.clone(),
        health: HEALTHY.to_owned(),
        topology: device.numa_node.map(topology),
    });
    let gone = allocated.iter().filter(|id| !present.contains_key(*id));
    let gone = gone.map(|id| plugin::Device {
        id: id.clone(),
        health: UNHEALTHY.to_owned(),
        topology: None,
    });
    healthy.chain(gone).collect()
}

/// The id of the device that has this id as a device of the plugin.
fn device_of<'a>(present: &BTreeMap<String, &'a HostDevice>, place: &'a str) -> &'a str {
    present.get(place).map_or(place, |device| device.id.as_str())
}

/// Which `count` of the `available` ids a container gets: those of different devices before
/// several of one, and of devices that fewer containers have.
pub(crate) fn spread(
    devices: &[HostDevice],
    available: &BTreeSet<String>,
    must_include: &BTreeSet<String>,
    count: usize,
) -> BTreeSet<String> {
    let present = by_place(devices);
    let mut free: BTreeMap<&str, usize> = BTreeMap::new();
    for id in available {
        *free.entry(device_of(&present, id)).or_default() += 1;
    }
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    for id in must_include {
        *taken.entry(device_of(&present, id)).or_default() += 1;
    }
    let mut chosen = must_include.clone();
    while chosen.len() < count {
        let next = available.iter().filter(|id| !chosen.contains(*id)).min_by_key(|id| {
            let device = device_of(&present, id);
            let number = |of: &BTreeMap<&str, usize>| of.get(device).copied().unwrap_or_default();
            (number(&taken), Reverse(number(&free)), *id)
        });
        let Some(next) = next else { break };
        *taken.entry(device_of(&present, next)).or_default() += 1;
        chosen.insert(next.clone());
    }
    chosen
}

/// What a container with these ids gets: each device by its stable names and by its nodes. `name`
/// is that of the resource; the first device is `/dev/NAME`, the next ones `/dev/NAME-1` and so on.
///
/// # Errors
///
/// The device of an id is not on the machine.
pub(crate) fn response(
    name: &str,
    devices: &[HostDevice],
    ids: &BTreeSet<String>,
) -> Result<plugin::ContainerAllocateResponse, CallError> {
    let present = by_place(devices);
    let mut chosen: BTreeMap<&str, &HostDevice> = BTreeMap::new();
    for id in ids {
        let device = present.get(id).ok_or_else(|| CallError::Missing(id.clone()))?;
        chosen.insert(&device.id, device);
    }
    let (mut paths, mut specs) = (BTreeSet::new(), Vec::new());
    let mut add = |inside: &str, node: &str| {
        if paths.insert(inside.to_owned()) {
            specs.push(plugin::DeviceSpec {
                container_path: inside.to_owned(),
                host_path: node.to_owned(),
                permissions: PERMISSIONS.to_owned(),
            });
        }
    };
    for (index, device) in chosen.values().enumerate() {
        let stable = match index {
            0 => format!("/dev/{name}"),
            _ => format!("/dev/{name}-{index}"),
        };
        if let Some(main) = device.nodes.first() {
            add(&stable, main);
            device.link.iter().for_each(|link| add(link, main));
        }
        device.nodes.iter().for_each(|node| add(node, node));
    }
    Ok(plugin::ContainerAllocateResponse { devices: specs, ..Default::default() })
}

#[cfg(test)]
mod tests;
