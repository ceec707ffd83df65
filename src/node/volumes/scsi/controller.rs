//! Which volumes are in use after a restart of the process, for the attach/detach controller: a
//! volume is not attached to another node while this one lists it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use api::k8s::api::core::v1::NodeStatus;
use sorting::CollectOrdered as _;

use super::detach::{self, LeftVolume, left_volumes};
use super::record;
use super::volume::GlobalVolume;
use crate::context::Node;

/// A user of a volume: the uid of its pod, and the names that the volume may have.
type HeldVolume = (Arc<str>, Vec<String>);

/// The volumes of all pods, and those that are attached for none. Blocks.
fn read(root: &Path) -> (Vec<HeldVolume>, Vec<LeftVolume>) {
    let mut held = Vec::new();
    for (uid, records) in record::volumes_of_all_pods(root) {
        for record in records {
            let names = if record.unique_name.is_empty() {
                let volume = GlobalVolume::at(root, &record.global);
                volume.map(|volume| volume.unique_names()).unwrap_or_default()
            } else {
                vec![record.unique_name]
            };
            held.push((Arc::clone(&uid), names));
        }
    }
    (held, left_volumes(root))
}

/// Keeps those names that the status of the Node lists, as a path may stand for several.
fn listed_of(names: Vec<String>, listed: &BTreeSet<String>) -> Vec<String> {
    names.into_iter().filter(|name| listed.contains(name)).collect()
}

/// Marks volumes as in use that an earlier process set up, and starts to detach those that it left
/// attached for no pod. `status` is that of the earlier process.
pub(crate) async fn take_over(node: &Node, status: Option<&NodeStatus>) {
    let root = node.scsi.root.clone();
    let (held, left) = base::tasks::blocking(move || read(&root)).await.unwrap_or_default();
    let in_use = status.and_then(|s| s.volumes_in_use.clone()).unwrap_or_default();
    let attached = status.and_then(|s| s.volumes_attached.as_ref()).into_iter().flatten();
    let mut listed: BTreeSet<String> = attached.map(|a| a.name.clone()).collect_set();
    listed.extend(in_use);
    for (uid, names) in held {
        for name in listed_of(names, &listed) {
            node.csi.hold_name(&uid, &name);
        }
    }
    for LeftVolume { volume, names } in left {
        let names = listed_of(names, &listed);
        detach::request(&node.scsi, &node.csi, &node.tasks, LeftVolume { volume, names });
    }
}
