//! Sockets in the data directory over which commands ask the process that runs with it: a question and an answer, both JSON.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base::{Kind, Tasks};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::error_catalogue::{DATA_DIR, Refusal};

/// Answers at `path` until shutdown: each connection by a task of its own. `names` are those of the tasks that listen and
/// answer.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn serve<A>(
    path: PathBuf,
    names: (&'static str, &'static str),
    tasks: &Tasks,
    answer: impl Fn(UnixStream) -> A + Send + 'static,
) -> Result<(), Refusal>
where
    A: Future<Output = std::io::Result<()>> + Send + 'static,
{
    // Of a predecessor that was killed: the data directory's lock says that nobody uses it.
    let _ = std::fs::remove_file(&path);
    let told = |e: std::io::Error| DATA_DIR.refuse(format!("cannot make {}: {e}", path.display()));
    let listener = UnixListener::bind(&path).map_err(told)?;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).map_err(told)?;
    let (shutdown, own) = (tasks.shutdown().clone(), tasks.clone());
    tasks.spawn(Kind::Critical, names.0, async move {
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => accepted?.0,
                () = shutdown.requested() => return Ok::<(), std::io::Error>(()),
            };
            own.spawn(Kind::Request, names.1, answer(stream));
        }
    });
    Ok(())
}

/// The question of a connection, of at most `max` bytes; inside, a sentence of why it is none.
///
/// # Errors
/// The connection's.
pub(crate) async fn question<Q: DeserializeOwned>(
    stream: &mut UnixStream,
    max: u64,
) -> std::io::Result<Result<Q, String>> {
    let mut text = Vec::new();
    stream.take(max).read_to_end(&mut text).await?;
    let question = serde_json::from_slice(&text);
    Ok(question.map_err(|error| format!("the question is not understood: {error}")))
}

/// Answers, and ends the connection.
///
/// # Errors
/// The connection's.
pub(crate) async fn reply(
    mut stream: UnixStream,
    answer: &(impl Serialize + Sync),
) -> std::io::Result<()> {
    stream.write_all(&serde_json::to_vec(answer).unwrap_or_default()).await?;
    stream.shutdown().await
}

/// Asks at `path` for an answer of at most `max` bytes; `None` when no server answers there.
///
/// # Errors
/// When this user may not ask, the server stops answering, or what it says is no answer.
pub(crate) async fn ask<T: DeserializeOwned>(
    path: &Path,
    question: &(impl Serialize + Sync),
    max: u64,
) -> std::io::Result<Option<T>> {
    let mut stream = match UnixStream::connect(path).await {
        Ok(stream) => stream,
        // Whether a server answers is not known then.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let text = format!(
                "{}: {error}; run it as root, or name the data directory with --data-dir",
                path.display()
            );
            return Err(std::io::Error::new(error.kind(), text));
        }
        Err(_) => return Ok(None),
    };
    stream.write_all(&serde_json::to_vec(question)?).await?;
    stream.shutdown().await?;
    let mut text = Vec::new();
    stream.take(max).read_to_end(&mut text).await?;
    if text.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(serde_json::from_slice(&text)?))
}
