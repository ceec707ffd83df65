//! Metrics of the records of image pulls, as in the kubelet.

use base::metrics::Family;

/// Files of intents.
pub(super) static INTENT_FILES: Family = Family::gauge(
    "kubelet_imagemanager_ondisk_pullintents",
    "[ALPHA] Number of ImagePullIntents stored on disk.",
    &[],
);
/// Files of records.
pub(super) static RECORD_FILES: Family = Family::gauge(
    "kubelet_imagemanager_ondisk_pulledrecords",
    "[ALPHA] Number of ImagePulledRecords stored on disk.",
    &[],
);
/// Use of the cache of intents.
pub(super) static INTENT_CACHE: Family = Family::gauge(
    "kubelet_imagemanager_inmemory_pullintents_usage_percent",
    "[ALPHA] The ImagePullIntents in-memory cache usage in percent.",
    &[],
);
/// Use of the cache of records.
pub(super) static RECORD_CACHE: Family = Family::gauge(
    "kubelet_imagemanager_inmemory_pulledrecords_usage_percent",
    "[ALPHA] The ImagePulledRecords in-memory cache usage in percent.",
    &[],
);
/// Checks by their result.
pub(super) static CHECKS: Family = Family::counter(
    "kubelet_imagemanager_image_mustpull_checks_total",
    "[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified \
     to access an image",
    &["result"],
);

/// Renders all families in the text format.
pub(crate) fn render() -> String {
    let mut out = String::new();
    for family in [&CHECKS, &RECORD_CACHE, &INTENT_CACHE, &RECORD_FILES, &INTENT_FILES] {
        family.render(&mut out);
    }
    out
}
