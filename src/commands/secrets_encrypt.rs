//! `kube-lite secrets-encrypt`: sends a request to the running server.

use std::path::{Path, PathBuf};

use encryption::Wish;
use serde_json::json;

use super::{Command, Environment, Output, block_on};
use crate::command_line::{EncryptArgs, EncryptCommand, StatusOutput};
use crate::control_socket::Reply;
use crate::error_catalogue::{
    CommandError, SECRETS_ENCRYPT_COMMAND, SERVER_UNREACHABLE, UNSUPPORTED_FLAG,
};
use crate::secrets_encrypt::Status;
use crate::secrets_encrypt::socket::{Request, Response, send};

impl Command for EncryptArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        let data_dir = environment.data_dir(None);
        block_on(SECRETS_ENCRYPT_COMMAND, || run(&self.command, &data_dir)).map(Output::from)
    }
}

/// Runs a subcommand; its output.
async fn run(command: &EncryptCommand, data_dir: &Path) -> Result<String, CommandError> {
    let (args, request) = match command {
        EncryptCommand::Status(args) => (&args.server, Request::Status),
        EncryptCommand::Enable(args) => (args, Request::Change(Wish::Enable)),
        EncryptCommand::Disable(args) => (args, Request::Change(Wish::Disable)),
        EncryptCommand::RotateKeys(args) => (args, Request::Change(Wish::Rotate)),
        EncryptCommand::Prepare(_) | EncryptCommand::Rotate(_) | EncryptCommand::Reencrypt(_) => {
            return Err(UNSUPPORTED_FLAG.usage_error(
                "prepare, rotate and reencrypt are not supported: use `kube-lite secrets-encrypt \
                 rotate-keys`, which does all three",
            ));
        }
    };
    let data_dir: PathBuf = args.data_dir.clone().unwrap_or_else(|| data_dir.to_owned());
    let reply = send(&data_dir, request).await.map_err(|e| {
        SECRETS_ENCRYPT_COMMAND.error(format!(
            "the server stopped responding: {e}; nothing is lost, run the same command again once \
             it runs"
        ))
    })?;
    let response = match reply {
        Some(Reply::Ok(response)) => response,
        Some(Reply::Err(why)) => return Err(SECRETS_ENCRYPT_COMMAND.error(why)),
        None => {
            let text = format!("no server answers in {}", data_dir.display());
            return Err(SERVER_UNREACHABLE.error(text));
        }
    };
    match (response, command) {
        (Response::Done(text), _) => Ok(text),
        (Response::Status(status), EncryptCommand::Status(args))
            if args.output == StatusOutput::Json =>
        {
            Ok(render_json(&status))
        }
        (Response::Status(status), _) => Ok(render_text(&status)),
    }
}

/// The fields of k3s, and the number of Secrets.
fn render_json(status: &Status) -> String {
    if let Some(file) = &status.file {
        // The server's own keys encrypt nothing then.
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

/// The output of k3s.
fn render_text(status: &Status) -> String {
    if let Some(file) = &status.file {
        return format!("Encryption Status: configured by encryption-provider-config={file}\n");
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
    fn output_has_the_fields_of_k3s() {
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
            render_text(&status),
            "Encryption Status: Enabled\nCurrent Rotation Stage: reencrypt_active\nServer Encryption Hashes: All hashes match\nSecrets: 3, of which 1 are not stored as they would be now\n\nActive  Key Type  Name\n------  --------  ----\n *      AES-GCM   key2\n        AES-GCM   key1\n"
        );
        let json: serde_json::Value = serde_json::from_str(&render_json(&status)).unwrap();
        assert_eq!(json["inactivekeys"], json!(["key1"]));
        assert_eq!((&json["enable"], &json["hashmatch"]), (&json!(true), &json!(true)));
        assert_eq!(json["secrets"]["stale"], 1);
    }

    #[tokio::test]
    async fn former_subcommands_of_k3s_name_their_replacement() {
        let data = tempfile::tempdir().unwrap();
        let execute = async |word: &str| {
            let argv = ["kube-lite", "secrets-encrypt", word].map(Into::into).to_vec();
            match crate::command_line::parse(argv, |_| None) {
                Ok(crate::command_line::Cli {
                    command: crate::command_line::Command::SecretsEncrypt(args),
                }) => run(&args.command, data.path()).await.unwrap_err().to_string(),
                other => panic!("{other:?}"),
            }
        };
        let refused = execute("rotate-keys").await;
        assert!(
            refused.contains("KL0402") && refused.contains("no server answers in"),
            "{refused}"
        );
        for word in ["prepare", "rotate", "reencrypt"] {
            let refused = execute(word).await;
            assert!(refused.contains("KL0102") && refused.contains("rotate-keys"), "{refused}");
        }
    }
}
