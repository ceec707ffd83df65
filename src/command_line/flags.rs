//! The flags of one command: its own, and those of k3s that are refused or have no effect.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};

use super::components::kubelet::without_secrets;
use super::{no_effect, suggestion, unsupported};
use crate::error_catalogue::{CommandError, UNSUPPORTED_FLAG};

/// What kube-lite does with a flag of k3s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagState {
    /// It has its effect.
    ActedOn,
    /// It changes nothing, for this reason.
    NoEffect(&'static str),
    /// It ends the start, for this reason.
    Refused(&'static str),
}

/// What kube-lite does with the flag `name` of k3s; `None` for a name that it does not know.
pub fn flag_state(name: &str) -> Option<FlagState> {
    if let Some(why) = unsupported::reason(name) {
        return Some(FlagState::Refused(why));
    }
    if let Some(why) = no_effect::reason(name) {
        return Some(FlagState::NoEffect(why));
    }
    let is_old = super::old_names::OLD_NAMES.iter().any(|(old, ..)| *old == name);
    let command = super::command();
    let is_own = ["server", "agent"].iter().any(|c| Flags::of(&command, c).is_known(name));
    (is_old || is_own).then_some(FlagState::ActedOn)
}

/// Adds the flags of k3s without a counterpart here, hidden from `--help`, so that their values are
/// parsed wherever they occur.
pub(super) fn add_foreign(command: clap::Command) -> clap::Command {
    let names = unsupported::FLAGS.iter().chain(no_effect::FLAGS).map(|(name, _)| *name);
    names.fold(command, |command, name| {
        // A flag that this command defines is acted on, whatever the tables say; a test compares.
        if command.get_arguments().any(|arg| names_of(arg).any(|known| known == name)) {
            return command;
        }
        let arg = Arg::new(name).long(name).hide(true).action(ArgAction::Append);
        command.arg(match unsupported::BOOLEANS.contains(&name) {
            true => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            false => arg.num_args(1),
        })
    })
}

/// The long names of an argument.
fn names_of(arg: &Arg) -> impl Iterator<Item = &str> {
    arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default())
}

/// One flag of a command.
#[derive(Debug, Clone)]
struct Flag {
    /// The id of its argument.
    id: String,
    short: Option<char>,
    /// Whether only its last value applies.
    is_single: bool,
}

/// The flags of one command by name, and the names of the other command's.
#[derive(Debug)]
pub(super) struct Flags {
    command: &'static str,
    known: BTreeMap<String, Flag>,
    other: Vec<String>,
}

impl Flags {
    /// The flags of `server` or `agent`.
    pub(super) fn of(command: &clap::Command, name: &str) -> Self {
        let arguments = |name: &str| command.find_subcommand(name).cloned().unwrap_or_default();
        let mut known = BTreeMap::new();
        for arg in arguments(name).get_arguments() {
            let flag = Flag {
                id: arg.get_id().to_string(),
                short: arg.get_short(),
                is_single: matches!(arg.get_action(), ArgAction::Set),
            };
            known.extend(names_of(arg).map(|name| (name.to_owned(), flag.clone())));
        }
        let (command, other) =
            if name == "agent" { ("agent", "server") } else { ("server", "agent") };
        let other = arguments(other)
            .get_arguments()
            .flat_map(|arg| names_of(arg).map(str::to_owned).collect::<Vec<_>>())
            .collect();
        Self { command, known, other }
    }

