//! The Unix socket by which `kube-lite etcd-snapshot` reaches the server of a data directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Tasks;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::{Folder, Places, Snapshot, Snapshots, s3};
use crate::control_socket;
use crate::error_catalogue::Refusal;

/// Maximum size of a request in bytes.
const QUESTION_MAX: u64 = 1 << 20;
/// Maximum size of a response: a hundred thousand snapshots.
const ANSWER_MAX: u64 = 32 << 20;

/// The operation of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    /// Takes a snapshot.
    Save {
        /// Prefix of its name.
        name: String,
        /// Whether to compress it; default is the server's setting.
        compress: bool,
    },
    /// Lists all snapshots.
    List,
    /// Deletes snapshots.
    Delete(Vec<String>),
    /// Deletes the oldest snapshots of a name.
    Prune {
        /// Prefix of their names.
        name: String,
        /// Number of snapshots to keep; default is the server's setting.
        keep: Option<usize>,
    },
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    /// The operation.
    pub(crate) operation: Operation,
    /// Folder, if not the server's.
    pub(crate) dir: Option<PathBuf>,
    /// Bucket, if not the server's.
    pub(crate) s3: Option<s3::Settings>,
}

/// The response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Name of this node.
    pub(crate) node: String,
    /// Snapshots taken or listed.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Names of deleted snapshots.
    pub(crate) deleted: Vec<String>,
    /// Error message.
    pub(crate) error: Option<String>,
}

impl Answer {
    pub(crate) fn of(node: &str, outcome: Result<(Vec<Snapshot>, Vec<String>), String>) -> Self {
        let node = node.to_owned();
        match outcome {
            Ok((snapshots, deleted)) => Self { node, snapshots, deleted, error: None },
            Err(error) => Self { node, error: Some(error), ..Self::default() },
        }
    }
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("server/snapshot.sock")
}

/// Serves requests until shutdown.
///
/// # Errors
/// The socket cannot be created.
pub(crate) fn serve(
    data_dir: &Path,
    snapshots: Arc<Snapshots>,
    tasks: &Tasks,
) -> Result<(), Refusal> {
    let socket = path(data_dir);
    let data_dir = data_dir.to_owned();
    control_socket::serve(socket, ("snapshot socket", "snapshot answer"), tasks, move |stream| {
        let (snapshots, data_dir) = (Arc::clone(&snapshots), data_dir.clone());
        async move { answer(&snapshots, &data_dir, stream).await }
    })
}

async fn answer(
    snapshots: &Snapshots,
    data_dir: &Path,
    mut stream: UnixStream,
) -> std::io::Result<()> {
    let outcome = match control_socket::question(&mut stream, QUESTION_MAX).await? {
        Ok(question) => act(snapshots, data_dir, question).await,
        Err(error) => Err(error),
    };
    control_socket::reply(stream, &Answer::of(&snapshots.settings.node, outcome)).await
}

async fn act(
    snapshots: &Snapshots,
    data_dir: &Path,
    question: Question,
) -> Result<(Vec<Snapshot>, Vec<String>), String> {
    let settings = &snapshots.settings;
    let folder = match &question.dir {
        Some(dir) => Folder::new(Some(dir), data_dir),
        None => settings.folder.clone(),
    };
    let places = Places::open(folder, question.s3.as_ref().or(settings.s3.as_ref())).await?;
    match question.operation {
        Operation::Save { name, compress } => {
            let saved = snapshots.save(&places, &name, compress || settings.compress).await?;
            Ok((saved, Vec::new()))
        }
        other => places.act(other, &settings.node, settings.retention).await,
    }
}

/// Sends a request to the server of a data directory; `None` if no server is running.
///
/// # Errors
/// The server stopped responding.
pub(crate) async fn ask(data_dir: &Path, question: &Question) -> std::io::Result<Option<Answer>> {
    control_socket::ask(&path(data_dir), question, ANSWER_MAX).await
}
