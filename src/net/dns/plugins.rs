//! The plugins of CoreDNS that change answers here.

pub(crate) mod hosts;
pub(crate) mod pattern;
pub(crate) mod records;
pub(crate) mod rewrite;
pub(crate) mod template;

use crate::dns::corefile::{CorefileError, Directive, Line, Source};

/// Reads the arguments of one plugin and says where an error is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) plugin: &'a str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: Source<'a>, directive: &'a Directive) -> Self {
        Self { source, plugin: &directive.name }
    }

    pub(crate) fn error(&self, line: u32, message: impl std::fmt::Display) -> CorefileError {
        self.source.error(line, format!("{}: {message}", self.plugin))
    }

    /// The name of a line in a block, its arguments and its line number.
    pub(crate) fn split(&self, line: &'a Line) -> (&'a str, Vec<&'a str>, u32) {
        let (name, at) = line.first().map_or(("", 1), |word| (word.text.as_str(), word.line));
        (name, line.iter().skip(1).map(|word| word.text.as_str()).collect(), at)
    }

    /// The only argument of a line.
    pub(crate) fn one(
        &self,
        name: &str,
        args: &[&'a str],
        line: u32,
    ) -> Result<&'a str, CorefileError> {
        match args {
            [one] => Ok(one),
            _ => Err(self.error(line, format!("{name} needs one argument"))),
        }
    }

    /// A number in a range.
    pub(crate) fn number(
        &self,
        name: &str,
        text: &str,
        range: std::ops::RangeInclusive<u32>,
        line: u32,
    ) -> Result<u32, CorefileError> {
        let number = text.parse::<u32>().ok().filter(|n| range.contains(n));
        number.ok_or_else(|| {
            let (from, to) = (range.start(), range.end());
            self.error(line, format!("{name}: {text:?} is not a number from {from} to {to}"))
        })
    }
}

/// A name in lower case without the final dot; the root is the empty text.
pub(crate) fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Whether a normal name is the zone or below it.
pub(crate) fn is_in(name: &str, zone: &str) -> bool {
    zone.is_empty()
        || name == zone
        || name.strip_suffix(zone).is_some_and(|rest| rest.ends_with('.'))
}

/// The longest of the zones that a name is in.
pub(crate) fn zone_of<'z>(name: &str, zones: &'z [String]) -> Option<&'z str> {
    let fitting = zones.iter().filter(|zone| is_in(name, zone));
    fitting.max_by_key(|zone| zone.len()).map(String::as_str)
}

/// `fallthrough [ZONES...]`: for which names the next plugin decides; none without it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fallthrough(Option<Vec<String>>);

impl Fallthrough {
    pub(crate) fn of(args: &[&str]) -> Self {
        Self(Some(args.iter().map(|zone| normal(zone)).collect()))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn applies(&self, name: &str) -> bool {
        let zones = self.0.as_ref();
        zones.is_some_and(|zones| zones.is_empty() || zone_of(name, zones).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_end_at_labels_and_the_longest_wins() {
        for (name, zone, want) in [
            ("a.example.org", "example.org", true),
            ("example.org", "example.org", true),
            ("notexample.org", "example.org", false),
            ("org", "example.org", false),
            ("anything", "", true),
        ] {
            assert_eq!(is_in(name, zone), want, "{name} {zone}");
        }
        let zones = ["".to_owned(), "org".to_owned(), "a.org".to_owned()];
        assert_eq!(zone_of("b.a.org", &zones), Some("a.org"));
        assert_eq!(zone_of("b.org", &zones), Some("org"));
        assert_eq!(zone_of("b.org", &zones[2..]), None);
        assert!(!Fallthrough::default().applies("a"));
        assert!(Fallthrough::of(&[]).applies("a"));
        assert!(Fallthrough::of(&["A.org."]).applies("x.a.org"));
        assert!(!Fallthrough::of(&["a.org"]).applies("org"));
    }
}
