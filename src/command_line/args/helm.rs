//! Flags of the controller of Helm charts.

use clap::Args;

/// Flags of the controller of Helm charts.
#[derive(Debug, Args, Clone, Default)]
pub struct HelmArgs {
    /// Do not apply HelmChart objects
    #[arg(long, help_heading = "Components")]
    pub disable_helm_controller: bool,
}
