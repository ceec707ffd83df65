//! Functions of strings: cel-go's extension (version 2) and Kubernetes' regular expressions.

use super::{exactly, int, pattern_of, text};
use crate::node::Call;
use crate::ops::VALUE_BYTES_MAX;
use crate::value::{Error, Value};

type Result<T> = std::result::Result<T, Error>;

/// Maximum number of pieces that `split` and `findAll` create.
const PIECES_MAX: usize = 1 << 22;

pub(super) fn call<'a>(call: &Call, args: &[Value<'a>]) -> Option<Result<Value<'a>>> {
    let of_string = matches!(args.first(), Some(Value::String(_)));
    Some(match call.function.as_str() {
        "charAt" => char_at(args),
        "indexOf" | "lastIndexOf" if of_string => search(&call.function, args),
        "lowerAscii" => one(args, |text| Ok(text.to_ascii_lowercase())),
        "upperAscii" => one(args, |text| Ok(text.to_ascii_uppercase())),
        "trim" => one(args, |text| Ok(text.trim_matches(is_space).to_owned())),
        "strings.quote" => one(args, |text| Ok(quoted(text))),
        "jsonpatch.escapeKey" => one(args, |text| Ok(text.replace('~', "~0").replace('/', "~1"))),
        "replace" => replace(args),
        "split" => split(args),
        "substring" => substring(args),
        "join" => join(args),
        "find" => find(call, args),
        "findAll" => find_all(call, args),
        _ => return None,
    })
}

/// White space as in Go's `unicode.IsSpace`.
fn is_space(c: char) -> bool {
    c.is_whitespace()
}

fn one<'a>(args: &[Value<'a>], apply: impl Fn(&str) -> Result<String>) -> Result<Value<'a>> {
    let [value] = exactly::<1>(args)?;
    Ok(Value::text(apply(text(value)?)?))
}

fn outside(at: i64) -> Error {
    Error::new(format!("index out of range: {at}"))
}

fn char_at<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [subject, at] = exactly::<2>(args)?;
    let (subject, at) = (text(subject)?, int(at)?);
    let index = usize::try_from(at).map_err(|_| outside(at))?;
    match subject.chars().nth(index) {
        Some(found) => Ok(Value::text(found.to_string())),
        None if subject.chars().count() == index => Ok(Value::text("")),
        None => Err(outside(at)),
    }
}

fn search<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let (subject, piece, offset) = match args {
        [subject, piece] => (text(subject)?, text(piece)?, None),
        [subject, piece, offset] => (text(subject)?, text(piece)?, Some(int(offset)?)),
        _ => return Err(Error::no_overload()),
    };
    let chars: Vec<char> = subject.chars().collect();
    let piece: Vec<char> = piece.chars().collect();
    let found = if name == "indexOf" {
        first(&chars, &piece, offset)
    } else {
        last(&chars, &piece, offset)
    };
    found.map(Value::Int)
}

fn as_int(at: usize) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}

fn first(chars: &[char], piece: &[char], offset: Option<i64>) -> Result<i64> {
    let offset = offset.unwrap_or(0);
    let from = usize::try_from(offset).map_err(|_| outside(offset))?;
    if piece.is_empty() {
        return Ok(as_int(from.min(chars.len())));
    }
    let rest = chars.get(from..).unwrap_or_default();
    Ok(rest.windows(piece.len()).position(|w| w == piece).map_or(-1, |at| as_int(from + at)))
}

fn last(chars: &[char], piece: &[char], offset: Option<i64>) -> Result<i64> {
    let Some(offset) = offset else {
        if piece.is_empty() {
            return Ok(as_int(chars.len()));
        }
        return Ok(chars.windows(piece.len()).rposition(|w| w == piece).map_or(-1, as_int));
    };
    let from = usize::try_from(offset).map_err(|_| outside(offset))?;
    if piece.is_empty() {
        return Ok(as_int(from.min(chars.len())));
    }
    if from >= chars.len() {
        return Ok(-1);
    }
    let end = (from + piece.len()).min(chars.len());
    let before = chars.get(..end).unwrap_or_default();
    Ok(before.windows(piece.len()).rposition(|w| w == piece).map_or(-1, as_int))
}

