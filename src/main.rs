//! The kube-lite executable: reads the command line, runs one command, maps its end to an exit code.

use std::io::Write;
use std::process::ExitCode;

use std::time::Duration;

use kube_lite::agent;
use kube_lite::allocator;
use kube_lite::catalogue::{self, Refusal};
use kube_lite::certificates;
use kube_lite::cli::{
    self, AgentArgs, CertificateArgs, Command, EncryptArgs, EtcdEnvArgs, GeneralArgs, Locations,
    MigrateArgs, ServerArgs, SnapshotCommandArgs, StatusArgs, StatusOutput, TokenArgs,
};
use kube_lite::etcd_env;
use kube_lite::logging;
use kube_lite::preflight::{self, Verdict};
use kube_lite::process;
use kube_lite::sealing;
use kube_lite::server::{self, config::Config, status};
use kube_lite::snapshots;
use kube_lite::token_command;

fn main() -> ExitCode {
    // The container runtime calls this same program as its network plugin.
    if net::is_cni_call() {
        return net::cni_main();
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "the one reader of the environment hands it to cli"
    )]
    let lookup = |name: &str| std::env::var(name).ok();
    let arguments: Vec<_> = std::env::args_os().collect();
    process::hide_arguments(&arguments);
    let arguments = process::reveal_arguments(arguments);
    process::conceal();
    let code = match cli::parse(arguments, lookup) {
        Ok(parsed) => run(parsed.command, &lookup),
        Err(cli::Stop::Text(text)) => print(&text, ExitCode::SUCCESS),
        Err(cli::Stop::Refused(refusal)) => refuse(&refusal),
    };
    logging::finish();
    code
}

/// Adds the variables that look like settings and are none.
fn note_variables(general: &mut GeneralArgs) {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    general.without_effect = cli::without_effect(names);
}

fn run(command: Command, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    match command {
        Command::Explain { id } => explain(id.as_deref()),
        Command::CheckConfig => check_config(lookup),
        Command::Server(args) => serve(*args, lookup),
        Command::Agent(args) => run_agent(*args, lookup),
        Command::Token(args) => token(&args, lookup),
        Command::EtcdSnapshot(args) => etcd_snapshot(&args, lookup),
        Command::SecretsEncrypt(args) => secrets_encrypt(&args, lookup),
        Command::Certificate(args) => certificate(&args, lookup),
        Command::Migrate(args) => migrate(&args, lookup),
        Command::Status(args) => show_status(&args, lookup),
        Command::EtcdEnv(args) => etcd_env(&args, lookup),
    }
}

fn locations(lookup: &dyn Fn(&str) -> Option<String>) -> Locations {
    Locations::new(nix::unistd::geteuid().is_root(), lookup)
}

/// Bytes of a thread's stack. YAML that is nested as deeply as is allowed takes more than 0.7 MB of it, and more than the usual 2 MB in a debug build; what is
/// not used costs addresses alone.
const STACK_BYTES: usize = 16 << 20;

/// What every long-running command and every client needs.
fn prepare(general: &GeneralArgs, lookup: &dyn Fn(&str) -> Option<String>) {
    allocator::prepare();
    logging::start(general.debug, general.verbosity, lookup("KUBE_LITE_LOG").as_deref());
    for setting in &general.without_effect {
        tracing::warn!(%setting, "setting has no effect");
    }
    install_tls();
}

/// The one TLS provider of the process.
fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn serve(mut args: ServerArgs, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    note_variables(&mut args.general);
    prepare(&args.general, lookup);
    let config = Config::new(args, &locations(lookup));
    if let Ok(Some((config, request))) = config.as_ref().map(|c| c.reset.as_ref().map(|r| (c, r))) {
        let done = base::runtime::block_on(STACK_BYTES, || server::reset::fetched(config, request))
            .unwrap_or_else(|error| Err(catalogue::RESET.refuse(error)));
        return match done.and_then(|request| server::reset::run(config, &request)) {
            Ok(text) => print(&text, ExitCode::SUCCESS),
            Err(refusal) => refuse(&refusal),
        };
    }
    to_the_end(config, server::run, catalogue::SERVER_STOPPED)
}

