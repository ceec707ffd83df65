//! `kube-lite etcd-snapshot`: sends requests to the running server; operations that need no store
//! work without a server.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Command, Environment, Output, block_on};
use crate::command_line::{FolderArgs, SnapshotCommand, SnapshotCommandArgs, SnapshotOutput};
use crate::error_catalogue::{CommandError, SERVER_UNREACHABLE, SNAPSHOT_COMMAND};
use crate::snapshots::socket::{Operation, Request, Response, send};
use crate::snapshots::{Folder, Snapshot, SnapshotLocations, check_name, rfc3339, s3};

/// Defaults for flags that are not set.
#[derive(Debug, Clone)]
struct Defaults {
    /// Data directory.
    data_dir: PathBuf,
    /// Name of this machine.
    node: String,
}

impl Command for SnapshotCommandArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        let defaults =
            Defaults { data_dir: environment.data_dir(None), node: crate::machine::host_name() };
        block_on(SNAPSHOT_COMMAND, || run(&self.command, &defaults)).map(Output::from)
    }
}

/// Runs a subcommand; its output.
async fn run(command: &SnapshotCommand, defaults: &Defaults) -> Result<String, CommandError> {
    match command {
        SnapshotCommand::Save(args) => {
            check_name("name", &args.name)?;
            let save = Operation::Save { name: args.name.clone(), compress: args.compress };
            let response = execute(&args.folder, save, defaults, None).await?;
            let line = |s: &Snapshot| match s.is_local() {
                true => format!("Snapshot {} saved.", s.name),
                false => format!("Snapshot {} uploaded to {}.", s.name, s.location),
            };
            Ok(lines(response.snapshots.iter().map(line)))
        }
        SnapshotCommand::Ls(args) => {
            let response = execute(&args.folder, Operation::List, defaults, None).await?;
            render(&response, args.output)
        }
        SnapshotCommand::Delete(args) => {
            let delete = Operation::Delete(args.names.clone());
            let response = execute(&args.folder, delete, defaults, None).await?;
            let line = |name: &String| match response.deleted.contains(name) {
                true => format!("Snapshot {name} deleted."),
                false => format!("Snapshot {name} not found."),
            };
            match response.deleted.is_empty() {
                true => Err(SNAPSHOT_COMMAND.error(lines(args.names.iter().map(line)).trim_end())),
                false => Ok(lines(args.names.iter().map(line))),
            }
        }
        SnapshotCommand::Prune(args) => {
            check_name("name", &args.name)?;
            let prune = Operation::Prune { name: args.name.clone(), keep: Some(args.retention) };
            let response =
                execute(&args.folder, prune, defaults, args.node_name.as_deref()).await?;
            Ok(lines(response.deleted.iter().map(|name| format!("Snapshot {name} deleted."))))
        }
    }
}

fn lines(all: impl Iterator<Item = String>) -> String {
    all.map(|line| line + "\n").collect()
}

/// The server's response, or the result of the folder alone.
async fn execute(
    folder: &FolderArgs,
    operation: Operation,
    defaults: &Defaults,
    node: Option<&str>,
) -> Result<Response, CommandError> {
    let data_dir = folder.data_dir.as_ref().unwrap_or(&defaults.data_dir);
    let dir = match &folder.dir {
        Some(dir) => Some(std::path::absolute(dir).map_err(|e| SNAPSHOT_COMMAND.error(e))?),
        None => None,
    };
    let s3 = s3::settings::from_args(&folder.s3)?;
    let request = Request { operation, dir, s3 };
    // Snapshots of another node exist in the folder only.
    let response = match node {
        Some(_) => None,
        None => send(data_dir, &request)
            .await
            .map_err(|e| SNAPSHOT_COMMAND.error(format!("cannot reach the server: {e}")))?,
    };
    let response = match response {
        Some(response) => response,
        None if matches!(request.operation, Operation::Save { .. }) => {
            let text = format!(
                "no server answers in {}, and only a running server takes snapshots",
                data_dir.display()
            );
            return Err(SERVER_UNREACHABLE.error(text));
        }
        None => {
            if request.dir.is_none() && request.s3.is_none() {
                check_data_dir(data_dir).map_err(|e| SNAPSHOT_COMMAND.error(e))?;
            }
            let folder = Folder::new(request.dir.as_deref(), data_dir);
            let node = node.unwrap_or(&defaults.node);
            let locations = SnapshotLocations::open(folder, request.s3.as_ref(), None)
                .await
                .map_err(|e| SNAPSHOT_COMMAND.error(e))?;
            Response::of(node, locations.run(request.operation, node, 0).await)
        }
    };
    match response.error {
        Some(error) => Err(SNAPSHOT_COMMAND.error(error)),
        None => Ok(response),
    }
}

/// Checks that the data directory belongs to a server and is readable: otherwise an empty list
/// would be misleading.
fn check_data_dir(data_dir: &Path) -> Result<(), DataDirError> {
    let path = || data_dir.to_owned();
    match std::fs::read_dir(data_dir.join("server/db")) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(DataDirError::NotAServer(path()))
        }
        Err(source) => Err(DataDirError::Unreadable { path: path(), source }),
    }
}

