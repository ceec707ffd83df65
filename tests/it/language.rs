//! The language of the source: names of types and files, phrases in comments and texts, and the
//! width of lines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::files::files;

/// Columns of a line, without what string literals hold beyond them.
const COLUMNS: usize = 100;

/// Names of types that do not say what they are without their module.
const BANNED_TYPES: &[&str] =
    &["Place", "Facts", "Known", "Given", "Seen", "Found", "Said", "Asked", "Wanted", "Entry"];

/// Names of files that say nothing about what is in them.
const BANNED_FILES: &[&str] = &["others.rs", "misc.rs", "util.rs", "utils.rs", "helpers.rs"];

/// Words that comments, texts and documents do not use, as whole words in small letters.
pub(crate) const BANNED_WORDS: &[&str] = &[
    "anew", "nobody", "whoever", "whom", "mend", "mends", "mended", "vouch", "anybody", "somebody",
];

/// Phrases that comments and texts do not use.
const BANNED_PHRASES: &[&str] =
    &["is told", "are told", "what is told", "who fell", "goes on with"];

/// Source files of the workspace, generated code left out.
fn sources() -> Vec<PathBuf> {
    files(&["src", "tests", "benches", "fuzz"], ".rs")
}

/// A line's comment or string, or its code.
struct Piece {
    line: usize,
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Text,
}

/// Splits a source text into code, comments and string literals, line by line.
fn pieces(source: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = source;
    let mut line = 1;
    let mut add = |line: &mut usize, kind: Kind, text: &str| {
        for (index, part) in text.split('\n').enumerate() {
            if index > 0 {
                *line += 1;
            }
            pieces.push(Piece { line: *line, kind, text: part.to_owned() });
        }
    };
    while !rest.is_empty() {
        let (kind, length) = next_piece(rest);
        add(&mut line, kind, &rest[..length]);
        rest = &rest[length..];
    }
    pieces
}

/// The kind and the bytes of what a source text begins with.
fn next_piece(text: &str) -> (Kind, usize) {
    if text.starts_with("//") {
        return (Kind::Comment, text.find('\n').unwrap_or(text.len()));
    }
    if let Some(length) = string_length(text) {
        return (Kind::Text, length);
    }
    let mut characters = text.char_indices().peekable();
    let mut is_in_word = false;
    while let Some((at, character)) = characters.next() {
        let here = &text[at..];
        let begins = here.starts_with("//")
            || (!is_in_word || character == '"') && string_length(here).is_some();
        if at > 0 && begins {
            return (Kind::Code, at);
        }
        if character == '\'' {
            // A character literal may be a quote; a lifetime is not closed.
            let literal = here.strip_prefix("'\\").map_or_else(
                || here.char_indices().nth(2).filter(|(_, c)| *c == '\'').map(|(end, _)| end),
                |escaped| escaped.get(1..).and_then(|rest| rest.find('\'')).map(|end| end + 3),
            );
            if let Some(end) = literal {
                while characters.peek().is_some_and(|(next, _)| *next <= at + end) {
                    characters.next();
                }
            }
        }
        is_in_word = character.is_alphanumeric() || character == '_';
    }
    (Kind::Code, text.len())
}

/// The bytes of the string literal that a text begins with.
fn string_length(text: &str) -> Option<usize> {
    let body = text.strip_prefix('b').unwrap_or(text);
    let prefix = text.len() - body.len();
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if !raw[hashes..].starts_with('"') {
            return None;
        }
        let end = format!("\"{}", "#".repeat(hashes));
        let start = prefix + 1 + hashes + 1;
        return text[start..].find(&end).map(|at| start + at + end.len());
    }
    if !body.starts_with('"') {
        return None;
    }
    let mut is_escaped = false;
    for (at, character) in body.char_indices().skip(1) {
        match character {
            '"' if !is_escaped => return Some(prefix + at + 1),
            '\\' if !is_escaped => is_escaped = true,
            _ => is_escaped = false,
        }
    }
    None
}

#[test]
fn lines_have_at_most_one_hundred_columns() {
    let mut faults = Vec::new();
    for path in sources() {
        let source = std::fs::read_to_string(&path).unwrap();
        let mut widths = vec![0; source.lines().count() + 1];
        for piece in pieces(&source) {
            if piece.kind != Kind::Text
                && let Some(width) = widths.get_mut(piece.line - 1)
            {
                *width += piece.text.chars().count();
            }
        }
        for (index, width) in widths.iter().enumerate().filter(|(_, width)| **width > COLUMNS) {
            faults.push(format!("{}:{}: {width} columns", path.display(), index + 1));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn comments_and_texts_use_plain_words() {
    let mut faults = Vec::new();
    let this = Path::new("tests/it/language.rs");
    for path in sources().iter().filter(|path| *path != this) {
        let source = std::fs::read_to_string(path).unwrap();
        for Piece { line, text, kind } in
            pieces(&source).iter().filter(|piece| piece.kind != Kind::Code)
        {
            // Data is no text.
            if *kind == Kind::Text && !text.contains(' ') {
                continue;
            }
            let words: BTreeSet<&str> =
                text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').collect();
            let word = BANNED_WORDS.iter().find(|word| words.contains(**word));
            let phrase = BANNED_PHRASES.iter().find(|phrase| text.contains(**phrase));
            for banned in word.into_iter().chain(phrase) {
                faults.push(format!("{}:{line}: {banned:?}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn types_and_files_say_what_they_are() {
    let mut faults = Vec::new();
    for path in sources() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if BANNED_FILES.contains(&name.as_str()) {
            faults.push(format!("{}: the name of the file says nothing", path.display()));
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let tokens: TokenStream = source.parse().unwrap();
        for name in type_names(tokens).into_iter().filter(|n| BANNED_TYPES.contains(&n.as_str())) {
            faults.push(format!("{}: type {name}", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The names of the structs, enums, traits and aliases that the code defines.
fn type_names(tokens: TokenStream) -> Vec<String> {
    definitions(tokens, &["struct", "enum", "trait", "type"])
}

/// The names after these keywords. In `impl` blocks `type` is left out: the trait names the type.
fn definitions(tokens: TokenStream, keywords: &[&str]) -> Vec<String> {
    let mut names = Vec::new();
    let (mut is_definition, mut is_impl) = (false, false);
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                let name = name.to_string();
                if is_definition {
                    names.push(name.clone());
                }
                is_definition = keywords.contains(&name.as_str());
                is_impl |= name == "impl";
            }
            TokenTree::Group(group) => {
                is_definition = false;
                let is_body = group.delimiter() == Delimiter::Brace;
                let inner: &[&str] =
                    if is_impl && is_body { &["struct", "enum", "trait"] } else { keywords };
                names.extend(definitions(group.stream(), inner));
                is_impl &= !is_body;
            }
            _ => is_definition = false,
        }
    }
    names
}

#[test]
fn source_text_is_split_into_code_comments_and_strings() {
    let source =
        "let a = \"x // y\"; // z \"q\"\nlet b = 'c'; let s = r#\"k\"\"#; let q = '\"'; // e";
    let kinds: Vec<(Kind, String)> =
        pieces(source).into_iter().map(|piece| (piece.kind, piece.text)).collect();
    let of = |kind: Kind| -> Vec<&str> {
        let texts = kinds.iter().filter(|(found, _)| *found == kind);
        texts.map(|(_, text)| text.as_str()).collect()
    };
    assert_eq!(of(Kind::Comment), ["// z \"q\"", "// e"]);
    assert_eq!(of(Kind::Text), ["\"x // y\"", "r#\"k\"\"#"]);
}
