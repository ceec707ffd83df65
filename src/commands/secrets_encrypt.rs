//! `kube-lite secrets-encrypt`: asks the server that runs here.

use std::path::{Path, PathBuf};

use apiserver::encryption::Wish;
use serde_json::json;

use super::{Command, Environment, Output, block_on};
use crate::command_line::EncryptArgs;
use crate::command_line::{EncryptCommand, StatusOutput};
use crate::error_catalogue::{Refusal, SEAL_COMMAND, SERVER_UNREACHABLE, UNSUPPORTED_FLAG};
use crate::secrets_encrypt::Status;
use crate::secrets_encrypt::socket::{Answer, Question, ask};

impl Command for EncryptArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, Refusal> {
        let data_dir = environment.data_dir(None);
        block_on(SEAL_COMMAND, || run(&self.command, &data_dir)).map(Output::from)
    }
}

/// Runs one command; its output.
///
/// # Errors
/// What is wrong, and where.
async fn run(command: &EncryptCommand, data_dir: &Path) -> Result<String, Refusal> {
    let (args, question) = match command {
        EncryptCommand::Status(args) => (&args.server, Question::Status),
        EncryptCommand::Enable(args) => (args, Question::Change(Wish::Enable)),
        EncryptCommand::Disable(args) => (args, Question::Change(Wish::Disable)),
        EncryptCommand::RotateKeys(args) => (args, Question::Change(Wish::Rotate)),
        EncryptCommand::Prepare(_) | EncryptCommand::Rotate(_) | EncryptCommand::Reencrypt(_) => {
            return Err(UNSUPPORTED_FLAG.refuse_usage(
                "prepare, rotate and reencrypt are not supported: use `kube-lite secrets-encrypt rotate-keys`, which does all three",
            ));
        }
    };
    let data_dir: PathBuf = args.data_dir.clone().unwrap_or_else(|| data_dir.to_owned());
    let failed = |error: String| SEAL_COMMAND.refuse(error);
    let answer = ask(&data_dir, question)
        .await
        .map_err(|e| failed(format!("the server stopped answering: {e}; nothing is lost, run the same command again once it runs")))?;
    let Some(answer) = answer else {
        let text = format!("no server answers in {}", data_dir.display());
        return Err(SERVER_UNREACHABLE.refuse(text));
    };
    match (answer.map_err(failed)?, command) {
        (Answer::Done(text), _) => Ok(text),
        (Answer::Status(status), EncryptCommand::Status(args))
            if args.output == StatusOutput::Json =>
        {
            Ok(json_of(&status))
        }
        (Answer::Status(status), _) => Ok(text_of(&status)),
    }
}

/// k3s's members, and what there is of Secrets.
fn json_of(status: &Status) -> String {
    if let Some(file) = &status.file {
        // The server's own keys seal nothing then.
        return json!({ "config": file }).to_string() + "\n";
    }
    let value = json!({
        "enable": status.enable,
        "stage": status.stage,
        "activekey": status.activekey,
        "inactivekeys": status.inactivekeys,
        "hashmatch": status.hashmatch,
        "hasherror": status.hasherror,
        "secrets": { "total": status.secrets, "stale": status.stale },
    });
    serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"
}

/// k3s's screen.
fn text_of(status: &Status) -> String {
    if let Some(file) = &status.file {
        return format!("Encryption Status: as encryption-provider-config={file} says\n");
    }
    let enabled = if status.enable { "Enabled" } else { "Disabled" };
    let hashes = status.hasherror.as_deref().unwrap_or("All hashes match");
    let mut text = format!(
        "Encryption Status: {enabled}\nCurrent Rotation Stage: {}\nServer Encryption Hashes: {hashes}\nSecrets: {}, of which {} are not stored as they would be now\n\nActive  Key Type  Name\n------  --------  ----\n",
        status.stage, status.secrets, status.stale
    );
    if !status.activekey.is_empty() {
        text.push_str(&format!(" *      AES-GCM   {}\n", status.activekey));
    }
    for key in &status.inactivekeys {
        text.push_str(&format!("        AES-GCM   {key}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_screen_and_the_members_are_k3ss() {
        let status = Status {
            enable: true,
            stage: "reencrypt_active".into(),
            activekey: "key2".into(),
            inactivekeys: vec!["key1".into()],
            hashmatch: true,
            secrets: 3,
            stale: 1,
            ..Status::default()
        };
        assert_eq!(
            text_of(&status),
            "Encryption Status: Enabled\nCurrent Rotation Stage: reencrypt_active\nServer Encryption Hashes: All hashes match\nSecrets: 3, of which 1 are not stored as they would be now\n\nActive  Key Type  Name\n------  --------  ----\n *      AES-GCM   key2\n        AES-GCM   key1\n"
        );
        let json: serde_json::Value = serde_json::from_str(&json_of(&status)).unwrap();
        assert_eq!(json["inactivekeys"], json!(["key1"]));
        assert_eq!((&json["enable"], &json["hashmatch"]), (&json!(true), &json!(true)));
        assert_eq!(json["secrets"]["stale"], 1);
    }

    #[tokio::test]
    async fn without_a_server_nothing_is_done_and_old_words_name_the_new_one() {
        let data = tempfile::tempdir().unwrap();
        let ran = async |word: &str| {
            let argv = ["kube-lite", "secrets-encrypt", word].map(Into::into).to_vec();
            match crate::command_line::parse(argv, |_| None) {
                Ok(crate::command_line::Cli {
                    command: crate::command_line::Command::SecretsEncrypt(args),
                }) => run(&args.command, data.path()).await.unwrap_err().to_string(),
                other => panic!("{other:?}"),
            }
        };
        let refused = ran("rotate-keys").await;
        assert!(
            refused.contains("KL0402") && refused.contains("no server answers in"),
            "{refused}"
        );
        for word in ["prepare", "rotate", "reencrypt"] {
            let refused = ran(word).await;
            assert!(refused.contains("KL0102") && refused.contains("rotate-keys"), "{refused}");
        }
    }
}
