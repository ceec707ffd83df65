//! Splits the text of an expression into tokens.

use crate::source::Source;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// Punctuation, operators, and the keywords `in`, `true`, `false`, `null`.
    Mark(&'static str),
    Int,
    Uint,
    Float,
    String,
    Bytes,
    Ident,
    /// An identifier in back-quotes.
    Escaped,
    End,
}

#[derive(Clone, Debug)]
pub(crate) struct Lexeme {
    pub(crate) token: Token,
    pub(crate) begin: usize,
    pub(crate) text: String,
}

/// Longer tokens come before their prefixes.
const MARKS: &[&str] = &[
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!",
    "?", ":", "+", "*", "/", "%",
];

/// A lexical error: its position and cel-go's text.
pub(crate) struct Unread {
    pub(crate) offset: usize,
    pub(crate) message: String,
}

/// Returns all tokens, ended by `End`, and the errors about skipped characters.
pub(crate) fn tokens(source: &Source) -> (Vec<Lexeme>, Vec<Unread>) {
    let text = &source.text;
    let (mut out, mut unread) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(character) = text.get(at) {
        if matches!(character, ' ' | '\t' | '\r' | '\n' | '\u{c}') {
            at += 1;
            continue;
        }
        if *character == '/' && text.get(at + 1) == Some(&'/') {
            while text.get(at).is_some_and(|c| *c != '\n') {
                at += 1;
            }
            continue;
        }
        match next(text, at) {
            Ok((token, end)) => {
                let content = text.get(at..end).unwrap_or_default().iter().collect();
                out.push(Lexeme { token, begin: at, text: content });
                at = end;
            }
            Err(end) => {
                let skipped: String = text.get(at..end).unwrap_or_default().iter().collect();
                let shown = skipped.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t");
                let message = format!("token recognition error at: '{shown}'");
                unread.push(Unread { offset: at, message });
                at = end;
            }
        }
    }
    out.push(Lexeme { token: Token::End, begin: text.len(), text: "<EOF>".into() });
    (out, unread)
}

/// Returns the token at `at` and its end; if no token begins here, the end of the text to skip.
fn next(text: &[char], at: usize) -> Result<(Token, usize), usize> {
    let first = text.get(at).copied().unwrap_or_default();
    if let Some(found) = literal(text, at) {
        return found;
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let end = run(text, at, |c| c.is_ascii_alphanumeric() || c == '_');
        let word: String = text.get(at..end).unwrap_or_default().iter().collect();
        let token = match word.as_str() {
            "in" => Token::Mark("in"),
            "true" => Token::Mark("true"),
            "false" => Token::Mark("false"),
            "null" => Token::Mark("null"),
            _ => Token::Ident,
        };
        return Ok((token, end));
    }
    if first == '`' {
        let inside = |c: char| c.is_ascii_alphanumeric() || "_.-/ ".contains(c);
        let end = run(text, at + 1, inside);
        let whole = end > at + 1 && text.get(end) == Some(&'`');
        return if whole { Ok((Token::Escaped, end + 1)) } else { Err((end + 1).min(text.len())) };
    }
    if first.is_ascii_digit() || first == '.' && text.get(at + 1).is_some_and(char::is_ascii_digit)
    {
        return Ok(number(text, at));
    }
    for mark in MARKS {
        if mark.chars().enumerate().all(|(n, c)| text.get(at + n) == Some(&c)) {
            return Ok((Token::Mark(mark), at + mark.len()));
        }
    }
    // `&`, `|` and `=` alone begin a token that does not end: the next character is skipped too.
    Err(match first {
        '&' | '|' | '=' => (at + 2).min(text.len()),
        _ => at + 1,
    })
}

fn run(text: &[char], from: usize, inside: impl Fn(char) -> bool) -> usize {
    let mut end = from;
    while text.get(end).is_some_and(|c| inside(*c)) {
        end += 1;
    }
    end
}

