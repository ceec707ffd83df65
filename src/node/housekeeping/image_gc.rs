//! Image garbage collection: removes unused images when the image file system is full.

use std::collections::{HashMap, HashSet};

use client::events::EventType;
use proto::runtime::v1 as cri;
use sorting::CompactSort as _;
use tokio::time::Instant;

use crate::context::{Node, RuntimeHandles};
use crate::events;
use crate::machine;
use crate::pods::table::PodTable;
use crate::runtime::RuntimeError;

/// Removes unused images, longest known first, when their file system is full.
///
/// # Errors
///
/// Why the file system stays full; removed images stay removed.
pub(super) async fn collect_images(
    node: &Node,
    table: &PodTable,
    first_listed: &mut HashMap<String, Instant>,
) -> Result<(), ImageGcError> {
    let images = node.runtime.cri.images().await?;
    let now = base::clock::now();
    let ids: HashSet<&str> = images.iter().map(|i| i.id.as_str()).collect();
    first_listed.retain(|id, _| ids.contains(id.as_str()));
    for image in &images {
        first_listed.entry(image.id.clone()).or_insert(now);
    }
    let Some(disk) = machine::disk(&node.identity.config.runtime.data_dir).filter(|d| d.size > 0)
    else {
        let error = ImageGcError::InvalidCapacity;
        let reason = events::INVALID_DISK_CAPACITY;
        node.api.events.node_event(EventType::Warning, reason, error.to_string());
        return Err(error);
    };
    let wanted =
        to_free(disk, node.identity.config.image_gc_high, node.identity.config.image_gc_low);
    if wanted == 0 {
        return Ok(());
    }
    let unused = unused_images(&node.runtime, table, images).await;
    let mut unused = unused.ok_or(ImageGcError::NoContainerList)?;
    let age = node.identity.config.image_age_min;
    unused.retain(|i| first_listed.get(&i.id).is_some_and(|at| at.elapsed() >= age));
    unused.compact_sort_by_key(|i| first_listed.get(&i.id).copied());
    let (mut freed, mut errors) = (0_u64, Vec::new());
    for image in unused {
        if freed >= wanted {
            break;
        }
        match remove(&node.runtime, &image).await {
            Ok(()) => freed = freed.saturating_add(image.size),
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(ImageGcError::Remove { wanted, freed, errors });
    }
    if freed < wanted {
        let error = ImageGcError::StillFull { disk, freed };
        let reason = events::FREE_DISK_SPACE_FAILED;
        node.api.events.node_event(EventType::Warning, reason, error.to_string());
        return Err(error);
    }
    Ok(())
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
    for image in unused_images(runtime, table, images).await.unwrap_or_default() {
        // The error is logged; if the disk stays full, pods are evicted.
        let _ = remove(runtime, &image).await;
    }
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
    for (pod, _) in table.all() {
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

async fn remove(runtime: &RuntimeHandles, image: &cri::Image) -> Result<(), RuntimeError> {
    let (id, names, bytes) = (&image.id, &image.repo_tags, image.size);
    tracing::info!(image = id, ?names, bytes, "removing unused image");
    runtime.cri.remove_image(&image.id).await.inspect_err(|error| {
        tracing::warn!(image = image.id, %error, "cannot remove image");
    })
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
}
