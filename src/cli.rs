//! The command line: flags, environment and configuration files become one validated configuration.
//!
//! The only reader of the environment. Precedence: flags, then variables, then `config.yaml` with its drop-ins.

mod args;
mod config_file;
mod defaults;
mod environment;
mod merge;
mod unsupported;

pub use args::{Cli, Command, GeneralArgs, NodeArgs, ServerArgs, StatusArgs, StatusOutput};
pub use defaults::Locations;
pub use merge::{Stop, parse};
