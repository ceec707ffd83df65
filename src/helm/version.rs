//! Semantic versions and their constraints, as `github.com/Masterminds/semver` reads them.

use std::cmp::Ordering;
use std::fmt;
use std::sync::LazyLock;

use regex::Regex;

/// The longest constraint (`MaxConstraintLen`) and version in bytes.
const TEXT_MAX: usize = 512;
/// The most alternatives of a constraint (`MaxConstraintGroups`).
const GROUPS_MAX: usize = 32;

/// A version or constraint cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// Not a version.
    #[error("invalid semantic version: {0:?}")]
    Version(String),
    /// Not a constraint.
    #[error("improper constraint: {0:?}")]
    Constraint(String),
}

/// A version; missing parts are zero and a leading `v` is allowed.
#[derive(Debug, Clone)]
pub struct Version {
    major: u64,
    minor: u64,
    patch: u64,
    pre: String,
    original: String,
}

static VERSION: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^v?(0|[1-9]\d*)(?:\.(0|[1-9]\d*))?(?:\.(0|[1-9]\d*))?",
        r"(?:-([0-9A-Za-z\-]+(?:\.[0-9A-Za-z\-]+)*))?",
        r"(?:\+[0-9A-Za-z\-]+(?:\.[0-9A-Za-z\-]+)*)?$"
    ))
    .ok()
});

impl Version {
    /// Reads a version (`semver.NewVersion`).
    ///
    /// # Errors
    /// The text is not a version.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        let bad = || VersionError::Version(text.chars().take(80).collect());
        let pattern = VERSION.as_ref().ok_or_else(bad)?;
        let parts =
            (text.len() <= TEXT_MAX).then(|| pattern.captures(text)).flatten().ok_or_else(bad)?;
        let number = |at: usize| match parts.get(at) {
            Some(digits) => digits.as_str().parse::<u64>().map_err(|_| bad()),
            None => Ok(0),
        };
        let pre = parts.get(4).map_or("", |m| m.as_str());
        let leading_zero = |part: &str| {
            part.len() > 1 && part.starts_with('0') && part.bytes().all(|b| b.is_ascii_digit())
        };
        if pre.split('.').any(leading_zero) {
            return Err(bad());
        }
        Ok(Self {
            major: number(1)?,
            minor: number(2)?,
            patch: number(3)?,
            pre: pre.to_owned(),
            original: text.to_owned(),
        })
    }

    /// Whether this is a pre-release.
    pub fn is_prerelease(&self) -> bool {
        !self.pre.is_empty()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.original)
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.major, self.minor, self.patch)
            .cmp(&(other.major, other.minor, other.patch))
            .then_with(|| compare_prereleases(&self.pre, &other.pre))
    }
}

/// Section 11 of the specification of semantic versions.
fn compare_prereleases(a: &str, b: &str) -> Ordering {
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
            (Some(x), Some(y)) => match (x.parse::<u64>(), y.parse::<u64>()) {
                (Ok(x), Ok(y)) => x.cmp(&y),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => x.cmp(y),
            },
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Which parts of a constraint's version are wildcards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wild {
    None,
    Patch,
    Minor,
    All,
}

#[derive(Debug, Clone)]
struct Term {
    operator: String,
    version: Version,
    wild: Wild,
}

/// A constraint: alternatives of terms that hold together.
#[derive(Debug, Clone)]
pub struct Constraint {
    groups: Vec<Vec<Term>>,
}

const PART: &str = concat!(
    r"v?([0-9xX*]+)(\.[0-9xX*]+)?(\.[0-9xX*]+)?",
    r"(-[0-9A-Za-z\-]+(?:\.[0-9A-Za-z\-]+)*)?",
    r"(?:\+[0-9A-Za-z\-]+(?:\.[0-9A-Za-z\-]+)*)?"
);
const OPERATORS: &str = r"=>|=<|!=|>=|<=|~>|=|>|<|~|\^|";

static TERM: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(&format!(r"^[\s,]*({OPERATORS})\s*{PART}(?:[\s,]|$)")).ok());
static RANGE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(&format!(r"\s*({PART})\s+-\s+({PART})\s*")).ok());

impl Constraint {
    /// Reads a constraint (`semver.NewConstraint`).
    ///
    /// # Errors
    /// The text is not a constraint.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        let bad = || VersionError::Constraint(text.chars().take(80).collect());
        let range = RANGE.as_ref().ok_or_else(bad)?;
        if text.len() > TEXT_MAX {
            return Err(bad());
        }
        let text = range.replace_all(text, ">= $1, <= $6 ");
        let alternatives: Vec<&str> = text.split("||").collect();
        if alternatives.len() > GROUPS_MAX {
            return Err(bad());
        }
        let groups = alternatives.into_iter().map(|group| terms(group).ok_or_else(bad));
        Ok(Self { groups: groups.collect::<Result<_, _>>()? })
    }

    /// Whether the version satisfies the constraint.
    pub fn matches(&self, version: &Version) -> bool {
        self.groups.iter().any(|group| {
            let with_pre = group.iter().any(|term| term.version.is_prerelease());
            (with_pre || !version.is_prerelease()) && group.iter().all(|t| t.matches(version))
        })
    }
}

