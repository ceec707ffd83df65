//! The file systems of the node: which of them are the same, and what follows for thresholds, for
//! the order of evictions and for what is removed first.

use crate::config::thresholds::{EvictionThreshold, ScarceResource, Signal};
use crate::eviction::ranking::{DiskParts, EvictionOrder};

/// How images and writable layers of containers are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileSystemLayout {
    /// One file system for everything.
    Single,
    /// Images and layers are on a file system of their own.
    DedicatedImages,
    /// Only the images are on a file system of their own.
    Split,
}

/// What the node removes before it evicts pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NodeReclaim {
    /// Containers that have ended.
    pub(super) containers: bool,
    /// Images without containers.
    pub(super) images: bool,
}

/// Which of the two signals of a file system a signal is: its bytes, and its inodes.
const NODE_FS: [Signal; 2] = [Signal::NodeFsAvailable, Signal::NodeFsInodesFree];
const IMAGE_FS: [Signal; 2] = [Signal::ImageFsAvailable, Signal::ImageFsInodesFree];
const CONTAINER_FS: [Signal; 2] = [Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree];

impl FileSystemLayout {
    /// The layout of the device numbers of the file systems of pods, images and layers.
    pub(super) fn of(pods: u64, images: u64, layers: u64) -> Self {
        match (images == layers, images == pods) {
            (false, _) => Self::Split,
            (true, false) => Self::DedicatedImages,
            (true, true) => Self::Single,
        }
    }

    /// Adds the thresholds of the file system of layers, which are those of the file system that it
    /// is on (`UpdateContainerFsThresholds`). Configured ones are replaced; their names are
    /// returned, too.
    pub(super) fn with_container_fs(
        self,
        configured: &[EvictionThreshold],
    ) -> (Vec<EvictionThreshold>, Vec<&'static str>) {
        let source = if self == Self::DedicatedImages { IMAGE_FS } else { NODE_FS };
        let (replaced, mut out): (Vec<_>, Vec<_>) =
            configured.iter().copied().partition(|t| CONTAINER_FS.contains(&t.signal));
        let mut added = Vec::new();
        for (from, to) in source.into_iter().zip(CONTAINER_FS) {
            for is_hard in [true, false] {
                let of_kind = |t: &&EvictionThreshold| t.signal == from && t.is_hard() == is_hard;
                added.extend(
                    out.iter().rfind(of_kind).map(|t| EvictionThreshold { signal: to, ..*t }),
                );
            }
        }
        out.extend(added);
        (out, replaced.iter().map(|t| t.signal.name()).collect())
    }

    /// The order in which pods are evicted for a signal (`buildSignalToRankFunc`).
    pub(super) fn order(self, signal: Signal) -> EvictionOrder {
        let volumes = DiskParts { layers: false, logs: true, volumes: true };
        let layers = DiskParts { layers: true, logs: false, volumes: false };
        let none = DiskParts { layers: false, logs: false, volumes: false };
        let all = DiskParts { layers: true, logs: true, volumes: true };
        let of_images = IMAGE_FS.contains(&signal);
        let parts = match self {
            Self::Single => all,
            Self::DedicatedImages if NODE_FS.contains(&signal) => volumes,
            Self::DedicatedImages => layers,
            Self::Split if of_images => none,
            Self::Split => all,
        };
        match signal.resource() {
            ScarceResource::Memory => EvictionOrder::Memory,
            ScarceResource::Storage => EvictionOrder::Storage(parts),
            ScarceResource::Inodes => EvictionOrder::Inodes(parts),
            ScarceResource::Pids => EvictionOrder::Processes,
        }
    }

