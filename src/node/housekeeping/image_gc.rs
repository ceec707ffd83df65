//! Image garbage collection: removes unused images when they are too old, or when the image file
//! system is full.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use api::codec::time::duration_text;
use api::field::aggregate;
use base::metrics::Family;
use client::events::EventType;
use proto::runtime::v1 as cri;
use sorting::CompactSort as _;
use tokio::time::Instant;

use crate::context::{Node, RuntimeHandles};
use crate::events;
use crate::housekeeping::dead_containers;
use crate::machine;
use crate::pods::table::PodTable;
use crate::runtime::RuntimeError;

/// Images that were removed.
static REMOVED: Family = Family::counter(
    "kubelet_image_garbage_collected_total",
    "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage \
     or image age.",
    &["reason"],
);

/// Renders the metrics of image garbage collection in the text format.
pub(crate) fn render_metrics() -> String {
    let mut out = String::new();
    REMOVED.render(&mut out);
    out
}

/// When each image was first listed and last used, since the start of the node.
#[derive(Debug)]
pub(super) struct ImageUse {
    started: Instant,
    images: HashMap<String, ImageTimes>,
}

#[derive(Debug, Clone, Copy)]
struct ImageTimes {
    first_listed: Instant,
    /// `None` if it was not used since the start.
    last_used: Option<Instant>,
}

impl ImageUse {
    pub(super) fn new(now: Instant) -> Self {
        Self { started: now, images: HashMap::new() }
    }

    /// Updates the times: `unused` are those of `ids` that nothing uses.
    fn update(&mut self, ids: &[String], unused: &HashSet<&str>, now: Instant) {
        self.images.retain(|id, _| ids.contains(id));
        for id in ids {
            let new = ImageTimes { first_listed: now, last_used: None };
            let times = self.images.entry(id.clone()).or_insert(new);
            if !unused.contains(id.as_str()) {
                times.last_used = Some(now);
            }
        }
    }

    /// Whether an image was unused for longer than `max`, once the node runs for longer than that.
    /// An image that was not used since the start is older.
    fn is_too_old(&self, id: &str, max: Duration, now: Instant) -> bool {
        let longer = |since: Instant| now.saturating_duration_since(since) > max;
        let last_used = self.images.get(id).and_then(|times| times.last_used);
        !max.is_zero() && longer(self.started) && last_used.is_none_or(longer)
    }

    /// Whether an image is known for long enough to be removed for its space.
    fn is_old_enough(&self, id: &str, min: Duration, now: Instant) -> bool {
        let times = self.images.get(id);
        times.is_some_and(|times| now.saturating_duration_since(times.first_listed) >= min)
    }

    /// The order of removal: by the last use, then by the first listing.
    fn removal_order(&self, id: &str) -> Option<(Option<Instant>, Instant)> {
        self.images.get(id).map(|times| (times.last_used, times.first_listed))
    }
}

