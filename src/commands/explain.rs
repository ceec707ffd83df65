//! `kube-lite explain`: the catalogue of errors.

use super::{Command, Environment, Output};
use crate::error_catalogue::{self, Refusal, USAGE};

/// The arguments of the command.
pub(super) struct Explain {
    /// One error, or all of them.
    pub(super) id: Option<String>,
}

impl Command for Explain {
    fn run(self, _: &Environment<'_>) -> Result<Output, Refusal> {
        let entries = match &self.id {
            None => error_catalogue::ALL.to_vec(),
            Some(id) => vec![error_catalogue::find(id).ok_or_else(|| {
                USAGE.refuse_usage(format!(
                    "there is no error {id:?}; `kube-lite explain` lists all"
                ))
            })?],
        };
        let of = |entry: error_catalogue::Entry| {
            format!("{}: {}\n  why: {}\n  fix: {}\n", entry.id, entry.what, entry.why, entry.fix)
        };
        Ok(entries.into_iter().map(of).collect::<String>().into())
    }
}
