//! The ids that the host assigns to the user `kubelet`, as the command `getsubids` prints them.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use api::field::go_quote;
use tokio::io::AsyncReadExt;

use super::id_range::HostIds;
use crate::config::RuntimeConfig;
use crate::image_credentials::status_text;
use crate::runtime::containerd::find::find_program;

/// The user whose ids they are.
const USER: &str = "kubelet";
/// How long the command may run: it may query a directory service.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the output in bytes: a few hundred lines, of which one is allowed.
const OUTPUT_MAX: u64 = 64 << 10;
/// The users of the host.
const PASSWD: &str = "/etc/passwd";

/// Why the ids of the kubelet are not known; the texts are those of upstream.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubordinateIdsError {
    #[error("cannot read {PASSWD}: {0}")]
    Users(#[source] std::io::Error),
    #[error("error retrieving additional uids for user {USER:?}: {0}")]
    Uids(#[source] CommandError),
    /// Upstream's text has no cause.
    #[error("error retrieving additional gids for user {USER:?}")]
    Gids(#[source] CommandError),
    #[error("mismatched subuids and subgids for user {USER:?}")]
    Mismatch,
    #[error("error parsing line {}: it must contain only one line", go_quote(.0))]
    SeveralLines(String),
    #[error("invalid line {}", go_quote(.0))]
    Fields(String),
    #[error("error parsing line {}: {source}", go_quote(.line))]
    Number { line: String, source: std::num::ParseIntError },
    /// The ids would exceed those of the kernel, which upstream does not check.
    #[error("error parsing line {}: the last ID is greater than 4294967295", go_quote(.0))]
    TooMany(String),
}

/// Why a command has no output.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{}", status_text(*.0))]
    Status(ExitStatus),
    #[error("the command did not end within {TIMEOUT:?}")]
    Timeout,
}

/// Returns the ids of the kubelet: those of `getsubids kubelet`, or all if there is no such user or
/// no such command.
///
/// # Errors
///
/// The command fails, or its output is not one range that users and groups share.
pub(super) async fn of_kubelet(
    config: &RuntimeConfig,
    ids_per_pod: u32,
) -> Result<HostIds, SubordinateIdsError> {
    let default = HostIds::all(ids_per_pod);
    let users = match tokio::fs::read(PASSWD).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(default),
        users => users.map_err(SubordinateIdsError::Users)?,
    };
    if !has_user(&users, USER) {
        return Ok(default);
    }
    of_user(config, default).await
}

/// Returns the ids of `getsubids kubelet`, or `default` if there is no such command.
async fn of_user(config: &RuntimeConfig, default: HostIds) -> Result<HostIds, SubordinateIdsError> {
    let Some(program) = find_program(&[], &config.path, "getsubids") else {
        tracing::debug!(user = USER, "there is no getsubids, pods use all ids");
        return Ok(default);
    };
    let uids = run(&program, &[USER]).await.map_err(SubordinateIdsError::Uids)?;
    let gids = run(&program, &["-g", USER]).await.map_err(SubordinateIdsError::Gids)?;
    if uids != gids {
        return Err(SubordinateIdsError::Mismatch);
    }
    parse(&String::from_utf8_lossy(&uids))
}

/// Whether the text of `/etc/passwd` has the user.
fn has_user(passwd: &[u8], name: &str) -> bool {
    let mut lines = passwd.split(|byte| *byte == b'\n');
    lines.any(|line| line.split(|byte| *byte == b':').next() == Some(name.as_bytes()))
}

/// Runs a command and returns its standard output, of which [`OUTPUT_MAX`] bytes count.
async fn run(program: &Path, args: &[&str]) -> Result<Vec<u8>, CommandError> {
    let mut child = tokio::process::Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = child.stdout.take();
    let output = async {
        let mut text = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(OUTPUT_MAX).read_to_end(&mut text).await?;
        }
        Ok::<_, std::io::Error>((text, child.wait().await?))
    };
    let output = tokio::time::timeout(TIMEOUT, output).await;
    let (text, status) = output.map_err(|_| CommandError::Timeout)??;
    if !status.success() {
        return Err(CommandError::Status(status));
    }
    Ok(text)
}

