//! Merges flags, environment variables and configuration files and parses the result.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};

use super::args::{self, Cli, Command};
use super::environment::{self, Variable};
use super::flags::Flags;
use super::{config_file, old_names, unsupported};
use crate::error_catalogue::{CommandError, UNSUPPORTED_FLAG, USAGE};

/// Why parsing does not return a command.
#[derive(Debug)]
pub enum Stop {
    /// `--help` or `--version`: text for standard output.
    Text(String),
    /// An error.
    Error(Box<CommandError>),
}

impl From<CommandError> for Stop {
    fn from(command_error: CommandError) -> Self {
        Self::Error(Box::new(command_error))
    }
}

/// Parses `argv` (program name first); variables come from `lookup`.
///
/// # Errors
/// A text to print, or an error with exit code 64.
pub fn parse(argv: Vec<OsString>, lookup: impl Fn(&str) -> Option<String>) -> Result<Cli, Stop> {
    let command = args::command();
    let fix = help_hint(&command, &argv);
    let stop = |error| stop(error, &fix);
    let mut notes = Notes::default();
    let argv = old_names::replace(argv, &mut notes.warnings);
    let typed = command.clone().try_get_matches_from(argv.clone()).map_err(stop)?;
    // Only `server` and `agent` read all variables and configuration files.
    let Some((name @ ("server" | "agent"), given)) = typed.subcommand() else {
        let mut cli = Cli::from_arg_matches(&typed).map_err(stop)?;
        if let Command::EtcdSnapshot(args) = &mut cli.command {
            environment::fill_s3(&mut args.command.folder_mut().s3, lookup);
        }
        return Ok(cli);
    };
    let flags = Flags::of(&command, name);
    flags.refuse_typed(given)?;
    notes.warnings.extend(flags.overridden(&argv));
    let merged = merge(argv, given, &flags, environment::read(&lookup), &mut notes)?;
    let subcommand = command.find_subcommand(name).cloned().unwrap_or_default();
    let matches = command.try_get_matches_from(merged).map_err(stop)?;
    let mut in_effect = BTreeMap::new();
    if let Some((_, matches)) = matches.subcommand() {
        flags.refuse_values(matches)?;
        notes.without_effect.extend(flags.without_effect(matches));
        in_effect = super::flags::in_effect(&subcommand, matches);
    }
    let mut cli = Cli::from_arg_matches(&matches).map_err(stop)?;
    if let Command::Server(args) = &mut cli.command {
        environment::fill_proxies(&mut args.snapshots.s3, lookup);
    }
    if let Some(general) = cli.command.general_mut() {
        general.without_effect = notes.without_effect;
        general.warnings = notes.warnings;
        general.in_effect = Arc::new(in_effect);
    }
    Ok(cli)
}

/// Sentences for the log and `kube-lite status`.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Settings that change nothing, each with the reason.
    pub(super) without_effect: Vec<String>,
    /// Old names, and settings that another one overrides.
    pub(super) warnings: Vec<String>,
}

