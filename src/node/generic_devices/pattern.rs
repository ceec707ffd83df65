//! Patterns of names: `*` is any text, `?` any character, `[a-z]` one of these, `[!a-z]` none of
//! these. No character can be escaped; `?` stands for one that has a meaning here.

/// Maximum number of bytes of a pattern: that of a file name.
const BYTES_MAX: usize = 255;

/// Why a text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    #[error("the pattern is empty")]
    Empty,
    #[error("the pattern has more than {BYTES_MAX} bytes")]
    TooLong,
    #[error("the pattern {0:?} has a slash or a control character")]
    Character(String),
    #[error("the pattern {0:?} has a [ that no ] after a character closes")]
    Open(String),
    #[error("the pattern {0:?} has a range whose end is before its begin")]
    Range(String),
}

/// One element of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Char(char),
    AnyChar,
    AnyText,
    /// Ranges of characters, both ends included.
    Class {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Token {
    /// Whether the token, which is not [`Token::AnyText`], matches a character.
    fn matches(&self, c: char) -> bool {
        match self {
            Self::Char(own) => *own == c,
            Self::AnyChar => true,
            Self::AnyText => false,
            Self::Class { is_negated, ranges } => {
                let is_inside = ranges.iter().any(|(from, to)| (*from..=*to).contains(&c));
                is_inside != *is_negated
            }
        }
    }
}

/// A pattern of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<Token>);

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// The text is empty, too long, has a slash, or an invalid class of characters.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidPattern> {
        if text.is_empty() {
            return Err(InvalidPattern::Empty);
        }
        if text.len() > BYTES_MAX {
            return Err(InvalidPattern::TooLong);
        }
        if text.contains(|c: char| c == '/' || c.is_control()) {
            return Err(InvalidPattern::Character(text.to_owned()));
        }
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = rest.get(c.len_utf8()..).unwrap_or_default();
            tokens.push(match c {
                '*' => Token::AnyText,
                '?' => Token::AnyChar,
                '[' => {
                    let (class, after) = class(rest, text)?;
                    rest = after;
                    class
                }
                c => Token::Char(c),
            });
        }
        Ok(Self(tokens))
    }

    /// The only name that the pattern matches, if there is only one.
    pub(crate) fn literal(&self) -> Option<String> {
        let literal = |token: &Token| match token {
            Token::Char(c) => Some(*c),
            _ => None,
        };
        self.0.iter().map(literal).collect()
    }

    /// Whether the pattern matches the whole name.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut token, mut at) = (0, 0);
        // The last `*`, and the first character that it does not match yet.
        let mut star: Option<(usize, usize)> = None;
        while let Some(c) = name.get(at) {
            match self.0.get(token) {
                Some(Token::AnyText) => {
                    star = Some((token, at));
                    token += 1;
                }
                Some(other) if other.matches(*c) => (token, at) = (token + 1, at + 1),
                _ => {
                    let Some((of_star, matched)) = star else { return false };
                    star = Some((of_star, matched + 1));
                    (token, at) = (of_star + 1, matched + 1);
                }
            }
        }
        self.0.get(token..).unwrap_or_default().iter().all(|token| *token == Token::AnyText)
    }
}

/// Parses a class after its `[`; returns it and the text after its `]`. A `]` that comes first is
/// one of the characters. `whole` is the pattern, for errors.
fn class<'a>(text: &'a str, whole: &str) -> Result<(Token, &'a str), InvalidPattern> {
    let open = || InvalidPattern::Open(whole.to_owned());
    let body = text.strip_prefix('!').unwrap_or(text);
    let is_negated = body.len() < text.len();
    let first = body.chars().next().map_or(0, char::len_utf8);
    let end = body.get(first..).and_then(|rest| rest.find(']')).ok_or_else(open)? + first;
    let (inner, after) = body.split_at_checked(end).ok_or_else(open)?;
    let characters: Vec<char> = inner.chars().collect();
    let mut ranges = Vec::new();
    let mut rest = characters.as_slice();
    loop {
        rest = match rest {
            [from, '-', to, rest @ ..] => {
                if to < from {
                    return Err(InvalidPattern::Range(whole.to_owned()));
                }
                ranges.push((*from, *to));
                rest
            }
            [one, rest @ ..] => {
                ranges.push((*one, *one));
                rest
            }
            [] => break,
        };
    }
    Ok((Token::Class { is_negated, ranges }, after.strip_prefix(']').unwrap_or(after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, want) in [
            ("ttyUSB0", "ttyUSB0", true),
            ("ttyUSB0", "ttyUSB01", false),
            ("ttyUSB*", "ttyUSB", true),
            ("*", "", true),
            ("?", "", false),
            ("tty?SB?", "ttyUSB7", true),
            ("*ConBee*if0?", "usb-dresden_ConBee_II_DE-if00", true),
            ("*a*b", "aXbXaXc", false),
            ("*a*b", "aXbXaXb", true),
            ("loop[0-3]", "loop2", true),
            ("loop[0-3]", "loop4", false),
            ("loop[!0-3]", "loop4", true),
            ("x[]-]", "x]", true),
            ("x[]-]", "x-", true),
            ("x[abc]", "xd", false),
            ("é?", "éü", true),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().matches(name), want, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_that_can_match_nothing_or_is_not_closed_is_refused() {
        let text = |text: &str| text.to_owned();
        for (pattern, error) in [
            ("", InvalidPattern::Empty),
            ("a/b", InvalidPattern::Character(text("a/b"))),
            ("a\n", InvalidPattern::Character(text("a\n"))),
            ("a[b", InvalidPattern::Open(text("a[b"))),
            ("a[]", InvalidPattern::Open(text("a[]"))),
            ("a[!]", InvalidPattern::Open(text("a[!]"))),
            ("[z-a]", InvalidPattern::Range(text("[z-a]"))),
        ] {
            assert_eq!(Pattern::parse(pattern), Err(error), "{pattern:?}");
        }
        assert_eq!(Pattern::parse(&"x".repeat(256)), Err(InvalidPattern::TooLong));
    }

    #[test]
    fn a_pattern_without_wildcards_is_one_name() {
        assert_eq!(Pattern::parse("fuse").unwrap().literal().as_deref(), Some("fuse"));
        assert_eq!(Pattern::parse("fuse*").unwrap().literal(), None);
    }
}
