//! Semantic versions as github.com/blang/semver reads them.

use std::cmp::Ordering;
use std::fmt;

/// A version.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) major: u64,
    pub(crate) minor: u64,
    pub(crate) patch: u64,
    pre: Vec<Pre>,
    build: Vec<String>,
}

/// A part of a pre-release: numbers come before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pre {
    Number(u64),
    Word(String),
}

fn number(text: &str, what: &str, title: &str) -> Result<u64, String> {
    if !text.bytes().all(|c| c.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {what} number {text:?}"));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{title} number must not contain leading zeroes {text:?}"));
    }
    text.parse().map_err(|_| {
        let why = if text.is_empty() { "invalid syntax" } else { "value out of range" };
        format!("strconv.ParseUint: parsing {text:?}: {why}")
    })
}

fn is_word(text: &str) -> bool {
    text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
}

fn pre(text: &str) -> Result<Pre, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".into());
    }
    if text.bytes().all(|c| c.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(format!(
                "Numeric PreRelease version must not contain leading zeroes {text:?}"
            ));
        }
        let out_of_range = |_| format!("strconv.ParseUint: parsing {text:?}: value out of range");
        return text.parse().map(Pre::Number).map_err(out_of_range);
    }
    if is_word(text) {
        return Ok(Pre::Word(text.into()));
    }
    Err(format!("Invalid character(s) found in prerelease {text:?}"))
}

impl Version {
    pub(crate) fn parse(text: &str) -> Result<Version, String> {
        if text.is_empty() {
            return Err("Version string empty".into());
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts.as_slice() else {
            return Err("No Major.Minor.Patch elements found".into());
        };
        let (major, minor) = (number(major, "major", "Major")?, number(minor, "minor", "Minor")?);
        let (rest, build) = match rest.split_once('+') {
            Some((rest, build)) => (rest, build.split('.').map(str::to_owned).collect()),
            None => (*rest, Vec::new()),
        };
        let (patch, words) = match rest.split_once('-') {
            Some((patch, words)) => (patch, Some(words)),
            None => (rest, None),
        };
        let patch = number(patch, "patch", "Patch")?;
        let pre = words.into_iter().flat_map(|words| words.split('.')).map(pre);
        let pre = pre.collect::<Result<Vec<_>, _>>()?;
        for part in &build {
            if part.is_empty() {
                return Err("Build meta data is empty".into());
            }
            if !is_word(part) {
                return Err(format!("Invalid character(s) found in build meta data {part:?}"));
            }
        }
        Ok(Version { major, minor, patch, pre, build })
    }

    /// Reads also `v1.2`: a leading `v`, leading zeros and missing parts are put right.
    pub(crate) fn parse_lenient(text: &str) -> Result<Version, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
        for part in parts.iter_mut().filter(|part| part.len() > 1) {
            let stripped = part.trim_start_matches('0');
            *part = if stripped.starts_with(|c: char| c.is_ascii_digit()) {
                stripped.to_owned()
            } else {
                format!("0{stripped}")
            };
        }
        if parts.len() < 3 {
            if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
                return Err("short version cannot contain PreRelease/Build meta data".into());
            }
            parts.resize(3, "0".into());
        }
        Version::parse(&parts.join("."))
    }

    /// The order; what stands behind `+` does not count.
    pub(crate) fn order(&self, other: &Version) -> Ordering {
        let numbers = |v: &Version| (v.major, v.minor, v.patch);
        numbers(self)
            .cmp(&numbers(other))
            // A release is behind its pre-releases.
            .then_with(|| self.pre.is_empty().cmp(&other.pre.is_empty()))
            .then_with(|| self.pre.cmp(&other.pre))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}.{}", self.major, self.minor, self.patch)?;
        for (at, pre) in self.pre.iter().enumerate() {
            let mark = if at == 0 { '-' } else { '.' };
            match pre {
                Pre::Number(number) => write!(out, "{mark}{number}")?,
                Pre::Word(word) => write!(out, "{mark}{word}")?,
            }
        }
        for (at, build) in self.build.iter().enumerate() {
            write!(out, "{}{build}", if at == 0 { '+' } else { '.' })?;
        }
        Ok(())
    }
}
