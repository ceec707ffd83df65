//! The settings of k3s and of its installer: what kube-lite does with each, compared with the names
//! that k3s has and with the table in `docs/operating/from-k3s.md`.

use std::fmt::Write;

use kube_lite::command_line::components::apiserver::APISERVER;
use kube_lite::command_line::components::controller_manager::{
    CLOUD_CONTROLLER_MANAGER, CONTROLLER_MANAGER,
};
use kube_lite::command_line::components::etcd::ETCD;
use kube_lite::command_line::components::kubelet::KUBELET;
use kube_lite::command_line::components::kubelet_config::{CONFIG_FIELDS, FIELDS};
use kube_lite::command_line::components::proxy::PROXY;
use kube_lite::command_line::components::scheduler::SCHEDULER;
use kube_lite::command_line::components::{Component, Effect};
use kube_lite::command_line::{FlagState, flag_state, variable_state};

/// Line that the generated part of the document follows.
const GENERATED: &str = "<!-- Generated from the program and install.sh: KUBE_LITE_UPDATE=1 cargo test --test it k3s -->";

/// Recorded names of flags, and of variables.
const FLAGS: &str = "tests/fixtures/k3s-flags.txt";
const VARIABLES: &str = "tests/fixtures/k3s-variables.txt";
/// Recorded names of variables of k3s's `install.sh`.
const INSTALL_VARIABLES: &str = "tests/fixtures/k3s-install-variables.txt";

/// The first words of the lines of a list, comments left out.
fn names(path: &str) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    assert!(text.starts_with("# k3s v1.36 "), "{path} begins with the version that it records");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// The state and the reason.
fn cells(state: FlagState) -> (&'static str, &'static str) {
    match state {
        FlagState::ActedOn => ("acted on", ""),
        FlagState::NoEffect(why) => ("no effect", why),
        FlagState::Refused(why) => ("refused", why),
    }
}

#[test]
fn every_k3s_setting_has_a_state() {
    let flags = names(FLAGS);
    assert!(flags.len() > 120, "only {} flags were found", flags.len());
    let unknown: Vec<String> = flags.into_iter().filter(|f| flag_state(f).is_none()).collect();
    assert!(unknown.is_empty(), "flags of k3s without a state: {unknown:?}");
    let variables = names(VARIABLES);
    let unknown: Vec<String> =
        variables.into_iter().filter(|v| variable_state(v).is_none()).collect();
    assert!(unknown.is_empty(), "variables of k3s without a state: {unknown:?}");
}

/// What `install.sh` does with a variable of k3s's installer.
#[derive(Debug, PartialEq, Eq)]
struct InstallVariable {
    name: String,
    state: &'static str,
    reason: String,
}

/// The text between two others.
fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(from)?;
    rest.split_once(to).map(|(inner, _)| inner)
}

/// The states of the variables `INSTALL_K3S_*`, read from the branches of `install.sh` that act on
/// them; they are the only place that names these variables.
fn install_variables() -> Vec<InstallVariable> {
    let script = std::fs::read_to_string("install.sh").unwrap();
    let branches =
        between(&script, "short=${name#INSTALL_K3S_}\n    case $short in\n", "    esac\n");
    let branches = branches.expect("install.sh has no case of the variables of k3s");
    let mut all = Vec::new();
    for branch in branches.split(";;") {
        let Some((patterns, body)) = branch.split_once(')') else { continue };
        let words = patterns.split(|c: char| c == '|' || c == '\\' || c.is_whitespace());
        let names: Vec<&str> = words.filter(|name| !name.is_empty()).collect();
        if names == ["*"] {
            assert!(
                body.contains("fail \"$name is not a variable"),
                "others are not refused: {body}"
            );
            continue;
        }
        let (state, reason) = if let Some(why) = between(body, "changes nothing: ", "\"") {
            ("no effect", why.to_owned())
        } else if let Some(why) = between(body, "is not supported: ", "\"") {
            let fix = body.split('"').nth(3).unwrap_or_else(|| panic!("no fix in {body}"));
            ("refused", format!("{why}; {fix}"))
        } else {
            assert!(
                body.contains("INSTALL_KUBE_LITE_$short=\\$$name"),
                "an unknown branch: {body}"
            );
            ("acted on", String::new())
        };
        let of = |name: &str| format!("INSTALL_K3S_{name}");
        let each = names.into_iter().map(of);
        all.extend(each.map(|name| InstallVariable { name, state, reason: reason.clone() }));
    }
    all
}

