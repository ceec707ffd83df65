//! Arguments for the components of Kubernetes, as `--kube-scheduler-arg=NAME=VALUE` passes them:
//! one table per component states what kube-lite does with each argument.

pub mod apiserver;
pub mod controller_manager;
pub mod etcd;
pub mod feature_gates;
pub mod kubelet;
pub mod kubelet_config;
pub mod proxy;
pub mod scheduler;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use crate::error_catalogue::{BAD_VALUE, CommandError, UNSUPPORTED_FLAG};

/// What kube-lite does with an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It has its effect; it needs a value.
    Value,
    /// It has its effect; without a value it is true.
    Bool,
    /// It has its effect, and may be given several times.
    List,
    /// It changes nothing, for this reason.
    NoEffect(&'static str),
    /// It ends the start, for this reason.
    Refused(&'static str),
    /// The first value is what kube-lite does, and any other one is refused for the reason.
    Fixed(&'static str, &'static str),
}

/// A component and its arguments.
#[derive(Debug)]
pub struct Component {
    /// The flag that passes arguments, without dashes.
    pub flag: &'static str,
    /// The name of each argument and what kube-lite does with it.
    pub arguments: &'static [(&'static str, Effect)],
}

/// An argument of the form `NAME=VALUE`, and where it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedArgument {
    /// The argument.
    pub text: String,
    /// The file and the field, as messages name them; `None` for the flag.
    pub place: Option<String>,
}

/// The arguments that have an effect, and sentences about those that have none.
#[derive(Debug, Default)]
pub struct Arguments {
    flag: &'static str,
    values: BTreeMap<&'static str, Vec<String>>,
    /// The places of arguments that files give.
    places: BTreeMap<&'static str, String>,
    /// Arguments that change nothing, each with the reason.
    pub without_effect: Vec<String>,
}

impl Component {
    fn effect(&self, name: &str) -> Option<(&'static str, Effect)> {
        self.arguments.iter().find(|(known, _)| *known == name).copied()
    }

    /// Checks arguments of the form `NAME=VALUE`.
    ///
    /// # Errors
    /// An argument that is unknown, refused, given twice or lacks its value, by name.
    pub fn parse(&self, given: &[String]) -> Result<Arguments, CommandError> {
        let given = given.iter().map(|text| PlacedArgument { text: text.clone(), place: None });
        self.parse_given(&given.collect::<Vec<_>>())
    }

    /// Checks arguments of flags and of files.
    ///
    /// # Errors
    /// As [`Component::parse`].
    pub fn parse_given(&self, given: &[PlacedArgument]) -> Result<Arguments, CommandError> {
        let mut arguments = Arguments { flag: self.flag, ..Arguments::default() };
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for PlacedArgument { text, place } in given {
            let (name, value) = component_config::flags::parts(text);
            let Some((name, effect)) = self.effect(name) else { return Err(self.unknown(name)) };
            if let Some(place) = place {
                let place = if arguments.values.contains_key(name) {
                    format!("{} and {place}", arguments.place(name))
                } else {
                    place.clone()
                };
                arguments.places.insert(name, place);
            }
            let at = arguments.place(name);
            let text = value.unwrap_or("true");
            if effect != Effect::List && seen.insert(name, text).is_some() {
                let why = format!("{at} is given twice; remove one of them");
                return Err(BAD_VALUE.usage_error(why));
            }
            match effect {
                Effect::Value | Effect::List if value.is_none_or(str::is_empty) => {
                    let why = format!("{at} has no value; write --{}={name}=VALUE", self.flag);
                    return Err(BAD_VALUE.usage_error(why));
                }
                Effect::Value | Effect::Bool | Effect::List => {
                    arguments.values.entry(name).or_default().push(text.to_owned());
                }
                Effect::Fixed(is, why) if text != is => {
                    let text = format!("{at}={text} is not supported: {why}");
                    return Err(UNSUPPORTED_FLAG.usage_error(text));
                }
                Effect::Fixed(..) => {
                    let note = format!("{at}={text}: is what kube-lite does in any case");
                    arguments.without_effect.push(note);
                }
                Effect::NoEffect(why) => arguments.without_effect.push(format!("{at}: {why}")),
                Effect::Refused(why) => {
                    let text = format!("{at} is not supported: {why}");
                    return Err(UNSUPPORTED_FLAG.usage_error(text));
                }
            }
        }
        arguments.check_feature_gates()?;
        Ok(arguments)
    }

    fn unknown(&self, name: &str) -> CommandError {
        let acted = |effect: &Effect| {
            matches!(effect, Effect::Value | Effect::Bool | Effect::List | Effect::Fixed(..))
        };
        let supported: Vec<&str> = self
            .arguments
            .iter()
            .filter(|(_, effect)| acted(effect))
            .map(|(name, _)| *name)
            .collect();
        let names = self.arguments.iter().map(|(name, _)| *name);
        let near = super::suggestion::nearest(name, names)
            .map(|near| format!(", did you mean {near}?"))
            .unwrap_or_default();
        UNSUPPORTED_FLAG.usage_error(format!(
            "--{}={name} is not supported{near} Supported: {}",
            self.flag,
            supported.join(", ")
        ))
    }
}

impl Arguments {
    /// Where an argument is given: the flag, or the file and the field.
    pub fn place(&self, name: &str) -> String {
        let place = self.places.get(name).cloned();
        place.unwrap_or_else(|| format!("--{}={name}", self.flag))
    }

