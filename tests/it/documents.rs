//! The documents: their sizes, links, and the table of flags.

use std::fmt::Write;

use crate::files::files;
use crate::language::BANNED_WORDS;

/// Documents outside of `docs`.
const AT_THE_ROOT: &[&str] = &["README.md", "ROADMAP.md", "CHANGELOG.md", "CONTRIBUTING.md"];

/// Columns of a line of a document; rows of tables may be longer.
const COLUMNS: usize = 100;

/// Line that the generated part of `docs/operating/flags.md` follows.
const GENERATED: &str =
    "<!-- Generated from `--help`: KUBE_LITE_UPDATE=1 cargo test --test it flags -->";

/// The targets of the Markdown links of a text, those in code left out.
fn links(text: &str) -> Vec<&str> {
    let mut links = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let mut rest = if is_code { "" } else { line };
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            links.extend(rest.find(')').map(|end| &rest[..end]));
        }
    }
    links
}

#[test]
fn relative_links_resolve() {
    let mut faults = Vec::new();
    for path in files(&["."], ".md") {
        let text = std::fs::read_to_string(&path).unwrap();
        for link in links(&text) {
            let target = link.split(['#', ' ']).next().unwrap_or_default();
            let is_relative =
                !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:");
            if is_relative && !path.parent().unwrap().join(target).exists() {
                faults.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "links to nothing:\n{}", faults.join("\n"));
}

/// Fewest invariants that the guide to the architecture marks.
const INVARIANTS_MIN: usize = 15;

/// Documents and the lines that they may have.
const LENGTHS: &[(&str, usize)] =
    &[("README.md", 60), ("ROADMAP.md", 80), ("docs/architecture.md", 300)];

#[test]
fn documents_keep_to_their_length() {
    for (name, most) in LENGTHS {
        let text = std::fs::read_to_string(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let lines = text.lines().count();
        assert!(lines <= *most, "{name} has {lines} lines, at most {most} are allowed");
    }
}

#[test]
fn the_architecture_has_a_diagram_and_marked_invariants() {
    let path = "docs/architecture.md";
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let fences = text.lines().filter(|line| line.trim_start().starts_with("```")).count();
    assert_eq!(fences, 2, "{path} has one fenced block, its diagram");
    let invariants = text.matches("**Invariant:**").count();
    assert!(
        invariants >= INVARIANTS_MIN,
        "{path} marks {invariants} invariants, at least {INVARIANTS_MIN} are expected"
    );
}

/// Files below `src` and `tests` that `docs/architecture.md` names exist.
#[test]
fn the_architecture_names_paths_that_exist() {
    let path = "docs/architecture.md";
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let named = text.split('`').skip(1).step_by(2);
    let missing: Vec<&str> = named
        .filter(|name| name.starts_with("src/") || name.starts_with("tests/"))
        .filter(|name| !name.contains(' ') && !std::path::Path::new(name).exists())
        .collect();
    assert!(missing.is_empty(), "{path} names paths that do not exist: {missing:?}");
}

#[test]
fn documents_use_plain_words_and_short_lines() {
    let mut faults = Vec::new();
    let mut paths = files(&["docs"], ".md");
    paths.extend(AT_THE_ROOT.iter().map(std::path::PathBuf::from));
    // The rules of style show what not to write.
    for path in paths.iter().filter(|path| !path.ends_with("style.md")) {
        let text = std::fs::read_to_string(path).unwrap();
        for (index, line) in text.lines().enumerate() {
            let at = format!("{}:{}", path.display(), index + 1);
            let mut words =
                line.split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '-' | '`'));
            if let Some(word) = words.find(|word| BANNED_WORDS.contains(word)) {
                faults.push(format!("{at}: {word:?}"));
            }
            let is_row = line.starts_with('|') || line.trim_start().starts_with("<!--");
            if !is_row && line.chars().count() > COLUMNS {
                faults.push(format!("{at}: more than {COLUMNS} columns"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// One table per command, flags in the order of `--help`.
fn flags() -> String {
    fn add(command: &clap::Command, path: &str, out: &mut String) {
        let flags: Vec<&clap::Arg> = command
            .get_arguments()
            .filter(|arg| arg.get_long().is_some() && !arg.is_hide_set())
            .collect();
        if !flags.is_empty() {
            let _ = writeln!(out, "\n## {path}\n\n| flag | default | meaning |\n|---|---|---|");
        }
        for flag in flags {
            let defaults: Vec<String> = flag
                .get_default_values()
                .iter()
                .map(|v| v.to_string_lossy().into_owned())
                .collect();
            let takes_value = flag.get_action().takes_values();
            let default = match (takes_value, defaults.join(",")) {
                (true, default) if !default.is_empty() => format!("`{default}`"),
                _ => String::new(),
            };
            let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
            let name = flag.get_long().unwrap_or_default();
            let _ = writeln!(out, "| `--{name}` | {default} | {help} |");
        }
        for subcommand in
            command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
        {
            let path = format!("{path} {}", subcommand.get_name());
            add(subcommand, path.trim_start(), out);
        }
    }
    let mut out = String::new();
    let command = kube_lite::command_line::command();
    for subcommand in
        command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
    {
        add(subcommand, subcommand.get_name(), &mut out);
    }
    out
}

#[test]
fn the_table_of_flags_is_that_of_help() {
    let path = "docs/operating/flags.md";
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (head, body) =
        text.split_once(GENERATED).unwrap_or_else(|| panic!("{path} lacks the line {GENERATED}"));
    let generated = flags();
    #[allow(clippy::disallowed_methods, reason = "whether to write the document")]
    let updates = std::env::var("KUBE_LITE_UPDATE").is_ok();
    if updates {
        std::fs::write(path, format!("{head}{GENERATED}\n{generated}")).unwrap();
        return;
    }
    let differs =
        body.trim().lines().zip(generated.trim().lines()).find(|(is, should)| is != should);
    assert!(
        body.trim() == generated.trim(),
        "{path} is not what --help says, run KUBE_LITE_UPDATE=1 cargo test --test it flags: {differs:?}"
    );
}

/// The names of tests in a document: the last segments of paths in code spans.
fn named_tests(text: &str) -> Vec<&str> {
    let spans = text.split('`').skip(1).step_by(2);
    let segments = spans.filter_map(|span| span.rsplit(['…', ':', ' ']).next());
    let is_test_name = |name: &&str| {
        name.matches('_').count() >= 3 && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    segments.filter(is_test_name).collect()
}

#[test]
fn the_tests_that_the_security_rules_name_exist() {
    let sources: Vec<String> =
        files(&["src"], ".rs").iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let text = std::fs::read_to_string("tests/security.md").unwrap();
    let names = named_tests(&text);
    assert!(names.len() > 40, "only {} names were found", names.len());
    let mut missing = names;
    missing.retain(|name| {
        let signature = format!("fn {name}(");
        !sources.iter().any(|source| source.contains(&signature))
    });
    assert!(missing.is_empty(), "tests/security.md names tests that do not exist: {missing:?}");
}
