//! Finds the devices of a resource in `/sys` and `/dev`.

mod gpio;
mod links;
mod paths;
mod usb;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::device::{MatchedDevice, ResourceDevices, assemble};
use super::host_tree::HostTree;
use super::selector::{DEVICES_MAX, DeviceSelection, Selector};

/// The devices of the resource of these selections at this time. Blocks.
pub(crate) fn scan(tree: &HostTree, selections: &[DeviceSelection]) -> ResourceDevices {
    let mut all = Vec::new();
    for DeviceSelection { selector, count, .. } in selections {
        let matched = match selector {
            Selector::Usb { vendor, product, serial } => {
                usb::find(tree, (vendor.as_str(), product.as_str()), serial.as_ref())
            }
            Selector::Serial(pattern) => links::find(tree, links::SERIAL, pattern),
            Selector::Video(pattern) => links::find(tree, links::VIDEO, pattern),
            Selector::Gpio(pattern) => gpio::find(tree, pattern),
            Selector::Path(parts) => paths::find(tree, parts),
        };
        all.extend(matched.into_iter().map(|device| MatchedDevice { count: *count, ..device }));
    }
    assemble(all, DEVICES_MAX)
}

/// The existing directories below `/dev` in which nodes and links of these selections appear and
/// vanish. Blocks.
pub(crate) fn directories(tree: &HostTree, selections: &[DeviceSelection]) -> BTreeSet<PathBuf> {
    let mut out = BTreeSet::from([PathBuf::from("/dev")]);
    let mut add_with_parents = |directory: &Path| {
        let existing = directory.ancestors().take_while(|path| *path != Path::new("/"));
        out.extend(existing.filter(|path| tree.is_directory(path)).map(Path::to_owned));
    };
    for selection in selections {
        match &selection.selector {
            Selector::Usb { .. } => usb::directories(tree).iter().for_each(|d| add_with_parents(d)),
            Selector::Serial(_) => add_with_parents(Path::new(links::SERIAL)),
            Selector::Video(_) => add_with_parents(Path::new(links::VIDEO)),
            Selector::Gpio(_) => {}
            Selector::Path(parts) => {
                paths::directories(tree, parts).iter().for_each(|d| add_with_parents(d));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
