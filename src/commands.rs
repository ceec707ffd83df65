//! The commands of the executable, one file or folder each.

mod agent;
mod certificate;
mod check_config;
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
use crate::error_catalogue::{Entry, Refusal};
use crate::process::{allocator, logging};

/// Bytes of a thread's stack. YAML that is nested as deeply as is allowed takes more than 0.7 MB of it,
/// and more than the usual 2 MB in a debug build; pages that are not used cost addresses only.
const STACK_BYTES: usize = 16 << 20;

/// One command.
pub trait Command {
    /// Runs the command to its end.
    ///
    /// # Errors
    /// The one sentence that ends the command, with its exit code.
    fn run(self, environment: &Environment<'_>) -> Result<Output, Refusal>;
}

/// What a command prints, and its exit code.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// For standard output.
    pub text: String,
    /// The exit code.
    pub code: u8,
}

impl From<String> for Output {
    /// The text of a command that succeeded.
    fn from(text: String) -> Self {
        Self { text, code: 0 }
    }
}

/// What a command knows about the process that runs it.
pub struct Environment<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    names: &'a [String],
}

impl<'a> Environment<'a> {
    /// `lookup` reads one variable, `names` are all that are set.
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<String>, names: &'a [String]) -> Self {
        Self { lookup, names }
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn locations(&self) -> Locations {
        Locations::new(nix::unistd::geteuid().is_root(), self.lookup)
    }

    /// The data directory: of the flag, the variable, or the default.
    fn data_dir(&self, flag: Option<&Path>) -> PathBuf {
        let given = flag.map(Path::to_owned).or_else(|| command_line::data_dir(self.lookup));
        given.unwrap_or_else(|| self.locations().data)
    }

    /// Prepares the process for a command that runs until it is stopped.
    fn prepare(&self, general: &mut GeneralArgs) {
        general.without_effect = command_line::without_effect(self.names.iter().cloned());
        allocator::prepare();
        let filter = (self.lookup)("KUBE_LITE_LOG");
        logging::start(general.debug, general.verbosity, filter.as_deref());
        for setting in &general.without_effect {
            tracing::warn!(%setting, "setting has no effect");
        }
        install_tls();
    }
}

/// Installs the one TLS provider of the process.
fn install_tls() {
    // An error means that it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Runs a command on a runtime of its own; `entry` is the error where the runtime cannot be started.
fn block_on<T, F>(entry: Entry, run: impl FnOnce() -> F + Send) -> Result<T, Refusal>
where
    T: Send,
    F: Future<Output = Result<T, Refusal>>,
{
    base::runtime::block_on(STACK_BYTES, run).unwrap_or_else(|error| Err(entry.refuse(error)))
}

impl Command for command_line::Command {
    fn run(self, environment: &Environment<'_>) -> Result<Output, Refusal> {
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
        }
    }
}