/// What to do about a wrong data directory.
const DATA_DIR_HINT: &str =
    "name the server's data directory with --data-dir, and run the command as its user (root)";

/// Why a directory cannot be used as the data directory of a server.
#[derive(Debug, thiserror::Error)]
enum DataDirError {
    /// It has no store.
    #[error("{} is not the data directory of a server: {DATA_DIR_HINT}", .0.display())]
    NotAServer(PathBuf),
    /// The store cannot be read.
    #[error("{}: {source}: {DATA_DIR_HINT}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
}

/// An ETCDSnapshotFile of k3s.
fn snapshot_file(snapshot: &Snapshot, node: &str) -> Value {
    // As in k3s, snapshots in a bucket belong to no node.
    let (prefix, node) = if snapshot.is_local() { ("local", node) } else { ("s3", "s3") };
    json!({
        "apiVersion": "k3s.cattle.io/v1",
        "kind": "ETCDSnapshotFile",
        "metadata": { "name": format!("{prefix}-{}", snapshot.name), "creationTimestamp": null },
        "spec": { "snapshotName": snapshot.name, "nodeName": node, "location": snapshot.location },
        "status": {
            "size": snapshot.size.to_string(),
            "creationTime": rfc3339(snapshot.created),
            "readyToUse": true,
        },
    })
}

fn render(response: &Response, output: SnapshotOutput) -> Result<String, CommandError> {
    let list = || {
        let items: Vec<Value> =
            response.snapshots.iter().map(|s| snapshot_file(s, &response.node)).collect();
        json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items })
    };
    let failed = |error: &dyn std::fmt::Display| SNAPSHOT_COMMAND.error(error);
    match output {
        SnapshotOutput::Table => Ok(table(&response.snapshots)),
        SnapshotOutput::Json => {
            serde_json::to_string(&list()).map(|text| text + "\n").map_err(|e| failed(&e))
        }
        SnapshotOutput::Yaml => Ok(api::codec::yaml::write(&list())),
    }
}

/// The columns of k3s.
fn table(snapshots: &[Snapshot]) -> String {
    let head = ["Name", "Location", "Size", "Created"].map(str::to_owned);
    let row =
        |s: &Snapshot| [s.name.clone(), s.location.clone(), s.size.to_string(), rfc3339(s.created)];
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
    fn a_list_outside_the_data_directory_of_a_server_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = check_data_dir(dir.path()).unwrap_err().to_string();
        assert!(error.contains("is not the data directory of a server"), "{error}");
        std::fs::create_dir_all(dir.path().join("server/db")).unwrap();
        assert!(check_data_dir(dir.path()).is_ok());
    }

    #[test]
    fn the_list_has_the_columns_and_objects_of_k3s() {
        let snapshots =
            vec![snapshot("on-demand-a-1763800000", 1_763_800_000), snapshot("x.zip", 0)];
        assert_eq!(
            table(&snapshots),
            "Name                   Location                         Size  Created\n\
             on-demand-a-1763800000 file:///d/on-demand-a-1763800000 20512 2025-11-22T08:26:40Z\n\
             x.zip                  file:///d/x.zip                  20512 1970-01-01T00:00:00Z\n"
        );
        let response = Response { node: "a".to_owned(), snapshots, ..Response::default() };
        let json: Value =
            serde_json::from_str(&render(&response, SnapshotOutput::Json).unwrap()).unwrap();
        assert_eq!(json["kind"], "List");
        assert_eq!(json["items"][0]["spec"]["snapshotName"], "on-demand-a-1763800000");
        assert_eq!(json["items"][0]["status"]["size"], "20512");
        assert!(render(&response, SnapshotOutput::Yaml).unwrap().contains("snapshotName: x.zip"));
    }

    #[tokio::test]
    async fn operations_on_the_folder_need_no_server() {
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
        let execute =
            async |argv: &[&str]| run(&command(argv), &defaults).await.map_err(|e| e.to_string());
        assert_eq!(
            execute(&["prune", "--snapshot-retention=3"]).await.unwrap(),
            "Snapshot on-demand-n-1 deleted.\n"
        );
        assert_eq!(
            execute(&["delete", "on-demand-n-2", "absent"]).await.unwrap(),
            "Snapshot on-demand-n-2 deleted.\nSnapshot absent not found.\n"
        );
        assert!(
            execute(&["delete", "absent"])
                .await
                .unwrap_err()
                .contains("Snapshot absent not found.")
        );
        assert_eq!(execute(&["ls"]).await.unwrap().lines().count(), 3);
        let refused = execute(&["save"]).await.unwrap_err();
        assert!(
            refused.contains("KL0402") && refused.contains("no server answers in"),
            "{refused}"
        );
        assert!(
            execute(&["save", "--name=../x"]).await.unwrap_err().contains("--name=../x: must be")
        );
    }
}
