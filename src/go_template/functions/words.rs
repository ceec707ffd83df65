//! Words, letters and line wrapping.

use crate::error::Failure;
use crate::function::{Args, Call, Function, fixed};
use crate::signature::Param::{Int, Str};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("title", &[Str], |_, args| Ok(Value::from(title(&args.text(0))))),
    fixed("untitle", &[Str], |_, args| Ok(Value::from(untitle(&args.text(0))))),
    fixed("initials", &[Str], |_, args| Ok(Value::from(initials(&args.text(0))))),
    fixed("swapcase", &[Str], |_, args| Ok(Value::from(swap_case(&args.text(0))))),
    fixed("snakecase", &[Str], |_, args| Ok(Value::from(lower_words(&args.text(0), '_')))),
    fixed("kebabcase", &[Str], |_, args| Ok(Value::from(lower_words(&args.text(0), '-')))),
    fixed("camelcase", &[Str], |_, args| Ok(Value::from(pascal_case(&args.text(0))))),
    fixed("abbrev", &[Int, Str], |_, args| {
        if args.int(0) < 4 {
            return Ok(args.value(1));
        }
        Ok(Value::from_bytes(abbreviate(args.bytes(1), 0, args.int(0))))
    }),
    fixed("abbrevboth", &[Int, Int, Str], |_, args| {
        let (left, right) = (args.int(0), args.int(1));
        if right < 4 || (left > 0 && right < 7) {
            return Ok(args.value(2));
        }
        Ok(Value::from_bytes(abbreviate(args.bytes(2), left, right)))
    }),
    fixed("wrap", &[Int, Str], |call, args| wrap(call, &args.text(1), args.int(0), "", false)),
    fixed("wrapWith", &[Int, Str, Str], |call, args| {
        wrap(call, &args.text(2), args.int(0), &args.text(1), true)
    }),
];

fn first_upper(c: char) -> char {
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

fn first_lower(c: char) -> char {
    c.to_lowercase().next().unwrap_or(c)
}

/// `strings.Title`: a letter after what is no letter, digit, underscore or quote.
fn title(text: &str) -> String {
    let mut separated = true;
    text.chars()
        .map(|c| {
            let out = if separated { first_upper(c) } else { c };
            separated = if c.is_ascii() {
                !(c.is_ascii_alphanumeric() || c == '_')
            } else {
                !c.is_alphanumeric() && c.is_whitespace()
            };
            out
        })
        .collect()
}

fn untitle(text: &str) -> String {
    let mut next = true;
    text.chars()
        .map(|c| {
            if c.is_whitespace() {
                next = true;
                return c;
            }
            let out = if next { first_lower(c) } else { c };
            next = false;
            out
        })
        .collect()
}

fn initials(text: &str) -> String {
    let words = text.split_whitespace();
    words.filter_map(|word| word.chars().next()).collect()
}

fn swap_case(text: &str) -> String {
    let mut white = true;
    text.chars()
        .map(|c| {
            if c.is_uppercase() {
                white = false;
                first_lower(c)
            } else if c.is_lowercase() {
                white = false;
                first_upper(c)
            } else {
                white = c.is_whitespace();
                c
            }
        })
        .collect()
}

fn is_connector(c: char) -> bool {
    c == '-' || c == '_' || c.is_whitespace()
}

/// `xstrings.ToPascalCase`.
fn pascal_case(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    let mut current = None;
    let mut upper = false;
    while let Some(c) = chars.next() {
        if !is_connector(c) {
            upper = c.is_uppercase();
            current = Some(first_upper(c));
            break;
        }
        if chars.peek().is_none() {
            current = Some(c);
            break;
        }
        out.push(c);
    }
    let Some(mut now) = current else { return out };
    for next in chars {
        let before = now;
        now = next;
        if is_connector(now) && is_connector(before) {
            out.push(before);
            continue;
        }
        if is_connector(before) {
            upper = now.is_uppercase();
            now = first_upper(now);
        } else {
            if upper {
                if now.is_uppercase() {
                    now = first_lower(now);
                } else {
                    upper = false;
                }
            }
            out.push(before);
        }
    }
    out.push(now);
    out
}

/// Kinds of words of `xstrings`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    End,
    Number,
    Upper,
    Letters,
    Connector,
    Punctuation,
    Other,
}

fn is_punctuation(c: char) -> bool {
    static PUNCTUATION: std::sync::LazyLock<Option<regex::Regex>> =
        std::sync::LazyLock::new(|| regex::Regex::new(r"^\p{P}$").ok());
    let mut buffer = [0; 4];
    let text = c.encode_utf8(&mut buffer);
    PUNCTUATION.as_ref().is_some_and(|pattern| pattern.is_match(text))
}

fn next_word(text: &[char]) -> (Word, &[char], &[char]) {
    let Some(first) = text.first().copied() else {
        return (Word::End, text, text);
    };
    let run = |fits: fn(char) -> bool| text.iter().take_while(|c| fits(**c)).count();
    let lower = |c: &char| c.is_alphabetic() && !c.is_uppercase();
    let (word, length) = if is_connector(first) {
        (Word::Connector, run(is_connector))
    } else if is_punctuation(first) {
        (Word::Punctuation, run(is_punctuation))
    } else if first.is_uppercase() {
        let uppers = run(char::is_uppercase);
        let after = text.get(uppers).copied();
        let length = match after {
            // The last upper case letter begins the next word: "HTTPStatus".
            Some(next) if uppers > 1 && next.is_alphabetic() => uppers - 1,
            _ if uppers == 1 => 1 + text.iter().skip(1).take_while(|c| lower(c)).count(),
            _ => uppers,
        };
        (Word::Upper, length)
    } else if first.is_alphabetic() {
        (Word::Letters, 1 + text.iter().skip(1).take_while(|c| lower(c)).count())
    } else if first.is_numeric() {
        (Word::Number, run(char::is_numeric))
    } else {
        let other = |c: char| {
            !(is_connector(c) || c.is_alphabetic() || c.is_numeric() || is_punctuation(c))
        };
        (Word::Other, run(other).max(1))
    };
    let (word_text, rest) = text.split_at(length);
    (word, word_text, rest)
}

