//! GPIO chips by their labels.

use std::path::{Path, PathBuf};

use crate::generic_devices::device::MatchedDevice;
use crate::generic_devices::host_tree::HostTree;
use crate::generic_devices::pattern::Pattern;

/// The chips, which have nodes.
const CHIPS: &str = "/sys/bus/gpio/devices";
/// The chips in the older interface, which have labels. Their numbers are others.
const LABELS: &str = "/sys/class/gpio";

/// A chip with its label, in the older interface.
struct LabelledChip {
    label: String,
    /// The device that it belongs to.
    device: PathBuf,
}

/// The chips whose labels match.
pub(super) fn find(tree: &HostTree, pattern: &Pattern) -> Vec<MatchedDevice> {
    let labelled = labelled_chips(tree);
    let chips: Vec<(String, PathBuf)> = tree
        .names(Path::new(CHIPS))
        .into_iter()
        .filter(|name| name.starts_with("gpiochip"))
        .filter_map(|name| Some((name.clone(), tree.real(&Path::new(CHIPS).join(name))?)))
        .collect();
    let mut out = Vec::new();
    for (name, chip) in &chips {
        let Some(label) = label(tree, &labelled, &chips, chip) else { continue };
        if !pattern.matches(&label) {
            continue;
        }
        let node = tree.node_name(chip).unwrap_or_else(|| name.clone());
        let Some(node) = tree.device_node(&Path::new("/dev").join(node)) else { continue };
        let parent = chip.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        let location = parent.unwrap_or(name).to_owned();
        let numa_node = tree.numa_node(chip);
        let nodes = vec![node];
        out.push(MatchedDevice { id: label, location, nodes, numa_node, ..Default::default() });
    }
    out
}

fn labelled_chips(tree: &HostTree) -> Vec<LabelledChip> {
    let labelled = |name: String| {
        let chip = Path::new(LABELS).join(name);
        let label = tree.attribute(&chip.join("label"))?;
        let device = tree.real(&chip.join("device"))?;
        Some(LabelledChip { label, device })
    };
    tree.names(Path::new(LABELS)).into_iter().filter_map(labelled).collect()
}

/// The label of a chip: its own, or that of the older interface. There the device is the chip, or,
/// in older kernels, the device above it, which is then the only chip of that device.
fn label(
    tree: &HostTree,
    labelled: &[LabelledChip],
    chips: &[(String, PathBuf)],
    chip: &Path,
) -> Option<String> {
    if let Some(own) = tree.attribute(&chip.join("label")) {
        return Some(own);
    }
    let of = |device: &Path| {
        let found = labelled.iter().find(|labelled| labelled.device == device)?;
        Some(found.label.clone())
    };
    let parent = chip.parent()?;
    let siblings = chips.iter().filter(|(_, other)| other.parent() == Some(parent)).count();
    of(chip).or_else(|| of(parent).filter(|_| siblings == 1))
}
