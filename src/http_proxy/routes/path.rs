//! Paths of requests as rules see them, and rules by path.

use std::borrow::Cow;
use std::collections::HashMap;

use regex::Regex;

/// How a rule matches paths.
#[derive(Debug, Clone)]
pub enum PathMatch {
    /// The whole path, case sensitive.
    Exact(String),
    /// Whole elements of the path, split by `/`; a trailing `/` is ignored.
    Prefix(String),
    /// A regular expression that matches the whole path.
    Regex(Regex),
}

/// Why a request's path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// `..` leaves the root.
    #[error("the path leaves the root")]
    LeavesRoot,
    /// `%` without two hexadecimal digits, or `%00`.
    #[error("the path has an invalid escape")]
    Escape,
    /// No `/` at the start.
    #[error("the path does not start with a slash")]
    Relative,
}

/// The path that rules are compared with: decoded, without `.`, `..` and repeated slashes, as
/// nginx's location sees it. The request is forwarded with its own path.
///
/// # Errors
/// The path is invalid or leaves the root: status 400.
pub fn normalized(path: &str) -> Result<Cow<'_, str>, PathError> {
    if !path.starts_with('/') {
        return Err(PathError::Relative);
    }
    if !path.contains('%') && !path.contains("//") && !path.contains("/.") {
        return Ok(path.into());
    }
    let decoded = decode(path)?;
    let mut elements: Vec<&[u8]> = Vec::new();
    let ends_with_directory =
        decoded.ends_with(b"/") || decoded.ends_with(b"/.") || decoded.ends_with(b"/..");
    for element in decoded.split(|b| *b == b'/') {
        match element {
            b"" | b"." => {}
            b".." => drop(elements.pop().ok_or(PathError::LeavesRoot)?),
            other => elements.push(other),
        }
    }
    let mut out = Vec::with_capacity(decoded.len());
    for element in &elements {
        out.push(b'/');
        out.extend_from_slice(element);
    }
    if ends_with_directory || out.is_empty() {
        out.push(b'/');
    }
    Ok(String::from_utf8_lossy(&out).into_owned().into())
}

fn decode(path: &str) -> Result<Vec<u8>, PathError> {
    let mut out = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
        let (high, low) = (digit(bytes.next()), digit(bytes.next()));
        let value = high.zip(low).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        match value {
            Some(value) if value != 0 => out.push(value),
            _ => return Err(PathError::Escape),
        }
    }
    Ok(out)
}

/// Rules by path. A lookup costs one hash of the path for exact rules, and one per element of the
/// path up to the deepest prefix.
#[derive(Debug)]
pub struct PathMap<T> {
    exact: HashMap<Box<str>, Vec<T>>,
    /// By the prefix without its trailing slash; the root is the empty text.
    prefixes: HashMap<Box<str>, Vec<T>>,
    regexes: Vec<(Regex, T)>,
    /// Elements of the longest prefix.
    depth: usize,
}

impl<T> Default for PathMap<T> {
    fn default() -> Self {
        let (exact, prefixes) = (HashMap::new(), HashMap::new());
        Self { exact, prefixes, regexes: Vec::new(), depth: 0 }
    }
}