    /// What is removed for a signal (`buildSignalToNodeReclaimFuncs`).
    pub(super) fn reclaim(self, signal: Signal) -> NodeReclaim {
        if matches!(signal.resource(), ScarceResource::Memory | ScarceResource::Pids) {
            return NodeReclaim::default();
        }
        match self {
            Self::DedicatedImages if NODE_FS.contains(&signal) => NodeReclaim::default(),
            Self::Single | Self::DedicatedImages => NodeReclaim { containers: true, images: true },
            Self::Split if IMAGE_FS.contains(&signal) => {
                NodeReclaim { containers: false, images: true }
            }
            Self::Split => NodeReclaim { containers: true, images: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::thresholds::EvictionThresholds;

    fn thresholds() -> EvictionThresholds {
        let mut out = EvictionThresholds::none();
        out.set_hard(
            "nodefs.available<100Mi,nodefs.inodesFree<100Mi,imagefs.available<150Mi,\
             imagefs.inodesFree<300Mi",
        )
        .unwrap();
        out.set_soft("nodefs.available<200Mi,imagefs.available<300Mi").unwrap();
        out.set_soft_grace("nodefs.available=1m,imagefs.available=2m").unwrap();
        out.set_min_reclaim("nodefs.available=1Gi,imagefs.available=1.5Gi").unwrap();
        out
    }

    /// The cases of upstream's `TestAddContainerFsThresholds`.
    #[test]
    fn layers_have_the_thresholds_of_their_file_system() {
        let of_layers = |layout: FileSystemLayout| {
            let (all, replaced) = layout.with_container_fs(&thresholds().list());
            assert!(replaced.is_empty());
            let own = all.into_iter().filter(|t| CONTAINER_FS.contains(&t.signal));
            let text = |t: EvictionThreshold| {
                format!("{} {} {}s", t.signal.name(), t.value.of(0), t.grace.as_secs())
            };
            own.map(text).collect::<Vec<_>>()
        };
        let of_pods = [
            "containerfs.available 100Mi 0s",
            "containerfs.available 200Mi 60s",
            "containerfs.inodesFree 100Mi 0s",
        ];
        assert_eq!(of_layers(FileSystemLayout::Single), of_pods);
        assert_eq!(of_layers(FileSystemLayout::Split), of_pods);
        assert_eq!(
            of_layers(FileSystemLayout::DedicatedImages),
            [
                "containerfs.available 150Mi 0s",
                "containerfs.available 300Mi 120s",
                "containerfs.inodesFree 300Mi 0s",
            ]
        );
    }

    #[test]
    fn configured_thresholds_of_layers_are_replaced() {
        let mut configured = thresholds();
        configured.set_hard("nodefs.available<100Mi,containerfs.available<500Mi").unwrap();
        let (all, replaced) = FileSystemLayout::Single.with_container_fs(&configured.list());
        assert_eq!(replaced, ["containerfs.available"]);
        let of_layers: Vec<String> = all
            .iter()
            .filter(|t| t.signal == Signal::ContainerFsAvailable && t.is_hard())
            .map(|t| t.value.of(0).to_string())
            .collect();
        assert_eq!(of_layers, ["100Mi"]);
    }

    #[test]
    fn the_layout_follows_from_the_devices() {
        assert_eq!(FileSystemLayout::of(1, 1, 1), FileSystemLayout::Single);
        assert_eq!(FileSystemLayout::of(1, 2, 2), FileSystemLayout::DedicatedImages);
        assert_eq!(FileSystemLayout::of(1, 2, 1), FileSystemLayout::Split);
    }

    #[test]
    fn what_is_removed_first_depends_on_the_layout() {
        let of = |layout: FileSystemLayout, signal| {
            let NodeReclaim { containers, images } = layout.reclaim(signal);
            (containers, images)
        };
        let (node, image) = (Signal::NodeFsAvailable, Signal::ImageFsInodesFree);
        let container = Signal::ContainerFsAvailable;
        assert_eq!(of(FileSystemLayout::Single, node), (true, true));
        assert_eq!(of(FileSystemLayout::DedicatedImages, node), (false, false));
        assert_eq!(of(FileSystemLayout::DedicatedImages, container), (true, true));
        assert_eq!(of(FileSystemLayout::Split, node), (true, false));
        assert_eq!(of(FileSystemLayout::Split, image), (false, true));
        for signal in [Signal::MemoryAvailable, Signal::PidAvailable] {
            assert_eq!(of(FileSystemLayout::Single, signal), (false, false));
        }
    }
}