    /// The value of an argument.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.last().map(String::as_str)
    }

    /// The values of an argument that may be given several times.
    pub fn values(&self, name: &str) -> &[String] {
        self.values.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The error of an invalid value.
    pub fn invalid(&self, name: &str, why: impl std::fmt::Display) -> CommandError {
        let value = self.value(name).unwrap_or_default();
        BAD_VALUE.usage_error(format!("{}={value}: {why}", self.place(name)))
    }

    /// A value within `range`.
    ///
    /// # Errors
    /// The value is no number, or out of range.
    pub fn number<T>(
        &self,
        name: &str,
        range: std::ops::RangeInclusive<T>,
    ) -> Result<Option<T>, CommandError>
    where
        T: FromStr + PartialOrd + std::fmt::Display,
    {
        let Some(text) = self.value(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        let why = || format!("must be a number from {} to {}", range.start(), range.end());
        number.map(Some).ok_or_else(|| self.invalid(name, why()))
    }

    /// A duration in Go's notation, such as `1h30m`, of at least `least`.
    ///
    /// # Errors
    /// The value is no duration, or too short.
    pub fn duration(&self, name: &str, least: Duration) -> Result<Option<Duration>, CommandError> {
        let Some(text) = self.value(name) else { return Ok(None) };
        let parsed = api::codec::time::parse_duration(text)
            .map_err(|_| self.invalid(name, "must be a duration, such as 40s or 1h"))?;
        let duration = u64::try_from(parsed).ok().map(Duration::from_nanos);
        let why = || self.invalid(name, format!("must be at least {}s", least.as_secs_f64()));
        duration.filter(|duration| *duration >= least).map(Some).ok_or_else(why)
    }

    /// A boolean in a form of Go's `strconv.ParseBool`.
    ///
    /// # Errors
    /// The value is no boolean.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, CommandError> {
        match self.value(name) {
            None => Ok(None),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
            Some(_) => Err(self.invalid(name, "must be true or false")),
        }
    }

    fn check_feature_gates(&mut self) -> Result<(), CommandError> {
        let gates = self.values(feature_gates::ARGUMENT).join(",");
        if gates.is_empty() {
            return Ok(());
        }
        let place = self.place(feature_gates::ARGUMENT);
        feature_gates::check(&gates).map_err(|error| match error {
            feature_gates::GateError::Differs { .. } => {
                UNSUPPORTED_FLAG.usage_error(format!("{place}: {error}"))
            }
            error => BAD_VALUE.usage_error(format!("{place}: {error}")),
        })?;
        let note = format!("{place}={gates}: is what kube-lite does in any case");
        self.without_effect.push(note);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: Component = Component {
        flag: "test-arg",
        arguments: &[
            (feature_gates::ARGUMENT, Effect::List),
            ("period", Effect::Value),
            ("on", Effect::Bool),
            ("many", Effect::List),
            ("workers", Effect::NoEffect("there are none")),
            ("file", Effect::Refused("use another")),
            ("leader-elect", Effect::Fixed("true", "it always elects")),
        ],
    };

    fn parse(given: &[&str]) -> Result<Arguments, String> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        let first =
            |error: CommandError| error.to_string().lines().next().unwrap_or_default().to_owned();
        TEST.parse(&given).map_err(first)
    }

    #[test]
    fn arguments_have_values_and_reasons() {
        let given = ["period=90s", "--on", "many=1", "many=2", "workers=3", "leader-elect=true"];
        let arguments = parse(&given).unwrap();
        let second = Duration::from_secs(1);
        assert_eq!(arguments.duration("period", second).unwrap(), Some(second * 90));
        assert_eq!(arguments.boolean("on").unwrap(), Some(true));
        assert_eq!(arguments.values("many"), ["1", "2"]);
        assert_eq!(arguments.number::<u16>("absent", 1..=2).unwrap(), None);
        assert_eq!(
            arguments.without_effect,
            [
                "--test-arg=workers: there are none",
                "--test-arg=leader-elect=true: is what kube-lite does in any case"
            ]
        );
    }

    #[test]
    fn invalid_arguments_are_rejected_with_place_and_fix() {
        for (given, want) in [
            (&["period=1s", "period=2s"][..], "--test-arg=period is given twice; remove one"),
            (&["period"], "--test-arg=period has no value; write --test-arg=period=VALUE"),
            (&["period="], "--test-arg=period has no value"),
            (&["file=x"], "error[KL0102]: --test-arg=file is not supported: use another"),
            (&["perod=1s"], "--test-arg=perod is not supported, did you mean period?"),
            (&["leader-elect=false"], "leader-elect=false is not supported: it always elects"),
            (&["feature-gates=Nope=true"], "unrecognized feature gate: Nope"),
        ] {
            let error = parse(given).unwrap_err();
            assert!(error.contains(want), "{given:?}: {error}");
        }
        let number = parse(&["period=70000"]).unwrap().number::<u32>("period", 1..=65535);
        assert!(number.unwrap_err().to_string().contains("must be a number from 1 to 65535"));
        let short = parse(&["period=-1s"]).unwrap().duration("period", Duration::ZERO);
        assert!(short.unwrap_err().to_string().contains("must be at least 0s"));
    }
}
