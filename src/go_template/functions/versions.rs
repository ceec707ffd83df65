//! Semantic versions as `github.com/Masterminds/semver` reads them.

use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

use regex::Regex;

use crate::error::Failure;
use crate::function::{Args, Function, fixed};
use crate::go::quote::quote;
use crate::signature::Param::{self, Str};
use crate::value::{Object, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("semver", &[Str], |_, args| {
        let version = Version::parse(&args.text(0)).map_err(|e| Failure::new(e.to_string()))?;
        Ok(Value::Object(Arc::new(version)))
    }),
    fixed("semverCompare", &[Str, Str], |_, args| {
        let failure = |error: VersionError| Failure::new(error.to_string());
        let constraints = Constraints::parse(&args.text(0)).map_err(failure)?;
        let version = Version::parse(&args.text(1)).map_err(failure)?;
        Ok(Value::Bool(constraints.matches(&version)))
    }),
];

/// The text is no version or constraint.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VersionError {
    #[error("invalid semantic version")]
    Version,
    #[error("version string is too long (max 256 bytes)")]
    Long,
    #[error("error parsing version segment: {0}")]
    Segment(String),
    #[error("version segment starts with 0")]
    LeadingZero,
    #[error("improper constraint: {0}")]
    Constraint(String),
    #[error("constraint string is too long (max 512 bytes)")]
    LongConstraint,
    #[error("too many constraint groups (max 32)")]
    Groups,
    #[error("constraint parser error")]
    Parser,
}

/// A version: missing parts are 0, a leading `v` is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    major: u64,
    minor: u64,
    patch: u64,
    pre: String,
    metadata: String,
    original: String,
}

/// A prerelease and metadata.
const TAIL: &str =
    r"(-([0-9A-Za-z\-]+(\.[0-9A-Za-z\-]+)*))?(\+([0-9A-Za-z\-]+(\.[0-9A-Za-z\-]+)*))?";
const LOOSE: &str = r"v?([0-9]+)(\.[0-9]+)?(\.[0-9]+)?";

fn regex(pattern: &str) -> Option<Regex> {
    Regex::new(pattern).ok()
}

impl Version {
    /// Reads a version.
    ///
    /// # Errors
    ///
    /// The text of the package semver.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        static PATTERN: LazyLock<Option<Regex>> =
            LazyLock::new(|| regex(&format!("^{LOOSE}{TAIL}$")));
        if text.len() > 256 {
            return Err(VersionError::Long);
        }
        let captures = PATTERN.as_ref().and_then(|pattern| pattern.captures(text));
        let captures = captures.ok_or(VersionError::Version)?;
        let part = |at: usize| captures.get(at).map_or("", |found| found.as_str());
        let number = |at: usize| {
            let digits = part(at).trim_start_matches('.');
            if digits.is_empty() {
                return Ok(0);
            }
            digits.parse::<u64>().map_err(|_| {
                let quoted = quote(digits);
                let text = format!("strconv.ParseUint: parsing {quoted}: value out of range");
                VersionError::Segment(text)
            })
        };
        let pre = part(5).to_owned();
        // Numbers of a prerelease have no leading zero.
        let zero = |part: &str| {
            part.len() > 1 && part.starts_with('0') && part.bytes().all(|b| b.is_ascii_digit())
        };
        if pre.split('.').any(zero) {
            return Err(VersionError::LeadingZero);
        }
        Ok(Self {
            major: number(1)?,
            minor: number(2)?,
            patch: number(3)?,
            pre,
            metadata: part(8).to_owned(),
            original: text.to_owned(),
        })
    }

    /// Whether the version has a prerelease part.
    pub fn is_prerelease(&self) -> bool {
        !self.pre.is_empty()
    }

    fn core(&self) -> (u64, u64, u64) {
        (self.major, self.minor, self.patch)
    }

    fn next(&self, core: (u64, u64, u64)) -> Value {
        let (major, minor, patch) = core;
        let (pre, metadata) = (String::new(), String::new());
        let v = if self.original.starts_with('v') { "v" } else { "" };
        let original = format!("{v}{major}.{minor}.{patch}");
        Value::Object(Arc::new(Self { major, minor, patch, pre, metadata, original }))
    }
}

