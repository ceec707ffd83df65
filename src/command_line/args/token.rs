//! Flags of `kube-lite token`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cluster::token::Secret;

use super::StatusOutput;

/// Flags of `kube-lite token`.
#[derive(Debug, Args, Clone)]
pub struct TokenArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// Subcommands of `kube-lite token`.
#[derive(Debug, Subcommand, Clone)]
pub enum TokenCommand {
    /// Create a bootstrap token and print it
    Create(CreateArgs),
    /// List bootstrap tokens
    #[command(alias = "ls")]
    List(ListArgs),
    /// Delete bootstrap tokens
    Delete(DeleteArgs),
    /// Print a new bootstrap token without creating it on a server
    Generate,
    /// Replace the secret of the server's token; joined machines stay joined
    Rotate(RotateArgs),
}

/// The cluster to talk to.
#[derive(Debug, Args, Clone)]
pub struct ClusterArgs {
    /// Administrator's kubeconfig [default: /etc/kube-lite/kube-lite.yaml] [env: KUBECONFIG]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Flags of `create`.
#[derive(Debug, Args, Clone)]
pub struct CreateArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The token, ID.SECRET [default: a new one]
    pub token: Option<Secret>,
    /// Lifetime, such as 24h or 90m; 0 never expires
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    pub ttl: String,
    /// Description
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub description: String,
    /// Allowed usages
    #[arg(
        long,
        value_name = "USAGE",
        value_delimiter = ',',
        default_value = "signing,authentication",
        value_parser = ["signing", "authentication"]
    )]
    pub usages: Vec<String>,
    /// Groups of requests that authenticate with it; each starts with system:bootstrappers:
    #[arg(
        long,
        value_name = "GROUP",
        value_delimiter = ',',
        default_value = "system:bootstrappers:k3s:default-node-token"
    )]
    pub groups: Vec<String>,
}

/// Flags of `list`.
#[derive(Debug, Args, Clone)]
pub struct ListArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Output format
    #[arg(long, short = 'o', value_enum, default_value_t = StatusOutput::Text)]
    pub output: StatusOutput,
}

/// Flags of `delete`.
#[derive(Debug, Args, Clone)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Token ids or whole tokens
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<Secret>,
}

/// Flags of `rotate`.
#[derive(Debug, Args, Clone)]
pub struct RotateArgs {
    /// Data directory of the server
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The new secret, at least 16 characters [default: a random one]
    #[arg(long, value_name = "SECRET")]
    pub new_token: Option<Secret>,
}
