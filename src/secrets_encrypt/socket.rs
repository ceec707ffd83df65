//! The socket over which `kube-lite secrets-encrypt` asks the server of a data directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apiserver::encryption::Wish;
use base::Tasks;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::{Sealing, Status};
use crate::control_socket;
use crate::error_catalogue::Refusal;

/// Largest question and answer, in bytes.
const MESSAGE_MAX: u64 = 1 << 20;

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Question {
    /// How things are.
    Status,
    /// To change something.
    Change(Wish),
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// How things are.
    Status(Status),
    /// What was done.
    Done(String),
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("server/secrets-encrypt.sock")
}

/// Answers until shutdown.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn serve(data_dir: &Path, sealing: Arc<Sealing>, tasks: &Tasks) -> Result<(), Refusal> {
    let names = ("secrets-encrypt socket", "secrets-encrypt answer");
    let shutdown = tasks.shutdown().clone();
    control_socket::serve(path(data_dir), names, tasks, move |stream| {
        let (sealing, shutdown) = (Arc::clone(&sealing), shutdown.clone());
        async move {
            tokio::select! {
                answered = answer(&sealing, stream) => answered,
                () = shutdown.requested() => Ok(()),
            }
        }
    })
}

async fn answer(sealing: &Arc<Sealing>, mut stream: UnixStream) -> std::io::Result<()> {
    let outcome: Result<Answer, String> =
        match control_socket::question(&mut stream, MESSAGE_MAX).await? {
            Ok(Question::Status) => sealing.status().await.map(Answer::Status),
            Ok(Question::Change(wish)) => sealing.change(wish).await.map(Answer::Done),
            Err(error) => Err(error),
        };
    control_socket::reply(stream, &outcome).await
}

/// Asks the server of a data directory; `None` when none answers.
///
/// # Errors
/// When it stops answering.
pub(crate) async fn ask(
    data_dir: &Path,
    question: Question,
) -> std::io::Result<Option<Result<Answer, String>>> {
    control_socket::ask(&path(data_dir), &question, MESSAGE_MAX).await
}