fn trimmed(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

impl<T> PathMap<T> {
    /// Adds a rule behind those of the same path.
    pub fn insert(&mut self, path: &PathMatch, rule: T) {
        match path {
            PathMatch::Exact(path) => {
                self.exact.entry(path.as_str().into()).or_default().push(rule)
            }
            PathMatch::Prefix(path) => {
                let prefix = trimmed(path);
                self.depth = self.depth.max(prefix.matches('/').count());
                self.prefixes.entry(prefix.into()).or_default().push(rule);
            }
            PathMatch::Regex(regex) => self.regexes.push((regex.clone(), rule)),
        }
    }

    /// The first rule for a path that `accepts` takes: exact ones, then regular expressions in
    /// their order, then the longest prefix.
    pub fn find(&self, path: &str, accepts: impl Fn(&T) -> bool) -> Option<&T> {
        if let Some(found) = self.exact.get(path).and_then(|l| l.iter().find(|r| accepts(r))) {
            return Some(found);
        }
        let matching = |(regex, rule): &&(Regex, T)| regex.is_match(path) && accepts(rule);
        if let Some((_, rule)) = self.regexes.iter().find(matching) {
            return Some(rule);
        }
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1);
        let mut ends: Vec<usize> = ends.take(self.depth).collect();
        if ends.len() < self.depth {
            ends.push(path.len());
        }
        let prefixes = ends.iter().rev().filter_map(|end| path.get(..*end)).chain([""]);
        for prefix in prefixes {
            let list = self.prefixes.get(prefix).map(Vec::as_slice).unwrap_or_default();
            if let Some(found) = list.iter().find(|rule| accepts(rule)) {
                return Some(found);
            }
        }
        None
    }

    /// All lists of rules, to sort each.
    pub fn lists_mut(&mut self) -> impl Iterator<Item = &mut Vec<T>> {
        self.exact.values_mut().chain(self.prefixes.values_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(rules: &[(&'static str, &'a str)], path: &str) -> Option<&'a str> {
        let mut map = PathMap::default();
        for (kind, path) in rules {
            let rule = match *kind {
                "Exact" => PathMatch::Exact((*path).to_owned()),
                "Regex" => PathMatch::Regex(Regex::new(&format!("^(?:{path})$")).unwrap()),
                _ => PathMatch::Prefix((*path).to_owned()),
            };
            map.insert(&rule, *path);
        }
        map.find(path, |_| true).copied()
    }

    // The table "Examples" of path types in the documentation of Ingress.
    #[test]
    fn paths_match_as_the_documentation_of_ingress_says() {
        for (kind, rule, path, matches) in [
            ("Prefix", "/", "/any/path", true),
            ("Exact", "/foo", "/foo", true),
            ("Exact", "/foo", "/bar", false),
            ("Exact", "/foo", "/foo/", false),
            ("Exact", "/foo/", "/foo", false),
            ("Prefix", "/foo", "/foo", true),
            ("Prefix", "/foo", "/foo/", true),
            ("Prefix", "/foo/", "/foo", true),
            ("Prefix", "/foo/", "/foo/", true),
            ("Prefix", "/aaa/bb", "/aaa/bbb", false),
            ("Prefix", "/aaa/bbb", "/aaa/bbb", true),
            ("Prefix", "/aaa/bbb/", "/aaa/bbb", true),
            ("Prefix", "/aaa/bbb", "/aaa/bbb/", true),
            ("Prefix", "/aaa/bbb", "/aaa/bbb/ccc", true),
            ("Prefix", "/aaa/bbb", "/aaa/bbbxyz", false),
            ("Prefix", "/aaa", "/ccc", false),
        ] {
            assert_eq!(found(&[(kind, rule)], path).is_some(), matches, "{kind} {rule} {path}");
        }
        let mixed = [("Prefix", "/"), ("Prefix", "/aaa"), ("Prefix", "/aaa/bbb")];
        for (path, rule) in [("/aaa/ccc", "/aaa"), ("/aaa/bbb/c", "/aaa/bbb"), ("/ccc", "/")] {
            assert_eq!(found(&mixed, path), Some(rule), "{path}");
        }
        assert_eq!(found(&[("Prefix", "/foo"), ("Exact", "/foo")], "/foo"), Some("/foo"));
    }

    #[test]
    fn exact_paths_come_before_expressions_and_those_before_prefixes() {
        let rules = [("Prefix", "/a/b"), ("Regex", "/a/[a-z]"), ("Exact", "/a/c")];
        for (path, rule) in [("/a/b", "/a/[a-z]"), ("/a/c", "/a/c"), ("/a/b/c", "/a/b")] {
            assert_eq!(found(&rules, path), Some(rule), "{path}");
        }
    }

    #[test]
    fn a_refused_rule_gives_way_to_a_shorter_prefix() {
        let mut map = PathMap::default();
        for (path, wanted) in [("/a/b", false), ("/a", true), ("/", true)] {
            map.insert(&PathMatch::Prefix(path.to_owned()), (path, wanted));
        }
        assert_eq!(map.find("/a/b/c", |(_, wanted)| *wanted).map(|r| r.0), Some("/a"));
    }

    // Expectations: nginx's normalization of `$uri`.
    #[test]
    fn paths_are_compared_decoded_and_without_dots() {
        for (path, expected) in [
            ("/a/b", Ok("/a/b")),
            ("/a%2fb", Ok("/a/b")),
            ("/%61dmin", Ok("/admin")),
            ("/public/../admin", Ok("/admin")),
            ("/a/./b//c", Ok("/a/b/c")),
            ("/a/..", Ok("/")),
            ("/a/b/", Ok("/a/b/")),
            ("/a/.b", Ok("/a/.b")),
            ("/..", Err(PathError::LeavesRoot)),
            ("/a/%2e%2e/%2e%2e/etc", Err(PathError::LeavesRoot)),
            ("/%0", Err(PathError::Escape)),
            ("/%zz", Err(PathError::Escape)),
            ("/a%00b", Err(PathError::Escape)),
            ("a", Err(PathError::Relative)),
        ] {
            assert_eq!(normalized(path).as_deref(), expected.as_deref(), "{path}");
        }
    }
}
