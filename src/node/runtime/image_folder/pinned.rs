//! The names of images that garbage collection keeps.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwap;

/// The pause image and the images of the folder. containerd reports pinned images over the CRI from
/// version 1.7 only.
#[derive(Debug, Clone, Default)]
pub(crate) struct PinnedImages {
    pause: Arc<str>,
    folder: Arc<ArcSwap<HashSet<String>>>,
}

impl PinnedImages {
    /// Keeps the pause image; those of the folder follow.
    pub(crate) fn new(pause: &str) -> Self {
        Self { pause: pause.into(), ..Self::default() }
    }

    /// Whether an image has a name that is kept.
    pub(crate) fn contains(&self, name: &str) -> bool {
        *self.pause == *name || self.folder.load().contains(name)
    }

    /// Replaces the names of the folder's images.
    pub(super) fn replace(&self, names: HashSet<String>) {
        self.folder.store(Arc::new(names));
    }
}