impl Ord for Version {
    /// By precedence; metadata does not count.
    fn cmp(&self, other: &Self) -> Ordering {
        let core = self.core().cmp(&other.core());
        core.then_with(|| compare_pre(&self.pre, &other.pre))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn compare_pre(a: &str, b: &str) -> Ordering {
    match (a.is_empty(), b.is_empty()) {
        (true, true) => return Ordering::Equal,
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    let (mut left, mut right) = (a.split('.'), b.split('.'));
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(a), Some(b)) => match (a.parse::<u64>(), b.parse::<u64>()) {
                (Ok(a), Ok(b)) => a.cmp(&b),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => a.cmp(b),
            },
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        if !self.pre.is_empty() {
            write!(f, "-{}", self.pre)?;
        }
        if !self.metadata.is_empty() {
            write!(f, "+{}", self.metadata)?;
        }
        Ok(())
    }
}

fn other(args: &[Value]) -> Option<Version> {
    match args.first() {
        Some(Value::Object(object)) => Version::parse(&object.text()).ok(),
        _ => None,
    }
}

impl Object for Version {
    fn type_name(&self) -> &'static str {
        "*semver.Version"
    }

    fn field(&self, _name: &str) -> Option<Value> {
        None
    }

    fn method(&self, name: &str) -> Option<&'static [Param]> {
        Some(match name {
            "Major" | "Minor" | "Patch" | "Prerelease" | "Metadata" | "Original" | "String"
            | "IncMajor" | "IncMinor" | "IncPatch" => &[],
            "Compare" | "Equal" | "GreaterThan" | "LessThan" | "GreaterThanEqual"
            | "LessThanEqual" => &[Param::Version],
            _ => return None,
        })
    }

    fn call(&self, name: &str, args: &[Value]) -> Result<Value, Failure> {
        let order = || match other(args) {
            Some(other) => Ok(self.cmp(&other)),
            None => Err(Failure::new("the argument is not a semantic version")),
        };
        let (major, minor, patch) = self.core();
        let up = |number: u64| number.saturating_add(1);
        Ok(match name {
            "Major" => Value::Uint64(major),
            "Minor" => Value::Uint64(minor),
            "Patch" => Value::Uint64(patch),
            "Prerelease" => Value::from(self.pre.clone()),
            "Metadata" => Value::from(self.metadata.clone()),
            "Original" => Value::from(self.original.clone()),
            "IncMajor" => self.next((up(major), 0, 0)),
            "IncMinor" => self.next((major, up(minor), 0)),
            "IncPatch" if self.is_prerelease() => self.next((major, minor, patch)),
            "IncPatch" => self.next((major, minor, up(patch))),
            "Compare" => Value::Int(match order()? {
                Ordering::Less => -1,
                Ordering::Equal => 0,
                Ordering::Greater => 1,
            }),
            "Equal" => Value::Bool(order()?.is_eq()),
            "GreaterThan" => Value::Bool(order()?.is_gt()),
            "LessThan" => Value::Bool(order()?.is_lt()),
            "GreaterThanEqual" => Value::Bool(order()?.is_ge()),
            "LessThanEqual" => Value::Bool(order()?.is_le()),
            _ => Value::from(self.to_string()),
        })
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    TildeOrEqual,
    NotEqual,
    Greater,
    Less,
    GreaterEqual,
    LessEqual,
    Tilde,
    Caret,
}

#[derive(Clone, Debug)]
struct Constraint {
    op: Op,
    version: Version,
    /// Parts are left out or `x`: all, from the minor, the patch.
    dirty: bool,
    minor_dirty: bool,
    patch_dirty: bool,
}

/// Constraints on versions: alternatives of conjunctions.
#[derive(Clone, Debug)]
pub struct Constraints(Vec<Vec<Constraint>>);

