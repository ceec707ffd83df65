//! Flags of `kube-lite certificate`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Flags of `kube-lite certificate`.
#[derive(Debug, Args, Clone)]
pub struct CertificateArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CertificateCommand,
}

/// The commands about certificates.
#[derive(Debug, Subcommand, Clone)]
pub enum CertificateCommand {
    /// Show the certificates of this machine and when they end
    Check(CheckArgs),
    /// Have certificates of this server made anew, with new keys, at its next start; those that near their end are renewed while
    /// the server runs, without this
    Rotate(RotateLeavesArgs),
    /// Change the CAs of the cluster and the key of service accounts at the server's next start, when everything that is given fits;
    /// nodes and pods go on
    RotateCa(RotateCaArgs),
}

/// Flags of `check`.
#[derive(Debug, Args, Clone)]
pub struct CheckArgs {
    /// Data directory of the server or agent [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Form of the answer
    #[arg(long, short = 'o', value_enum, default_value_t = CheckOutput::Text)]
    pub output: CheckOutput,
}

/// Form of the answer of `check`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckOutput {
    /// A line for each.
    Text,
    /// Columns.
    Table,
}

/// Flags of `rotate`.
#[derive(Debug, Args, Clone)]
pub struct RotateLeavesArgs {
    /// Data directory of the server [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Whose: admin, api-server, controller-manager, scheduler, etcd, auth-proxy, kubelet, kube-proxy [default: all]
    #[arg(long, short = 's', value_name = "SERVICE", value_delimiter = ',')]
    pub service: Vec<String>,
}

/// Flags of `rotate-ca`.
#[derive(Debug, Args, Clone)]
pub struct RotateCaArgs {
    /// Data directory of the server [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Directory with the new CAs and keys in tls/, under the names that they have in server/tls of the data directory; what is
    /// not there stays [default: new ones are made, cross-signed by those in use]
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// Take CAs that are not linked to those in use, too: nodes have to join anew then, clients need new kubeconfigs, tokens of
    /// service accounts may end
    #[arg(long)]
    pub force: bool,
}
