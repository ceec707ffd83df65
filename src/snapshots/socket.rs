//! The socket over which `kube-lite etcd-snapshot` asks the server of a data directory.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Kind, Tasks};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::{Folder, Places, Snapshot, Snapshots, s3};
use crate::catalogue::{DATA_DIR, Refusal};

/// Largest question, in bytes.
const QUESTION_MAX: u64 = 1 << 20;
/// Largest answer: a hundred thousand snapshots.
const ANSWER_MAX: u64 = 32 << 20;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Operation {
    /// Take one, named so.
    Save {
        /// First part of its name.
        name: String,
        /// Whether to compress it; as the server is set otherwise.
        compress: bool,
    },
    /// Tell them all.
    List,
    /// Delete these.
    Delete(Vec<String>),
    /// Delete the oldest of a name.
    Prune {
        /// First part of their names.
        name: String,
        /// How many stay; as the server is set otherwise.
        keep: Option<usize>,
    },
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    /// What.
    pub(super) operation: Operation,
    /// Folder, when it is not the server's.
    pub(super) dir: Option<PathBuf>,
    /// Bucket, when it is not the server's.
    pub(super) s3: Option<s3::Settings>,
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Name of this node.
    pub(super) node: String,
    /// Taken, or all that there are.
    pub(super) snapshots: Vec<Snapshot>,
    /// Names of the deleted ones.
    pub(super) deleted: Vec<String>,
    /// What went wrong.
    pub(super) error: Option<String>,
}

impl Answer {
    pub(super) fn of(node: &str, outcome: Result<(Vec<Snapshot>, Vec<String>), String>) -> Self {
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

/// Answers until shutdown.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn serve(
    data_dir: &Path,
    snapshots: Arc<Snapshots>,
    tasks: &Tasks,
) -> Result<(), Refusal> {
    let path = path(data_dir);
    // Of a predecessor that was killed: the data directory's lock says that nobody uses it.
    let _ = std::fs::remove_file(&path);
    let told = |e: std::io::Error| DATA_DIR.refuse(format!("cannot make {}: {e}", path.display()));
    let listener = UnixListener::bind(&path).map_err(told)?;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).map_err(told)?;
    let data_dir = data_dir.to_owned();
    let (shutdown, own) = (tasks.shutdown().clone(), tasks.clone());
    tasks.spawn(Kind::Critical, "snapshot socket", async move {
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => accepted?.0,
                () = shutdown.requested() => return Ok::<(), std::io::Error>(()),
            };
            let (snapshots, data_dir) = (Arc::clone(&snapshots), data_dir.clone());
            own.spawn(Kind::Request, "snapshot answer", async move {
                answer(&snapshots, &data_dir, stream).await
            });
        }
    });
    Ok(())
}

async fn answer(
    snapshots: &Snapshots,
    data_dir: &Path,
    mut stream: UnixStream,
) -> std::io::Result<()> {
    let mut text = Vec::new();
    (&mut stream).take(QUESTION_MAX).read_to_end(&mut text).await?;
    let outcome = match serde_json::from_slice::<Question>(&text) {
        Ok(question) => act(snapshots, data_dir, question).await,
        Err(error) => Err(format!("the question is not understood: {error}")),
    };
    let answer = Answer::of(&snapshots.settings.node, outcome);
    stream.write_all(&serde_json::to_vec(&answer).unwrap_or_default()).await?;
    stream.shutdown().await
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

/// Asks the server of a data directory; `None` when none answers.
///
/// # Errors
/// When it stops answering.
pub(super) async fn ask(data_dir: &Path, question: &Question) -> std::io::Result<Option<Answer>> {
    let Ok(mut stream) = UnixStream::connect(path(data_dir)).await else { return Ok(None) };
    stream.write_all(&serde_json::to_vec(question)?).await?;
    stream.shutdown().await?;
    let mut text = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut text).await?;
    Ok(Some(serde_json::from_slice(&text)?))
}