#[test]
fn every_variable_of_the_installer_of_k3s_has_one_state() {
    let mut ours: Vec<String> = install_variables().into_iter().map(|v| v.name).collect();
    ours.sort();
    let mut theirs = names(INSTALL_VARIABLES);
    assert!(theirs.len() > 15, "only {} variables were found", theirs.len());
    theirs.sort();
    assert_eq!(ours, theirs, "variables of install.sh, and of k3s's");
    // A variable that is acted on is one of install.sh, described at its head.
    let script = std::fs::read_to_string("install.sh").unwrap();
    let head: String = script.lines().take_while(|line| line.starts_with('#')).collect();
    for variable in install_variables().iter().filter(|variable| variable.state == "acted on") {
        let own = variable.name.replace("K3S", "KUBE_LITE");
        assert!(head.contains(&own), "{own} is not described at the head of install.sh");
    }
}

#[test]
fn a_k3s_flag_has_one_state() {
    let command = kube_lite::command_line::command();
    for name in ["server", "agent"] {
        let subcommand = command.find_subcommand(name).unwrap();
        for arg in subcommand.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(long) = arg.get_long() else { continue };
            assert_eq!(
                flag_state(long),
                Some(FlagState::ActedOn),
                "--{long} is a flag of kube-lite and also in unsupported.rs or no_effect.rs"
            );
        }
    }
}

fn effect_cells(effect: Effect) -> (String, &'static str) {
    match effect {
        Effect::Value | Effect::Bool | Effect::List => ("acted on".to_owned(), ""),
        Effect::NoEffect(why) => ("no effect".to_owned(), why),
        Effect::Refused(why) => ("refused".to_owned(), why),
        Effect::Fixed(is, why) => (format!("`{is}` only"), why),
    }
}

fn table() -> String {
    let mut out = String::from("\n| flag of k3s | state | reason |\n|---|---|---|\n");
    for name in names(FLAGS) {
        let (state, why) = flag_state(&name).map_or(("unknown", ""), cells);
        let _ = writeln!(out, "| `--{name}` | {state} | {} |", why.replace('|', "\\|"));
    }
    out.push_str("\n| variable of k3s | flag | state | reason |\n|---|---|---|---|\n");
    for name in names(VARIABLES) {
        let (state, flag) = variable_state(&name).unzip();
        let flag = flag.flatten().map(|flag| format!("`--{flag}`")).unwrap_or_default();
        let (state, why) = state.map_or(("unknown", ""), cells);
        let _ = writeln!(out, "| `{name}` | {flag} | {state} | {} |", why.replace('|', "\\|"));
    }
    out.push_str("\n| variable of k3s's installer | state | reason |\n|---|---|---|\n");
    let mut variables = install_variables();
    let order = names(INSTALL_VARIABLES);
    variables.sort_by_key(|variable| order.iter().position(|name| *name == variable.name));
    for InstallVariable { name, state, reason } in variables {
        let _ = writeln!(out, "| `{name}` | {state} | {} |", reason.replace('|', "\\|"));
    }
    for component in [
        &APISERVER,
        &CONTROLLER_MANAGER,
        &SCHEDULER,
        &CLOUD_CONTROLLER_MANAGER,
        &ETCD,
        &KUBELET,
        &PROXY,
    ] {
        let _ = writeln!(out, "\n| `--{}` | state | reason |\n|---|---|---|", component.flag);
        for (name, effect) in component.arguments {
            let (state, why) = effect_cells(*effect);
            let _ = writeln!(out, "| `{name}` | {state} | {} |", why.replace('|', "\\|"));
        }
    }
    out.push_str("\n| field of KubeletConfiguration | state | reason |\n|---|---|---|\n");
    for field in FIELDS {
        let name = field.argument.unwrap_or(field.path);
        let component: &Component =
            if field.argument.is_some() { &KUBELET } else { &CONFIG_FIELDS };
        let effect = component.arguments.iter().find(|(known, _)| *known == name);
        let (state, why) =
            effect.map_or_else(Default::default, |(_, effect)| effect_cells(*effect));
        let _ = writeln!(out, "| `{}` | {state} | {} |", field.path, why.replace('|', "\\|"));
    }
    out
}

#[test]
fn the_table_of_k3s_settings_is_that_of_the_command_line() {
    let path = "docs/operating/from-k3s.md";
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (head, body) =
        text.split_once(GENERATED).unwrap_or_else(|| panic!("{path} lacks the line {GENERATED}"));
    let generated = table();
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
        "{path} is not what the program does, run KUBE_LITE_UPDATE=1 cargo test --test it k3s: \
         {differs:?}"
    );
}