fn number(text: &[char], at: usize) -> (Token, usize) {
    let unsigned = |end: usize| matches!(text.get(end), Some('u' | 'U'));
    if text.get(at) == Some(&'0') && text.get(at + 1) == Some(&'x') {
        let end = run(text, at + 2, |c| c.is_ascii_hexdigit());
        if end > at + 2 {
            return if unsigned(end) { (Token::Uint, end + 1) } else { (Token::Int, end) };
        }
    }
    let digits = |from: usize| run(text, from, |c| c.is_ascii_digit());
    let mut end = digits(at);
    let mut float = false;
    if text.get(end) == Some(&'.') && text.get(end + 1).is_some_and(char::is_ascii_digit) {
        end = digits(end + 1);
        float = true;
    }
    if matches!(text.get(end), Some('e' | 'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some('+' | '-')));
        let after = digits(end + 1 + sign);
        if after > end + 1 + sign {
            end = after;
            float = true;
        }
    }
    if float {
        return (Token::Float, end);
    }
    if unsigned(end) { (Token::Uint, end + 1) } else { (Token::Int, end) }
}

/// Returns the end of a string or bytes literal, if one begins here: an optional `b`, an optional
/// `r`, and quotes.
fn literal(text: &[char], at: usize) -> Option<Result<(Token, usize), usize>> {
    let mut from = at;
    let bytes = matches!(text.get(from), Some('b' | 'B'));
    from += usize::from(bytes);
    let raw = matches!(text.get(from), Some('r' | 'R'));
    from += usize::from(raw);
    let quote = *text.get(from).filter(|c| matches!(c, '"' | '\''))?;
    let token = if bytes { Token::Bytes } else { Token::String };
    let triple = text.get(from + 1) == Some(&quote) && text.get(from + 2) == Some(&quote);
    if triple && let Some(end) = quoted(text, from + 3, quote, raw, true) {
        return Some(Ok((token, end)));
    }
    Some(match quoted(text, from + 1, quote, raw, false) {
        Some(end) => Ok((token, end)),
        None => Err(unfinished(text, from + 1, quote, raw)),
    })
}

/// Returns the end of the string whose content begins at `at`.
fn quoted(text: &[char], mut at: usize, quote: char, raw: bool, triple: bool) -> Option<usize> {
    loop {
        let character = *text.get(at)?;
        if character == quote {
            if !triple {
                return Some(at + 1);
            }
            if text.get(at + 1) == Some(&quote) && text.get(at + 2) == Some(&quote) {
                return Some(at + 3);
            }
        }
        if !triple && matches!(character, '\n' | '\r') {
            return None;
        }
        if character == '\\' && !raw {
            at = escape(text, at)?;
        } else {
            at += 1;
        }
    }
}

/// Returns the end of the escape that begins at `at`, if it is valid.
fn escape(text: &[char], at: usize) -> Option<usize> {
    let hex = |count: usize| {
        let digits = text.get(at + 2..at + 2 + count)?;
        digits.iter().all(char::is_ascii_hexdigit).then_some(at + 2 + count)
    };
    match text.get(at + 1)? {
        'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`' => Some(at + 2),
        'x' | 'X' => hex(2),
        'u' => hex(4),
        'U' => hex(8),
        '0'..='3' => {
            let digits = text.get(at + 2..at + 4)?;
            digits.iter().all(|c| ('0'..='7').contains(c)).then_some(at + 4)
        }
        _ => None,
    }
}

/// Returns the end of an invalid string: after the character that must not be part of it.
fn unfinished(text: &[char], mut at: usize, quote: char, raw: bool) -> usize {
    while let Some(character) = text.get(at) {
        if matches!(character, '\n' | '\r') || *character == quote {
            return at + 1;
        }
        if *character == '\\' && !raw {
            match escape(text, at) {
                Some(end) => at = end,
                None => return (at + 2).min(text.len()),
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: &[(&str, &str)]) {
        for (text, expected) in rows {
            let (lexemes, unread) = tokens(&Source::new(text));
            let shown: Vec<String> = lexemes
                .iter()
                .map(|lexeme| match &lexeme.token {
                    Token::Mark(mark) => (*mark).to_owned(),
                    Token::End => "End".into(),
                    token => format!("{token:?}({})", lexeme.text),
                })
                .collect();
            assert_eq!(shown.join(" "), format!("{expected} End"), "{text}");
            assert!(unread.is_empty(), "{text}");
        }
    }

    /// The rules `NUM_INT`, `NUM_UINT` and `NUM_FLOAT` of cel-go's `parser/gen/CEL.g4`.
    #[test]
    fn numbers_are_integers_unsigned_integers_or_floats() {
        check(&[
            ("0 42", "Int(0) Int(42)"),
            ("0x1F", "Int(0x1F)"),
            ("42u 0xFFU", "Uint(42u) Uint(0xFFU)"),
            ("2.5 .5 1e3", "Float(2.5) Float(.5) Float(1e3)"),
            ("2.5e-3 1E+10", "Float(2.5e-3) Float(1E+10)"),
            ("1.", "Int(1) ."),
            ("1.e3", "Int(1) . Ident(e3)"),
            ("-1", "- Int(1)"),
        ]);
    }

    /// The rules `STRING` and `BYTES` of cel-go's `parser/gen/CEL.g4`.
    #[test]
    fn strings_may_be_raw_triple_quoted_or_bytes() {
        check(&[
            (r#"'a' "b""#, r#"String('a') String("b")"#),
            (r"'it\'s'", r"String('it\'s')"),
            (r"r'\d'", r"String(r'\d')"),
            ("'''x''x'''", "String('''x''x''')"),
            ("\"\"\"a\nb\"\"\"", "String(\"\"\"a\nb\"\"\")"),
            (r"b'\377' bR'\q'", r"Bytes(b'\377') Bytes(bR'\q')"),
        ]);
    }

    /// The operators, `WHITESPACE`, `COMMENT` and `IDENTIFIER` of cel-go's `parser/gen/CEL.g4`.
    #[test]
    fn the_longest_operator_is_taken_and_comments_are_skipped() {
        check(&[
            ("a<=b", "Ident(a) <= Ident(b)"),
            ("a&&!b||c", "Ident(a) && ! Ident(b) || Ident(c)"),
            ("x in [true]", "Ident(x) in [ true ]"),
            ("index nullable", "Ident(index) Ident(nullable)"),
            ("a // b\n.c", "Ident(a) . Ident(c)"),
            ("a.`b-c/d.e f`", "Ident(a) . Escaped(`b-c/d.e f`)"),
            ("\u{c}\t\r\n_1", "Ident(_1)"),
        ]);
    }

    /// Rows of cel-go's `parser/parser_test.go`.
    #[test]
    fn characters_outside_of_tokens_are_errors() {
        for (text, offset, expected) in [
            ("*@a | b", 1, "token recognition error at: '@'"),
            ("a | b", 2, "token recognition error at: '| '"),
            ("1 + $", 4, "token recognition error at: '$'"),
            (
                r#""\a\? Illegal escape \>""#,
                0,
                r#"token recognition error at: '"\a\? Illegal escape \>'"#,
            ),
            ("in.😁", 3, "token recognition error at: '😁'"),
        ] {
            let (_, unread) = tokens(&Source::new(text));
            let first = unread.first().unwrap();
            assert_eq!((first.offset, first.message.as_str()), (offset, expected), "{text}");
        }
    }
}