const OPS: &str = r"=||!=|>|<|>=|=>|<=|=<|~|~>|\^";
const NUMBERS: &str = r"v?([0-9|x|X|\*]+)(\.[0-9|x|X|\*]+)?(\.[0-9|x|X|\*]+)?";

struct Patterns {
    one: Regex,
    range: Regex,
    find: Regex,
    valid: Regex,
}

static PATTERNS: LazyLock<Option<Patterns>> = LazyLock::new(|| {
    Some(Patterns {
        one: regex(&format!(r"^\s*({OPS})\s*({NUMBERS}{TAIL})\s*$"))?,
        range: regex(&format!(r"\s*({NUMBERS}{TAIL})\s+-\s+({NUMBERS}{TAIL})\s*"))?,
        find: regex(&format!(r"({OPS})\s*({NUMBERS}{TAIL})"))?,
        valid: regex(&format!(
            r"^(\s*({OPS})\s*({NUMBERS}{TAIL})\s*)((?:\s+|,\s*)({OPS})\s*({NUMBERS}{TAIL})\s*)*$"
        ))?,
    })
});

fn op(text: &str) -> Op {
    match text {
        "!=" => Op::NotEqual,
        ">" => Op::Greater,
        "<" => Op::Less,
        ">=" | "=>" => Op::GreaterEqual,
        "<=" | "=<" => Op::LessEqual,
        "~" | "~>" => Op::Tilde,
        "^" => Op::Caret,
        _ => Op::TildeOrEqual,
    }
}

impl Constraints {
    /// Reads constraints such as `>=1.2.0 <2.0.0 || ~3.1`.
    ///
    /// # Errors
    ///
    /// The text of the package semver.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        if text.len() > 512 {
            return Err(VersionError::LongConstraint);
        }
        let patterns = PATTERNS.as_ref().ok_or(VersionError::Parser)?;
        let mut rewritten = text.to_owned();
        for captures in patterns.range.captures_iter(text) {
            let part = |at: usize| captures.get(at).map_or("", |found| found.as_str());
            let range = format!(">= {}, <= {} ", part(1), part(11));
            rewritten = rewritten.replacen(part(0), &range, 1);
        }
        let groups: Vec<&str> = rewritten.split("||").collect();
        if groups.len() > 32 {
            return Err(VersionError::Groups);
        }
        let mut all = Vec::new();
        for group in groups {
            if !patterns.valid.is_match(group) {
                return Err(VersionError::Constraint(quote(group)));
            }
            let mut parts: Vec<&str> =
                patterns.find.find_iter(group).map(|found| found.as_str()).collect();
            if parts.is_empty() {
                parts.push(group);
            }
            let parsed: Result<Vec<_>, _> = parts.into_iter().map(Constraint::parse).collect();
            all.push(parsed?);
        }
        Ok(Self(all))
    }

    /// Whether a version fits one of the alternatives.
    pub fn matches(&self, version: &Version) -> bool {
        self.0.iter().any(|group| {
            let pre = group.iter().any(|constraint| constraint.version.is_prerelease());
            group.iter().all(|constraint| constraint.check(version, pre))
        })
    }
}

impl Constraint {
    fn parse(text: &str) -> Result<Self, VersionError> {
        let patterns = PATTERNS.as_ref().ok_or(VersionError::Parser)?;
        let captures = patterns.one.captures(text);
        let captures = captures.ok_or_else(|| VersionError::Constraint(quote(text)))?;
        let part = |at: usize| captures.get(at).map_or("", |found| found.as_str());
        let open = |text: &str| matches!(text.trim_start_matches('.'), "" | "x" | "X" | "*");
        let (major, minor, patch, pre) = (part(3), part(4), part(5), part(6));
        let (mut dirty, mut minor_dirty, mut patch_dirty) = (true, false, false);
        let version = if open(major) {
            format!("0.0.0{pre}")
        } else if open(minor) {
            minor_dirty = true;
            format!("{major}.0.0{pre}")
        } else if open(patch) {
            patch_dirty = true;
            format!("{major}{minor}.0{pre}")
        } else {
            dirty = false;
            part(2).to_owned()
        };
        let version = Version::parse(&version).map_err(|_| VersionError::Parser)?;
        Ok(Self { op: op(part(1)), version, dirty, minor_dirty, patch_dirty })
    }