/// Parses the output: `0: kubelet 65536 2147483648`.
fn parse(output: &str) -> Result<HostIds, SubordinateIdsError> {
    let line = output.trim_matches('\n');
    if line.contains('\n') {
        return Err(SubordinateIdsError::SeveralLines(output.to_owned()));
    }
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, first, length] = fields[..] else {
        return Err(SubordinateIdsError::Fields(output.to_owned()));
    };
    let number = |text: &str| {
        let number = text.parse::<u32>();
        number.map_err(|source| SubordinateIdsError::Number { line: output.to_owned(), source })
    };
    let ids = HostIds { first: number(first)?, length: number(length)? };
    let end = u64::from(ids.first) + u64::from(ids.length);
    if end > 1 << 32 {
        return Err(SubordinateIdsError::TooMany(output.to_owned()));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_looked_for_by_its_whole_name() {
        let users = b"root:x:0:0::/root:/bin/sh\nkubelet2:x:9:9::/:/bin/sh\n";
        assert!(has_user(users, "root") && has_user(users, "kubelet2"));
        assert!(!has_user(users, "kubelet"));
        assert!(!has_user(b"", "kubelet"));
    }

    #[test]
    fn one_line_with_four_fields_is_accepted() {
        let ids = parse("0: kubelet 65536 2147483648\n").unwrap();
        assert_eq!(ids, HostIds { first: 65536, length: 2_147_483_648 });
        for (output, want) in [
            (
                "0: kubelet 65536 2147483648\n0: kubelet 65536 2147483648\n",
                "error parsing line \"0: kubelet 65536 2147483648\\n0: kubelet 65536 \
                 2147483648\\n\": it must contain only one line",
            ),
            ("0: kubelet 65536\n", "invalid line \"0: kubelet 65536\\n\""),
            ("", "invalid line \"\""),
        ] {
            assert_eq!(parse(output).unwrap_err().to_string(), want);
        }
        for numbers in ["Foo 1", "1 Bar", "4294967296 1", "1 4294967296", "-1 1", "1 -1"] {
            let error = parse(&format!("0: kubelet {numbers}")).unwrap_err().to_string();
            let start = format!("error parsing line \"0: kubelet {numbers}\": ");
            assert!(error.starts_with(&start), "{error}");
        }
        assert!(parse("0: kubelet 65536 4294967295").is_err());
    }

    /// The configuration of a node with this directory as `PATH`.
    fn config(path: &Path) -> RuntimeConfig {
        let (data_dir, run_dir) = (path.to_owned(), path.to_owned());
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let mut config = crate::config::Config::new("n", address, data_dir, run_dir).runtime;
        config.path = path.to_string_lossy().into_owned();
        config
    }

    #[tokio::test]
    async fn without_the_command_all_ids_are_used() {
        let empty = tempfile::tempdir().unwrap();
        let all = HostIds::all(65536);
        assert_eq!(of_user(&config(empty.path()), all).await.unwrap(), all);
    }

    #[tokio::test]
    async fn users_and_groups_have_the_same_ids() {
        let folder = tempfile::tempdir().unwrap();
        let command = folder.path().join("getsubids");
        let run = async |script: &str| {
            // Another thread may start a process while the file is open for writing, which would
            // make the script busy: it is written by another program.
            let write = "printf '%s' \"$1\" >\"$2\" && chmod 755 \"$2\"";
            let text = format!("#!/bin/sh\n{script}\n");
            let mut sh = std::process::Command::new("sh");
            let status = sh.args(["-c", write, "sh", &text]).arg(&command).status();
            assert!(status.unwrap().success());
            let ids = of_user(&config(folder.path()), HostIds::all(65536)).await;
            ids.map_err(|error| error.to_string())
        };
        assert_eq!(
            run("echo 0: kubelet 131072 65536").await,
            Ok(HostIds { first: 131_072, length: 65536 })
        );
        assert_eq!(
            run("echo 0: kubelet 131072 $(($# * 65536))").await,
            Err("mismatched subuids and subgids for user \"kubelet\"".to_owned())
        );
        assert_eq!(
            run("exit 1").await,
            Err("error retrieving additional uids for user \"kubelet\": exit status 1".to_owned())
        );
        assert_eq!(
            run("[ $# = 1 ]").await,
            Err("error retrieving additional gids for user \"kubelet\"".to_owned())
        );
    }

    #[tokio::test]
    async fn a_command_that_fails_has_no_output() {
        let sh = Path::new("/bin/sh");
        assert_eq!(run(sh, &["-c", "echo a"]).await.unwrap(), b"a\n");
        let error = run(sh, &["-c", "echo a; exit 3"]).await.unwrap_err();
        assert_eq!(error.to_string(), "exit status 3");
        assert!(matches!(run(Path::new("/nowhere"), &[]).await, Err(CommandError::Io(_))));
    }
}