fn etcd_snapshot(args: &SnapshotCommandArgs, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    let defaults = snapshots::command::Defaults {
        data_dir: cli::data_dir(lookup).unwrap_or_else(|| locations(lookup).data),
        node: kube_lite::machine::host_name(),
    };
    let outcome = base::runtime::block_on(STACK_BYTES, || snapshots::run(&args.command, &defaults))
        .unwrap_or_else(|error| Err(catalogue::SNAPSHOT_COMMAND.refuse(error)));
    match outcome {
        Ok(text) => print(&text, ExitCode::SUCCESS),
        Err(refusal) => refuse(&refusal),
    }
}

fn secrets_encrypt(args: &EncryptArgs, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    let data_dir = cli::data_dir(lookup).unwrap_or_else(|| locations(lookup).data);
    let outcome = base::runtime::block_on(STACK_BYTES, || sealing::run(&args.command, &data_dir))
        .unwrap_or_else(|error| Err(catalogue::SEAL_COMMAND.refuse(error)));
    match outcome {
        Ok(text) => print(&text, ExitCode::SUCCESS),
        Err(refusal) => refuse(&refusal),
    }
}

fn certificate(args: &CertificateArgs, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    let data_dir = cli::data_dir(lookup).unwrap_or_else(|| locations(lookup).data);
    let outcome =
        base::runtime::block_on(STACK_BYTES, || certificates::run(&args.command, &data_dir))
            .unwrap_or_else(|error| Err(catalogue::CERTIFICATE_COMMAND.refuse(error)));
    match outcome {
        Ok(text) => print(&text, ExitCode::SUCCESS),
        Err(refusal) => refuse(&refusal),
    }
}

fn migrate(args: &MigrateArgs, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    let data_dir = args.data_dir.clone().or_else(|| cli::data_dir(lookup));
    let data_dir = data_dir.unwrap_or_else(|| locations(lookup).data);
    let outcome =
        base::runtime::block_on(STACK_BYTES, || server::reset::migrate::run(args, &data_dir))
            .unwrap_or_else(|error| Err(catalogue::MIGRATE.refuse(error)));
    match outcome {
        Ok(text) => print(&text, ExitCode::SUCCESS),
        Err(refusal) => refuse(&refusal),
    }
}

fn run_agent(mut args: AgentArgs, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    note_variables(&mut args.general);
    prepare(&args.general, lookup);
    let config = agent::config::Config::new(args, &locations(lookup));
    to_the_end(config, agent::run, catalogue::AGENT_STOPPED)
}

fn to_the_end<C: Send, F: Future<Output = Result<(), Refusal>>>(
    config: Result<C, Refusal>,
    run: impl FnOnce(C) -> F + Send,
    stopped: catalogue::Entry,
) -> ExitCode {
    let outcome = config.and_then(|config| {
        let ended = base::runtime::block_on(STACK_BYTES, || run(config));
        ended.unwrap_or_else(|error| Err(stopped.refuse(error)))
    });
    outcome.map_or_else(|refusal| refuse(&refusal), |()| ExitCode::SUCCESS)
}

fn token(args: &TokenArgs, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    install_tls();
    let settings = token_command::Settings {
        locations: locations(lookup),
        kubeconfig: lookup("KUBECONFIG").filter(|v| !v.is_empty()).map(Into::into),
        data_dir: cli::data_dir(lookup),
    };
    let outcome =
        base::runtime::block_on(STACK_BYTES, || token_command::run(&args.command, &settings))
            .unwrap_or_else(|error| Err(catalogue::TOKEN_COMMAND.refuse(error)));
    match outcome {
        Ok(text) => print(&text, ExitCode::SUCCESS),
        Err(refusal) => refuse(&refusal),
    }
}

