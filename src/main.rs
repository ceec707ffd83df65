//! The kube-lite executable: reads the command line, runs one command, maps its end to an exit code.

use std::io::Write;
use std::process::ExitCode;

use kube_lite::catalogue::{self, Refusal};
use kube_lite::cli::{self, Command};
use kube_lite::preflight::{self, Verdict};

fn main() -> ExitCode {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one reader of the environment hands it to cli"
    )]
    let lookup = |name: &str| std::env::var(name).ok();
    match cli::parse(std::env::args_os().collect(), lookup) {
        Ok(parsed) => run(parsed.command, &lookup),
        Err(cli::Stop::Text(text)) => print(&text, ExitCode::SUCCESS),
        Err(cli::Stop::Refused(refusal)) => refuse(&refusal),
    }
}

fn run(command: Command, lookup: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    match command {
        Command::Explain { id } => explain(id.as_deref()),
        Command::CheckConfig => check_config(&lookup("PATH").unwrap_or_default()),
        Command::Server(_) | Command::Status(_) => {
            refuse(&catalogue::USAGE.refuse_usage("this build has no server yet"))
        }
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

fn check_config(path: &str) -> ExitCode {
    let findings = preflight::check(None, path);
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
    let _ = writeln!(std::io::stderr(), "{refusal}");
    ExitCode::from(refusal.code)
}

fn print(text: &str, code: ExitCode) -> ExitCode {
    // A closed pipe (`| head`) is no error of ours.
    let _ = write!(std::io::stdout(), "{text}");
    code
}