fn replace<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (subject, old, new, count) = match args {
        [subject, old, new] => (text(subject)?, text(old)?, text(new)?, usize::MAX),
        [subject, old, new, count] => {
            let count = usize::try_from(int(count)?).unwrap_or(usize::MAX);
            (text(subject)?, text(old)?, text(new)?, count)
        }
        _ => return Err(Error::no_overload()),
    };
    let found =
        if old.is_empty() { subject.chars().count() + 1 } else { subject.matches(old).count() };
    let grown = found.min(count).saturating_mul(new.len().saturating_sub(old.len()));
    if subject.len().saturating_add(grown) > VALUE_BYTES_MAX {
        return Err(Error::limit());
    }
    Ok(Value::text(subject.replacen(old, new, count)))
}

fn split<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (subject, separator, count) = match args {
        [subject, separator] => (text(subject)?, text(separator)?, -1),
        [subject, separator, count] => (text(subject)?, text(separator)?, int(count)?),
        _ => return Err(Error::no_overload()),
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let pieces: Vec<Value<'a>> = match count {
        0 => Vec::new(),
        // Go splits at an empty separator into characters.
        _ if separator.is_empty() => {
            let mut pieces = Vec::new();
            let mut rest = subject;
            while !rest.is_empty() && pieces.len() + 1 < count.min(PIECES_MAX) {
                let end = rest.chars().next().map_or(0, char::len_utf8);
                let (piece, after) = rest.split_at(end);
                pieces.push(Value::text(piece));
                rest = after;
            }
            if !rest.is_empty() {
                pieces.push(Value::text(rest));
            }
            pieces
        }
        count => subject.splitn(count, separator).take(PIECES_MAX).map(Value::text).collect(),
    };
    Ok(Value::list(pieces))
}

fn substring<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (subject, start, end) = match args {
        [subject, start] => (text(subject)?, int(start)?, None),
        [subject, start, end] => (text(subject)?, int(start)?, Some(int(end)?)),
        _ => return Err(Error::no_overload()),
    };
    if let Some(end) = end
        && start > end
    {
        let message = format!("invalid substring range. start: {start}, end: {end}");
        return Err(Error::new(message));
    }
    let place = |at: i64| {
        let index = usize::try_from(at).map_err(|_| outside(at))?;
        let mut places = subject.char_indices().map(|(place, _)| place).chain([subject.len()]);
        places.nth(index).ok_or_else(|| outside(at))
    };
    let from = place(start)?;
    let to = end.map_or(Ok(subject.len()), place)?;
    Ok(Value::text(subject.get(from..to).unwrap_or_default()))
}

fn join<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), separator] => (list, text(separator)?),
        _ => return Err(Error::no_overload()),
    };
    let mut out = String::new();
    for (at, item) in list.iter().enumerate() {
        if at > 0 {
            out.push_str(separator);
        }
        let item = item?;
        let piece =
            item.as_str().ok_or_else(|| Error::new(format!("join: invalid input: {item}")))?;
        out.push_str(piece);
        if out.len() > VALUE_BYTES_MAX {
            return Err(Error::limit());
        }
    }
    Ok(Value::text(out))
}

/// Quotes a text and escapes control characters and quotes.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

fn regex_of(call: &Call, pattern: &Value<'_>) -> Result<regex::Regex> {
    pattern_of(call, pattern).map_err(|error| Error::new(format!("Illegal regex: {error}")))
}

fn find<'a>(call: &Call, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [subject, pattern] = exactly::<2>(args)?;
    let subject = text(subject)?;
    let regex = regex_of(call, pattern)?;
    Ok(Value::text(regex.find(subject).map_or("", |found| found.as_str())))
}

