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

/// Subcommands of `kube-lite certificate`.
#[derive(Debug, Subcommand, Clone)]
pub enum CertificateCommand {
    /// List the certificates of this machine with their expiry
    Check(CheckArgs),
    /// Replace certificates and keys of this server at its next start; not needed for renewal,
    /// which a running server does before they expire
    Rotate(RotateLeavesArgs),
    /// Replace the cluster's CAs and the service account key at the server's next start, after
    /// checking the new ones; nodes and pods keep running
    RotateCa(RotateCaArgs),
}

/// Flags of `check`.
#[derive(Debug, Args, Clone)]
pub struct CheckArgs {
    /// Data directory of the server or agent [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Output format
    #[arg(long, short = 'o', value_enum, default_value_t = CheckOutput::Text)]
    pub output: CheckOutput,
}

/// Output format of `check`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckOutput {
    /// One line per certificate.
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
    /// Services to replace the certificates of: admin, api-server, controller-manager, scheduler,
    /// etcd, auth-proxy, kubelet, kube-proxy [default: all]
    #[arg(long, short = 's', value_name = "SERVICE", value_delimiter = ',')]
    pub service: Vec<String>,
}

/// Flags of `rotate-ca`.
#[derive(Debug, Args, Clone)]
pub struct RotateCaArgs {
    /// Data directory of the server [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Directory with the new CAs and keys in tls/, named as in server/tls of the data directory;
    /// files that are absent are not replaced [default: create new CAs, cross-signed by those in
    /// use]
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// Also accept CAs that the CAs in use did not sign: nodes must join again, clients need new
    /// kubeconfigs, service account tokens may become invalid
    #[arg(long)]
    pub force: bool,
}