/// The arguments of `server` or `agent` with those of variables and configuration files. `given`
/// are the arguments that were typed.
fn merge(
    argv: Vec<OsString>,
    given: &ArgMatches,
    flags: &Flags,
    mut variables: Vec<Variable>,
    notes: &mut Notes,
) -> Result<Vec<OsString>, Stop> {
    let is_typed = |flag: &str| {
        let source = || given.value_source(&flags.id(flag));
        flags.is_known(flag) && source() == Some(ValueSource::CommandLine)
    };
    for variable in variables.iter().filter(|variable| variable.value != "false") {
        if let Some(why) = unsupported::reason(variable.flag) {
            // The value may be a secret.
            let text = format!("{} is not supported: {why}", variable.name);
            return Err(UNSUPPORTED_FLAG.usage_error(text).into());
        }
    }
    // Variables of the other command have no effect.
    variables.retain(|variable| {
        let is_ours = flags.is_known(variable.flag);
        if !is_ours {
            notes.without_effect.push(flags.of_other_command(&variable.name));
        }
        is_ours
    });
    for variable in &variables {
        notes.warnings.extend(variable.warning.clone());
        if is_typed(variable.flag) {
            let text =
                format!("{}: --{} on the command line applies", variable.name, variable.flag);
            notes.warnings.push(text);
        }
    }
    let from_variable =
        |flag: &str| variables.iter().find(|v| v.flag == flag).map(|v| v.value.clone());

    let file = if is_typed("config") { None } else { from_variable("config") };
    let is_required = is_typed("config") || file.is_some();
    let file = file
        .map(PathBuf::from)
        .or_else(|| given.get_one::<PathBuf>("config").cloned())
        .unwrap_or_default();
    let values = config_file::read(&file, is_required, flags, notes)?;

    // Lowest precedence first, since the parser takes the last value. A flag from the command line
    // or a variable replaces a whole list.
    let mut merged: Vec<OsString> = argv.iter().take(2).cloned().collect();
    for (flag, list) in &values {
        if !is_typed(flag) && from_variable(flag).is_none() {
            merged.extend(list.iter().map(|v| OsString::from(format!("--{flag}={v}"))));
        }
    }
    for Variable { flag, value, .. } in &variables {
        if !is_typed(flag) {
            merged.push(format!("--{flag}={value}").into());
        }
    }
    merged.extend(argv.into_iter().skip(2));
    Ok(merged)
}

/// The command that prints the help of the subcommand in `argv`.
fn help_hint(command: &clap::Command, argv: &[OsString]) -> String {
    let mut path = vec![command.get_name()];
    let mut current = command;
    for word in argv.iter().skip(1) {
        let Some(subcommand) = word.to_str().and_then(|word| current.find_subcommand(word)) else {
            break;
        };
        path.push(subcommand.get_name());
        current = subcommand;
    }
    format!("Run `{} --help` for the flags and their defaults.", path.join(" "))
}

/// The text or error for which clap stopped; `fix` is the fix of an unknown flag or command.
fn stop(error: clap::Error, fix: &str) -> Stop {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return Stop::Text(error.to_string());
    }
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let message: Vec<&str> = lines
        .iter()
        .take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more"))
        .copied()
        .collect();
    USAGE.usage_error(message.join(" ").trim_start_matches("error: ")).with_fix(fix).into()
}

#[cfg(test)]
mod tests {
    use super::super::args::{AgentArgs, Command, ServerArgs};
    use super::*;

