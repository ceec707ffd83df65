//! `kube-lite etcd-snapshot`: sends requests to the running server; requests that need no server
//! work without one.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Command, Environment, Output, block_on};
use crate::command_line::SnapshotCommandArgs;
use crate::command_line::{FolderArgs, SnapshotCommand, SnapshotOutput};
use crate::error_catalogue::{BAD_VALUE, Refusal, SERVER_UNREACHABLE, SNAPSHOT_COMMAND};
use crate::snapshots::socket::{Answer, Operation, Question, ask};
use crate::snapshots::{Folder, Places, Snapshot, s3};

/// Defaults for flags that are not set.
#[derive(Debug, Clone)]
struct Defaults {
    /// Data directory.
    data_dir: PathBuf,
    /// Name of this machine.
    node: String,
}

impl Command for SnapshotCommandArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, Refusal> {
        let defaults =
            Defaults { data_dir: environment.data_dir(None), node: crate::machine::host_name() };
        block_on(SNAPSHOT_COMMAND, || run(&self.command, &defaults)).map(Output::from)
    }
}

/// Runs a command; returns its output.
///
/// # Errors
/// What is wrong, and where.
async fn run(command: &SnapshotCommand, defaults: &Defaults) -> Result<String, Refusal> {
    match command {
        SnapshotCommand::Save(args) => {
            named("name", &args.name)?;
            let save = Operation::Save { name: args.name.clone(), compress: args.compress };
            let answer = asked(&args.folder, save, defaults, None).await?;
            let told = |s: &Snapshot| match s.is_local() {
                true => format!("Snapshot {} saved.", s.name),
                false => format!("Snapshot {} uploaded to {}.", s.name, s.location),
            };
            Ok(lines(answer.snapshots.iter().map(told)))
        }
        SnapshotCommand::Ls(args) => {
            let answer = asked(&args.folder, Operation::List, defaults, None).await?;
            render(&answer, args.output)
        }
        SnapshotCommand::Delete(args) => {
            let delete = Operation::Delete(args.names.clone());
            let answer = asked(&args.folder, delete, defaults, None).await?;
            let told = |name: &String| match answer.deleted.contains(name) {
                true => format!("Snapshot {name} deleted."),
                false => format!("Snapshot {name} not found."),
            };
            match answer.deleted.is_empty() {
                true => Err(SNAPSHOT_COMMAND.refuse(lines(args.names.iter().map(told)).trim_end())),
                false => Ok(lines(args.names.iter().map(told))),
            }
        }
        SnapshotCommand::Prune(args) => {
            named("name", &args.name)?;
            let prune = Operation::Prune { name: args.name.clone(), keep: Some(args.retention) };
            let answer = asked(&args.folder, prune, defaults, args.node_name.as_deref()).await?;
            Ok(lines(answer.deleted.iter().map(|name| format!("Snapshot {name} deleted."))))
        }
    }
}

/// A name must be valid in a file name.
pub(crate) fn named(flag: &str, name: &str) -> Result<(), Refusal> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(plain) {
        let text = format!(
            "--{flag}={name}: must be letters, digits, '-', '_' and '.', and begin with none of \
             the last"
        );
        return Err(BAD_VALUE.refuse_usage(text));
    }
    Ok(())
}

fn lines(all: impl Iterator<Item = String>) -> String {
    all.map(|line| line + "\n").collect()
}

/// The server's response, or the result of the folder alone.
async fn asked(
    folder: &FolderArgs,
    operation: Operation,
    defaults: &Defaults,
    node: Option<&str>,
) -> Result<Answer, Refusal> {
    let data_dir = folder.data_dir.as_ref().unwrap_or(&defaults.data_dir);
    let failed = |error: String| SNAPSHOT_COMMAND.refuse(error);
    let dir = match &folder.dir {
        Some(dir) => Some(std::path::absolute(dir).map_err(|e| failed(e.to_string()))?),
        None => None,
    };
    let s3 = s3::settings::settings(&folder.s3)?;
    let question = Question { operation, dir, s3 };
    // Snapshots of another node exist in the folder only.
    let answer = match node {
        Some(_) => None,
        None => ask(data_dir, &question)
            .await
            .map_err(|e| failed(format!("the server cannot be asked: {e}")))?,
    };
    let answer = match answer {
        Some(answer) => answer,
        None if matches!(question.operation, Operation::Save { .. }) => {
            let text = format!(
                "no server answers in {}, and only one that runs takes snapshots",
                data_dir.display()
            );
            return Err(SERVER_UNREACHABLE.refuse(text));
        }
        None => {
            if question.dir.is_none() && question.s3.is_none() {
                check_data_dir(data_dir).map_err(failed)?;
            }
            let folder = Folder::new(question.dir.as_deref(), data_dir);
            let node = node.unwrap_or(&defaults.node);
            let places = Places::open(folder, question.s3.as_ref()).await.map_err(failed)?;
            Answer::of(node, places.act(question.operation, node, 0).await)
        }
    };
    match answer.error {
        Some(error) => Err(failed(error)),
        None => Ok(answer),
    }
}

