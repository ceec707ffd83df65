//! The structure of the tree, held by tests.

use std::collections::BTreeSet;
use std::process::Command;

use crate::files::files;

/// Hard limit of a file's length; tests and generated code apart.
const LINES_MAX: usize = 600;

/// What every member may import.
const FOR_ALL: &[&str] = &["sorting"];

/// Allowed dependencies between the workspace members beside [`FOR_ALL`].
const EDGES: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("proto", &[]),
    ("kinds", &[]),
    ("sorting", &[]),
    ("api", &["kcel", "kinds"]),
    ("store", &["base", "proto"]),
    ("etcd", &["base", "proto", "store"]),
    ("stream", &["base"]),
    ("component_config", &["api", "base"]),
    ("lookup", &["api", "base"]),
    ("webhook", &["api", "base", "lookup"]),
    ("encryption", &["api", "base", "component_config", "store"]),
    ("printers", &["api"]),
    (
        "apiserver",
        &[
            "api",
            "base",
            "component_config",
            "encryption",
            "kcel",
            "lookup",
            "printers",
            "resource_metrics",
            "store",
            "stream",
            "webhook",
        ],
    ),
    ("settings", &[]),
    ("resource_metrics", &["base"]),
    ("client", &["api", "base", "settings"]),
    ("controllers", &["api", "base", "client", "settings"]),
    ("scheduler", &["api", "base", "client", "component_config", "kcel", "webhook"]),
    ("node", &["api", "base", "client", "go_template", "proto", "resource_metrics", "stream"]),
    ("net", &["api", "base", "client", "settings"]),
    ("cluster", &["api", "base", "client", "settings"]),
    ("addons", &["api", "base", "client"]),
    ("http_proxy", &["base", "settings"]),
    ("ingress", &["api", "base", "client", "http_proxy", "settings"]),
    ("go_template", &[]),
    ("helm", &["api", "base", "client", "go_template"]),
    ("vertical_autoscaler", &["api", "base", "client", "resource_metrics"]),
    ("kcel", &[]),
    ("base2histogram", &[]),
    ("xtask", &[]),
    ("benches", &["api", "base", "client", "cluster", "go_template", "scheduler"]),
];

#[test]
fn every_file_begins_with_what_it_is_for_and_is_short_enough_to_read() {
    let mut faults = Vec::new();
    for path in files(&["src", "tests"], ".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        if !text.starts_with("//! ") {
            faults.push(format!("{}: does not start with //!", path.display()));
        }
        if path.file_name().is_some_and(|n| n == "mod.rs") {
            faults.push(format!("{}: foo/mod.rs is foo.rs here", path.display()));
        }
        let is_test = path.file_name().is_some_and(|n| n.to_string_lossy().contains("test"));
        let code =
            text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines().count();
        if code > LINES_MAX && !is_test {
            faults.push(format!("{}: {code} lines, split it by idea", path.display()));
        }
        for (number, line) in text.lines().enumerate() {
            if line.ends_with(' ') || line.contains('\t') && !line.contains('"') {
                faults.push(format!("{}:{}: tab or trailing space", path.display(), number + 1));
            }
            // A build that another checkout uses again would look for its files in this one.
            if line.contains(concat!("env!(\"CARGO_", "MANIFEST_DIR")) {
                let fault = "the folder of the crate is known at run time only";
                faults.push(format!("{}:{}: {fault}", path.display(), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn metadata() -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Members of the workspace that are no part of the program or log nothing.
const SILENT: &[&str] = &["base2histogram", "benches", "xtask"];

#[test]
fn the_log_filter_names_every_member_of_the_workspace() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let names = packages.iter().map(|package| package["name"].as_str().unwrap());
    let members: BTreeSet<String> =
        names.filter(|name| !SILENT.contains(name)).map(|name| name.replace('-', "_")).collect();
    let logged = kube_lite::process::logging::crates().map(str::to_owned);
    assert_eq!(logged.collect::<BTreeSet<_>>(), members);
}

#[test]
fn members_import_only_whom_they_may() {
    let metadata = metadata();
    let members: BTreeSet<&str> = EDGES.iter().map(|(name, _)| *name).collect();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        if name == "kube-lite" {
            continue;
        }
        let allowed = EDGES
            .iter()
            .find(|(n, _)| *n == name)
            .unwrap_or_else(|| panic!("{name} is not in the table of edges"))
            .1;
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            let is_edge = members.contains(to)
                && dependency["kind"].is_null()
                && !dependency["path"].is_null();
            let is_allowed = allowed.contains(&to) || FOR_ALL.contains(&to);
            assert!(!is_edge || is_allowed, "{name} may not import {to}");
        }
    }
}