    /// Whether the command has this flag.
    pub(super) fn is_known(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// Whether only the other command has this flag.
    pub(super) fn is_of_other_command(&self, name: &str) -> bool {
        !self.is_known(name) && self.other.iter().any(|other| other == name)
    }

    /// Why a setting of the other command changes nothing.
    pub(super) fn of_other_command(&self, place: &str) -> String {
        match self.command {
            "agent" => format!("{place}: is a setting of servers, and this is an agent"),
            _ => format!("{place}: is a setting of agents, and this is a server"),
        }
    }

    /// The id of the argument with this name.
    pub(super) fn id(&self, name: &str) -> String {
        self.known.get(name).map(|flag| flag.id.clone()).unwrap_or_default()
    }

    /// The known flag nearest to `name`, when near enough.
    pub(super) fn nearest(&self, name: &str) -> Option<String> {
        let own = self.known.keys().map(String::as_str).filter(|name| !is_foreign(name));
        suggestion::nearest(name, own)
    }

    /// Refuses the flags among the typed ones that are not supported; `false` switches nothing on.
    pub(super) fn refuse_typed(&self, given: &ArgMatches) -> Result<(), CommandError> {
        for (name, why) in unsupported::FLAGS {
            if given_values(given, &self.id(name)).iter().any(|value| value != "false") {
                let text = format!("--{name} is not supported: {why}");
                return Err(UNSUPPORTED_FLAG.usage_error(text));
            }
        }
        Ok(())
    }

    /// Refuses values of flags without effect that would change something.
    pub(super) fn refuse_values(&self, given: &ArgMatches) -> Result<(), CommandError> {
        for (name, accepted, why) in no_effect::VALUES {
            let values = given_values(given, &self.id(name));
            let is_refused = |value: &&String| !accepted.contains(&value.as_str());
            if let Some(value) = values.iter().find(is_refused) {
                let text = format!("--{name}={value} is not supported: {why}");
                return Err(UNSUPPORTED_FLAG.usage_error(text));
            }
        }
        Ok(())
    }

    /// The flags among the given ones without effect, each with the reason.
    pub(super) fn without_effect(&self, given: &ArgMatches) -> Vec<String> {
        let flags = no_effect::FLAGS.iter();
        let is_given = |name: &str| !given_values(given, &self.id(name)).is_empty();
        flags
            .filter(|(name, _)| is_foreign(name) && is_given(name))
            .map(|(name, why)| format!("--{name}: {why}"))
            .collect()
    }

    /// The flags that occur several times in `argv` with different values although one value
    /// applies. Values are left out: they may be secret.
    pub(super) fn overridden(&self, argv: &[OsString]) -> Vec<String> {
        let words: Vec<&str> = argv.iter().skip(2).filter_map(|word| word.to_str()).collect();
        let mut overridden = Vec::new();
        for (name, flag) in self.known.iter().filter(|(_, flag)| flag.is_single) {
            let long = format!("--{name}");
            let short = flag.short.map(|short| format!("-{short}"));
            let value = |(at, word): (usize, &&str)| match word.strip_prefix(&long) {
                Some("") => words.get(at + 1).copied().map(str::to_owned),
                Some(rest) => rest.strip_prefix('=').map(str::to_owned),
                None if short.as_deref() == Some(*word) => words.get(at + 1).map(|w| (*w).into()),
                None => None,
            };
            let values: Vec<String> = words.iter().enumerate().filter_map(value).collect();
            if values.windows(2).any(|pair| matches!(pair, [a, b] if a != b)) {
                overridden.push(format!(
                    "--{name} is given {} times, the last one applies; remove the others",
                    values.len()
                ));
            }
        }
        overridden
    }
}

/// The flags of a command with the values that apply, in the forms of Go's pflag; a secret is
/// `CLASSIFIED`, as upstream's `/flagz` shows flags with that annotation.
pub(super) fn in_effect(command: &clap::Command, given: &ArgMatches) -> BTreeMap<String, String> {
    let secret = std::any::TypeId::of::<::cluster::token::Secret>();
    let mut flags = BTreeMap::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let Some(name) = arg.get_long() else { continue };
        let is_secret = arg.get_value_parser().type_id() == secret;
        let value = if is_secret { "CLASSIFIED".to_owned() } else { value_text(arg, given) };
        flags.insert(name.to_owned(), value);
    }
    flags
}

/// The value of an argument; empty if there is none. A list is in brackets.
fn value_text(arg: &Arg, given: &ArgMatches) -> String {
    let values = given.try_get_raw(arg.get_id().as_str()).ok().flatten();
    let values = values.into_iter().flatten().map(|value| match arg.get_long() {
        Some("kubelet-arg") => without_secrets(&value.to_string_lossy()),
        _ => value.to_string_lossy().into_owned(),
    });
    let values = values.collect::<Vec<_>>().join(",");
    match arg.get_action() {
        ArgAction::Append => format!("[{values}]"),
        _ => values,
    }
}

/// Whether only the tables of k3s's flags have this name.
fn is_foreign(name: &str) -> bool {
    unsupported::reason(name).is_some() || no_effect::reason(name).is_some()
}

/// The values of an argument that were given, not defaults.
fn given_values(given: &ArgMatches, id: &str) -> Vec<String> {
    let Ok(Some(values)) = given.try_get_raw(id) else { return Vec::new() };
    if given.value_source(id) != Some(ValueSource::CommandLine) {
        return Vec::new();
    }
    values.map(|value| value.to_string_lossy().into_owned()).collect()
}
