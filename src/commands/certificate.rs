//! The commands: what is typed becomes a question to the server that runs here, or work on its files.

use std::path::Path;

use cluster::rotation::{Files, RotationSource};

use super::{Command, Environment, Output, block_on};
use crate::certificates::socket::ask;
use crate::certificates::{Question, check, renew};
use crate::command_line::CertificateArgs;
use crate::command_line::{CertificateCommand, RotateCaArgs};
use crate::error_catalogue::{BAD_VALUE, CERTIFICATE_COMMAND, Refusal, SERVER_UNREACHABLE};

impl Command for CertificateArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, Refusal> {
        let data_dir = environment.data_dir(None);
        block_on(CERTIFICATE_COMMAND, || run(&self.command, &data_dir)).map(Output::from)
    }
}

/// Runs one command; its output.
///
/// # Errors
/// What is wrong, and where.
async fn run(command: &CertificateCommand, data_dir: &Path) -> Result<String, Refusal> {
    match command {
        CertificateCommand::Check(args) => {
            check::run(args.data_dir.as_deref().unwrap_or(data_dir), args.output)
        }
        CertificateCommand::Rotate(args) => {
            renew::run(args.data_dir.as_deref().unwrap_or(data_dir), &args.service)
        }
        CertificateCommand::RotateCa(args) => {
            rotate_ca(args, args.data_dir.as_deref().unwrap_or(data_dir)).await
        }
    }
}

async fn rotate_ca(args: &RotateCaArgs, data_dir: &Path) -> Result<String, Refusal> {
    let wish = match &args.path {
        Some(path) => RotationSource::Given(given(path, data_dir)?),
        None => RotationSource::Made,
    };
    let question = Question { wish, force: args.force };
    let answer = ask(data_dir, &question).await.map_err(|e| {
        CERTIFICATE_COMMAND.refuse(format!(
            "the server stopped answering: {e}; run the same command again once it runs"
        ))
    })?;
    let Some(answer) = answer else {
        let text = format!("no server answers in {}", data_dir.display());
        return Err(SERVER_UNREACHABLE.refuse(text));
    };
    let files = answer.map_err(|wrong| CERTIFICATE_COMMAND.refuse(wrong.join("\n  ")))?;
    Ok(text_of(&files, args.force, data_dir))
}

/// What is in the directory.
fn given(path: &Path, data_dir: &Path) -> Result<Files, Refusal> {
    let bad = |why: String| BAD_VALUE.refuse_usage(format!("--path={}: {why}", path.display()));
    let tls = path.join("tls");
    if !tls.is_dir() {
        return Err(bad(
            "there is no folder tls in it; the new files stand there as those in use do in server/tls of the data directory".into(),
        ));
    }
    let same =
        |a: &Path, b: &Path| a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b));
    if same(&tls, &data_dir.join("server/tls")) {
        return Err(bad(
            "these files are in use; give the new ones in a directory of their own".into()
        ));
    }
    let files = Files::read(&tls).map_err(|e| bad(e.to_string()))?;
    if files.names().next().is_none() {
        return Err(bad(
            "tls in it has none of server-ca, client-ca, request-header-ca, etcd/server-ca, etcd/peer-ca (.crt and .key), service.key".into(),
        ));
    }
    Ok(files)
}

fn text_of(files: &[String], force: bool, data_dir: &Path) -> String {
    let token = data_dir.join("server/token");
    let mut text = format!(
        "These files fit and change when the server starts next:\n  {}\nRestart it, of several servers one after the other: systemctl restart kube-lite. Pods go on.\n",
        files.join("\n  ")
    );
    let has = |name: &str| files.iter().any(|file| file == name);
    text.push_str(match (force, has("server-ca.crt") || has("client-ca.crt")) {
        (false, true) => "Agents take the new CAs by themselves, kubeconfigs and certificates of the present ones stay good until the CAs are changed again.\n",
        (true, true) => "By --force they may not be linked to those in use: agents that do not believe the new ones say so and have to join anew, clients need the new kubeconfig.\n",
        (_, false) => "",
    });
    if has("server-ca.crt") {
        text.push_str(&format!(
            "The token in {} names the new CA from then on{}.\n",
            token.display(),
            if force { "" } else { "; tokens that name the present one stay good as long" }
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ran(data: &Path, words: &[&str]) -> String {
        let argv = ["kube-lite", "certificate"].iter().chain(words).map(Into::into).collect();
        match crate::command_line::parse(argv, |_| None) {
            Ok(crate::command_line::Cli {
                command: crate::command_line::Command::Certificate(args),
            }) => match run(&args.command, data).await {
                Ok(text) => text,
                Err(refusal) => refusal.to_string(),
            },
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_cannot_be_meant_is_refused_before_a_server_is_asked() {
        let data = tempfile::tempdir().unwrap();
        let told = ran(data.path(), &["rotate-ca"]).await;
        assert!(told.contains("KL0402") && told.contains("no server answers in"), "{told}");
        let given = tempfile::tempdir().unwrap();
        let path = format!("--path={}", given.path().display());
        let told = ran(data.path(), &["rotate-ca", &path]).await;
        assert!(told.contains("KL0104") && told.contains("there is no folder tls"), "{told}");
        std::fs::create_dir(given.path().join("tls")).unwrap();
        let told = ran(data.path(), &["rotate-ca", &path]).await;
        assert!(told.contains("has none of server-ca"), "{told}");
        std::fs::write(given.path().join("tls/client-ca.key"), "x".repeat(300_000)).unwrap();
        let told = ran(data.path(), &["rotate-ca", &path]).await;
        assert!(told.contains("client-ca.key is larger than"), "{told}");
        let tls = data.path().join("server/tls");
        cluster::certs::ensure(data.path(), &cluster::certs::Names::default()).unwrap();
        let path = format!("--path={}", tls.parent().unwrap().display());
        let told = ran(data.path(), &["rotate-ca", &path]).await;
        assert!(told.contains("these files are in use"), "{told}");
    }

    #[test]
    fn the_answer_says_what_to_do_and_what_stays_good() {
        let names = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let data = Path::new("/var/lib/kube-lite");
        let text = text_of(&names(&["server-ca.crt", "server-ca.key"]), false, data);
        assert!(text.contains("Agents take the new CAs by themselves"), "{text}");
        assert!(text.contains("tokens that name the present one stay good"), "{text}");
        let text = text_of(&names(&["server-ca.crt", "server-ca.key"]), true, data);
        assert!(text.contains("have to join anew") && !text.contains("stay good"), "{text}");
        let text = text_of(&names(&["service.key"]), false, data);
        assert!(!text.contains("gents") && text.contains("systemctl restart"), "{text}");
    }
}
