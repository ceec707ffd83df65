//! The documents: their sizes, links, and the table of flags.

use std::fmt::Write;

use clap::CommandFactory;

use crate::files::files;

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

#[test]
fn documents_keep_to_their_length() {
    for (name, most) in [("README.md", 60), ("ROADMAP.md", 80)] {
        let text = std::fs::read_to_string(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let lines = text.lines().count();
        assert!(lines <= most, "{name} has {lines} lines, at most {most} are allowed");
    }
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
    let command = kube_lite::command_line::Cli::command();
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
