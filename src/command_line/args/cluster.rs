//! Flags of the settings that nodes get from their servers, and what they set.

use clap::Args;
use settings::ClusterSettings;

use super::{FlannelClusterArgs, RegistryArgs};

/// Flags that set a field of [`ClusterSettings`].
#[derive(Debug, Args, Clone)]
pub struct ClusterArgs {
    /// Run no service proxy
    #[arg(long, help_heading = "Components")]
    pub disable_kube_proxy: bool,
    /// Do not enforce NetworkPolicies
    #[arg(long, help_heading = "Components")]
    pub disable_network_policy: bool,
    /// MTU of pods on all nodes, such as 1400 where the path between machines is narrower than
    /// their links [default: that of each node's link to the others, less what the backend adds]
    #[arg(
        long,
        value_name = "BYTES", help_heading = "Networking",
        value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub pod_mtu: Option<u32>,
    #[command(flatten)]
    pub flannel: FlannelClusterArgs,
    #[command(flatten)]
    pub registry: RegistryArgs,
}

impl ClusterArgs {
    /// Sets the fields that these flags state.
    pub fn apply(&self, settings: &mut ClusterSettings) {
        settings.proxy = !self.disable_kube_proxy;
        settings.network_policies = !self.disable_network_policy;
        settings.pod_mtu = self.pod_mtu;
        settings.external_overlay = self.flannel.flannel_external_ip;
        self.registry.apply(settings);
    }
}
