//! Matches of names: `exact`, `prefix`, `suffix`, `substring` and `regex`.

use regex::{Regex, RegexBuilder};

use super::{Reader, normal};
use crate::dns::corefile::CorefileError;

/// Longest pattern; CoreDNS's bound.
const PATTERN_MAX: usize = 10_000;
/// Memory of one compiled pattern, and of its tables while it matches.
const COMPILED_BYTES_MAX: usize = 256 * 1024;

/// What a name must look like. Names have the final dot.
#[derive(Debug, Clone)]
pub(crate) enum Pattern {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Substring(String),
    Regex(Box<Regex>),
}

/// Compiles a regular expression within bounds; its syntax is RE2's, as Go's is, and it needs time
/// linear in the length of the name.
pub(crate) fn regex(reader: Reader<'_>, text: &str, line: u32) -> Result<Regex, CorefileError> {
    if text.len() > PATTERN_MAX {
        let message = format!("the regular expression is longer than {PATTERN_MAX} bytes");
        return Err(reader.error(line, message));
    }
    let compiled = RegexBuilder::new(text)
        .size_limit(COMPILED_BYTES_MAX)
        .dfa_size_limit(COMPILED_BYTES_MAX)
        .build();
    compiled.map_err(|error| {
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default();
        reader.error(line, format!("invalid regular expression: {last}"))
    })
}

/// The name in lower case with the final dot.
pub(crate) fn dotted(name: &str) -> String {
    format!("{}.", normal(name))
}

impl Pattern {
    /// Reads a pattern; `kind` is `exact`, `prefix`, `suffix`, `substring` or `regex`.
    pub(crate) fn parse(
        reader: Reader<'_>,
        kind: &str,
        text: &str,
        line: u32,
    ) -> Result<Self, CorefileError> {
        // CoreDNS completes each text to a full name: the prefix `a` is the label `a`.
        Ok(match kind.to_ascii_lowercase().as_str() {
            "exact" => Self::Exact(dotted(text)),
            "prefix" => Self::Prefix(dotted(text)),
            "suffix" => Self::Suffix(dotted(text)),
            "substring" => Self::Substring(dotted(text)),
            "regex" => Self::Regex(Box::new(regex(reader, text, line)?)),
            _ => {
                let message = format!(
                    "{kind}: supported are exact, prefix, suffix, substring and regex matches"
                );
                return Err(reader.error(line, message));
            }
        })
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(text) => name == text,
            Self::Prefix(text) => name.starts_with(text.as_str()),
            Self::Suffix(text) => name.ends_with(text.as_str()),
            Self::Substring(text) => name.contains(text.as_str()),
            Self::Regex(regex) => regex.is_match(name),
        }
    }
}

/// The highest number of the groups `{N}` in a replacement.
fn groups_used(replacement: &str) -> usize {
    let numbers = replacement.split('{').skip(1).filter_map(|part| part.split_once('}'));
    numbers.filter_map(|(number, _)| number.parse().ok()).max().unwrap_or(0)
}

/// A regular expression with the text that replaces what it matches.
#[derive(Debug, Clone)]
pub(crate) struct Substitution {
    regex: Regex,
    replacement: String,
}

impl Substitution {
    pub(crate) fn parse(
        reader: Reader<'_>,
        from: &str,
        to: &str,
        line: u32,
    ) -> Result<Self, CorefileError> {
        let regex = regex(reader, from, line)?;
        // The whole match is a group of its own here, 0.
        if groups_used(to) >= regex.captures_len() {
            let message = format!("{to} uses more groups than {from} has");
            return Err(reader.error(line, message));
        }
        Ok(Self { regex, replacement: dotted(to) })
    }

    /// The replacement with the groups of the match, or none without a match.
    pub(crate) fn apply(&self, name: &str) -> Option<String> {
        let groups = self.regex.captures(name)?;
        let mut out = self.replacement.clone();
        for (index, group) in groups.iter().enumerate() {
            let value = group.map_or("", |group| group.as_str());
            out = out.replace(&format!("{{{index}}}"), value);
        }
        Some(out)
    }
}
