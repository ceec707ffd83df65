//! Translation of Go's regular expressions (RE2) to the syntax of the crate `regex`.

/// Maximum count of a repetition.
const REPEAT_MAX: u32 = 1000;

/// An invalid pattern, with the text of Go's `syntax.Error`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {reason}")]
pub(crate) struct PatternError {
    reason: PatternErrorReason,
}

/// Why a pattern is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum PatternErrorReason {
    /// `{n,m}` with a count above the limit.
    #[error("invalid repeat count: `{0}`")]
    RepeatCount(String),
    #[error("missing closing ): `{0}`")]
    UnclosedGroup(String),
    #[error("unexpected ): `{0}`")]
    UnopenedGroup(String),
    #[error("missing closing ]: `{0}`")]
    UnclosedClass(String),
    #[error("expression too large")]
    TooLarge,
    #[error("missing argument to repetition operator: `{0}`")]
    MissingArgument(char),
    /// Another error, with the text of the crate `regex`.
    #[error("{0}")]
    Syntax(String),
}

/// Rewrites a pattern for the crate `regex`: classes of letters and digits are limited to ASCII,
/// brackets do not nest, and `\Q...\E` quotes.
pub(super) fn translated(pattern: &str) -> Result<String, PatternError> {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    let mut class = false;
    // At the start of a class, `]` is an element.
    let mut first = false;
    while let Some(character) = rest.chars().next() {
        let after = rest.get(character.len_utf8()..).unwrap_or_default();
        let was_first = std::mem::take(&mut first);
        match character {
            '\\' => {
                rest = escaped(after, class, &mut out);
                continue;
            }
            '[' if class => {
                // Named classes have the same syntax.
                if let Some(end) = after.strip_prefix(':').and_then(|name| name.find(":]")) {
                    let length = end + 4;
                    out.push_str(rest.get(..length).unwrap_or_default());
                    rest = rest.get(length..).unwrap_or_default();
                    continue;
                }
                out.push_str("\\[");
            }
            '[' => {
                class = true;
                first = true;
                out.push('[');
                if after.starts_with('^') {
                    out.push('^');
                    rest = after.get(1..).unwrap_or_default();
                    continue;
                }
            }
            ']' if class && was_first => out.push_str("\\]"),
            ']' if class => {
                class = false;
                out.push(']');
            }
            '&' | '~' if class => {
                out.push('\\');
                out.push(character);
            }
            '{' if !class => match repetition(rest) {
                Some(most) if most > REPEAT_MAX => {
                    let end = rest.find('}').map_or(rest.len(), |at| at + 1);
                    let count = rest.get(..end).unwrap_or_default();
                    let reason = PatternErrorReason::RepeatCount(count.to_owned());
                    return Err(PatternError { reason });
                }
                Some(_) => out.push('{'),
                None => out.push_str("\\{"),
            },
            other => out.push(other),
        }
        rest = after;
    }
    Ok(out)
}

/// Translates an escape; returns the text after it.
fn escaped<'p>(after: &'p str, class: bool, out: &mut String) -> &'p str {
    let Some(letter) = after.chars().next() else {
        out.push('\\');
        return "";
    };
    let rest = after.get(letter.len_utf8()..).unwrap_or_default();
    match letter {
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        'w' => out.push_str("[0-9A-Za-z_]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        's' => out.push_str("[\\t\\n\\f\\r ]"),
        'S' => out.push_str("[^\\t\\n\\f\\r ]"),
        'b' if !class => out.push_str("(?-u:\\b)"),
        'B' if !class => out.push_str("(?-u:\\B)"),
        'Q' if !class => {
            let (quoted, rest) = rest.split_once("\\E").unwrap_or((rest, ""));
            out.push_str(&regex::escape(quoted));
            return rest;
        }
        other => {
            out.push('\\');
            out.push(other);
        }
    }
    rest
}