/// Checks that the data directory belongs to a server and is readable: otherwise an empty list
/// would be misleading.
fn check_data_dir(data_dir: &Path) -> Result<(), String> {
    let hint =
        "name the server's data directory with --data-dir, and run the command as its user (root)";
    match std::fs::read_dir(data_dir.join("server/db")) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("{} is not the data directory of a server: {hint}", data_dir.display()))
        }
        Err(error) => Err(format!("{}: {error}: {hint}", data_dir.display())),
    }
}

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// An ETCDSnapshotFile of k3s.
fn object(snapshot: &Snapshot, node: &str) -> Value {
    // As in k3s, snapshots in a bucket belong to no node.
    let (place, node) = if snapshot.is_local() { ("local", node) } else { ("s3", "s3") };
    json!({
        "apiVersion": "k3s.cattle.io/v1",
        "kind": "ETCDSnapshotFile",
        "metadata": { "name": format!("{place}-{}", snapshot.name), "creationTimestamp": null },
        "spec": { "snapshotName": snapshot.name, "nodeName": node, "location": snapshot.location },
        "status": {
            "size": snapshot.size.to_string(),
            "creationTime": time(snapshot.created),
            "readyToUse": true,
        },
    })
}

fn render(answer: &Answer, output: SnapshotOutput) -> Result<String, Refusal> {
    let list = || {
        let items: Vec<Value> = answer.snapshots.iter().map(|s| object(s, &answer.node)).collect();
        json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items })
    };
    let failed = |error: &dyn std::fmt::Display| SNAPSHOT_COMMAND.refuse(error);
    match output {
        SnapshotOutput::Table => Ok(table(&answer.snapshots)),
        SnapshotOutput::Json => {
            serde_json::to_string(&list()).map(|text| text + "\n").map_err(|e| failed(&e))
        }
        SnapshotOutput::Yaml => serde_saphyr::to_string(&list()).map_err(|e| failed(&e)),
    }
}

/// The columns of k3s.
fn table(snapshots: &[Snapshot]) -> String {
    let head = ["Name", "Location", "Size", "Created"].map(str::to_owned);
    let row =
        |s: &Snapshot| [s.name.clone(), s.location.clone(), s.size.to_string(), time(s.created)];
    let rows: Vec<[String; 4]> = std::iter::once(head).chain(snapshots.iter().map(row)).collect();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2)];
    lines(rows.iter().map(|[name, location, size, created]| {
        let [a, b, c] = widths;
        format!("{name:<a$} {location:<b$} {size:<c$} {created}")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(name: &str, created: i64) -> Snapshot {
        let location = format!("file:///d/{name}");
        Snapshot { name: name.to_owned(), location, size: 20_512, created }
    }

    #[test]
    fn a_list_outside_of_a_servers_data_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = check_data_dir(dir.path()).unwrap_err();
        assert!(error.contains("is not the data directory of a server"), "{error}");
        std::fs::create_dir_all(dir.path().join("server/db")).unwrap();
        assert_eq!(check_data_dir(dir.path()), Ok(()));
    }

    #[test]
    fn the_list_has_k3ss_columns_and_its_objects() {
        let snapshots =
            vec![snapshot("on-demand-a-1763800000", 1_763_800_000), snapshot("x.zip", 0)];
        assert_eq!(
            table(&snapshots),
            "Name                   Location                         Size  Created\n\
             on-demand-a-1763800000 file:///d/on-demand-a-1763800000 20512 2025-11-22T08:26:40Z\n\
             x.zip                  file:///d/x.zip                  20512 1970-01-01T00:00:00Z\n"
        );
        let answer = Answer { node: "a".to_owned(), snapshots, ..Answer::default() };
        let json: Value =
            serde_json::from_str(&render(&answer, SnapshotOutput::Json).unwrap()).unwrap();
        assert_eq!(json["kind"], "List");
        assert_eq!(json["items"][0]["spec"]["snapshotName"], "on-demand-a-1763800000");
        assert_eq!(json["items"][0]["status"]["size"], "20512");
        assert!(render(&answer, SnapshotOutput::Yaml).unwrap().contains("snapshotName: x.zip"));
    }

    #[tokio::test]
    async fn without_a_server_the_folder_answers_what_it_can() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join("server/db/snapshots");
        std::fs::create_dir_all(&dir).unwrap();
        for second in 1..=4 {
            std::fs::write(dir.join(format!("on-demand-n-{second}")), "").unwrap();
        }
        let defaults = Defaults { data_dir: data.path().to_owned(), node: "n".to_owned() };
        let command = |argv: &[&str]| {
            let argv = ["kube-lite", "etcd-snapshot"].iter().chain(argv).map(Into::into).collect();
            match crate::command_line::parse(argv, |_| None) {
                Ok(crate::command_line::Cli {
                    command: crate::command_line::Command::EtcdSnapshot(args),
                }) => args.command,
                other => panic!("{other:?}"),
            }
        };
        let ran =
            async |argv: &[&str]| run(&command(argv), &defaults).await.map_err(|e| e.to_string());
        assert_eq!(
            ran(&["prune", "--snapshot-retention=3"]).await.unwrap(),
            "Snapshot on-demand-n-1 deleted.\n"
        );
        assert_eq!(
            ran(&["delete", "on-demand-n-2", "absent"]).await.unwrap(),
            "Snapshot on-demand-n-2 deleted.\nSnapshot absent not found.\n"
        );
        assert!(
            ran(&["delete", "absent"]).await.unwrap_err().contains("Snapshot absent not found.")
        );
        assert_eq!(ran(&["ls"]).await.unwrap().lines().count(), 3);
        let refused = ran(&["save"]).await.unwrap_err();
        assert!(
            refused.contains("KL0402") && refused.contains("no server answers in"),
            "{refused}"
        );
        assert!(ran(&["save", "--name=../x"]).await.unwrap_err().contains("--name=../x: must be"));
    }
}