fn find_all<'a>(call: &Call, args: &[Value<'a>]) -> Result<Value<'a>> {
    let (subject, pattern, count) = match args {
        [subject, pattern] => (text(subject)?, pattern, -1),
        [subject, pattern, count] => (text(subject)?, pattern, int(count)?),
        _ => return Err(Error::no_overload()),
    };
    let regex = regex_of(call, pattern)?;
    let count = usize::try_from(count).unwrap_or(PIECES_MAX).min(PIECES_MAX);
    let found = regex.find_iter(subject).take(count);
    Ok(Value::list(found.map(|found| Value::text(found.as_str())).collect()))
}

#[cfg(test)]
mod tests {
    use crate::tests::{check_errors, check_true};

    /// Rows of cel-go's `ext/strings_test.go`.
    #[test]
    fn positions_are_counted_in_code_points() {
        check_true(&[
            "'tacocat'.charAt(7) == ''",
            "'©αT'.charAt(1) == 'α'",
            "'tacocat'.indexOf('', 3) == 3",
            "'ta©o©αT'.indexOf('©', 3) == 4",
            "'hello wello'.indexOf('elbo room!!!') == -1",
            "'tacocat'.indexOf('', 30) == 7",
            "'tacocat'.lastIndexOf('') == 7",
            "'ta©o©αT'.lastIndexOf('©', 3) == 2",
            "'bananananana'.lastIndexOf('nana', 7) == 6",
            "'tacocat'.lastIndexOf('a', 30) == -1",
            "'ta©o©αT'.substring(2, 6) == '©o©α'",
            "'tacocat'.substring(7) == ''",
        ]);
        check_errors(&[
            ("'tacocat'.charAt(30) == ''", "index out of range: 30"),
            ("'tacocat'.indexOf('', -1) == 0", "index out of range: -1"),
            ("'tacocat'.lastIndexOf('a', -1) == -1", "index out of range: -1"),
            ("'tacocat'.substring(1, 50) == 'cat'", "index out of range: 50"),
            ("'tacocat'.substring(49, 50) == 'cat'", "index out of range: 49"),
            ("'tacocat'.substring(4, 3) == ''", "invalid substring range. start: 4, end: 3"),
        ]);
    }

    /// Rows of cel-go's `ext/strings_test.go`.
    #[test]
    fn strings_are_changed_split_joined_and_quoted() {
        check_true(&[
            "'TacoCÆt Xii'.lowerAscii() == 'tacocÆt xii'",
            "'tacoCαt'.upperAscii() == 'TACOCαT'",
            "'{0} days {0} hours'.replace('{0}', '2', 1).replace('{0}', '23') == '2 days 23 hours'",
            "'hello hello'.replace('', '_') == '_h_e_l_l_o_ _h_e_l_l_o_'",
            "'hello world events!'.split(' ', 0) == []",
            "'hello world events!'.split(' ', 1) == ['hello world events!']",
            "'o©o©o©o'.split('©', -1) == ['o', 'o', 'o', 'o']",
            r"' \f\n\r\t\vtext  '.trim() == 'text'",
            r"'\u0085\u00a0\u1680text'.trim() == 'text'",
            r"'\u180etext\u200b'.trim() == '\u180etext\u200b'",
            "['x', 'y'].join('-') == 'x-y'",
            "[].join('-') == ''",
            r#"strings.quote('mid string " quote') == '"mid string \\" quote"'"#,
            r#"strings.quote("bell\a") == "\"bell\\a\"""#,
        ]);
    }

    /// The examples of `pkg/cel/library/regex.go` and `jsonpatch.go` in k8s.io/apiserver.
    #[test]
    fn matches_of_a_pattern_are_found_up_to_a_limit() {
        check_true(&[
            "'abc 123'.find('[0-9]+') == '123'",
            "'abc 123'.find('xyz') == ''",
            "'123 abc 456'.findAll('[0-9]+') == ['123', '456']",
            "'123 abc 456'.findAll('[0-9]+', 1) == ['123']",
            "'123 abc 456'.findAll('xyz') == []",
            "jsonpatch.escapeKey('k8s.io/my~label') == 'k8s.io~1my~0label'",
        ]);
    }
}
