//! Semantic versions, as `github.com/blang/semver` parses them.

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

/// An identifier of a pre-release: numbers are less than words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pre {
    Number(u64),
    Word(String),
}

/// A text that is not a version; the texts are those of the library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VersionError {
    #[error("Version string empty")]
    Empty,
    #[error("No Major.Minor.Patch elements found")]
    MissingElements,
    /// `part` is `major`, `minor` or `patch`.
    #[error("Invalid character(s) found in {part} number {text:?}")]
    InvalidNumber { part: &'static str, text: String },
    /// `part` is `Major`, `Minor` or `Patch`.
    #[error("{part} number must not contain leading zeroes {text:?}")]
    LeadingZeros { part: &'static str, text: String },
    /// The error of Go's `strconv.ParseUint`.
    #[error("strconv.ParseUint: parsing {text:?}: {reason}")]
    ParseUint { text: String, reason: &'static str },
    #[error("Prerelease is empty")]
    EmptyPrerelease,
    #[error("Numeric PreRelease version must not contain leading zeroes {0:?}")]
    PrereleaseLeadingZeros(String),
    #[error("Invalid character(s) found in prerelease {0:?}")]
    InvalidPrerelease(String),
    #[error("Build meta data is empty")]
    EmptyBuild,
    #[error("Invalid character(s) found in build meta data {0:?}")]
    InvalidBuild(String),
    #[error("short version cannot contain PreRelease/Build meta data")]
    ShortWithMetadata,
}

/// Parses one of the three numbers; `title` is the capitalized name of `part`.
fn number(text: &str, part: &'static str, title: &'static str) -> Result<u64, VersionError> {
    if !text.bytes().all(|c| c.is_ascii_digit()) {
        return Err(VersionError::InvalidNumber { part, text: text.to_owned() });
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(VersionError::LeadingZeros { part: title, text: text.to_owned() });
    }
    text.parse().map_err(|_| {
        let reason = if text.is_empty() { "invalid syntax" } else { "value out of range" };
        VersionError::ParseUint { text: text.to_owned(), reason }
    })
}

fn is_word(text: &str) -> bool {
    text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
}

fn pre(text: &str) -> Result<Pre, VersionError> {
    if text.is_empty() {
        return Err(VersionError::EmptyPrerelease);
    }
    if text.bytes().all(|c| c.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(VersionError::PrereleaseLeadingZeros(text.to_owned()));
        }
        let reason = "value out of range";
        return text
            .parse()
            .map(Pre::Number)
            .map_err(|_| VersionError::ParseUint { text: text.to_owned(), reason });
    }
    if is_word(text) {
        return Ok(Pre::Word(text.into()));
    }
    Err(VersionError::InvalidPrerelease(text.to_owned()))
}

impl Version {
    pub(crate) fn parse(text: &str) -> Result<Version, VersionError> {
        if text.is_empty() {
            return Err(VersionError::Empty);
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts.as_slice() else {
            return Err(VersionError::MissingElements);
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
                return Err(VersionError::EmptyBuild);
            }
            if !is_word(part) {
                return Err(VersionError::InvalidBuild(part.clone()));
            }
        }
        Ok(Version { major, minor, patch, pre, build })
    }

    /// Parses a version such as `v1.2`, too: removes a leading `v` and leading zeros, and adds
    /// missing parts (`semver.ParseTolerant`).
    pub(crate) fn parse_lenient(text: &str) -> Result<Version, VersionError> {
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
                return Err(VersionError::ShortWithMetadata);
            }
            parts.resize(3, "0".into());
        }
        Version::parse(&parts.join("."))
    }

    /// Compares by precedence, which ignores the build metadata after `+`.
    pub(crate) fn order(&self, other: &Version) -> Ordering {
        let numbers = |v: &Version| (v.major, v.minor, v.patch);
        numbers(self)
            .cmp(&numbers(other))
            // A release is greater than its pre-releases.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check_errors, check_true, check_values};

    /// Rows of `pkg/cel/library/semver_test.go` in k8s.io/apiserver.
    #[test]
    fn versions_have_three_numbers_unless_they_are_normalized() {
        check_values(&[
            ("isSemver('1.2.3-beta.1+build.1')", "true"),
            ("isSemver('')", "false"),
            ("isSemver('v1.0.0')", "false"),
            ("isSemver(' 1.0.0')", "false"),
            ("isSemver('1. 0.0')", "false"),
            ("isSemver('01.01.01')", "false"),
            ("isSemver('1.1')", "false"),
            ("isSemver('1.0.0 ', true)", "false"),
            ("isSemver('v1.0.0', true)", "true"),
            ("isSemver('01.01.01', true)", "true"),
            ("isSemver('1', true)", "true"),
            ("semver('1.2.3').minor()", "2"),
        ]);
        check_errors(&[
            ("semver('v1.0')", "No Major.Minor.Patch elements found"),
            ("isSemver([1, 2, 3])", "found no matching overload for 'isSemver' applied to"),
        ]);
        check_true(&["semver('v01.01', true) == semver('1.1.0')"]);
    }

    /// The order of section 11 of Semantic Versioning 2.0.0, which
    /// `github.com/blang/semver/v4/semver.go` implements.
    #[test]
    fn pre_releases_precede_their_release_and_numbers_precede_words() {
        let ordered = [
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.2.3",
            "2.0.0",
        ];
        for pair in ordered.windows(2) {
            let [one, other] = pair else { continue };
            let (one, other) = (Version::parse(one).unwrap(), Version::parse(other).unwrap());
            assert_eq!(one.order(&other), Ordering::Less, "{one} {other}");
        }
        let build = |text| Version::parse(text).unwrap();
        assert_eq!(build("1.0.0+a").order(&build("1.0.0+b")), Ordering::Equal);
    }

    /// `Parse` of `github.com/blang/semver/v4/semver.go`.
    #[test]
    fn errors_name_the_invalid_part() {
        for (text, expected) in [
            ("", "Version string empty"),
            ("1.2", "No Major.Minor.Patch elements found"),
            ("a.2.3", "Invalid character(s) found in major number \"a\""),
            ("1.02.3", "Minor number must not contain leading zeroes \"02\""),
            ("1.2.3-", "Prerelease is empty"),
            ("1.2.3-01", "Numeric PreRelease version must not contain leading zeroes \"01\""),
            ("1.2.3+", "Build meta data is empty"),
            ("1.2.3+a_b", "Invalid character(s) found in build meta data \"a_b\""),
        ] {
            assert_eq!(Version::parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }
}
