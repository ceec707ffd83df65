//! Patterns in the syntax of Go's `regexp` (RE2), which differs from the syntax of the crate
//! `regex` in classes, escapes and limits.
//!
//! The parser applies Go's rules, returns Go's errors and rewrites the pattern in the syntax of the
//! crate. A pattern is compiled at its first match: definitions contain thousands of patterns, most
//! of which are never matched.

use std::sync::OnceLock;

use regex::Regex;

/// Maximum number of repetitions that Go accepts; the counts of nested repetitions are multiplied.
const REPEAT_MAX: u32 = 1000;
/// Deepest nesting of groups that Go accepts.
const NESTING_MAX: u32 = 1000;

/// A pattern that is compiled at its first match.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    pub source: Box<str>,
    regex: OnceLock<Result<Regex, PatternError>>,
}

impl Pattern {
    pub(super) fn new(source: &str) -> Self {
        Self { source: source.into(), regex: OnceLock::new() }
    }

    /// # Errors
    ///
    /// The syntax is invalid or the pattern is too large.
    pub(super) fn matches(&self, text: &str) -> Result<bool, &PatternError> {
        let regex = self.regex.get_or_init(|| compile(&self.source));
        regex.as_ref().map(|regex| regex.is_match(text))
    }
}

/// Compiles a pattern in Go's syntax.
///
/// # Errors
///
/// Go's error text, such as ``error parsing regexp: missing closing ]: `[a` ``.
pub fn compile(source: &str) -> Result<Regex, PatternError> {
    let text = translate(source)?;
    regex::RegexBuilder::new(&text)
        .nest_limit(NESTING_MAX + 10)
        .build()
        .map_err(|_| failure("expression too large", source))
}

/// Checks a pattern in Go's syntax as [`compile`] does; an empty pattern is valid.
///
/// # Errors
///
/// Go's error text.
pub fn check(source: &str) -> Result<(), PatternError> {
    if source.is_empty() { Ok(()) } else { compile(source).map(drop) }
}

/// An invalid pattern; the text is that of Go's `syntax.Error`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {code}: `{expression}`")]
pub struct PatternError {
    /// Go's `syntax.ErrorCode`, such as `missing closing ]`.
    code: &'static str,
    /// The part of the pattern that is invalid.
    expression: Box<str>,
}

fn failure(code: &'static str, expression: &str) -> PatternError {
    PatternError { code, expression: expression.into() }
}

struct Translator<'a> {
    whole: &'a str,
    rest: &'a str,
    out: String,
    /// For each open group, the largest repetition count before it at its level.
    groups: Vec<u32>,
    /// The largest repetition count at this level, and that of the last element.
    level: u32,
    last: u32,
    /// Whether the previous element can be repeated.
    has_atom: bool,
}

fn translate(source: &str) -> Result<String, PatternError> {
    let mut translator = Translator {
        whole: source,
        rest: source,
        out: String::with_capacity(source.len() + 16),
        groups: Vec::new(),
        level: 1,
        last: 1,
        has_atom: false,
    };
    translator.run()?;
    Ok(translator.out)
}

fn literal(out: &mut String, c: char) {
    if c.is_ascii_alphanumeric() || !c.is_ascii() {
        out.push(c);
    } else {
        out.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
    }
}

/// The class of a Perl escape, which Go limits to ASCII: its members, and whether the class is
/// negated.
fn perl(text: &str) -> Option<(&'static str, bool)> {
    Some(match text.get(..2)? {
        "\\d" => ("0-9", false),
        "\\D" => ("0-9", true),
        "\\s" => ("\\t\\n\\x0C\\r ", false),
        "\\S" => ("\\t\\n\\x0C\\r ", true),
        "\\w" => ("0-9A-Za-z_", false),
        "\\W" => ("0-9A-Za-z_", true),
        _ => return None,
    })
}

