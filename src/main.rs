//! The kube-lite executable: reads the command line and runs one command.

use std::io::Write;
use std::process::ExitCode;

use kube_lite::command_line::{self, Stop};
use kube_lite::commands::{Command, Environment, Output};
use kube_lite::error_catalogue::CommandError;
use kube_lite::process::{hardening, logging};

fn main() -> ExitCode {
    // The container runtime executes this program as its network plugin.
    if net::is_cni_call() {
        return net::cni_main();
    }
    // The last process of this program executes it to keep its sockets.
    if ingress::is_keeper_call() {
        return ingress::keeper_main();
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "the one reader of the environment hands it to the command line"
    )]
    let lookup = |name: &str| std::env::var(name).ok();
    let arguments: Vec<_> = std::env::args_os().collect();
    hardening::hide_arguments(&arguments);
    let arguments = hardening::reveal_arguments(arguments);
    hardening::harden_process();
    let code = match run(arguments, &lookup) {
        Ok(output) => print(&output),
        Err(command_error) => {
            logging::print_error(&command_error);
            ExitCode::from(command_error.code)
        }
    };
    logging::finish();
    code
}

fn run(
    arguments: Vec<std::ffi::OsString>,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Output, CommandError> {
    let command = match command_line::parse(arguments, lookup) {
        Ok(parsed) => parsed.command,
        Err(Stop::Text(text)) => return Ok(text.into()),
        Err(Stop::Error(command_error)) => return Err(*command_error),
    };
    let names = || std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    command.run(&Environment::new(lookup, &names))
}

fn print(output: &Output) -> ExitCode {
    // A closed pipe (`| head`) is not an error of this program.
    let _ = write!(std::io::stdout(), "{}", output.text);
    ExitCode::from(output.code)
}
