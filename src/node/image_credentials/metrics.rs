//! Metrics of credential provider plugins, as in the kubelet.

use base::metrics::{DEFAULT_BOUNDS, Family};

/// Runs of a plugin that failed.
pub(super) static ERRORS: Family = Family::counter(
    "kubelet_credential_provider_plugin_errors_total",
    "[ALPHA] Number of errors from credential provider plugin",
    &["plugin_name"],
);
/// Duration of the runs, in seconds.
pub(super) static DURATION: Family = Family::histogram(
    "kubelet_credential_provider_plugin_duration",
    "[ALPHA] Duration of execution in seconds for credential provider plugin",
    &["plugin_name"],
    &DEFAULT_BOUNDS,
);
/// The digest of the configuration.
pub(super) static CONFIG_INFO: Family = Family::gauge(
    "kubelet_credential_provider_config_info",
    "[ALPHA] Information about the last applied credential provider configuration with hash as \
     label",
    &["hash"],
);

/// Renders all families in the text format; those without values are left out.
pub(crate) fn render() -> String {
    let mut out = String::new();
    for family in [&CONFIG_INFO, &DURATION, &ERRORS] {
        family.render(&mut out);
    }
    out
}