/// Removes images that were unused for longer than the maximum age; then, when their file system is
/// full, further unused images, the least recently used first.
///
/// # Errors
///
/// Why images stay or the file system stays full; removed images stay removed.
pub(super) async fn collect_images(
    node: &Node,
    table: &PodTable,
    usage: &mut ImageUse,
) -> Result<(), ImageGcError> {
    let (began, now) = (base::clock::unix_time(), base::clock::now());
    let config = &node.identity.config;
    let images = node.runtime.cri.images().await?;
    let ids: Vec<String> = images.iter().map(|image| image.id.clone()).collect();
    let unused = unused_images(&node.runtime, table, images).await;
    let mut unused = unused.ok_or(ImageGcError::NoContainerList)?;
    usage.update(&ids, &unused.iter().map(|image| image.id.as_str()).collect(), now);
    let max = config.image_age_max;
    let (old, rest) = unused.into_iter().partition(|i| usage.is_too_old(&i.id, max, now));
    unused = rest;
    let errors = remove_old(&node.runtime, old).await;
    if !errors.is_empty() {
        return Err(ImageGcError::Old { age: max, errors });
    }
    let Some(disk) = machine::disk(&config.runtime.data_dir).filter(|d| d.size > 0) else {
        let error = ImageGcError::InvalidCapacity;
        let reason = events::INVALID_DISK_CAPACITY;
        node.api.events.node_event(EventType::Warning, reason, error.to_string());
        return Err(error);
    };
    let wanted = to_free(disk, config.image_gc_high, config.image_gc_low);
    if wanted == 0 {
        return Ok(());
    }
    unused.retain(|i| usage.is_old_enough(&i.id, config.image_age_min, now));
    unused.compact_sort_by_key(|i| usage.removal_order(&i.id));
    let (mut freed, mut errors) = (0_u64, Vec::new());
    for image in unused {
        if freed >= wanted {
            break;
        }
        match remove(&node.runtime, &image, "space").await {
            Ok(()) => freed = freed.saturating_add(image.size),
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(ImageGcError::Remove { wanted, freed, errors });
    }
    prune_records(&node.runtime, began).await;
    if freed < wanted {
        let error = ImageGcError::StillFull { disk, freed };
        let reason = events::FREE_DISK_SPACE_FAILED;
        node.api.events.node_event(EventType::Warning, reason, error.to_string());
        return Err(error);
    }
    Ok(())
}

/// Removes images because of their age; returns the errors.
async fn remove_old(runtime: &RuntimeHandles, images: Vec<cri::Image>) -> Vec<RuntimeError> {
    let mut errors = Vec::new();
    for image in images {
        if let Err(error) = remove(runtime, &image, "age").await {
            errors.push(error);
        }
    }
    errors
}

/// Removes the records of pulls of images that no longer exist. Upstream also removes those of
/// images in use, whose access is then no longer checked.
async fn prune_records(runtime: &RuntimeHandles, began: Duration) {
    let Some(access) = &runtime.image_access else { return };
    if let Ok(images) = runtime.cri.images().await {
        access.prune(images.into_iter().map(|image| image.id).collect(), began).await;
    }
}

/// Why the image file system stays full; the texts are those of upstream's `imageGCManager`.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageGcError {
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error("invalid capacity 0 on image filesystem")]
    InvalidCapacity,
    #[error("the container runtime does not list its containers")]
    NoContainerList,
    /// Some images that were too old were not removed.
    #[error(
        "wanted to free images older than {}, encountered errors in image deletion: {}",
        duration_text(i64::try_from(.age.as_nanos()).unwrap_or(i64::MAX)),
        texts(.errors)
    )]
    Old { age: Duration, errors: Vec<RuntimeError> },
    /// Some images were not removed; sizes in bytes.
    #[error(
        "wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image \
         deletion: {}",
        .errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Remove { wanted: u64, freed: u64, errors: Vec<RuntimeError> },
    /// All unused images were removed, which freed too few bytes.
    #[error("{}", still_full(*.disk, *.freed))]
    StillFull { disk: machine::Disk, freed: u64 },
}

/// Used space of a file system in percent.
fn used_percent(disk: machine::Disk) -> u64 {
    100_u64.saturating_sub(share(disk.free.min(disk.size), 100, disk.size))
}

/// `amount * factor / divisor` without overflow.
fn share(amount: u64, factor: u64, divisor: u64) -> u64 {
    let product = u128::from(amount).saturating_mul(u128::from(factor));
    u64::try_from(product / u128::from(divisor.max(1))).unwrap_or(u64::MAX)
}

/// Bytes to free to get down to `low` percent, if more than `high` percent are used.
fn to_free(disk: machine::Disk, high: u8, low: u8) -> u64 {
    if used_percent(disk) < u64::from(high) {
        return 0;
    }
    share(disk.size, 100_u64.saturating_sub(u64::from(low)), 100).saturating_sub(disk.free)
}

/// Upstream's text for a file system that stays full without unused images.
fn still_full(disk: machine::Disk, freed: u64) -> String {
    format!(
        "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to \
         free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk \
         usage, as it could be used by active images, logs, volumes, or other data.",
        used_percent(disk),
        size_text(disk.size)
    )
}