fn push_lower(out: &mut String, word: Word, text: &[char], connector: char) {
    if word == Word::Connector {
        out.extend(text.iter().map(|_| connector));
    } else {
        out.extend(text.iter().map(|c| first_lower(*c)));
    }
}

/// `xstrings.ToSnakeCase` and `ToKebabCase`.
fn lower_words(text: &str, connector: char) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::new();
    let (mut word, mut part, mut rest) = next_word(&chars);
    let joins = |word: Word| !matches!(word, Word::Connector | Word::Punctuation);
    while !rest.is_empty() {
        if word != Word::Connector {
            push_lower(&mut out, word, part, connector);
        }
        let (before, last) = (word, part);
        (word, part, rest) = next_word(rest);
        match before {
            Word::Number => {
                while matches!(word, Word::Letters | Word::Number) {
                    push_lower(&mut out, word, part, connector);
                    (word, part, rest) = next_word(rest);
                }
                if word != Word::End && joins(word) {
                    out.push(connector);
                }
            }
            Word::Connector => push_lower(&mut out, before, last, connector),
            Word::Punctuation => {}
            _ if word != Word::Number => {
                if joins(word) {
                    out.push(connector);
                }
            }
            _ if rest.is_empty() => {}
            _ => {
                let number = part;
                (word, part, rest) = next_word(rest);
                // A number before no letter belongs to the word before it.
                if word != Word::Letters {
                    push_lower(&mut out, Word::Number, number, connector);
                    if joins(word) {
                        out.push(connector);
                    }
                    continue;
                }
                out.push(connector);
                push_lower(&mut out, Word::Number, number, connector);
                while matches!(word, Word::Letters | Word::Number) {
                    push_lower(&mut out, word, part, connector);
                    (word, part, rest) = next_word(rest);
                }
                if word != Word::End && joins(word) {
                    out.push(connector);
                }
            }
        }
    }
    push_lower(&mut out, word, part, connector);
    out
}

/// `goutils.AbbreviateFull`; an empty text where that fails.
fn abbreviate(text: &[u8], offset: i64, width: i64) -> Vec<u8> {
    let Ok(width) = usize::try_from(width) else { return Vec::new() };
    if width < 4 {
        return Vec::new();
    }
    if text.len() <= width {
        return text.to_vec();
    }
    let mut offset = usize::try_from(offset).unwrap_or(0).min(text.len());
    if text.len() - offset < width - 3 {
        offset = text.len() - (width - 3);
    }
    if offset <= 4 {
        let head = text.get(..width - 3).unwrap_or_default();
        return [head, b"..."].concat();
    }
    if width < 7 {
        return Vec::new();
    }
    if offset + width - 3 < text.len() {
        let tail = text.get(offset..).unwrap_or_default();
        let inner = abbreviate(tail, 0, i64::try_from(width - 3).unwrap_or(0));
        return [b"...", inner.as_slice()].concat();
    }
    let tail = text.get(text.len() - (width - 3)..).unwrap_or_default();
    [b"...", tail].concat()
}

/// `goutils.WrapCustom`.
fn wrap(
    call: &mut Call<'_>,
    text: &str,
    width: i64,
    separator: &str,
    long_words: bool,
) -> Result<Value, Failure> {
    let separator = if separator.is_empty() { "\n" } else { separator }.as_bytes();
    let width = usize::try_from(width).unwrap_or(1).max(1);
    let text = text.as_bytes();
    let lines = text.len() / width + 1;
    call.budget.bytes(text.len().saturating_add(lines.saturating_mul(separator.len())))?;
    let mut out = Vec::new();
    let mut rest = text;
    while rest.len() > width {
        if rest.first() == Some(&b' ') {
            rest = rest.get(1..).unwrap_or_default();
            continue;
        }
        let head = rest.get(..=width).unwrap_or(rest);
        let end = match head.iter().rposition(|byte| *byte == b' ') {
            Some(space) => Some((space, space + 1)),
            None if long_words => Some((width, width)),
            None => {
                let tail = rest.get(width..).unwrap_or_default();
                let space = tail.iter().position(|byte| *byte == b' ');
                space.map(|space| (width + space, width + space + 1))
            }
        };
        let Some((end, next)) = end else { break };
        out.extend_from_slice(rest.get(..end).unwrap_or_default());
        out.extend_from_slice(separator);
        rest = rest.get(next..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    Ok(Value::from_bytes(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_change_case_as_in_xstrings() {
        let snake = [
            ("FirstName", "first_name"),
            ("HTTPServer", "http_server"),
            ("NoHTTPS", "no_https"),
            ("GO_PATH", "go_path"),
            ("GO PATH", "go_path"),
            ("http2xx", "http_2xx"),
            ("HTTP20xOK", "http_20x_ok"),
            ("Duration2m3s", "duration_2m3s"),
            ("Bld4Floor3rd", "bld4_floor_3rd"),
        ];
        for (text, expected) in snake {
            assert_eq!(lower_words(text, '_'), expected);
        }
        let pascal = [
            ("some_words", "SomeWords"),
            ("http_server", "HttpServer"),
            ("_complex__case_", "_Complex_Case_"),
            ("GOLANG_IS_GREAT", "GolangIsGreat"),
        ];
        for (text, expected) in pascal {
            assert_eq!(pascal_case(text), expected);
        }
    }
}
