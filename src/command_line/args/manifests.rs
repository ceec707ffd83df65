//! Flags of the manifests folder.

use clap::Args;

/// Flags of `server/manifests` in the data directory.
#[derive(Debug, Args, Clone)]
pub struct ManifestArgs {
    /// Delete the objects of a file that is deleted from server/manifests; otherwise they stay, as
    /// in k3s
    #[arg(long, help_heading = "Components")]
    pub manifests_prune: bool,
}
