//! The lexer of the string form of label selectors.

/// A kind of token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Error,
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Identifier,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

/// A token with its text, which error messages contain.
#[derive(Debug, Clone)]
pub(super) struct Scanned {
    pub token: Token,
    pub text: String,
}

fn special(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn symbol(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::Close,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::DoubleEquals,
        "=" => Token::Equals,
        ">" => Token::Greater,
        "<" => Token::Less,
        "!=" => Token::NotEquals,
        "(" => Token::Open,
        _ => return None,
    })
}

/// Returns all tokens of `text`; the last one is always [`Token::End`].
pub(super) fn scan(text: &str) -> Vec<Scanned> {
    let mut out = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(blank);
        let Some(first) = rest.chars().next() else { break };
        // A NUL ends the input, as in upstream's lexer.
        if first == '\0' {
            break;
        }
        if special(first) {
            let two = rest.get(..2).and_then(symbol).map(|t| (t, 2));
            match two.or_else(|| rest.get(..1).and_then(symbol).map(|t| (t, 1))) {
                Some((token, len)) => {
                    let (taken, left) = rest.split_at(len);
                    out.push(Scanned { token, text: taken.to_owned() });
                    rest = left;
                }
                None => {
                    out.push(Scanned {
                        token: Token::Error,
                        text: format!("error expected: keyword found '{first}'"),
                    });
                    rest = rest.get(first.len_utf8()..).unwrap_or("");
                }
            }
        } else {
            let end = rest.find(|c| special(c) || blank(c) || c == '\0').unwrap_or(rest.len());
            let (word, left) = rest.split_at(end);
            let token = match word {
                "in" => Token::In,
                "notin" => Token::NotIn,
                _ => Token::Identifier,
            };
            out.push(Scanned { token, text: word.to_owned() });
            rest = left;
        }
    }
    out.push(Scanned { token: Token::End, text: String::new() });
    out
}
