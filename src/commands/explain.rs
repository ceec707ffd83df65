//! `kube-lite explain`: prints errors of the catalogue.

use super::{Command, Environment, Output};
use crate::error_catalogue::{self, CommandError, USAGE};

/// The arguments of the command.
pub(super) struct Explain {
    /// The id of an error; `None` for all errors.
    pub(super) id: Option<String>,
}

impl Command for Explain {
    fn run(self, _: &Environment<'_>) -> Result<Output, CommandError> {
        let entries = match &self.id {
            None => error_catalogue::ALL.to_vec(),
            Some(id) => vec![error_catalogue::find(id).ok_or_else(|| {
                USAGE
                    .usage_error(format!("unknown error id {id:?}"))
                    .with_fix("Run `kube-lite explain` for the list of all errors.")
            })?],
        };
        let text = |entry: error_catalogue::CatalogueEntry| {
            let why = match entry.why {
                "" => String::new(),
                why => format!("  why: {why}\n"),
            };
            format!("{}: {}\n{why}  fix: {}\n", entry.id, entry.what, entry.fix)
        };
        Ok(entries.into_iter().map(text).collect::<String>().into())
    }
}
