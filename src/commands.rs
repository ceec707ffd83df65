//! The commands of the executable, one file or folder each.

mod agent;
mod certificate;
mod check_config;
mod completion;
mod etcd_env;
pub(crate) mod etcd_snapshot;
mod explain;
mod migrate;
mod secrets_encrypt;
mod server;
mod status;
mod token;

use std::path::{Path, PathBuf};

use crate::command_line::{self, GeneralArgs, Locations};
use crate::error_catalogue::{CatalogueEntry, CommandError};
use crate::process::{allocator, logging};

/// Stack size of a thread in bytes. YAML of the maximum depth needs more than 0.7 MB of it, and
/// more than the default of 2 MB in a debug build; unused pages cost only addresses.
const STACK_BYTES: usize = 16 << 20;

/// One command.
pub trait Command {
    /// Runs the command.
    ///
    /// # Errors
    /// The error that the command prints, with its exit code.
    fn run(self, environment: &Environment<'_>) -> Result<Output, CommandError>;
}

/// The output of a command and its exit code.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Text for standard output.
    pub text: String,
    /// The exit code.
    pub code: u8,
}

impl From<String> for Output {
    /// The output of a successful command.
    fn from(text: String) -> Self {
        Self { text, code: 0 }
    }
}

/// Access to environment variables.
pub struct Environment<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    names: &'a dyn Fn() -> Vec<String>,
}

impl<'a> Environment<'a> {
    /// `lookup` reads one variable, `names` lists the names of all variables.
    pub fn new(
        lookup: &'a dyn Fn(&str) -> Option<String>,
        names: &'a dyn Fn() -> Vec<String>,
    ) -> Self {
        Self { lookup, names }
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn locations(&self) -> Locations {
        Locations::new(nix::unistd::geteuid().is_root(), self.lookup)
    }

    /// The data directory of the flag, the variable, or the default.
    fn data_dir(&self, flag: Option<&Path>) -> PathBuf {
        let chosen = flag.map(Path::to_owned).or_else(|| command_line::data_dir(self.lookup));
        chosen.unwrap_or_else(|| self.locations().data)
    }

    /// Logs the settings that change nothing, each with the reason.
    fn report(without_effect: &[String]) {
        for setting in without_effect {
            tracing::warn!(%setting, "command line: setting has no effect");
        }
    }

    /// Prepares the process for a command that runs until it is stopped.
    fn prepare(&self, general: &mut GeneralArgs) {
        let of_variables = command_line::without_effect((self.names)().into_iter());
        general.without_effect.extend(of_variables);
        allocator::prepare();
        let filter = (self.lookup)("KUBE_LITE_LOG");
        logging::start(general.debug, general.verbosity, filter.as_deref());
        for warning in &general.warnings {
            tracing::warn!(%warning, "command line: setting is outdated or overridden");
        }
        install_tls();
    }
}

/// Installs the one TLS provider of the process.
fn install_tls() {
    // An error means that it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Runs a future on a new runtime; `entry` is the error if the runtime cannot be started.
fn block_on<T, F>(entry: CatalogueEntry, run: impl FnOnce() -> F + Send) -> Result<T, CommandError>
where
    T: Send,
    F: Future<Output = Result<T, CommandError>>,
{
    base::runtime::block_on(STACK_BYTES, run).unwrap_or_else(|error| Err(entry.error(error)))
}

impl Command for command_line::Command {
    fn run(self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        match self {
            Self::Server(args) => args.run(environment),
            Self::Agent(args) => args.run(environment),
            Self::Token(args) => args.run(environment),
            Self::EtcdSnapshot(args) => args.run(environment),
            Self::SecretsEncrypt(args) => args.run(environment),
            Self::Certificate(args) => args.run(environment),
            Self::Migrate(args) => args.run(environment),
            Self::Status(args) => args.run(environment),
            Self::EtcdEnv(args) => args.run(environment),
            Self::Explain { id } => explain::Explain { id }.run(environment),
            Self::CheckConfig => check_config::CheckConfig.run(environment),
            Self::Completion(args) => args.run(environment),
        }
    }
}
