//! Field selectors such as `metadata.name=x,spec.nodeName!=y`, with upstream's escape sequences.

use std::fmt;

use sorting::CompactSort as _;

use super::SelectorError;

/// A condition on the text of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldTerm {
    /// The label of the field, such as `spec.nodeName`.
    pub field: Box<str>,
    /// Whether the value must differ (`!=`).
    pub not: bool,
    /// The value without escape sequences.
    pub value: Box<str>,
}

/// A field selector. An object must match all terms.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

impl FieldSelector {
    /// Parses the string form.
    ///
    /// # Errors
    /// Returns upstream's parse error.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parts = split_terms(text);
        parts.compact_sort();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|p| !p.is_empty()) {
            let Some((field, not, value)) = split_term(part) else {
                return Err(SelectorError(format!(
                    "invalid selector: '{text}'; can't understand '{part}'"
                )));
            };
            // A term of an operator alone selects everything.
            if field.is_empty() && value.is_empty() {
                continue;
            }
            terms.push(FieldTerm { field: field.into(), not, value: unescape(value)?.into() });
        }
        Ok(Self { terms })
    }

    /// Checks that the resource supports every field of the selector. `known` are the field labels
    /// of the resource without the common ones: `metadata.name`, and `metadata.namespace` if
    /// `namespaced`.
    ///
    /// # Errors
    /// Returns upstream's text. For a resource with the common fields only, the text names these
    /// two; for others it names the unsupported label.
    pub fn check(&self, known: &[&str], namespaced: bool) -> Result<(), SelectorError> {
        for term in &self.terms {
            let field = &*term.field;
            let common = field == "metadata.name"
                || (field == "metadata.namespace" && (namespaced || known.is_empty()));
            if common || known.contains(&field) {
                continue;
            }
            return Err(SelectorError(if known.is_empty() {
                format!(
                    "\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )
            } else {
                format!("field label not supported: {field}")
            }));
        }
        Ok(())
    }

    /// Returns whether the selector matches an object; `get` returns the text of a field, empty if
    /// unset.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> &'a str) -> bool {
        self.terms.iter().all(|t| (get(&t.field) == &*t.value) != t.not)
    }

    /// Returns whether the selector matches every object.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the terms in upstream's order.
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// Returns the value that the selector requires for a field, if any.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| !t.not && *t.field == *field).map(|t| &*t.value)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let operator = if term.not { "!=" } else { "=" };
            write!(f, "{comma}{}{operator}", term.field)?;
            for c in term.value.chars() {
                if matches!(c, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                out.extend(text.get(start..i));
                start = i + 1;
            }
            _ => {}
        }
    }
    out.extend(text.get(start..));
    out
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    for (i, c) in term.char_indices() {
        let rest = term.get(i..)?;
        if let Some(value) = rest.strip_prefix("!=") {
            return Some((term.get(..i)?, true, value));
        }
        if c == '=' {
            let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
            return Some((term.get(..i)?, false, value));
        }
    }
    None
}

fn unescape(text: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                other => {
                    let sequence: String = std::iter::once('\\').chain(other).collect();
                    return Err(SelectorError(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    )));
                }
            },
            // Upstream prints the code point as a number.
            ',' | '=' => {
                return Err(SelectorError(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(c)
                )));
            }
            _ => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_prints_and_matches() {
        let s = FieldSelector::parse(r"spec.nodeName!=n,metadata.name==a\,b").unwrap();
        assert_eq!(s.to_string(), r"metadata.name=a\,b,spec.nodeName!=n");
        assert_eq!(s.exact("metadata.name"), Some("a,b"));
        assert!(s.matches(|f| if f == "metadata.name" { "a,b" } else { "" }));
        assert!(!s.matches(|f| if f == "metadata.name" { "a,b" } else { "n" }));
        assert!(FieldSelector::parse("").unwrap().is_empty());
    }

    #[test]
    fn refuses_with_upstreams_texts() {
        for (text, error) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            (r"a=\b", r"invalid field selector: invalid escape sequence: \b"),
            (r"a=\", r"invalid field selector: invalid escape sequence: \"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), error, "{text}");
        }
    }

    /// The cases are `hasTerm.Transform` and `notHasTerm.Transform` of upstream.
    #[test]
    fn a_sign_alone_selects_everything() {
        for text in ["=", "==", "!=", "=,!="] {
            assert!(FieldSelector::parse(text).unwrap().is_empty(), "{text}");
        }
        assert_eq!(FieldSelector::parse("=,a=b").unwrap().terms().len(), 1);
        assert_eq!(FieldSelector::parse("=x").unwrap().terms().len(), 1);
    }

    #[test]
    fn names_what_is_not_known() {
        let s = FieldSelector::parse("data.k=b").unwrap();
        assert_eq!(
            s.check(&[], true).unwrap_err().to_string(),
            "\"data.k\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        );
        assert_eq!(
            s.check(&["spec.nodeName"], true).unwrap_err().to_string(),
            "field label not supported: data.k"
        );
        assert!(
            FieldSelector::parse("metadata.namespace=x,spec.nodeName=y")
                .unwrap()
                .check(&["spec.nodeName"], true)
                .is_ok()
        );
    }
}