impl<'a> Translator<'a> {
    fn run(&mut self) -> Result<(), PatternError> {
        let mut last_repeat: Option<&'a str> = None;
        while let Some(first) = self.rest.chars().next() {
            let mut repeat = None;
            match first {
                '(' => self.open()?,
                '|' => {
                    self.step(1);
                    self.out.push('|');
                    self.has_atom = false;
                }
                ')' => self.close()?,
                '^' | '$' | '.' => {
                    self.step(1);
                    self.out.push(first);
                    self.element();
                }
                '[' => self.class()?,
                '*' | '+' | '?' => {
                    repeat = Some(self.rest);
                    self.repeat(1, None, last_repeat)?;
                }
                '{' => match counts(self.rest) {
                    Some((min, max, length)) => {
                        repeat = Some(self.rest);
                        self.repeat(length, Some((min, max)), last_repeat)?;
                    }
                    None => self.character(first),
                },
                '\\' => self.escape()?,
                c => self.character(c),
            }
            last_repeat = repeat;
        }
        if self.groups.is_empty() { Ok(()) } else { Err(failure("missing closing )", self.whole)) }
    }

    fn step(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn element(&mut self) {
        self.has_atom = true;
        self.last = 1;
    }

    fn character(&mut self, c: char) {
        self.step(c.len_utf8());
        literal(&mut self.out, c);
        self.element();
    }

    /// Returns the part of `from` that has been consumed.
    fn consumed<'b>(&self, from: &'b str) -> &'b str {
        from.get(..from.len().saturating_sub(self.rest.len())).unwrap_or(from)
    }

    fn push_group(&mut self) -> Result<(), PatternError> {
        if self.groups.len() >= NESTING_MAX as usize {
            return Err(failure("expression nests too deeply", self.whole));
        }
        self.groups.push(self.level);
        self.level = 1;
        self.has_atom = false;
        Ok(())
    }

    fn open(&mut self) -> Result<(), PatternError> {
        let start = self.rest;
        if !start.starts_with("(?") {
            self.step(1);
            self.out.push('(');
            return self.push_group();
        }
        let name_at = if start.starts_with("(?P<") {
            Some(4)
        } else if start.starts_with("(?<") {
            Some(3)
        } else {
            None
        };
        if let Some(at) = name_at {
            const BAD: &str = "invalid named capture";
            let end = start.find('>').ok_or_else(|| failure(BAD, start))?;
            let name = start.get(at..end).unwrap_or_default();
            let valid =
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if !valid {
                return Err(failure(BAD, start.get(..=end).unwrap_or(start)));
            }
            self.step(end + 1);
            // Group names are not used, and the crate's syntax for them is stricter.
            self.out.push('(');
            return self.push_group();
        }
        self.step(2);
        let (mut negative, mut any) = (false, false);
        let rest = self.rest;
        for c in rest.chars() {
            self.step(c.len_utf8());
            match c {
                'i' | 'm' | 's' | 'U' => any = true,
                '-' if !negative => (negative, any) = (true, false),
                ':' | ')' if !negative || any => {
                    let flags = self.consumed(rest);
                    self.out.push_str("(?");
                    self.out.push_str(flags);
                    if flags == ")" {
                        // The flags have no effect, and the crate's syntax requires at least one
                        // flag.
                        self.out.truncate(self.out.len() - 3);
                    }
                    return if c == ':' { self.push_group() } else { Ok(()) };
                }
                _ => break,
            }
        }
        Err(failure("invalid or unsupported Perl syntax", self.consumed(start)))
    }

    fn close(&mut self) -> Result<(), PatternError> {
        let Some(outer) = self.groups.pop() else {
            return Err(failure("unexpected )", self.whole));
        };
        self.step(1);
        self.out.push(')');
        (self.last, self.has_atom) = (self.level, true);
        self.level = self.level.max(outer);
        Ok(())
    }

    fn repeat(
        &mut self,
        length: usize,
        count: Option<(Option<u32>, Option<u32>)>,
        last_repeat: Option<&'a str>,
    ) -> Result<(), PatternError> {
        const SIZE: &str = "invalid repeat count";
        let before = self.rest;
        self.step(length);
        if let Some((min, max)) = count {
            let too_much = |n: Option<u32>| n.is_none_or(|n| n > REPEAT_MAX);
            let open_end = before.get(..length).is_some_and(|text| text.ends_with(",}"));
            if too_much(min) || !open_end && (too_much(max) || max < min) {
                return Err(failure(SIZE, self.consumed(before)));
            }
        }
        let operator = self.consumed(before);
        if self.rest.starts_with('?') {
            self.step(1);
        }
        if let Some(last) = last_repeat {
            return Err(failure("invalid nested repetition operator", self.consumed(last)));
        }
        if !self.has_atom {
            let text = "missing argument to repetition operator";
            return Err(failure(text, self.consumed(before)));
        }
        if let Some((min, max)) = count {
            let times = max.max(min).unwrap_or(1).max(1);
            self.last = self.last.saturating_mul(times);
            if times >= 2 && self.last > REPEAT_MAX {
                return Err(failure(SIZE, self.consumed(before)));
            }
        }
        self.level = self.level.max(self.last);
        self.out.push_str(operator);
        if self.consumed(before).len() > operator.len() {
            self.out.push('?');
        }
        Ok(())
    }

    fn escape(&mut self) -> Result<(), PatternError> {
        let start = self.rest;
        match start.get(..2).unwrap_or_default() {
            "\\A" => self.out.push_str("\\A"),
            "\\z" => self.out.push_str("\\z"),
            "\\b" => self.out.push_str("(?-u:\\b)"),
            // The crate's Unicode word boundary: its ASCII variant can split a character.
            "\\B" => self.out.push_str("\\B"),
            "\\C" => return Err(failure("invalid escape sequence", "\\C")),
            "\\Q" => {
                let body = start.get(2..).unwrap_or_default();
                let (text, rest) = body.split_once("\\E").unwrap_or((body, ""));
                for c in text.chars() {
                    literal(&mut self.out, c);
                    self.element();
                }
                self.rest = rest;
                return Ok(());
            }
            "\\p" | "\\P" => {
                let class = self.unicode_class()?;
                self.out.push_str(&class);
                self.element();
                return Ok(());
            }
            _ => {
                if let Some((class, negated)) = perl(start) {
                    self.step(2);
                    self.out.push_str(if negated { "[^" } else { "[" });
                    self.out.push_str(class);
                    self.out.push(']');
                } else {
                    let c = self.escaped()?;
                    literal(&mut self.out, c);
                }
                self.element();
                return Ok(());
            }
        }
        self.step(2);
        self.element();
        Ok(())
    }

    fn unicode_class(&mut self) -> Result<String, PatternError> {
        const BAD: &str = "invalid character class range";
        let start = self.rest;
        let mut negated = start.starts_with("\\P");
        let body = start.get(2..).unwrap_or_default();
        let (length, name) = match body.chars().next() {
            None => return Err(failure(BAD, start)),
            Some('{') => {
                let end = start.find('}').ok_or_else(|| failure(BAD, start))?;
                (end + 1, start.get(3..end).unwrap_or_default())
            }
            Some(c) => (2 + c.len_utf8(), body.get(..c.len_utf8()).unwrap_or_default()),
        };
        self.step(length);
        let name = name.strip_prefix('^').map_or(name, |name| {
            negated = !negated;
            name
        });
        let valid =
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let class = format!("\\{}{{{name}}}", if negated { 'P' } else { 'p' });
        if !valid || name != "Any" && Regex::new(&class).is_err() {
            return Err(failure(BAD, self.consumed(start)));
        }
        Ok(class)
    }

    /// Parses a character escape, which begins with a backslash.
    fn escaped(&mut self) -> Result<char, PatternError> {
        let start = self.rest;
        let mut chars = start.chars();
        chars.next();
        let Some(c) = chars.next() else {
            return Err(failure("trailing backslash at end of expression", ""));
        };
        self.step(1 + c.len_utf8());
        let found = match c {
            'a' => Some('\u{7}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            'x' => self.hex(),
            '0'..='7' => self.octal(c),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Some(c),
            _ => None,
        };
        found.ok_or_else(|| failure("invalid escape sequence", self.consumed(start)))
    }

    fn octal(&mut self, first: char) -> Option<char> {
        let mut value = first.to_digit(8)?;
        let next = |rest: &str| rest.chars().next().and_then(|c| c.to_digit(8));
        if first != '0' {
            next(self.rest)?;
        }
        for _ in 0..2 {
            let Some(digit) = next(self.rest) else { break };
            value = value * 8 + digit;
            self.step(1);
        }
        char::from_u32(value)
    }

    fn hex(&mut self) -> Option<char> {
        let mut value = 0_u32;
        if let Some(body) = self.rest.strip_prefix('{') {
            let end = body.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(body.len());
            let digits = body.get(..end).unwrap_or_default();
            let closed = body.get(end..).is_some_and(|rest| rest.starts_with('}'));
            let next =
                body.get(end..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
            self.step(1 + end + next);
            if !closed || digits.is_empty() {
                return None;
            }
            for digit in digits.chars().filter_map(|c| c.to_digit(16)) {
                value = value.checked_mul(16)?.checked_add(digit)?;
            }
        } else {
            for _ in 0..2 {
                let c = self.rest.chars().next()?;
                self.step(c.len_utf8());
                value = value * 16 + c.to_digit(16)?;
            }
        }
        char::from_u32(value)
    }

    fn class(&mut self) -> Result<(), PatternError> {
        const RANGE: &str = "invalid character class range";
        let start = self.rest;
        self.step(1);
        self.out.push('[');
        if self.rest.starts_with('^') {
            self.step(1);
            self.out.push('^');
        }
        let mut first = true;
        while first || !self.rest.starts_with(']') {
            first = false;
            if self.rest.starts_with("[:")
                && let Some(end) = self.rest.get(2..).and_then(|rest| rest.find(":]"))
            {
                let name = self.rest.get(..end + 4).unwrap_or_default();
                if !POSIX.contains(&name.trim_matches(['[', ']', ':']).trim_start_matches('^')) {
                    return Err(failure(RANGE, name));
                }
                self.out.push_str(name);
                self.step(name.len());
                continue;
            }
            if self.rest.starts_with("\\p") || self.rest.starts_with("\\P") {
                let class = self.unicode_class()?;
                self.out.push_str(&class);
                continue;
            }
            if let Some((class, negated)) = perl(self.rest) {
                self.step(2);
                if negated {
                    self.out.push_str(&format!("[^{class}]"));
                } else {
                    self.out.push_str(class);
                }
                continue;
            }
            let range = self.rest;
            let low = self.class_char(start)?;
            literal(&mut self.out, low);
            if self.rest.len() >= 2 && self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.step(1);
                let high = self.class_char(start)?;
                if high < low {
                    return Err(failure(RANGE, self.consumed(range)));
                }
                self.out.push('-');
                literal(&mut self.out, high);
            }
        }
        self.step(1);
        self.out.push(']');
        self.element();
        Ok(())
    }

    fn class_char(&mut self, class: &str) -> Result<char, PatternError> {
        let Some(c) = self.rest.chars().next() else {
            return Err(failure("missing closing ]", class));
        };
        if c == '\\' {
            return self.escaped();
        }
        self.step(c.len_utf8());
        Ok(c)
    }
}

