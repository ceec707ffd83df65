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

/// Subcommands of `kube-lite secrets-encrypt`.
#[derive(Debug, Subcommand, Clone)]
pub enum EncryptCommand {
    /// Show whether Secrets are encrypted, with which key, and how many are still to be rewritten
    Status(EncryptStatusArgs),
    /// Encrypt all Secrets, existing ones too
    Enable(EncryptServerArgs),
    /// Store all Secrets unencrypted, existing ones too
    Disable(EncryptServerArgs),
    /// Create a key on all servers, rewrite every Secret with it and remove the old key; resumes
    /// after an interruption
    RotateKeys(EncryptServerArgs),
    #[command(hide = true)]
    Prepare(OldArgs),
    #[command(hide = true)]
    Rotate(OldArgs),
    #[command(hide = true)]
    Reencrypt(OldArgs),
}

/// The server to talk to.
#[derive(Debug, Args, Clone)]
pub struct EncryptServerArgs {
    /// Data directory of the server [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Flags of `status`.
#[derive(Debug, Args, Clone)]
pub struct EncryptStatusArgs {
    #[command(flatten)]
    pub server: EncryptServerArgs,
    /// Output format
    #[arg(long, short = 'o', value_enum, default_value_t = StatusOutput::Text)]
    pub output: StatusOutput,
}

/// Arguments of k3s's older subcommands, which are rejected by name.
#[derive(Debug, Args, Clone)]
pub struct OldArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub any: Vec<String>,
}
