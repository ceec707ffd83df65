//! Flags of `kube-lite secrets-encrypt`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::StatusOutput;

/// Flags of `kube-lite secrets-encrypt`.
#[derive(Debug, Args, Clone)]
pub struct EncryptArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: EncryptCommand,
}

/// The commands about encryption at rest.
#[derive(Debug, Subcommand, Clone)]
pub enum EncryptCommand {
    /// Show whether Secrets are encrypted, with which key, and how many are not stored so yet
    Status(EncryptStatusArgs),
    /// Encrypt Secrets, those that there are, too
    Enable(EncryptPlaceArgs),
    /// Store Secrets in the clear, those that there are, too
    Disable(EncryptPlaceArgs),
    /// Make a new key on all servers, write every Secret anew with it, and drop the old one; goes on where it was interrupted
    RotateKeys(EncryptPlaceArgs),
    #[command(hide = true)]
    Prepare(OldArgs),
    #[command(hide = true)]
    Rotate(OldArgs),
    #[command(hide = true)]
    Reencrypt(OldArgs),
}

/// Which server.
#[derive(Debug, Args, Clone)]
pub struct EncryptPlaceArgs {
    /// Data directory of the server [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Flags of `status`.
#[derive(Debug, Args, Clone)]
pub struct EncryptStatusArgs {
    #[command(flatten)]
    pub place: EncryptPlaceArgs,
    /// Form of the answer
    #[arg(long, short = 'o', value_enum, default_value_t = StatusOutput::Text)]
    pub output: StatusOutput,
}

/// Whatever k3s's older commands take; they are refused by name.
#[derive(Debug, Args, Clone)]
pub struct OldArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub any: Vec<String>,
}