/// Returns the maximum count of `{n}`, `{n,}` or `{n,m}`; `None` if the text is not a repetition.
fn repetition(text: &str) -> Option<u32> {
    let inner = text.strip_prefix('{')?;
    let inner = inner.get(..inner.find('}')?)?;
    let (least, most) = inner.split_once(',').unwrap_or((inner, ""));
    let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
    if least.is_empty() || !digits(least) || !digits(most) {
        return None;
    }
    let count = |text: &str| text.parse().unwrap_or(u32::MAX);
    Some(count(least).max(if most.is_empty() { 0 } else { count(most) }))
}

impl PatternError {
    /// Converts the error of the crate `regex` to that of Go.
    pub(super) fn of(pattern: &str, error: &regex::Error) -> Self {
        let text = error.to_string();
        let reason = if text.contains("unclosed group") {
            PatternErrorReason::UnclosedGroup(pattern.to_owned())
        } else if text.contains("unopened group") {
            PatternErrorReason::UnopenedGroup(pattern.to_owned())
        } else if text.contains("unclosed character class") {
            let from = pattern.find('[').and_then(|at| pattern.get(at..)).unwrap_or(pattern);
            PatternErrorReason::UnclosedClass(from.to_owned())
        } else if text.contains("size limit") {
            PatternErrorReason::TooLarge
        } else if text.contains("repetition operator missing expression") {
            let operator = pattern.chars().find(|c| matches!(c, '*' | '+' | '?')).unwrap_or('*');
            PatternErrorReason::MissingArgument(operator)
        } else {
            PatternErrorReason::Syntax(text.lines().last().unwrap_or_default().to_owned())
        };
        Self { reason }
    }
}

#[cfg(test)]
mod tests {
    use crate::functions::pattern;

    /// Rows of `invalidRegexps` in Go's `regexp/syntax/parse_test.go`.
    #[test]
    fn invalid_patterns_are_errors() {
        for text in [
            "(",
            ")",
            "(a",
            "a)",
            "(a|b|",
            "[a-z",
            "([a-z)",
            "[a-z)",
            "x{1001}",
            "x{9876543210}",
            "x{2,1}",
            "x{1,9876543210}",
            "(?P<name>a",
            "(?P<name",
            "(?P<x y>a)",
            "(?P<>a)",
            "(?<name>a",
            "(?<x y>a)",
            "[a-Z]",
            "(?i)[a-Z]",
            r"\Q\E*",
            "a{100000}",
            "a{100000,}",
        ] {
            assert!(pattern(text).is_err(), "{text}");
        }
    }

    /// Rows of `badRe` in Go's `regexp/all_test.go`.
    #[test]
    fn errors_of_patterns_have_the_text_of_go() {
        for (text, expected) in [
            ("*", "missing argument to repetition operator: `*`"),
            ("+", "missing argument to repetition operator: `+`"),
            ("?", "missing argument to repetition operator: `?`"),
            ("(abc", "missing closing ): `(abc`"),
            ("abc)", "unexpected ): `abc)`"),
            ("x[a-z", "missing closing ]: `[a-z`"),
        ] {
            let error = pattern(text).unwrap_err().to_string();
            assert_eq!(error, format!("error parsing regexp: {expected}"));
        }
    }

    /// The classes and escapes of Go's `regexp/syntax/doc.go`.
    #[test]
    fn classes_of_letters_and_digits_are_ascii_and_quotes_are_literal() {
        for (text, subject, expected) in [
            (r"^\d$", "5", true),
            (r"^\d$", "٣", false),
            (r"^\w$", "é", false),
            (r"^\W$", "é", true),
            (r"^[\d]$", "٣", false),
            (r"^\s$", "\t", true),
            (r"^\s$", "\u{b}", false),
            (r"^\s$", "\u{a0}", false),
            (r"^[[:alpha:]]+$", "abc", true),
            (r"^[]a]+$", "]a", true),
            (r"^[[]$", "[", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^\pL$", "é", true),
            (r"^a.b$", "a\nb", false),
            (r"(?s)^a.b\z", "a\nb", true),
        ] {
            assert_eq!(pattern(text).unwrap().is_match(subject), expected, "{text} {subject:?}");
        }
    }
}
