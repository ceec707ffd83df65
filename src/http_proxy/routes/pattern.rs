//! Regular expressions of users, with bounds.

use regex::{Captures, Regex, RegexBuilder};

/// Bytes of a compiled expression.
const COMPILED_BYTES_MAX: usize = 128 * 1024;
/// Bytes of the text of an expression.
const TEXT_BYTES_MAX: usize = 1024;
/// Nested groups.
const NEST_MAX: u32 = 32;

/// A regular expression that a user wrote. Matching takes time linear in the text.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

/// Why an expression cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// It is longer than [`TEXT_BYTES_MAX`].
    #[error("the regular expression is longer than {TEXT_BYTES_MAX} bytes")]
    Long,
    /// It is invalid, uses what takes more than linear time (look-around, back-references), or is
    /// too large.
    #[error("the regular expression {text:?} cannot be used: {why}")]
    Invalid {
        /// The expression.
        text: String,
        /// The last line of the error.
        why: String,
    },
}

impl Pattern {
    fn build(text: &str, is_path: bool) -> Result<Self, PatternError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(PatternError::Long);
        }
        let whole = if is_path { format!("^(?:{text})") } else { text.to_owned() };
        let built = RegexBuilder::new(&whole)
            .case_insensitive(is_path)
            // A decoded path may have line breaks; a group must not lose what follows them.
            .dot_matches_new_line(is_path)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(COMPILED_BYTES_MAX)
            .nest_limit(NEST_MAX)
            .build();
        built.map(Self).map_err(|error| {
            let all = error.to_string();
            let why = all.lines().last().unwrap_or_default().trim_start_matches("error: ");
            PatternError::Invalid { text: text.to_owned(), why: why.to_owned() }
        })
    }

    /// An expression that is found anywhere in a text.
    ///
    /// # Errors
    /// It is invalid or too large.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        Self::build(text, false)
    }

    /// An expression for the start of a path, regardless of case, as ingress-nginx's
    /// `location ~* "^..."`.
    ///
    /// # Errors
    /// It is invalid or too large.
    pub fn of_path(text: &str) -> Result<Self, PatternError> {
        Self::build(text, true)
    }

    /// Whether the expression is found in a text.
    pub fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// The compiled expression.
    pub fn regex(&self) -> &Regex {
        &self.0
    }
}

/// Whether the path of an Ingress is an expression rather than a plain path.
pub fn has_operators(path: &str) -> bool {
    path.contains(['(', ')', '[', ']', '*', '+', '?', '^', '$', '|', '\\', '{', '}'])
}

/// A path with `$1` to `$9` for the groups of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Group(usize),
}

impl Template {
    /// Reads the text; `$` without a digit stays as it is.
    pub fn new(text: &str) -> Self {
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            let digit = letters.peek().and_then(|next| next.to_digit(10)).filter(|d| *d > 0);
            match digit.filter(|_| letter == '$') {
                Some(digit) => {
                    letters.next();
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                    parts.push(Part::Group(digit as usize));
                }
                None => plain.push(letter),
            }
        }
        parts.push(Part::Text(plain));
        Self(parts)
    }

    /// The path with the groups filled in; a group that did not match is empty. Bytes that a path
    /// must not have are escaped.
    pub fn expand(&self, captures: Option<&Captures<'_>>) -> String {
        let mut out = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Group(number) => {
                    let group = captures.and_then(|c| c.get(*number)).map_or("", |m| m.as_str());
                    escape(group, &mut out);
                }
            }
        }
        if !out.starts_with('/') {
            out.insert(0, '/');
        }
        out
    }
}

/// Appends a decoded part of a path, with escapes (RFC 3986, `pchar` and `/`).
fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte);
        match plain {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The examples of ingress-nginx's page "Rewrite".
    #[test]
    fn paths_are_rewritten_with_groups() {
        for (path, target, request, expected) in [
            ("/something(/|$)(.*)", "/$2", "/something", Some("/")),
            ("/something(/|$)(.*)", "/$2", "/something/", Some("/")),
            ("/something(/|$)(.*)", "/$2", "/something/new", Some("/new")),
            ("/something(/|$)(.*)", "/$2", "/SomeThing/New", Some("/New")),
            ("/something(/|$)(.*)", "/$2", "/somethings", None),
            ("/a/(\\d+)", "/x?id=$1", "/a/42", Some("/x?id=42")),
            ("/a/(.*)", "/$1", "/a/b c?d\r\n", Some("/b%20c%3Fd%0D%0A")),
            ("/a(b)?", "$1", "/a", Some("/")),
            ("/a", "/cost$/$0", "/a", Some("/cost$/$0")),
        ] {
            let pattern = Pattern::of_path(path).unwrap();
            let captures = pattern.regex().captures(request);
            let got = captures.map(|captures| Template::new(target).expand(Some(&captures)));
            assert_eq!(got.as_deref(), expected, "{path} {request}");
        }
    }

    #[test]
    fn expressions_are_bounded() {
        for text in ["(", "(?=a)", "(a)\\1", "(?:a{1000}){1000}", "\\w{500}"] {
            let error = Pattern::of_path(text).unwrap_err().to_string();
            assert!(error.contains("cannot be used: "), "{error}");
        }
        assert!(matches!(Pattern::new(&"a".repeat(2000)), Err(PatternError::Long)));
        let nested = format!("{}a{}", "(".repeat(100), ")".repeat(100));
        assert!(Pattern::new(&nested).is_err());
        // The worst case of an engine with backtracking.
        let pattern = Pattern::new("^(a+)+$").unwrap();
        assert!(!pattern.is_match(&format!("{}b", "a".repeat(50_000))));
    }
}
