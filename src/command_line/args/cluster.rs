//! Flags of the settings that nodes get from their servers, and what they set.

use clap::Args;
use settings::ClusterSettings;

/// Flags that set a field of [`ClusterSettings`].
#[derive(Debug, Args, Clone)]
pub struct ClusterArgs {
    /// Run no service proxy
    #[arg(long, help_heading = "Components")]
    pub disable_kube_proxy: bool,
    /// Do not enforce NetworkPolicies
    #[arg(long, help_heading = "Components")]
    pub disable_network_policy: bool,
}

impl ClusterArgs {
    /// Sets the fields that these flags state.
    pub fn apply(&self, settings: &mut ClusterSettings) {
        settings.proxy = !self.disable_kube_proxy;
        settings.network_policies = !self.disable_network_policy;
    }
}
