//! The items that the lexer reads.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    Error,
    Bool,
    Char,
    CharConstant,
    Complex,
    Assign,
    Declare,
    Eof,
    Field,
    Identifier,
    LeftDelim,
    LeftParen,
    Number,
    Pipe,
    RawString,
    RightDelim,
    RightParen,
    Space,
    String,
    Text,
    Variable,
    Block,
    Break,
    Continue,
    Dot,
    Define,
    Else,
    End,
    If,
    Nil,
    Range,
    Template,
    With,
}

impl Token {
    fn is_keyword(self) -> bool {
        use Token::*;
        matches!(
            self,
            Block
                | Break
                | Continue
                | Dot
                | Define
                | Else
                | End
                | If
                | Nil
                | Range
                | Template
                | With
        )
    }
}

pub(crate) const KEYWORDS: [(&str, Token); 11] = [
    ("block", Token::Block),
    ("break", Token::Break),
    ("continue", Token::Continue),
    ("define", Token::Define),
    ("else", Token::Else),
    ("end", Token::End),
    ("if", Token::If),
    ("range", Token::Range),
    ("nil", Token::Nil),
    ("template", Token::Template),
    ("with", Token::With),
];

#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub token: Token,
    /// Bytes from the start of the text.
    pub pos: usize,
    pub text: String,
    /// From 1.
    pub line: usize,
}

impl Item {
    /// How Go prints the item in errors.
    pub(crate) fn describe(&self) -> String {
        use crate::go::quote::quote;
        match self.token {
            Token::Eof => "EOF".into(),
            Token::Error => self.text.clone(),
            token if token.is_keyword() => format!("<{}>", self.text),
            _ if self.text.len() > 10 => {
                let mut head: String = self.text.chars().take(10).collect();
                head = quote(&head);
                format!("{head}...")
            }
            _ => quote(&self.text),
        }
    }
}
