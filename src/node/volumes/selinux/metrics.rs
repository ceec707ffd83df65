//! Metrics about the labels of volumes, those of the kubelet's volume manager. Errors and warnings
//! are counted with each attempt, as in upstream.

use base::metrics::Family;

const ACCESS_MODE: &[&str] = &["access_mode"];
const MODE_AND_PLUGIN: &[&str] = &["access_mode", "volume_plugin"];

static CONTAINER_ERRORS: Family = Family::gauge(
    "volume_manager_selinux_container_errors_total",
    "[ALPHA] Number of errors when kubelet cannot compute SELinux context for a container. Kubelet \
     can't start such a Pod then and it will retry, therefore value of this metric may not \
     represent the actual nr. of containers.",
    ACCESS_MODE,
);

static CONTAINER_WARNINGS: Family = Family::gauge(
    "volume_manager_selinux_container_warnings_total",
    "[ALPHA] Number of errors when kubelet cannot compute SELinux context for a container that are \
     ignored. They will become real errors when SELinuxMountReadWriteOncePod feature is expanded \
     to all volume access modes.",
    ACCESS_MODE,
);

static POD_ERRORS: Family = Family::gauge(
    "volume_manager_selinux_pod_context_mismatch_errors_total",
    "[ALPHA] Number of errors when a Pod defines different SELinux contexts for its containers \
     that use the same volume. Kubelet can't start such a Pod then and it will retry, therefore \
     value of this metric may not represent the actual nr. of Pods.",
    ACCESS_MODE,
);

static POD_WARNINGS: Family = Family::gauge(
    "volume_manager_selinux_pod_context_mismatch_warnings_total",
    "[ALPHA] Number of errors when a Pod defines different SELinux contexts for its containers \
     that use the same volume. They are not errors yet, but they will become real errors when \
     SELinuxMountReadWriteOncePod feature is expanded to all volume access modes.",
    ACCESS_MODE,
);

static VOLUME_ERRORS: Family = Family::gauge(
    "volume_manager_selinux_volume_context_mismatch_errors_total",
    "[ALPHA] Number of errors when a Pod uses a volume that is already mounted with a different \
     SELinux context than the Pod needs. Kubelet can't start such a Pod then and it will retry, \
     therefore value of this metric may not represent the actual nr. of Pods.",
    MODE_AND_PLUGIN,
);

static VOLUME_WARNINGS: Family = Family::gauge(
    "volume_manager_selinux_volume_context_mismatch_warnings_total",
    "[ALPHA] Number of errors when a Pod uses a volume that is already mounted with a different \
     SELinux context than the Pod needs. They are not errors yet, but they will become real errors \
     when SELinuxMountReadWriteOncePod feature is expanded to all volume access modes.",
    MODE_AND_PLUGIN,
);

static ADMITTED: Family = Family::gauge(
    "volume_manager_selinux_volumes_admitted_total",
    "[ALPHA] Number of volumes whose SELinux context was fine and will be mounted with mount -o \
     context option.",
    MODE_AND_PLUGIN,
);

/// Counts options that cannot be translated.
pub(super) fn count_translation_error(access_mode: &str, is_error: bool) {
    let family = if is_error { &CONTAINER_ERRORS } else { &CONTAINER_WARNINGS };
    family.inc(&[access_mode]);
}

/// Counts containers of a pod with several labels.
pub(super) fn count_pod_mismatch(access_mode: &str, is_error: bool) {
    let family = if is_error { &POD_ERRORS } else { &POD_WARNINGS };
    family.inc(&[access_mode]);
}

/// Counts a pod that needs another label than the volume has.
pub(super) fn count_volume_mismatch(plugin: &str, access_mode: &str, is_error: bool) {
    let family = if is_error { &VOLUME_ERRORS } else { &VOLUME_WARNINGS };
    family.inc(&[access_mode, plugin]);
}

/// Counts a volume with a label.
pub(super) fn count_admitted(plugin: &str, access_mode: &str) {
    ADMITTED.inc(&[access_mode, plugin]);
}

/// Renders the metrics in the Prometheus text format.
pub(crate) fn render() -> String {
    let mut out = String::new();
    for family in [
        &CONTAINER_ERRORS,
        &CONTAINER_WARNINGS,
        &POD_ERRORS,
        &POD_WARNINGS,
        &VOLUME_ERRORS,
        &VOLUME_WARNINGS,
        &ADMITTED,
    ] {
        family.render(&mut out);
    }
    out
}
