//! Env files, from which `fileKeyRef` takes a variable: lines `NAME='value'`, a subset of what a
//! POSIX shell sources (`pkg/kubelet/util/env`).
//!
//! A value is literal and may have several lines. Blank lines and those that begin with `#` are
//! skipped, also behind a value; spaces and tabs before a name have no meaning.

use std::path::PathBuf;

/// The most bytes of a line, without its end: what upstream's scanner has room for.
const MAX_LINE: usize = 65_535;

/// Why an env file is invalid. Lines are counted from 1; the texts contain nothing of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvFileError {
    #[error("invalid environment variable format at line {0}: missing '='")]
    NoEqualsSign(usize),
    #[error("invalid environment variable format at line {0}: empty variable name")]
    EmptyName(usize),
    #[error(
        "invalid environment variable format at line {0}: whitespace before '=' is not allowed"
    )]
    SpaceBeforeEqualsSign(usize),
    #[error(
        "invalid environment variable format at line {0}: value must be enclosed in single quotes"
    )]
    NotQuoted(usize),
    #[error(
        "invalid environment variable format at line {0}: unexpected content after closing quote"
    )]
    ContentAfterQuote(usize),
    #[error("invalid environment variable format starting at line {0}: unclosed single quote")]
    UnclosedQuote(usize),
    #[error("line {0} has more than {MAX_LINE} bytes")]
    LineTooLong(usize),
}

/// What an env file has for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileKey {
    /// The value; `None` if the key is missing or its value is empty, which upstream does not
    /// distinguish.
    pub(crate) value: Option<Vec<u8>>,
    /// The path of the file on the host.
    pub(crate) path: PathBuf,
}

/// Why the value of a `fileKeyRef` is not known; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileKeyError {
    /// The pod has no emptyDir of this name, or no container mounts it.
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    NoVolume(String),
    /// The file is missing, invalid or too large; the log has the cause.
    #[error("couldn't parse env file")]
    NotParsed,
}

/// Returns the value of a key; `None` if it is missing or empty. Lines after the key are not
/// checked.
///
/// # Errors
///
/// A line up to the key is invalid.
pub(crate) fn value_of(content: &[u8], key: &str) -> Result<Option<Vec<u8>>, EnvFileError> {
    let mut lines = Lines { rest: content, number: 0 };
    while let Some((number, line)) = lines.read()? {
        let line = without_leading_blanks(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (name, rest) = split(line, b'=').ok_or(EnvFileError::NoEqualsSign(number))?;
        if without_leading_blanks(name).is_empty() {
            return Err(EnvFileError::EmptyName(number));
        }
        if name.last().is_some_and(is_blank) {
            return Err(EnvFileError::SpaceBeforeEqualsSign(number));
        }
        // A shell assigns the empty string if a blank follows the sign.
        let value = if rest.first().is_some_and(is_blank) {
            Vec::new()
        } else {
            let quoted = rest.strip_prefix(b"'").ok_or(EnvFileError::NotQuoted(number))?;
            rest_of_value(quoted, number, &mut lines)?
        };
        if name == key.as_bytes() {
            return Ok((!value.is_empty()).then_some(value));
        }
    }
    Ok(None)
}

/// Reads a value up to its closing quote. `first` follows the opening quote, in the line `start`.
fn rest_of_value(
    first: &[u8],
    start: usize,
    lines: &mut Lines<'_>,
) -> Result<Vec<u8>, EnvFileError> {
    let (mut number, mut line) = (start, first);
    let mut value = Vec::new();
    loop {
        if let Some((last, after)) = split(line, b'\'') {
            value.extend_from_slice(last);
            let after = without_leading_blanks(after);
            return if after.is_empty() || after.starts_with(b"#") {
                Ok(value)
            } else {
                Err(EnvFileError::ContentAfterQuote(number))
            };
        }
        value.extend_from_slice(line);
        value.push(b'\n');
        (number, line) = lines.read()?.ok_or(EnvFileError::UnclosedQuote(start))?;
    }
}

/// The lines of a file that are not read yet.
struct Lines<'a> {
    rest: &'a [u8],
    /// How many lines were read.
    number: usize,
}

impl<'a> Lines<'a> {
    /// Returns the next line and its number, without the end of the line.
    fn read(&mut self) -> Result<Option<(usize, &'a [u8])>, EnvFileError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number = self.number.saturating_add(1);
        let (line, rest) = split(self.rest, b'\n').unwrap_or((self.rest, &[]));
        self.rest = rest;
        if line.len() > MAX_LINE {
            return Err(EnvFileError::LineTooLong(self.number));
        }
        Ok(Some((self.number, line.strip_suffix(b"\r").unwrap_or(line))))
    }
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn without_leading_blanks(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !is_blank(byte)).unwrap_or(text.len());
    text.get(start..).unwrap_or_default()
}

