//! Devices by the paths of their nodes.

use std::path::PathBuf;

use sorting::CompactSort as _;

use crate::generic_devices::device::MatchedDevice;
use crate::generic_devices::host_tree::HostTree;
use crate::generic_devices::pattern::Pattern;

/// Maximum number of paths that are considered.
const PATHS_MAX: usize = 10_000;

/// The device nodes that match, and links to device nodes. A directory without wildcards is one
/// device with all nodes in it. Links come first: their names are made to stay the same.
pub(super) fn find(tree: &HostTree, parts: &[Pattern]) -> Vec<MatchedDevice> {
    let is_literal = parts.iter().all(|part| part.literal().is_some());
    let mut paths = expand(tree, parts);
    paths.compact_sort_by_cached_key(|path| !tree.is_link(path));
    let device = |path: PathBuf| {
        let id = path.strip_prefix("/dev").ok()?.to_str()?.to_owned();
        if is_literal && tree.is_directory(&path) {
            let names = tree.names(&path).into_iter();
            let nodes: Vec<String> =
                names.filter_map(|name| tree.device_node(&path.join(name))).collect();
            return Some(MatchedDevice { id, nodes, ..Default::default() });
        }
        let node = tree.device_node(&path)?;
        let numa_node = tree.described_at(&node).and_then(|device| tree.numa_node(&device));
        let link = path.to_str().map(str::to_owned).filter(|link| *link != node);
        Some(MatchedDevice { id, nodes: vec![node], link, numa_node, ..Default::default() })
    };
    paths.into_iter().filter_map(device).collect()
}

/// The paths that the parts match, sorted. A part without wildcards is not looked up.
fn expand(tree: &HostTree, parts: &[Pattern]) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from("/dev")];
    for part in parts {
        let below = paths.iter().flat_map(|directory| match part.literal() {
            Some(name) => vec![directory.join(name)],
            None => {
                let names = tree.names(directory).into_iter().filter(|name| part.matches(name));
                names.map(|name| directory.join(name)).collect()
            }
        });
        paths = below.take(PATHS_MAX).collect();
    }
    paths
}

/// The directories in which these paths are, and the directory that they may be.
pub(super) fn directories(tree: &HostTree, parts: &[Pattern]) -> Vec<PathBuf> {
    let above = parts.len().saturating_sub(1);
    let mut out = expand(tree, parts.get(..above).unwrap_or_default());
    if parts.iter().all(|part| part.literal().is_some()) {
        out.extend(expand(tree, parts));
    }
    out
}
