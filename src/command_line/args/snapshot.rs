//! Snapshot flags of the server and of `kube-lite etcd-snapshot`.

use std::path::PathBuf;

use super::S3Args;
use clap::{Args, Subcommand, ValueEnum};

/// Snapshot flags of a server.
#[derive(Debug, Args, Clone)]
pub struct SnapshotArgs {
    /// Disable scheduled snapshots
    #[arg(long, help_heading = "Snapshots")]
    pub etcd_disable_snapshots: bool,
    /// Schedule of snapshots as a cron expression
    #[arg(long, value_name = "CRON", default_value = "0 */12 * * *", help_heading = "Snapshots")]
    pub etcd_snapshot_schedule_cron: String,
    /// Number of scheduled snapshots to keep; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Snapshots")]
    pub etcd_snapshot_retention: usize,
    /// Directory of the snapshots; a directory other than the default must exist [default:
    /// server/db/snapshots in the data directory]
    #[arg(long, value_name = "DIR", help_heading = "Snapshots")]
    pub etcd_snapshot_dir: Option<PathBuf>,
    /// Prefix of the snapshots' names
    #[arg(long, value_name = "NAME", default_value = "etcd-snapshot", help_heading = "Snapshots")]
    pub etcd_snapshot_name: String,
    /// Compress snapshots
    #[arg(long, help_heading = "Snapshots")]
    pub etcd_snapshot_compress: bool,
    /// Remove all other members, make this server the only member of a new cluster with its own
    /// data, and exit [env: KUBE_LITE_CLUSTER_RESET]
    #[arg(long, help_heading = "Snapshots")]
    pub cluster_reset: bool,
    /// With --cluster-reset: restore this snapshot, or this data directory of etcd or k3s
    #[arg(long, value_name = "PATH", help_heading = "Snapshots")]
    pub cluster_reset_restore_path: Option<PathBuf>,
    #[command(flatten)]
    pub s3: S3Args,
}

/// Flags of `kube-lite etcd-snapshot`.
#[derive(Debug, Args, Clone)]
pub struct SnapshotCommandArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

/// Subcommands of `kube-lite etcd-snapshot`.
#[derive(Debug, Subcommand, Clone)]
pub enum SnapshotCommand {
    /// Take a snapshot of the server that runs on this machine
    Save(SaveArgs),
    /// List snapshots
    #[command(aliases = ["list", "l"])]
    Ls(LsArgs),
    /// Delete snapshots by name
    Delete(DeleteSnapshotArgs),
    /// Delete the oldest snapshots with a prefix, keeping a number of them
    Prune(PruneArgs),
}

impl SnapshotCommand {
    /// The folder and bucket flags of the subcommand.
    pub(crate) fn folder_mut(&mut self) -> &mut FolderArgs {
        match self {
            Self::Save(args) => &mut args.folder,
            Self::Ls(args) => &mut args.folder,
            Self::Delete(args) => &mut args.folder,
            Self::Prune(args) => &mut args.folder,
        }
    }
}

/// The snapshot folder and the optional bucket.
#[derive(Debug, Args, Clone)]
pub struct FolderArgs {
    /// Data directory of the server [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Directory of the snapshots [default: that of the server]
    #[arg(long = "etcd-snapshot-dir", visible_alias = "dir", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub s3: S3Args,
}

/// Flags of `save`.
#[derive(Debug, Args, Clone)]
pub struct SaveArgs {
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Prefix of the snapshot's name
    #[arg(long, value_name = "NAME", default_value = "on-demand")]
    pub name: String,
    /// Compress the snapshot
    #[arg(long = "etcd-snapshot-compress", visible_alias = "snapshot-compress")]
    pub compress: bool,
}

/// Flags of `ls`.
#[derive(Debug, Args, Clone)]
pub struct LsArgs {
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Output format
    #[arg(long, short = 'o', value_enum, default_value_t = SnapshotOutput::Table)]
    pub output: SnapshotOutput,
}

/// Output format of `ls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SnapshotOutput {
    /// Columns.
    Table,
    /// A list of k3s's ETCDSnapshotFile.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Flags of `delete`.
#[derive(Debug, Args, Clone)]
pub struct DeleteSnapshotArgs {
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Names as listed by `ls`
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// Flags of `prune`.
#[derive(Debug, Args, Clone)]
pub struct PruneArgs {
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Prefix of the snapshots' names
    #[arg(long, value_name = "NAME", default_value = "on-demand")]
    pub name: String,
    /// Number of snapshots to keep
    #[arg(
        long = "etcd-snapshot-retention",
        visible_alias = "snapshot-retention",
        value_name = "N",
        default_value_t = 5
    )]
    pub retention: usize,
    /// Node name in the snapshots' names [default: that of the server, or the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
}