/// Formats a size with one decimal, as upstream's `formatSize` does.
fn size_text(bytes: u64) -> String {
    let mut rest = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if rest < 1024.0 {
            break;
        }
        (rest, unit) = (rest / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{rest:.1} {unit}") }
}

/// Removes all unused images, for a disk under pressure.
pub(crate) async fn free_images(runtime: &RuntimeHandles, table: &PodTable) {
    let Ok(images) = runtime.cri.images().await else { return };
    let began = base::clock::unix_time();
    for image in unused_images(runtime, table, images).await.unwrap_or_default() {
        // The error is logged; if the disk stays full, pods are evicted.
        let _ = remove(runtime, &image, "space").await;
    }
    prune_records(runtime, began).await;
}

/// Returns the images that no container and no pod uses; `None` if the runtime does not answer.
async fn unused_images(
    runtime: &RuntimeHandles,
    table: &PodTable,
    images: Vec<cri::Image>,
) -> Option<Vec<cri::Image>> {
    let containers = runtime.cri.containers(None).await.ok()?;
    let mut used: HashSet<String> =
        containers.into_iter().flat_map(|c| [c.image_ref, c.image_id]).collect();
    // Images of pods whose containers wait for a restart are in use.
    for (pod, handle) in table.all() {
        if !dead_containers::may_start(&pod, &handle.reported.lock()) {
            continue;
        }
        used.extend(
            pod.containers.iter().map(|m| crate::runtime::images::name::normalize(m.image())),
        );
        let image_volumes = pod.spec().volumes.iter().flatten().filter_map(|v| v.image.as_ref());
        let image_volumes = image_volumes.filter_map(|image| image.reference.as_deref());
        used.extend(image_volumes.map(crate::runtime::images::name::normalize));
    }
    let is_used = |i: &cri::Image| {
        let mut names = i.repo_tags.iter().chain(&i.repo_digests);
        used.contains(&i.id) || names.any(|n| used.contains(n) || runtime.pinned.contains(n))
    };
    Some(images.into_iter().filter(|i| !i.pinned && !is_used(i)).collect())
}

/// Removes an image; `reason` is the label of the metric.
async fn remove(
    runtime: &RuntimeHandles,
    image: &cri::Image,
    reason: &str,
) -> Result<(), RuntimeError> {
    let (id, names, bytes) = (&image.id, &image.repo_tags, image.size);
    tracing::info!(image = id, ?names, bytes, "removing unused image");
    runtime.cri.remove_image(&image.id).await.inspect_err(|error| {
        tracing::warn!(image = image.id, %error, "cannot remove image");
    })?;
    REMOVED.inc(&[reason]);
    Ok(())
}

/// The errors of several images in one text.
fn texts(errors: &[RuntimeError]) -> String {
    aggregate(&errors.iter().map(ToString::to_string).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_collected_down_to_the_low_threshold() {
        let disk = |free| {
            let size = 1000;
            machine::Disk { size, free, used: size - free, inodes: 0, inodes_free: 0 }
        };
        assert_eq!(to_free(disk(151), 85, 80), 49, "84.9% are used, upstream rounds up");
        assert_eq!(to_free(disk(160), 85, 80), 0);
        assert_eq!(to_free(disk(150), 85, 80), 50);
        assert_eq!(to_free(disk(0), 85, 80), 200);
        let full = machine::Disk { size: 3 << 29, ..disk(0) };
        assert!(still_full(full, 7).starts_with(
            "Insufficient free disk space on the node's image filesystem (100% of 1.5 GiB used). \
             Failed to free sufficient space by deleting unused images (freed 7 bytes). "
        ));
        assert_eq!((size_text(1023), size_text(1024)), ("1023 B".into(), "1.0 KiB".into()));
    }

    #[test]
    fn images_are_too_old_once_they_were_unused_for_longer_than_the_maximum_age() {
        let start = base::clock::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let max = Duration::from_secs(100);
        let mut usage = ImageUse::new(start);
        let ids = ["used", "unused"].map(str::to_owned);
        usage.update(&ids, &["unused"].into(), after(50));
        assert!(!usage.is_too_old("unused", max, after(100)), "the node runs for the age");
        assert!(usage.is_too_old("unused", max, after(101)), "it was not used since the start");
        assert!(!usage.is_too_old("used", max, after(150)));
        assert!(usage.is_too_old("used", max, after(151)));
        assert!(!usage.is_too_old("used", Duration::ZERO, after(900)), "no maximum age");
        usage.update(&ids, &["used", "unused"].into(), after(140));
        assert!(usage.is_too_old("used", max, after(151)), "its last use is kept");
        usage.update(&ids[..1], &HashSet::new(), after(150));
        assert!(!usage.images.contains_key("unused"), "a removed image is forgotten");
    }

    #[test]
    fn images_are_removed_in_the_order_of_their_last_use() {
        let start = base::clock::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut usage = ImageUse::new(start);
        let ids = ["a", "b", "c"].map(str::to_owned);
        usage.update(&ids[..1], &["a"].into(), after(1));
        usage.update(&ids[..2], &["a"].into(), after(2));
        usage.update(&ids, &["a", "b", "c"].into(), after(3));
        let mut order = ids.to_vec();
        order.sort_by_key(|id| usage.removal_order(id));
        assert_eq!(order, ["a", "c", "b"]);
        let min = Duration::from_secs(10);
        assert!(usage.is_old_enough("a", min, after(11)));
        assert!(!usage.is_old_enough("c", min, after(11)));
    }
}
