//! Flags about snapshots: of the server that takes them by a schedule, and of `kube-lite etcd-snapshot`.

use std::path::PathBuf;

use super::S3Args;
use clap::{Args, Subcommand, ValueEnum};

/// Flags of a server.
#[derive(Debug, Args, Clone)]
pub struct SnapshotArgs {
    /// Take no snapshots by a schedule
    #[arg(long, help_heading = "Snapshots", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub etcd_disable_snapshots: bool,
    /// When snapshots are taken, in the form of cron
    #[arg(long, value_name = "CRON", default_value = "0 */12 * * *", help_heading = "Snapshots")]
    pub etcd_snapshot_schedule_cron: String,
    /// How many of those are kept; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Snapshots")]
    pub etcd_snapshot_retention: usize,
    /// Where they are kept; another folder than the default must exist [default: server/db/snapshots in the data directory]
    #[arg(long, value_name = "DIR", help_heading = "Snapshots")]
    pub etcd_snapshot_dir: Option<PathBuf>,
    /// First part of their names
    #[arg(long, value_name = "NAME", default_value = "etcd-snapshot", help_heading = "Snapshots")]
    pub etcd_snapshot_name: String,
    /// Compress them
    #[arg(long, help_heading = "Snapshots", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub etcd_snapshot_compress: bool,
    /// Forget all other members, become the only one of a new cluster with this server's data, and end [env: KUBE_LITE_CLUSTER_RESET]
    #[arg(long, help_heading = "Snapshots", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub cluster_reset: bool,
    /// With --cluster-reset: take the data of this snapshot, or of this data directory of etcd or k3s
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

/// The commands about snapshots.
#[derive(Debug, Subcommand, Clone)]
pub enum SnapshotCommand {
    /// Take a snapshot of the server that runs here
    Save(SaveArgs),
    /// List the snapshots
    #[command(aliases = ["list", "l"])]
    Ls(LsArgs),
    /// Delete snapshots by name
    Delete(DeleteSnapshotArgs),
    /// Delete the oldest snapshots of a name beyond a number
    Prune(PruneArgs),
}

impl SnapshotCommand {
    /// Which folder and bucket.
    pub(crate) fn folder_mut(&mut self) -> &mut FolderArgs {
        match self {
            Self::Save(args) => &mut args.folder,
            Self::Ls(args) => &mut args.folder,
            Self::Delete(args) => &mut args.folder,
            Self::Prune(args) => &mut args.folder,
        }
    }
}

/// Which folder, and which bucket beside it.
#[derive(Debug, Args, Clone)]
pub struct FolderArgs {
    /// Data directory of the server [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Folder of the snapshots [default: that of the server]
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
    /// First part of its name; node and time follow
    #[arg(long, value_name = "NAME", default_value = "on-demand")]
    pub name: String,
    /// Compress it
    #[arg(long = "etcd-snapshot-compress", visible_alias = "snapshot-compress", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub compress: bool,
}

/// Flags of `ls`.
#[derive(Debug, Args, Clone)]
pub struct LsArgs {
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Form of the answer
    #[arg(long, short = 'o', value_enum, default_value_t = SnapshotOutput::Table)]
    pub output: SnapshotOutput,
}

/// Form of the answer of `ls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SnapshotOutput {
    /// Columns for people.
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
    /// Names as `ls` tells them
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// Flags of `prune`.
#[derive(Debug, Args, Clone)]
pub struct PruneArgs {
    #[command(flatten)]
    pub folder: FolderArgs,
    /// First part of the names
    #[arg(long, value_name = "NAME", default_value = "on-demand")]
    pub name: String,
    /// How many stay
    #[arg(
        long = "etcd-snapshot-retention",
        visible_alias = "snapshot-retention",
        value_name = "N",
        default_value_t = 5
    )]
    pub retention: usize,
    /// Name of the node, the second part [default: that of the server, or the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
}
