//! The page of what is missing and different: each statement names the check that shows it.
//!
//! A statement is a list item or a row of a table. Its comment `<!-- check: FILE "NAME" … -->`
//! names a suite of `tests/suites` with names of its checks, a file below `src` with names of unit
//! tests, or a file of the tree with a text that it contains (a constant, a row of a table). The
//! next FILE follows the last NAME.

use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = "docs/compatibility.md";

/// The section whose statements no command of the continuous integration can show.
const UNTESTED: &str = "## Not tested";

/// The suite whose checks show nothing but statements of the page.
const SUITE: &str = "08-known-gaps";

/// Fewest statements of the page, so that a parser that finds none fails.
const STATEMENTS_MIN: usize = 100;

/// A check that a statement names.
#[derive(Debug, PartialEq, Eq)]
struct Reference<'a> {
    file: &'a str,
    name: &'a str,
}

/// The statements of the page outside of [`UNTESTED`]. Text before the first section, paragraphs
/// and the heads of tables are introductions.
fn statements(page: &str) -> Vec<String> {
    let mut statements: Vec<String> = Vec::new();
    let (mut is_section, mut continues) = (false, false);
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("## ") {
            is_section = line != UNTESTED;
        }
        let is_head = lines.peek().is_some_and(|next| next.starts_with("|---"));
        let is_row = line.starts_with('|') && !line.starts_with("|---") && !is_head;
        let begins = line.starts_with("- ") || is_row;
        if is_section && begins {
            statements.push(line.to_owned());
        } else if let (true, Some(last)) =
            (continues && line.starts_with(' '), statements.last_mut())
        {
            last.push('\n');
            last.push_str(line);
        }
        continues = is_section && (begins || continues && line.starts_with(' '));
    }
    statements
}

/// The checks that a statement names. `None` if it has no comment, or one of another form.
fn references(statement: &str) -> Option<Vec<Reference<'_>>> {
    let (_, comment) = statement.split_once("<!-- check: ")?;
    let (comment, _) = comment.split_once("-->")?;
    let mut references = Vec::new();
    let mut file = "";
    for (index, part) in comment.split('"').enumerate() {
        let part = part.trim();
        if index % 2 == 1 {
            references.push(Reference { file, name: part });
        } else if !part.is_empty() {
            file = part;
        }
    }
    let is_complete = comment.matches('"').count() % 2 == 0 && !references.is_empty();
    (is_complete && references.iter().all(|reference| !reference.file.is_empty()))
        .then_some(references)
}

/// Whether the file has the check.
fn exists(reference: &Reference<'_>) -> bool {
    let Reference { file, name } = *reference;
    let is_suite = !file.contains('/');
    let path = if is_suite { format!("tests/suites/{file}") } else { file.to_owned() };
    let Ok(text) = std::fs::read_to_string(&path) else { return false };
    if is_suite {
        return text.contains(&format!("\"{name}\""));
    }
    let is_identifier = name.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_numeric());
    if !(file.starts_with("src/") && is_identifier) {
        return text.contains(name);
    }
    text.split_once(&format!("fn {name}(")).is_some_and(|(before, _)| {
        let above = before.rsplit('\n').skip(1);
        let mut attributes = above.take_while(|line| line.trim_start().starts_with("#["));
        attributes.any(|line| line.contains("test]") || line.contains("test("))
    })
}

#[test]
fn each_statement_names_a_check_that_exists() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let statements = statements(&page);
    assert!(statements.len() >= STATEMENTS_MIN, "only {} statements", statements.len());
    let mut faults = Vec::new();
    for statement in &statements {
        let first: String = statement.chars().take(70).collect();
        match references(statement) {
            None => faults.push(format!("{first}…: names no check")),
            Some(references) => faults.extend(
                references
                    .iter()
                    .filter(|reference| !exists(reference))
                    .map(|Reference { file, name }| format!("{first}…: {file} has no {name:?}")),
            ),
        }
    }
    assert!(
        faults.is_empty(),
        "{PAGE}: end a statement with <!-- check: FILE \"NAME\" -->:\n{}",
        faults.join("\n")
    );
}

/// The checks of the suite, by the functions of `tests/lib/server.sh`. Preparations are `setup`.
fn checks(suite: &str) -> BTreeSet<&str> {
    let names = suite.lines().filter_map(|line| {
        let (function, rest) = line.trim_start().split_once(" \"")?;
        matches!(function, "check" | "equals" | "refuses").then(|| rest.split('"').next())?
    });
    names.collect()
}

#[test]
fn each_check_of_the_suite_of_gaps_belongs_to_a_statement() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let suite = std::fs::read_to_string(Path::new("tests/suites").join(SUITE)).unwrap();
    let statements = statements(&page);
    let named: BTreeSet<&str> = statements
        .iter()
        .flat_map(|statement| references(statement).unwrap_or_default())
        .filter(|reference| reference.file == SUITE)
        .map(|reference| reference.name)
        .collect();
    let idle: Vec<&str> = checks(&suite).difference(&named).copied().collect();
    assert!(idle.is_empty(), "{PAGE} names these checks of {SUITE} nowhere: {idle:#?}");
}

#[test]
fn the_page_counts_the_classes_of_differences() {
    let classes = std::fs::read_to_string("tests/differential/classes.py").unwrap();
    let (_, classes) = classes.split_once("CLASSES = [").unwrap();
    let count = classes.lines().filter(|line| *line == "    (").count();
    let page = std::fs::read_to_string(PAGE).unwrap();
    assert!(page.contains(&format!("in {count} classes")), "there are {count} classes");
}

#[test]
fn statements_are_items_and_rows_with_their_references() {
    let page = r#"# Page
- before

## A

Text.

- one,
  more
  <!-- check: 01-x "a" "b" src/y.rs "c" -->
- two

| a | b |
|---|---|
| c | d <!-- check: x --> |

## Not tested

- three
"#;
    let found = statements(page);
    assert_eq!(found.len(), 3, "{found:?}");
    let reference = |file, name| Reference { file, name };
    assert_eq!(
        references(&found[0]).unwrap(),
        [reference("01-x", "a"), reference("01-x", "b"), reference("src/y.rs", "c")]
    );
    assert_eq!((references(&found[1]), references(&found[2])), (None, None));
}
