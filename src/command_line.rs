//! The command line: merges flags, environment variables and configuration files.
//!
//! Precedence: flags, then variables, then `config.yaml` with its drop-ins.

mod args;
pub mod components;
mod config_file;
mod defaults;
mod environment;
mod flags;
mod merge;
mod no_effect;
mod old_names;
mod suggestion;
mod time;
mod token_source;
mod unsupported;

pub use args::{
    AgentArgs, AuditPreset, CertificateArgs, CertificateCommand, CheckArgs, CheckOutput, Cli,
    Command, CompletionArgs, CompletionShell, ComponentArgs, CreateArgs, DatastoreArgs,
    DatastoreTlsArgs, DeleteArgs, EncryptArgs, EncryptCommand, EtcdEnvArgs, FolderArgs,
    GeneralArgs, ImageArgs, ListArgs, Lookup, MetricsArgs, MigrateArgs, NodeArgs, RotateArgs,
    RotateCaArgs, RotateLeavesArgs, S3Args, ServerArgs, SnapshotArgs, SnapshotCommand,
    SnapshotCommandArgs, SnapshotOutput, StatusArgs, StatusOutput, TokenArgs, TokenCommand,
    command,
};
pub(crate) use args::{SHUTDOWN_CRITICAL_DEFAULT, SHUTDOWN_DEFAULT};
pub use defaults::Locations;
pub use environment::{data_dir, variable_state, without_effect};
pub use flags::{FlagState, flag_state};
pub use merge::{Stop, parse};
pub(crate) use suggestion::nearest;
pub use time::{DurationError, duration};
pub use token_source::read_token;