/// Splits at the first `separator`, which is in neither part.
fn split(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == separator)?;
    let (before, after) = text.split_at_checked(at)?;
    Some((before, after.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(content: &str, key: &str) -> Result<Option<String>, EnvFileError> {
        value_of(content.as_bytes(), key).map(|v| v.map(|v| String::from_utf8(v).unwrap()))
    }

    /// `TestParseEnv` of `pkg/kubelet/util/env`: valid files.
    #[test]
    fn values_are_literal_and_may_have_several_lines() {
        let check = |content: &str, key: &str, expected: &str| {
            let expected = (!expected.is_empty()).then(|| expected.to_owned());
            assert_eq!(value(content, key), Ok(expected), "{content}");
        };
        check("   A='one'\n\t\tB='two'\nC='three'\n", "B", "two");
        check("# text\n\nA='one'\n   # text\n\n  \t\nB='two'\n", "B", "two");
        check("A='one'\nB='two'\n", "C", "");
        check("A='one'\nB=''\nC='three'\n", "B", "");
        check("A= 'one'\nB='two'\n", "A", "");
        check("A=   'one'\nB='two'\n", "B", "two");
        check("A='one'\nB='two' # text\n", "B", "two");
        check("A='one'\r\nB='two'\r\n", "B", "two");
        check("", "A", "");
        for literal in [
            "one#two",
            "   one two   ",
            "one=two=three",
            "$VAR",
            "${VAR}",
            "one$BAR-${HOME}_$",
            "!@#$%^&*()_+-=[]{}|;:,.<>?/",
            r"line1\nline2\tline3",
            "中文 Español Français 🌍",
            r"path\\to\\file",
            "a value with \"nested\" quotes",
            "{\"name\": \"test\", \"nested\": {\"key\": \"val\"}}",
            "https://example.com/path?query=value&another=param",
            "   ",
            "one\n  two with spaces\n    three with more",
            "one\n\nthree after an empty line\n\nfive",
            "one\ntwo with spaces at its end   \nthree   ",
            "中文 第一行\nEnglish\nРусский",
            "func main() {\n    fmt.Println(\\\"Hello\\\")\n}",
            "-----BEGIN KEY-----\nb3BlbnNzaC1rZXk=\n-----END KEY-----",
        ] {
            check(&format!("A='{literal}'\nB='two'\n"), "A", literal);
            check(&format!("Z='{literal}'\nA='{literal}'"), "A", literal);
        }
        check("A='one\r\ntwo'\n", "A", "one\ntwo");
        check("A='one'\nA='two'\n", "A", "one");
        check("A='one'\nnot valid", "A", "one");
    }

    /// `TestParseEnv` of `pkg/kubelet/util/env`: invalid files.
    #[test]
    fn errors_name_the_line() {
        use EnvFileError::*;
        for (content, key, error) in [
            ("A = 'one'\nB=   'two'\n", "B", SpaceBeforeEqualsSign(1)),
            ("A ='one'\nB='two'\n", "A", SpaceBeforeEqualsSign(1)),
            ("='one'\nB='two'\n", "B", EmptyName(1)),
            ("  ='one'\nB='two'", "B", EmptyName(1)),
            ("A='one'\nINVALID_LINE\nB='two'\n", "B", NoEqualsSign(2)),
            ("A='one'\nB=two\n", "B", NotQuoted(2)),
            ("A='one'\nB=\"two\"\n", "B", NotQuoted(2)),
            ("A=\n", "A", NotQuoted(1)),
            ("A='one''two'", "A", ContentAfterQuote(1)),
            ("A='one'\nB='two\nC='three'\n", "B", ContentAfterQuote(3)),
            ("A='one'\nB='two'three\n", "B", ContentAfterQuote(2)),
            ("A='a \\'nested\\' quote'\n", "A", ContentAfterQuote(1)),
            ("A='one'\nB='two\n\n", "B", UnclosedQuote(2)),
        ] {
            assert_eq!(value(content, key), Err(error), "{content}");
        }
        assert_eq!(
            SpaceBeforeEqualsSign(1).to_string(),
            "invalid environment variable format at line 1: whitespace before '=' is not allowed"
        );
    }

    /// The scanner of Go has room for 64 KiB, the end of the line included.
    #[test]
    fn lines_are_bounded_as_in_upstream() {
        let line = |length: usize| format!("A='{}'", "x".repeat(length - 4));
        assert_eq!(value(&line(MAX_LINE), "A").unwrap().unwrap().len(), MAX_LINE - 4);
        assert_eq!(value(&line(MAX_LINE + 1), "A"), Err(EnvFileError::LineTooLong(1)));
    }
}
