//! The socket over which `kube-lite certificate rotate-ca` asks the server of a data directory.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Kind, Tasks};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::{Answer, Question, Rotation};
use crate::catalogue::{DATA_DIR, Refusal};

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
    let path = path(data_dir);
    // Of a predecessor that was killed: the data directory's lock says that nobody uses it.
    let _ = std::fs::remove_file(&path);
    let told = |e: std::io::Error| DATA_DIR.refuse(format!("cannot make {}: {e}", path.display()));
    let listener = UnixListener::bind(&path).map_err(told)?;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).map_err(told)?;
    let (shutdown, own) = (tasks.shutdown().clone(), tasks.clone());
    tasks.spawn(Kind::Critical, "certificate socket", async move {
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => accepted?.0,
                () = shutdown.requested() => return Ok::<(), std::io::Error>(()),
            };
            let (rotation, shutdown) = (Arc::clone(&rotation), shutdown.clone());
            own.spawn(Kind::Request, "certificate answer", async move {
                tokio::select! {
                    answered = answer(&rotation, stream) => answered,
                    () = shutdown.requested() => Ok(()),
                }
            });
        }
    });
    Ok(())
}

async fn answer(rotation: &Rotation, mut stream: UnixStream) -> std::io::Result<()> {
    let mut text = Vec::new();
    (&mut stream).take(MESSAGE_MAX).read_to_end(&mut text).await?;
    let answer: Answer = match serde_json::from_slice::<Question>(&text) {
        Ok(question) => rotation.answer(question).await,
        Err(error) => Err(vec![format!("the question is not understood: {error}")]),
    };
    stream.write_all(&serde_json::to_vec(&answer).unwrap_or_default()).await?;
    stream.shutdown().await
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
    stream.take(MESSAGE_MAX).read_to_end(&mut text).await?;
    if text.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(serde_json::from_slice(&text)?))
}
