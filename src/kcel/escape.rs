//! Escapes names of properties that are not identifiers of CEL.

const RESERVED: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Returns the identifier of a property: `__` becomes `__underscores__`, `.`, `-` and `/` likewise,
/// and reserved words are enclosed in `__`. `None` if the property cannot be named in CEL.
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Some(escaped) = escape_reserved(name) {
        return Some(escaped);
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '_' if rest.peek() == Some(&'_') => {
                rest.next();
                out.push_str("__underscores__");
            }
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => out.push(c),
            _ => return None,
        }
    }
    Some(out)
}

/// Whether a name is a reserved word of CEL, which cannot be used as an identifier.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// Returns the identifier of a property whose name is a reserved word.
pub(crate) fn escape_reserved(name: &str) -> Option<String> {
    is_reserved(name).then(|| format!("__{name}__"))
}

/// Returns the property of an identifier; `None` if it contains an unknown escape.
pub fn unescape(name: &str) -> Option<String> {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("__") {
        out.push_str(rest.get(..at)?);
        let after = rest.get(at + 2..)?;
        let length = after.find('_').unwrap_or(after.len());
        let closed = after.get(length..).is_some_and(|tail| tail.starts_with("__"));
        if length == 0 || !closed {
            // No escape begins with this underscore; one may begin with the next.
            out.push('_');
            rest = rest.get(at + 1..)?;
            continue;
        }
        let word = after.get(..length)?;
        match word {
            "underscores" => out.push_str("__"),
            "dot" => out.push('.'),
            "dash" => out.push('-'),
            "slash" => out.push('/'),
            // A reserved word is escaped only as a whole.
            word if RESERVED.contains(&word) && name.len() == word.len() + 4 => out.push_str(word),
            _ => return None,
        }
        rest = after.get(length + 2..)?;
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of upstream's own test (`escaping_test.go`).
    #[test]
    fn names_are_escaped_as_upstream_does_and_back() {
        for (name, escaped) in [
            ("a", "a"),
            ("namespace", "__namespace__"),
            ("a.b", "a__dot__b"),
            ("a-b/c", "a__dash__b__slash__c"),
            ("a__b", "a__underscores__b"),
            ("_a", "_a"),
            ("x.__.y", "x__dot____underscores____dot__y"),
            ("namespace_", "namespace_"),
        ] {
            assert_eq!(escape(name).as_deref(), Some(escaped), "{name}");
            assert_eq!(unescape(escaped).as_deref(), Some(name), "{escaped}");
        }
        for name in ["", "1a", "a b", "å", "a$"] {
            assert_eq!(escape(name), None, "{name}");
        }
        assert_eq!(unescape("__unknown__"), None);
        assert_eq!(unescape("a__namespace__"), None);
    }
}