    fn check(&self, version: &Version, prereleases: bool) -> bool {
        if version.is_prerelease() && !prereleases {
            return false;
        }
        let wanted = &self.version;
        match self.op {
            Op::NotEqual => self.differs(version),
            Op::Greater => self.is_above(version),
            Op::Less => version < wanted,
            Op::GreaterEqual => version >= wanted,
            Op::LessEqual if !self.dirty => version <= wanted,
            Op::LessEqual => {
                let minor = version.minor > wanted.minor && !self.minor_dirty;
                version.major < wanted.major || (version.major == wanted.major && !minor)
            }
            Op::TildeOrEqual if !self.dirty => version.cmp(wanted).is_eq(),
            Op::TildeOrEqual | Op::Tilde => self.tilde(version),
            Op::Caret => self.caret(version),
        }
    }

    fn differs(&self, version: &Version) -> bool {
        let wanted = &self.version;
        if !self.dirty {
            return version.cmp(wanted).is_ne();
        }
        if version.major != wanted.major {
            return true;
        }
        if version.minor != wanted.minor && !self.minor_dirty {
            return true;
        }
        if self.minor_dirty {
            return false;
        }
        if version.patch != wanted.patch && !self.patch_dirty {
            return true;
        }
        if self.patch_dirty {
            return compare_pre(&version.pre, &wanted.pre).is_ne();
        }
        version.cmp(wanted).is_ne()
    }

    fn is_above(&self, version: &Version) -> bool {
        let wanted = &self.version;
        if !self.dirty || version.major != wanted.major {
            return version > wanted;
        }
        if self.minor_dirty {
            return false;
        }
        if self.patch_dirty {
            return version.minor > wanted.minor;
        }
        version > wanted
    }

    fn tilde(&self, version: &Version) -> bool {
        let wanted = &self.version;
        if version < wanted {
            return false;
        }
        if wanted.core() == (0, 0, 0) && !self.minor_dirty && !self.patch_dirty {
            return true;
        }
        version.major == wanted.major && (version.minor == wanted.minor || self.minor_dirty)
    }

    fn caret(&self, version: &Version) -> bool {
        let wanted = &self.version;
        if version < wanted {
            return false;
        }
        if wanted.major > 0 || self.minor_dirty {
            return version.major == wanted.major;
        }
        if version.major > 0 {
            return false;
        }
        if wanted.minor > 0 || self.patch_dirty {
            return version.minor == wanted.minor;
        }
        version.minor == 0 && version.patch == wanted.patch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_hold_as_in_masterminds_semver() {
        let table = [
            (">=1.19-0", "1.37.1", true),
            (">=1.19-0", "v1.37.1-rc.1", true),
            (">=1.19", "1.20.0-alpha", false),
            ("^1.2.3", "1.9.0", true),
            ("^0.2.3", "0.3.0", false),
            ("~1.2", "1.2.9", true),
            ("~1.2", "1.3.0", false),
            ("1.x", "1.9.9", true),
            ("1.2 - 1.4.5", "1.4.5", true),
            ("<1.14-0 || >=2", "2.0.0", true),
            ("!=1.2.x", "1.2.4", false),
            (">1.2", "1.2.9", false),
            ("<=1.2", "1.2.9", true),
            ("*", "3.1.0", true),
            ("=1.2.3", "1.2.3+build", true),
        ];
        for (constraint, version, expected) in table {
            let constraints = Constraints::parse(constraint).unwrap();
            let version = Version::parse(version).unwrap();
            assert_eq!(constraints.matches(&version), expected, "{constraint} {version}");
        }
        assert!(Constraints::parse("foo").is_err());
    }
}
