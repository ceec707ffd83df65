//! Metrics of image pulls, as in the kubelet.

use std::time::Duration;

use base::metrics::Family;

/// Checks of images before the start of a container.
static REQUESTS: Family = Family::counter(
    "kubelet_image_manager_ensure_image_requests_total",
    "[ALPHA] Number of ensure-image requests processed by the kubelet.",
    &["pull_policy", "present_locally", "pull_required"],
);
/// Durations of pulls that succeeded, with the time in the queue.
static PULLS: Family = Family::histogram(
    "kubelet_image_pull_duration_seconds",
    "[ALPHA] Duration in seconds to pull an image.",
    &["image_size_in_bytes"],
    &[
        1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
        1200.0, 1800.0, 2700.0, 3600.0,
    ],
);

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The lower limits of sizes, the largest first, and their labels.
const SIZES: [(u64, &str); 12] = [
    (100 * GIB, "GT100GB"),
    (60 * GIB, "60GB-100GB"),
    (40 * GIB, "40GB-60GB"),
    (30 * GIB, "30GB-40GB"),
    (20 * GIB, "20GB-30GB"),
    (10 * GIB, "10GB-20GB"),
    (5 * GIB, "5GB-10GB"),
    (GIB, "1GB-5GB"),
    (500 * MIB, "500MB-1GB"),
    (100 * MIB, "100MB-500MB"),
    (10 * MIB, "10MB-100MB"),
    (0, "0-10MB"),
];

fn size_label(size: u64) -> &'static str {
    let found = SIZES.iter().find(|(from, _)| size > *from);
    found.map_or("N/A", |(_, label)| label)
}

fn label(value: Option<bool>) -> &'static str {
    match value {
        None => "unknown",
        Some(true) => "true",
        Some(false) => "false",
    }
}

/// Counts a check of an image by its policy, whether the image is present, and whether it has to be
/// pulled, as far as both were determined.
pub(super) fn record_request(policy: &str, is_present: Option<bool>, must_pull: Option<bool>) {
    let policy = policy.to_lowercase();
    REQUESTS.inc(&[&policy, label(is_present), label(must_pull)]);
}

/// Records a pull of an image of `size` bytes.
pub(super) fn record_pull(size: u64, time: Duration) {
    PULLS.took(&[size_label(size)], time);
}

/// Renders all families in the text format.
pub(crate) fn render() -> String {
    let mut out = String::new();
    for family in [&REQUESTS, &PULLS] {
        family.render(&mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulls_are_grouped_by_the_size_of_the_image() {
        for (size, want) in [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 * MIB, "0-10MB"),
            (10 * MIB + 1, "10MB-100MB"),
            (GIB, "500MB-1GB"),
            (100 * GIB, "60GB-100GB"),
            (100 * GIB + 1, "GT100GB"),
        ] {
            assert_eq!(size_label(size), want, "{size}");
        }
    }
}