fn terms(group: &str) -> Option<Vec<Term>> {
    let pattern = TERM.as_ref()?;
    let (mut rest, mut terms) = (group.trim(), Vec::new());
    if rest.is_empty() {
        let version = Version::parse("0.0.0").ok()?;
        return Some(vec![Term { operator: String::new(), version, wild: Wild::All }]);
    }
    while !rest.is_empty() {
        let parts = pattern.captures(rest)?;
        let part = |at: usize| parts.get(at).map_or("", |m| m.as_str()).trim_start_matches('.');
        let is_wild = |text: &str| matches!(text, "" | "x" | "X" | "*");
        let pre = parts.get(5).map_or("", |m| m.as_str());
        let (text, wild) = if is_wild(part(2)) {
            (format!("0.0.0{pre}"), Wild::All)
        } else if is_wild(part(3)) {
            (format!("{}.0.0{pre}", part(2)), Wild::Minor)
        } else if is_wild(part(4)) {
            (format!("{}.{}.0{pre}", part(2), part(3)), Wild::Patch)
        } else {
            (format!("{}.{}.{}{pre}", part(2), part(3), part(4)), Wild::None)
        };
        let version = Version::parse(&text).ok()?;
        terms.push(Term { operator: part(1).to_owned(), version, wild });
        rest = rest.get(parts.get(0)?.end()..)?.trim_start();
    }
    Some(terms)
}

impl Term {
    fn matches(&self, v: &Version) -> bool {
        let con = &self.version;
        let is_dirty = self.wild != Wild::None;
        let minor_dirty = self.wild == Wild::Minor;
        match self.operator.as_str() {
            "" | "=" if is_dirty => self.tilde(v),
            "" | "=" => v == con,
            "!=" => match self.wild {
                Wild::None => v != con,
                Wild::All => con.major != v.major || con.minor != v.minor || con.patch != v.patch,
                Wild::Minor => con.major != v.major,
                Wild::Patch => con.major != v.major || con.minor != v.minor || con.pre != v.pre,
            },
            ">" => match self.wild {
                Wild::None => v > con,
                _ if v.major != con.major => v.major > con.major,
                Wild::Minor => false,
                Wild::Patch => v.minor > con.minor,
                Wild::All => v > con,
            },
            "<" => v < con,
            ">=" | "=>" => v >= con,
            "<=" | "=<" if !is_dirty => v <= con,
            "<=" | "=<" => {
                v.major < con.major || v.major == con.major && (v.minor <= con.minor || minor_dirty)
            }
            "~" | "~>" => self.tilde(v),
            "^" => self.caret(v),
            _ => false,
        }
    }

    fn tilde(&self, v: &Version) -> bool {
        let con = &self.version;
        let is_zero = con.major == 0 && con.minor == 0 && con.patch == 0;
        v >= con
            && (is_zero && !matches!(self.wild, Wild::Minor | Wild::Patch)
                || v.major == con.major && (v.minor == con.minor || self.wild == Wild::Minor))
    }

    fn caret(&self, v: &Version) -> bool {
        let con = &self.version;
        if v < con {
            return false;
        }
        if con.major > 0 || self.wild == Wild::Minor {
            return v.major == con.major;
        }
        if v.major > 0 {
            return false;
        }
        if con.minor > 0 || self.wild == Wild::Patch {
            return v.minor == con.minor;
        }
        v.minor == 0 && v.patch == con.patch
    }
}

/// Whether a version is in a range; texts that cannot be read are not (`IsCompatibleRange`).
pub fn is_compatible(range: &str, version: &str) -> bool {
    match (Constraint::parse(range), Version::parse(version)) {
        (Ok(constraint), Ok(version)) => constraint.matches(&version),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_match_as_masterminds_semver() {
        // From constraints_test.go and version ranges of public charts.
        for (range, version, want) in [
            ("=2.0.0", "1.2.3", false),
            ("=2.0", "2.0.7", true),
            ("4.1", "4.1.0", true),
            ("!=4.1.x", "4.1.3", false),
            (">1.1", "1.1.4", false),
            (">1.1", "1.2.0", true),
            ("<1.1", "0.1.0", true),
            ("<=11", "11.1.0", true),
            (">=11.1.3", "11.1.2", false),
            ("1.2 - 2.0.0", "2.0.0", true),
            ("1.2.0 - 1.4.5", "1.4.6", false),
            ("^1.2.3", "1.9.0", true),
            ("^0.2.3", "0.3.0", false),
            ("~1.2.3", "1.3.0", false),
            ("~1", "1.9.0", true),
            ("*", "7.1.0", true),
            ("", "7.1.0", true),
            (">= 1.16.0-0", "1.37.1+kube-lite", true),
            (">= 1.16.0", "1.37.1-rc.1", false),
            (">= 1.16.0-0 < 2.0.0-0", "1.37.1", true),
            ("1.x.x || ^3", "3.2.0", true),
            ("~17.x.x", "17.9.1", true),
            ("nonsense", "1.0.0", false),
        ] {
            assert_eq!(is_compatible(range, version), want, "{range:?} {version}");
        }
    }

    #[test]
    fn versions_are_ordered_by_precedence() {
        let order =
            ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta.2", "1.0.0-beta.11", "v1", "1.0.1"];
        let versions: Vec<Version> = order.iter().map(|v| Version::parse(v).unwrap()).collect();
        assert!(versions.is_sorted());
        assert!(Version::parse("1.0.0-01").is_err() && Version::parse("1.0.0.0").is_err());
    }
}
