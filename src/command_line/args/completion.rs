//! Arguments of `kube-lite completion`.

use clap::{Args, ValueEnum};

/// Arguments of `kube-lite completion`.
#[derive(Debug, Args, Clone)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: CompletionShell,
}

/// A shell with completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompletionShell {
    /// bash
    Bash,
    /// fish
    Fish,
    /// zsh
    Zsh,
}
