//! `kube-lite completion`: prints the completion script of a shell.

use clap_complete::Shell;

use super::{Command, Environment, Output};
use crate::command_line::{self, CompletionArgs, CompletionShell};
use crate::error_catalogue::{CommandError, USAGE};

impl Command for CompletionArgs {
    fn run(self, _: &Environment<'_>) -> Result<Output, CommandError> {
        let shell = match self.shell {
            CompletionShell::Bash => Shell::Bash,
            CompletionShell::Fish => Shell::Fish,
            CompletionShell::Zsh => Shell::Zsh,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command_line::command(), "kube-lite", &mut script);
        let text = String::from_utf8(script).map_err(|error| USAGE.error(error))?;
        Ok(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_completes_commands_and_flags() {
        for shell in [CompletionShell::Bash, CompletionShell::Fish, CompletionShell::Zsh] {
            let environment = Environment::new(&|_| None, &Vec::new);
            let output = CompletionArgs { shell }.run(&environment).unwrap();
            assert!(output.text.contains("etcd-snapshot"), "{shell:?}");
            assert!(output.text.contains("https-listen-port"), "{shell:?}");
        }
    }
}
