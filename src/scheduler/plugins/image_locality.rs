//! ImageLocality: prefers nodes that hold the pod's images, weighted by size and by how many nodes
//! hold them.

use crate::framework::{MAX_NODE_SCORE, Plugin, Snapshot};
use crate::node_info::NodeInfo;

/// Images of at most this size in bytes score nothing (`minThreshold`).
const MIN_THRESHOLD: i64 = 23 << 20;
/// Images of this size per image of the pod score the maximum (`maxContainerThreshold`).
const MAX_CONTAINER_THRESHOLD: i64 = 1000 << 20;

/// The images of the pod, each with the share of nodes that hold it.
#[derive(Debug, Clone)]
pub(super) struct ImageLocality {
    images: Vec<(String, f64)>,
    max_threshold: i64,
}

impl Plugin for ImageLocality {
    const NAME: &'static str = "ImageLocality";

    fn pre_score(snapshot: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        let total = snapshot.nodes.len().max(1) as f64;
        let share = |image: &str| {
            let image = normalized_name(image);
            let share = snapshot.nodes.holding_image(&image) as f64 / total;
            (share > 0.0).then_some((image, share))
        };
        let images: Vec<_> = snapshot.pod.images.iter().filter_map(|i| share(i)).collect();
        let count = i64::try_from(snapshot.pod.images.len().max(1)).unwrap_or(1);
        let max_threshold = MAX_CONTAINER_THRESHOLD * count;
        (!images.is_empty()).then_some(Self { images, max_threshold })
    }

    fn score(&self, _: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        let sizes = self
            .images
            .iter()
            .filter_map(|(image, share)| Some((*node.images.get(image)? as f64 * share) as i64));
        let size = sizes.sum::<i64>().clamp(MIN_THRESHOLD, self.max_threshold);
        (size - MIN_THRESHOLD) * MAX_NODE_SCORE / (self.max_threshold - MIN_THRESHOLD)
    }
}

/// A name without a colon in its last part means `:latest` (`normalizedImageName`).
fn normalized_name(image: &str) -> String {
    let tail = image.rsplit('/').next().unwrap_or_default();
    if tail.contains(':') { image.to_owned() } else { format!("{image}:latest") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_without_tag_means_latest() {
        for (image, name) in [
            ("nginx", "nginx:latest"),
            ("registry:5000/nginx", "registry:5000/nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("nginx@sha256:0", "nginx@sha256:0"),
        ] {
            assert_eq!(normalized_name(image), name);
        }
    }
}