const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];

/// Parses `{n}`, `{n,}` or `{n,m}`; returns the numbers (`None` if absent or too large) and the
/// length.
fn counts(text: &str) -> Option<(Option<u32>, Option<u32>, usize)> {
    let end = text.find('}')?;
    let body = text.get(1..end)?;
    let number = |digits: &str| -> Option<Option<u32>> {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        // Go rejects leading zeros.
        let plain = plain && (digits.len() == 1 || !digits.starts_with('0'));
        plain.then(|| digits.parse().ok())
    };
    let (min, max) = match body.split_once(',') {
        None => {
            let min = number(body)?;
            (min, min)
        }
        Some((min, "")) => (number(min)?, None),
        Some((min, max)) => (number(min)?, number(max)?),
    };
    Some((min, max, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(source: &str) -> String {
        compile(source).map(|_| String::new()).unwrap_or_else(|e| e.to_string())
    }

    #[test]
    fn errors_have_gos_texts() {
        for (source, wanted) in [
            ("a(?=b)", "error parsing regexp: invalid or unsupported Perl syntax: `(?=`"),
            ("(?!a)", "error parsing regexp: invalid or unsupported Perl syntax: `(?!`"),
            ("[a", "error parsing regexp: missing closing ]: `[a`"),
            ("(abc", "error parsing regexp: missing closing ): `(abc`"),
            ("abc)", "error parsing regexp: unexpected ): `abc)`"),
            ("*", "error parsing regexp: missing argument to repetition operator: `*`"),
            ("a**", "error parsing regexp: invalid nested repetition operator: `**`"),
            ("a++", "error parsing regexp: invalid nested repetition operator: `++`"),
            ("a{1001}", "error parsing regexp: invalid repeat count: `{1001}`"),
            ("a{2,1}", "error parsing regexp: invalid repeat count: `{2,1}`"),
            ("(a{100}){100}", "error parsing regexp: invalid repeat count: `{100}`"),
            ("[z-a]", "error parsing regexp: invalid character class range: `z-a`"),
            ("\\8", "error parsing regexp: invalid escape sequence: `\\8`"),
            ("\\1", "error parsing regexp: invalid escape sequence: `\\1`"),
            ("a\\", "error parsing regexp: trailing backslash at end of expression: ``"),
            ("(?P<n", "error parsing regexp: invalid named capture: `(?P<n`"),
            ("[[:foo:]]", "error parsing regexp: invalid character class range: `[:foo:]`"),
            ("\\p{Nope}", "error parsing regexp: invalid character class range: `\\p{Nope}`"),
        ] {
            assert_eq!(error(source), wanted, "{source}");
        }
    }

    #[test]
    fn classes_are_ascii_and_braces_may_be_literal() {
        let is = |source: &str, text: &str| compile(source).expect(source).is_match(text);
        assert!(is("^\\d+$", "12") && !is("^\\d+$", "\u{0663}"));
        assert!(is("^[\\w-]+$", "a-b_c") && !is("^\\w$", "ä"));
        assert!(is("^[[a]+$", "[a") && is("^[a&&b]+$", "a&b") && is("^[a~~-]+$", "~-"));
        assert!(is("^{a}$", "{a}") && is("^a{,2}$", "a{,2}"));
        assert!(is("^\\Qa.b\\E$", "a.b") && !is("^\\Qa.b\\E$", "axb"));
        assert!(is("^\\x41\\x{42}\\103$", "ABC"));
        assert!(is("(?i)^HELLO$", "hello") && is("^\\p{L}+$", "äß") && is("^[^\\d\\S]$", " "));
        assert!(is("\\bfoo\\b", "a foo b") && is("(?P<x>a)(?<y>b)", "ab") && is("(?s).", "\n"));
        assert!(is("^[]a]+$", "]a") && is("^[\\D]$", "x") && !is("^a$", "a\n"));
        assert!(is("oo\\Bd", "food") && !is("\\Bfood", "food"));
    }
}