    fn server(argv: &[&str], variables: &[(&str, &str)]) -> Result<ServerArgs, String> {
        let argv = ["kube-lite", "server"].iter().chain(argv).map(OsString::from).collect();
        let lookup =
            |name: &str| variables.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned());
        match parse(argv, lookup) {
            Ok(Cli { command: Command::Server(args) }) => Ok(*args),
            Ok(_) => Err("another command".into()),
            Err(Stop::Error(command_error)) => Err(command_error.to_string()),
            Err(Stop::Text(text)) => Err(text),
        }
    }

    fn agent(argv: &[&str], variables: &[(&str, &str)]) -> Result<AgentArgs, String> {
        let argv = ["kube-lite", "agent", "--config=/dev/null"].iter().chain(argv);
        let lookup =
            |name: &str| variables.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned());
        match parse(argv.map(OsString::from).collect(), lookup) {
            Ok(Cli { command: Command::Agent(args) }) => Ok(*args),
            Ok(_) => Err("another command".into()),
            Err(Stop::Error(command_error)) => Err(command_error.to_string()),
            Err(Stop::Text(text)) => Err(text),
        }
    }

    #[test]
    fn agents_accept_flags_and_variables_of_k3s_without_logging_the_token() {
        let variables =
            [("K3S_URL", "https://a:6443"), ("K3S_TOKEN", "hush"), ("K3S_KUBECONFIG_MODE", "644")];
        let args = agent(&[], &variables).unwrap();
        assert_eq!(args.server.as_deref(), Some("https://a:6443"));
        assert!(args.token.as_ref().is_some_and(|t| t.reveal() == "hush"));
        assert!(!format!("{args:?}").contains("hush"));
        let args = agent(&["-s", "https://b", "-t", "x"], &variables).unwrap();
        assert_eq!((args.server.as_deref(), args.insecure_join), (Some("https://b"), false));
        assert!(args.token.is_some_and(|t| t.reveal() == "x"));
        assert!(agent(&["--cluster-cidr=10.0.0.0/8"], &[]).unwrap_err().contains("--cluster-cidr"));
        let args = server(&["--config=/dev/null"], &variables).unwrap();
        assert_eq!(args.server.as_deref(), Some("https://a:6443"));
        assert!(!format!("{args:?}").contains("hush"));
    }

    #[test]
    fn flags_in_effect_have_their_values_and_no_secrets() {
        let variables = [("K3S_TOKEN", "hush")];
        let datastore = "--datastore-endpoint=mysql://user:hush@tcp(db)/k3s";
        let header = "--kubelet-arg=manifest-url-header=Authorization:Bearer hush";
        let argv = ["--config=/dev/null", "--tls-san=a,b", "--debug", datastore, header];
        let flags = server(&argv, &variables).unwrap().general.in_effect;
        let value = |name: &str| flags.get(name).map(String::as_str);
        assert_eq!(value("tls-san"), Some("[a,b]"));
        assert_eq!(value("cluster-cidr"), Some("[10.42.0.0/16]"));
        assert_eq!((value("debug"), value("disable-agent")), (Some("true"), Some("false")));
        assert_eq!((value("https-listen-port"), value("node-name")), (Some("6443"), Some("")));
        for name in ["token", "agent-token", "datastore-endpoint", "etcd-s3-secret-key"] {
            assert_eq!(value(name), Some("CLASSIFIED"), "{name}");
        }
        assert_eq!(value("kubelet-arg"), Some("[manifest-url-header=CLASSIFIED]"));
        assert_eq!(value("rootless"), None, "a flag of k3s without a counterpart");
        assert!(flags.values().all(|value| !value.contains("hush")));
    }

    #[test]
    fn variables_of_k3s_are_applied_or_rejected_by_name() {
        let file = "--config=/dev/null";
        for (value, want) in [("true", true), ("1", true), ("0", false)] {
            let args = server(&[file], &[("K3S_CLUSTER_INIT", value)]).unwrap();
            assert_eq!(args.cluster_init, want, "{value}");
        }
        for (name, value) in
            [("K3S_ROOTLESS", "true"), ("K3S_VPN_AUTH", "name=tailscale,joinKey=hush")]
        {
            let refused = server(&[file], &[(name, value)]).unwrap_err();
            let want = format!("error[KL0102]: {name} is not supported: ");
            assert!(refused.starts_with(&want) && !refused.contains("hush"), "{refused}");
            assert!(agent(&[], &[(name, "")]).is_ok(), "{name}");
        }
        assert!(server(&[file], &[("K3S_ROOTLESS", "false")]).is_ok());
        for (value, want) in [("true", true), ("false", false)] {
            let args = server(&[file], &[("K3S_SELINUX", value)]).unwrap();
            assert_eq!(args.node.selinux, want);
        }
        let variables = [
            ("K3S_SYSTEM_DEFAULT_REGISTRY", "r.example"),
            ("K3S_P2P_PORT", "5002"),
            ("K3S_P2P_ENABLE_LATEST", "1"),
        ];
        let args = server(&[file], &variables).unwrap();
        let registry = args.cluster.registry.system_default_registry;
        assert_eq!(registry.as_deref(), Some("r.example"));
        assert_eq!(args.node.images.embedded_registry_port, 5002);
        assert!(args.node.images.embedded_registry_latest);
        // An agent ignores variables of the server.
        assert!(agent(&[], &[("K3S_CLUSTER_INIT", "true")]).is_ok());
    }

    #[test]
    fn variables_without_effect_are_reported() {
        let names = ["K3S_TOKEN", "K3S_TOKNE", "KUBE_LITE_LOG", "K3S_ROOTLESS_MTU", "HOME"];
        assert_eq!(
            environment::without_effect(names.into_iter().map(str::to_owned)),
            [
                "K3S_ROOTLESS_MTU: kube-lite has no rootless mode",
                "K3S_TOKNE: is not a setting of kube-lite"
            ]
        );
    }

    /// The arguments of a server with a configuration file of this text.
    fn server_with(text: &str, argv: &[&str]) -> Result<ServerArgs, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        std::fs::write(&file, text).unwrap();
        let config = format!("--config={}", file.display());
        server(&[&[config.as_str()], argv].concat(), &[])
    }

    #[test]
    fn flags_without_effect_are_accepted_and_reported_wherever_they_are_set() {
        let why = "an agent connects to servers directly, without a local load balancer";
        let want = [format!("--lb-server-port: {why}")];
        let file = "--config=/dev/null";
        let typed = server(&[file, "--lb-server-port", "6444"], &[]).unwrap();
        assert_eq!(typed.general.without_effect, want);
        let variable = server(&[file], &[("K3S_LB_SERVER_PORT", "6444")]).unwrap();
        assert_eq!(variable.general.without_effect, want);
        let file = server_with("lb-server-port: 6444\nkine-tls: true\n", &[]).unwrap();
        assert_eq!(file.general.without_effect.len(), 2, "{:?}", file.general.without_effect);
        assert!(server_with("", &[]).unwrap().general.without_effect.is_empty());
    }

    #[test]
    fn refused_flags_are_refused_in_files_and_false_is_no_request() {
        let refused = server_with("# k3s\nrootless: true\n", &[]).unwrap_err();
        assert!(refused.contains("error[KL0102]") && refused.contains("line 2: rootless is not"));
        assert!(server_with("rootless: false\n", &["--rootless=false"]).is_ok());
        assert!(server_with("", &["--rootless"]).unwrap_err().contains("KL0102"));
    }

    #[test]
    fn old_names_apply_with_a_warning() {
        let args = server_with("no-deploy: [traefik]\nno-flannel: true\n", &[]).unwrap();
        assert_eq!(args.disable, ["traefik"]);
        assert_eq!(args.node.flannel_backend.as_deref(), Some("none"));
        assert_eq!(args.general.warnings.len(), 2, "{:?}", args.general.warnings);
        let variables = [("K3S_CLUSTER_SECRET", "hush")];
        let args = server(&["--config=/dev/null", "--no-deploy", "coredns"], &variables).unwrap();
        assert_eq!(args.disable, ["coredns"]);
        assert!(args.token.is_some_and(|token| token.reveal() == "hush"));
        assert_eq!(
            args.general.warnings,
            [
                "--no-deploy is an old name of --disable, use that",
                "K3S_CLUSTER_SECRET is an old name of K3S_TOKEN, use that"
            ]
        );
    }

    #[test]
    fn settings_that_another_one_overrides_are_named_without_their_values() {
        let argv = ["--config=/dev/null", "--token=a-secret", "-t", "b-secret", "--node-name=n"];
        let variables = [("K3S_NODE_NAME", "m"), ("K3S_URL", "a"), ("KUBE_LITE_URL", "b")];
        let args = server(&argv, &variables).unwrap();
        let mut warnings = args.general.warnings;
        warnings.sort();
        assert_eq!(
            warnings,
            [
                "--token is given 2 times, the last one applies; remove the others",
                "K3S_NODE_NAME: --node-name on the command line applies",
                "K3S_URL: KUBE_LITE_URL applies, remove one",
            ]
        );
        let once = ["--config=/dev/null", "--node-label=a=1", "--node-label=b=2"];
        assert!(server(&once, &[]).unwrap().general.warnings.is_empty());
    }

    #[test]
    fn a_device_is_one_value_with_its_option() {
        let want = ["path:/dev/fuse=fuse,count=4", "usb:1234:abcd=x"];
        let file = format!("device:\n- {}\n- {}\n", want[0], want[1]);
        assert_eq!(server_with(&file, &[]).unwrap().node.device, want);
        let argv = want.map(|value| format!("--device={value}"));
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        assert_eq!(server_with("", &argv).unwrap().node.device, want);
    }

    #[test]
    fn an_agent_accepts_a_configuration_file_of_a_server() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        std::fs::write(&file, "cluster-cidr: 10.0.0.0/16\nnode-name: a\n").unwrap();
        let args = agent(&[&format!("--config={}", file.display())], &[]).unwrap();
        assert_eq!(args.node.node_name.as_deref(), Some("a"));
        let [note] = args.general.without_effect.as_slice() else { panic!("{args:?}") };
        assert!(
            note.ends_with("line 1: cluster-cidr: is a setting of servers, and this is an agent")
        );
        let args = agent(&[], &[("K3S_CLUSTER_INIT", "true")]).unwrap();
        assert_eq!(
            args.general.without_effect,
            ["K3S_CLUSTER_INIT: is a setting of servers, and this is an agent"]
        );
    }

    #[test]
    fn flags_take_precedence_over_variables_and_variables_over_files() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        std::fs::write(&file, "node-name: file\nhttps-listen-port: 7001\nnode-label:\n- a=1\n- b=2\ndisable-agent: true\n").unwrap();
        std::fs::create_dir(directory.path().join("config.yaml.d")).unwrap();
        std::fs::write(
            directory.path().join("config.yaml.d/1.yaml"),
            "node-label+: [c=3]\ntls-san: x\n",
        )
        .unwrap();
        let config = format!("--config={}", file.display());
        let args = server(&[&config], &[("K3S_NODE_NAME", "variable")]).unwrap();
        assert_eq!(
            (args.node.node_name.as_deref(), args.https_listen_port, args.disable_agent),
            (Some("variable"), 7001, true)
        );
        assert_eq!(
            (args.node.node_label.join(" "), args.tls_san.join(" ")),
            ("a=1 b=2 c=3".to_owned(), "x".to_owned())
        );
        let args = server(
            &[&config, "--node-name=flag", "--node-label=z=9", "--disable-agent=false"],
            &[("KUBE_LITE_NODE_NAME", "v")],
        )
        .unwrap();
        assert_eq!(
            (args.node.node_name.as_deref(), args.node.node_label.join(" "), args.disable_agent),
            (Some("flag"), "z=9".to_owned(), false)
        );
    }

    #[test]
    fn unknown_and_unsupported_flags_and_keys_are_rejected_by_name() {
        assert!(server(&["--data-dri=/x"], &[]).unwrap_err().contains("--data-dir"));
        let refused = server(&["--rootless=true"], &[]).unwrap_err();
        assert!(
            refused.starts_with(
                "error[KL0102]: --rootless is not supported: a node needs root; a server with"
            ),
            "{refused}"
        );
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        std::fs::write(&file, "# comment\nnode-nmae: x\n").unwrap();
        let refused = server(&[&format!("--config={}", file.display())], &[]).unwrap_err();
        assert!(
            refused.contains("line 2: unknown key \"node-nmae\", did you mean \"node-name\"?"),
            "{refused}"
        );
    }

    #[test]
    fn the_fix_of_a_usage_error_names_the_help_of_the_subcommand() {
        for (words, help) in [
            (&["server", "--nope"][..], "kube-lite server --help"),
            (&["agent", "--nope"], "kube-lite agent --help"),
            (&["token", "create", "--nope"], "kube-lite token create --help"),
            (&["etcd-snapshot", "ls", "--nope"], "kube-lite etcd-snapshot ls --help"),
            (&["nope"], "kube-lite --help"),
        ] {
            let argv = ["kube-lite"].iter().chain(words).map(OsString::from).collect();
            let Err(Stop::Error(command_error)) = parse(argv, |_| None) else {
                panic!("{words:?}")
            };
            let fix = format!("fix: Run `{help}` for the flags and their defaults.");
            assert!(command_error.to_string().ends_with(&fix), "{command_error}");
        }
    }

    #[test]
    fn a_required_config_file_must_exist() {
        assert!(server(&["--config=/nonexistent/x.yaml"], &[]).unwrap_err().contains("KL0103"));
    }
}