fn show_status(args: &StatusArgs, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    let data_dir = args.data_dir.clone().unwrap_or_else(|| locations(lookup).data);
    let answer = base::runtime::block_on(STACK_BYTES, || async {
        match args.wait {
            Some(_) => status::wait_ready(&data_dir, Duration::from_secs(args.timeout)).await,
            None => status::ask(&data_dir).await,
        }
    });
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return refuse(&catalogue::SERVER_STOPPED.refuse(error)),
    };
    let Some(answer) = answer else {
        let refusal = catalogue::SERVER_UNREACHABLE
            .refuse(format!("no server answers in {}", data_dir.display()));
        return refuse(&Refusal { code: 2, ..refusal });
    };
    let text = match args.output {
        StatusOutput::Text => status::render(&answer),
        StatusOutput::Json => serde_json::to_string_pretty(&answer).unwrap_or_default() + "\n",
    };
    print(
        &text,
        if answer.verdict == status::Verdict::Ok || (args.wait.is_some() && answer.ready) {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(1)
        },
    )
}

fn etcd_env(args: &EtcdEnvArgs, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    let data_dir = args.data_dir.clone().unwrap_or_else(|| locations(lookup).data);
    let answer = match base::runtime::block_on(STACK_BYTES, || status::ask(&data_dir)) {
        Ok(answer) => answer,
        Err(error) => return refuse(&catalogue::SERVER_STOPPED.refuse(error)),
    };
    let Some(store) = answer.and_then(|answer| answer.store) else {
        let text = format!("no server answers in {}", data_dir.display());
        return refuse(&catalogue::SERVER_UNREACHABLE.refuse(text));
    };
    match etcd_env::render(&store.etcd, &data_dir) {
        Ok(text) => print(&text, ExitCode::SUCCESS),
        Err(refusal) => refuse(&refusal),
    }
}

fn explain(id: Option<&str>) -> ExitCode {
    let entries: Vec<_> = match id {
        None => catalogue::ALL.to_vec(),
        Some(id) => match catalogue::find(id) {
            Some(entry) => vec![entry],
            None => {
                return refuse(&catalogue::USAGE.refuse_usage(format!(
                    "there is no error {id:?}; `kube-lite explain` lists all"
                )));
            }
        },
    };
    let text: String = entries
        .iter()
        .map(|e| format!("{}: {}\n  why: {}\n  fix: {}\n", e.id, e.what, e.why, e.fix))
        .collect();
    print(&text, ExitCode::SUCCESS)
}

fn check_config(lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    let data_dir = cli::data_dir(lookup).unwrap_or_else(|| locations(lookup).data);
    let programs = preflight::Programs {
        bin_dir: data_dir.join("bin"),
        path: lookup("PATH").unwrap_or_default(),
    };
    let findings = preflight::check(None, &programs, false);
    let mut text = String::new();
    for finding in &findings {
        let mark = match finding.verdict {
            Verdict::Pass => "ok",
            Verdict::Warning => "warning",
            Verdict::Fail => "FAIL",
        };
        text.push_str(&format!("{mark:<8}{:<10}{}\n", finding.check, finding.detail));
        if finding.verdict != Verdict::Pass {
            text.push_str(&format!("        {} fix: {}\n", finding.entry.id, finding.entry.fix));
        }
    }
    let failed = findings.iter().any(|f| f.verdict == Verdict::Fail);
    print(&text, if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn refuse(refusal: &Refusal) -> ExitCode {
    logging::say(refusal);
    ExitCode::from(refusal.code)
}

fn print(text: &str, code: ExitCode) -> ExitCode {
    // A closed pipe (`| head`) is no error of ours.
    let _ = write!(std::io::stdout(), "{text}");
    code
}
