//! The socket over which `kube-lite certificate rotate-ca` asks the server of a data directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Tasks;
use tokio::net::UnixStream;

use super::{Answer, Rotation};
use crate::control_socket;
use crate::error_catalogue::Refusal;

/// Largest question and answer, in bytes: eleven files, as JSON.
const MESSAGE_MAX: u64 = 4 << 20;

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("server/certificate.sock")
}

/// Answers until shutdown.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn serve(
    data_dir: &Path,
    rotation: Arc<Rotation>,
    tasks: &Tasks,
) -> Result<(), Refusal> {
    let shutdown = tasks.shutdown().clone();
    control_socket::serve(
        path(data_dir),
        ("certificate socket", "certificate answer"),
        tasks,
        move |stream| {
            let (rotation, shutdown) = (Arc::clone(&rotation), shutdown.clone());
            async move {
                tokio::select! {
                    answered = answer(&rotation, stream) => answered,
                    () = shutdown.requested() => Ok(()),
                }
            }
        },
    )
}

async fn answer(rotation: &Rotation, mut stream: UnixStream) -> std::io::Result<()> {
    let answer: Answer = match control_socket::question(&mut stream, MESSAGE_MAX).await? {
        Ok(question) => rotation.answer(question).await,
        Err(why) => Err(vec![why]),
    };
    control_socket::reply(stream, &answer).await
}

/// Asks the server of a data directory; `None` when none answers.
///
/// # Errors
/// When it stops answering.
pub(crate) async fn ask(
    data_dir: &Path,
    question: &super::Question,
) -> std::io::Result<Option<Answer>> {
    control_socket::ask(&path(data_dir), question, MESSAGE_MAX).await
}
