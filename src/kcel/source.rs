//! The text of an expression: positions, and errors with the line and a marker below it as cel-go
//! formats them.

use std::fmt;

use sorting::CompactSort as _;

/// The code points of an expression, and the offsets of its lines.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) text: Vec<char>,
    lines: Vec<usize>,
}

/// A position: the line counted from 1, the column in code points from 0. (-1, -1) is no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    pub(crate) line: i64,
    pub(crate) column: i64,
}

pub(crate) const NOWHERE: Location = Location { line: -1, column: -1 };

/// Maximum length of a line that is shown below an error, in bytes.
const SNIPPET_MAX: usize = 16384;
/// Maximum number of errors that are shown.
const FAULTS_MAX: usize = 100;

impl Source {
    pub(crate) fn new(text: &str) -> Source {
        let text: Vec<char> = text.chars().collect();
        let mut lines = vec![0];
        lines.extend(text.iter().enumerate().filter(|(_, c)| **c == '\n').map(|(at, _)| at + 1));
        Source { text, lines }
    }

    pub(crate) fn location(&self, offset: usize) -> Location {
        if self.text.is_empty() {
            // The text of cel-go for an error without a position.
            return Location { line: 1, column: -1 };
        }
        let line = self.lines.partition_point(|begin| *begin <= offset);
        let begin = line.checked_sub(1).and_then(|at| self.lines.get(at)).copied().unwrap_or(0);
        Location {
            line: i64::try_from(line).unwrap_or(i64::MAX),
            column: i64::try_from(offset.saturating_sub(begin)).unwrap_or(i64::MAX),
        }
    }

    fn line(&self, number: i64) -> Option<&[char]> {
        if self.text.is_empty() {
            return None;
        }
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        let begin = *self.lines.get(at)?;
        let end = self.lines.get(at + 1).map_or(self.text.len(), |next| next - 1);
        self.text.get(begin..end)
    }
}

/// An error at a position of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) location: Location,
    pub(crate) message: String,
}

/// Why an expression does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CompileError {
    text: String,
    /// Whether syntax and types are valid, and only a constant cannot be evaluated.
    pub instantiation: bool,
}

impl fmt::Display for CompileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl CompileError {
    pub(crate) fn instantiation(text: impl Into<String>) -> CompileError {
        CompileError { text: text.into(), instantiation: true }
    }

    pub(crate) fn plain(text: impl Into<String>) -> CompileError {
        CompileError { text: text.into(), instantiation: false }
    }

    pub(crate) fn new(source: &Source, mut faults: Vec<Fault>) -> CompileError {
        let count = faults.len();
        faults.truncate(FAULTS_MAX);
        faults.compact_sort_by_key(|fault| fault.location);
        let mut shown: Vec<String> = faults.iter().map(|fault| show(source, fault)).collect();
        if count > FAULTS_MAX {
            shown.push(format!("{} more errors were truncated", count - FAULTS_MAX));
        }
        CompileError { text: shown.join("\n"), instantiation: false }
    }
}

fn show(source: &Source, fault: &Fault) -> String {
    let Location { line, column } = fault.location;
    let mut out = format!("ERROR: <input>:{line}:{}: {}", column + 1, fault.message);
    let Some(text) = source.line(line) else { return out };
    if text.iter().map(|c| c.len_utf8()).sum::<usize>() > SNIPPET_MAX {
        return out;
    }
    let wide = |c: &char| c.len_utf8() > 1;
    let column = usize::try_from(column).unwrap_or(0);
    out.push_str("\n | ");
    out.extend(text.iter().map(|c| if *c == '\t' { ' ' } else { *c }));
    out.push_str("\n | ");
    out.extend(text.iter().take(column).map(|c| if wide(c) { '\u{ff0e}' } else { '.' }));
    out.push(if text.get(column).is_some_and(wide) { '\u{ff3e}' } else { '^' });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, line: i64, column: i64, message: &str) -> String {
        let fault = Fault { location: Location { line, column }, message: message.into() };
        CompileError::new(&Source::new(text), vec![fault]).to_string()
    }

    /// Rows of cel-go's `common/errors_test.go`.
    #[test]
    fn errors_show_their_line_with_a_marker_below() {
        for (text, line, column, message, expected) in [
            (
                "a.b\n&&arg(missing, paren",
                1,
                1,
                "No such field",
                "ERROR: <input>:1:2: No such field\n | a.b\n | .^",
            ),
            (
                "a.b\n&&arg(missing, paren",
                2,
                20,
                "Syntax error, missing paren",
                "ERROR: <input>:2:21: Syntax error, missing paren\n | &&arg(missing, paren\n \
                 | ....................^",
            ),
            (
                "你好吗\n我a很好\n",
                2,
                3,
                "Unexpected character '好'",
                "ERROR: <input>:2:4: Unexpected character '好'\n | 我a很好\n | ．.．＾",
            ),
            (
                "      '😁' in ['😁', '😑', '😦'] && in.😁",
                1,
                36,
                "Syntax error: missing IDENTIFIER at '<EOF>'",
                "ERROR: <input>:1:37: Syntax error: missing IDENTIFIER at '<EOF>'\n \
                 |       '😁' in ['😁', '😑', '😦'] && in.😁\n \
                 | .......．.......．....．....．.........．^",
            ),
        ] {
            assert_eq!(shown(text, line, column, message), expected);
        }
    }

    /// `TestErrorsReportingLimit` of cel-go's `common/errors_test.go`.
    #[test]
    fn errors_beyond_one_hundred_are_only_counted() {
        let fault = Fault { location: NOWHERE, message: "error".into() };
        let text = CompileError::new(&Source::new("hello world"), vec![fault; 200]).to_string();
        assert!(text.ends_with("100 more errors were truncated"), "{text}");
        assert_eq!(text.lines().count(), 101);
    }

    /// `Errors.ToDisplayString` of cel-go's `common/errors.go` sorts by location.
    #[test]
    fn errors_are_sorted_by_position() {
        let source = Source::new("a\nb c");
        let fault = |offset| Fault { location: source.location(offset), message: String::new() };
        let text = CompileError::new(&source, [4, 0, 2].map(fault).to_vec()).to_string();
        let positions: Vec<&str> = text.lines().filter(|line| line.starts_with("ERROR")).collect();
        let expected = ["ERROR: <input>:1:1: ", "ERROR: <input>:2:1: ", "ERROR: <input>:2:3: "];
        assert_eq!(positions, expected);
    }
}
