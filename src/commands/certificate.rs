//! `kube-lite certificate`: works on files of the data directory, or sends a request to the server.

use std::path::Path;

use cluster::rotation::{Files, RotationSource};

use super::{Command, Environment, Output, block_on};
use crate::certificates::socket::send;
use crate::certificates::{RotateCaRequest, check, rotate};
use crate::command_line::{CertificateArgs, CertificateCommand, RotateCaArgs};
use crate::control_socket::Reply;
use crate::error_catalogue::{BAD_VALUE, CERTIFICATE_COMMAND, CommandError, SERVER_UNREACHABLE};

impl Command for CertificateArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        let data_dir = environment.data_dir(None);
        block_on(CERTIFICATE_COMMAND, || run(&self.command, &data_dir)).map(Output::from)
    }
}

/// Runs a subcommand; its output.
async fn run(command: &CertificateCommand, data_dir: &Path) -> Result<String, CommandError> {
    match command {
        CertificateCommand::Check(args) => {
            check::run(args.data_dir.as_deref().unwrap_or(data_dir), args.output)
        }
        CertificateCommand::Rotate(args) => {
            rotate::run(args.data_dir.as_deref().unwrap_or(data_dir), &args.service)
        }
        CertificateCommand::RotateCa(args) => {
            rotate_ca(args, args.data_dir.as_deref().unwrap_or(data_dir)).await
        }
    }
}

async fn rotate_ca(args: &RotateCaArgs, data_dir: &Path) -> Result<String, CommandError> {
    let wish = match &args.path {
        Some(path) => RotationSource::Given(read_files(path, data_dir)?),
        None => RotationSource::Made,
    };
    let request = RotateCaRequest { wish, force: args.force };
    let response = send(data_dir, &request).await.map_err(|e| {
        CERTIFICATE_COMMAND.error(format!(
            "the server stopped responding: {e}; run the same command again once it runs"
        ))
    })?;
    match response {
        Some(Reply::Ok(files)) => Ok(render(&files, args.force, data_dir)),
        Some(Reply::Err(errors)) => Err(CERTIFICATE_COMMAND.error(errors.join("\n  "))),
        None => {
            let text = format!("no server answers in {}", data_dir.display());
            Err(SERVER_UNREACHABLE.error(text))
        }
    }
}

/// The CAs and keys in the directory of `--path`.
fn read_files(path: &Path, data_dir: &Path) -> Result<Files, CommandError> {
    let bad = |why: String| BAD_VALUE.usage_error(format!("--path={}: {why}", path.display()));
    let tls = path.join("tls");
    if !tls.is_dir() {
        return Err(bad(
            "it has no folder tls, which must contain the new files with the names of those in server/tls of the data directory".into(),
        ));
    }
    let same =
        |a: &Path, b: &Path| a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b));
    if same(&tls, &data_dir.join("server/tls")) {
        return Err(bad("these files are in use; put the new ones into another directory".into()));
    }
    let files = Files::read(&tls).map_err(|e| bad(e.to_string()))?;
    if files.names().next().is_none() {
        return Err(bad(
            "its folder tls has none of server-ca, client-ca, request-header-ca, etcd/server-ca, etcd/peer-ca (.crt and .key), service.key".into(),
        ));
    }
    Ok(files)
}

/// The report about staged files.
fn render(files: &[String], force: bool, data_dir: &Path) -> String {
    let token = data_dir.join("server/token");
    let mut text = format!(
        "The new files are valid and take effect at the next start of the server:\n  {}\nRestart the servers one after the other: systemctl restart kube-lite. Pods keep running.\n",
        files.join("\n  ")
    );
    let has = |name: &str| files.iter().any(|file| file == name);
    text.push_str(match (force, has("server-ca.crt") || has("client-ca.crt")) {
        (false, true) => "Agents receive the new CAs automatically. Kubeconfigs and certificates of the current CAs stay valid until the next rotation.\n",
        (true, true) => "With --force the new CAs may not be signed by those in use: agents that do not trust them report it and must join again, and clients need the new kubeconfig.\n",
        (_, false) => "",
    });
    if has("server-ca.crt") {
        text.push_str(&format!(
            "The token in {} names the new CA then{}.\n",
            token.display(),
            if force { "" } else { "; tokens that name the current one stay valid as long" }
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run_words(data: &Path, words: &[&str]) -> String {
        let argv = ["kube-lite", "certificate"].iter().chain(words).map(Into::into).collect();
        match crate::command_line::parse(argv, |_| None) {
            Ok(crate::command_line::Cli {
                command: crate::command_line::Command::Certificate(args),
            }) => match run(&args.command, data).await {
                Ok(text) => text,
                Err(command_error) => command_error.to_string(),
            },
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn invalid_directories_are_rejected_before_the_server_is_called() {
        let data = tempfile::tempdir().unwrap();
        let error = run_words(data.path(), &["rotate-ca"]).await;
        assert!(error.contains("KL0402") && error.contains("no server answers in"), "{error}");
        let given = tempfile::tempdir().unwrap();
        let path = format!("--path={}", given.path().display());
        let error = run_words(data.path(), &["rotate-ca", &path]).await;
        assert!(error.contains("KL0104") && error.contains("it has no folder tls"), "{error}");
        std::fs::create_dir(given.path().join("tls")).unwrap();
        let error = run_words(data.path(), &["rotate-ca", &path]).await;
        assert!(error.contains("has none of server-ca"), "{error}");
        std::fs::write(given.path().join("tls/client-ca.key"), "x".repeat(300_000)).unwrap();
        let error = run_words(data.path(), &["rotate-ca", &path]).await;
        assert!(error.contains("client-ca.key is larger than"), "{error}");
        let tls = data.path().join("server/tls");
        cluster::certs::ensure(data.path(), &cluster::certs::Names::default()).unwrap();
        let path = format!("--path={}", tls.parent().unwrap().display());
        let error = run_words(data.path(), &["rotate-ca", &path]).await;
        assert!(error.contains("these files are in use"), "{error}");
    }

    #[test]
    fn the_report_names_the_next_steps_and_what_stays_valid() {
        let names = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let data = Path::new("/var/lib/kube-lite");
        let text = render(&names(&["server-ca.crt", "server-ca.key"]), false, data);
        assert!(text.contains("Agents receive the new CAs automatically"), "{text}");
        assert!(text.contains("tokens that name the current one stay valid"), "{text}");
        let text = render(&names(&["server-ca.crt", "server-ca.key"]), true, data);
        assert!(text.contains("must join again") && !text.contains("stay valid"), "{text}");
        let text = render(&names(&["service.key"]), false, data);
        assert!(!text.contains("gents") && text.contains("systemctl restart"), "{text}");
    }
}
