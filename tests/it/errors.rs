//! Errors are types: no function gives its caller a text, or a result within a result.

use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::files::files;

/// Source files of the program, tests left out.
fn sources() -> Vec<PathBuf> {
    let is_test = |path: &Path| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let folder = |name: &str| path.components().any(|part| part.as_os_str() == name);
        stem.ends_with("tests")
            || stem.ends_with("_test")
            || stem == "testing"
            || folder("tests")
            || folder("examples")
    };
    files(&["src"], ".rs").into_iter().filter(|path| !is_test(path)).collect()
}

/// A function or an alias, and what is wrong with its type.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    name: String,
    reason: &'static str,
}

/// The functions and aliases of a text whose types are wrong, test modules left out.
fn faults(tokens: TokenStream) -> Vec<Fault> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut faults = Vec::new();
    let mut at = 0;
    let mut is_test = false;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Ident(word) if *word == "fn" || *word == "type" => {
                let is_end = |token: &TokenTree| match token {
                    TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                    TokenTree::Punct(mark) => mark.as_char() == ';',
                    _ => false,
                };
                let end = tokens.iter().skip(at).position(is_end).map_or(tokens.len(), |n| at + n);
                let signature = &tokens[at..end];
                if let (Some(TokenTree::Ident(name)), Some(reason)) =
                    (signature.first(), wrong_type(signature))
                    && !is_test
                {
                    faults.push(Fault { name: name.to_string(), reason });
                }
                at = end;
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                if !is_test {
                    faults.extend(self::faults(group.stream()));
                }
                is_test = false;
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let text = group.stream().to_string().replace(' ', "");
                is_test |= text == "cfg(test)" || text == "test" || text.starts_with("tokio::test");
            }
            TokenTree::Punct(mark) if mark.as_char() == ';' => is_test = false,
            _ => {}
        }
    }
    faults
}

/// What is wrong with the results in a signature.
fn wrong_type(signature: &[TokenTree]) -> Option<&'static str> {
    let text: String = signature
        .iter()
        .map(|token| token.to_string().replace([' ', '\n'], ""))
        .collect::<Vec<_>>()
        .join(" ");
    let text = text.replace(' ', "");
    // What a function takes is its caller's choice; what it returns is behind the arrow.
    let returned = text.rsplit_once("->").map_or(&*text, |(_, returned)| returned);
    let mut rest = returned;
    while let Some((_, after)) = rest.split_once("Result<") {
        let arguments = arguments(after);
        if arguments.get(1).is_some_and(|error| *error == "String") {
            return Some("its error is a text");
        }
        if arguments.first().is_some_and(|value| value.starts_with("Result<")) {
            return Some("it is a result within a result");
        }
        rest = after;
    }
    None
}

/// The arguments between angle brackets, whose first is behind them already.
fn arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut arguments) = (0, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '<' | '(' | '[' => depth += 1,
            '>' if depth == 0 => {
                arguments.push(&text[start..at]);
                break;
            }
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    arguments
}

#[test]
fn errors_are_types() {
    let mut all = Vec::new();
    for path in sources() {
        let source = std::fs::read_to_string(&path).unwrap();
        for fault in faults(source.parse().unwrap()) {
            all.push(format!("{}: {}: {}", path.display(), fault.name, fault.reason));
        }
    }
    assert!(all.is_empty(), "{}\n{} in all", all.join("\n"), all.len());
}

#[test]
fn signatures_are_read() {
    let source = "
        pub fn a(x: Result<u8, String>) -> u8 { 0 }
        fn b() -> Result<Vec<(u8, String)>, String> { fn inner() -> io::Result<String> {} }
        impl X { pub(crate) async fn c(&self) -> std::io::Result<Result<(), E>> {} }
        trait Y { fn d(&self) -> BoxFuture<'_, Result<(), String>>; }
        pub type E<T> = Result<T, String>;
        fn f() -> Result<BTreeMap<String, String>, E> {}
        #[cfg(test)] mod tests { fn g() -> Result<(), String> {} }
        fn h() -> Result<(), String>;";
    let names: Vec<String> =
        faults(source.parse().unwrap()).into_iter().map(|fault| fault.name).collect();
    assert_eq!(names, ["b", "c", "d", "E", "h"]);
}
