//! Unix sockets in the data directory over which commands send requests to the running process: one
//! JSON request and one JSON response per connection.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base::{Kind, Tasks};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::error_catalogue::{CommandError, DATA_DIR};

/// Why a request cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] std::io::Error),
    /// The request is not valid JSON of its type, such as one of another version.
    #[error("the request cannot be parsed: {0}")]
    Malformed(#[source] serde_json::Error),
}

/// The outcome of a request in JSON: `{"Ok": ...}`, or `{"Err": ...}` with a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply<T, E = String> {
    /// The request succeeded.
    Ok(T),
    /// The message of the error.
    Err(E),
}

impl<T> Reply<T> {
    /// The reply for an outcome, with the message of its error.
    pub(crate) fn from_outcome(outcome: Result<T, impl std::fmt::Display>) -> Self {
        match outcome {
            Ok(value) => Self::Ok(value),
            Err(error) => Self::Err(error.to_string()),
        }
    }
}

/// Serves `path` until shutdown, with one task per connection. `names` are the names of the tasks
/// that listen and answer.
///
/// # Errors
/// The socket cannot be created.
pub(crate) fn serve<A>(
    path: PathBuf,
    names: (&'static str, &'static str),
    tasks: &Tasks,
    answer: impl Fn(UnixStream) -> A + Send + 'static,
) -> Result<(), CommandError>
where
    A: Future<Output = std::io::Result<()>> + Send + 'static,
{
    // A killed process leaves its socket. The lock of the data directory proves that it is unused.
    let _ = std::fs::remove_file(&path);
    let failed =
        |e: std::io::Error| DATA_DIR.error(format!("cannot create {}: {e}", path.display()));
    let listener = UnixListener::bind(&path).map_err(failed)?;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).map_err(failed)?;
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

/// Reads the request of a connection, of at most `max` bytes.
///
/// # Errors
/// The connection fails, or the request is malformed.
pub(crate) async fn read_request<Q: DeserializeOwned>(
    stream: &mut UnixStream,
    max: u64,
) -> Result<Q, RequestError> {
    let mut text = Vec::new();
    stream.take(max).read_to_end(&mut text).await?;
    serde_json::from_slice(&text).map_err(RequestError::Malformed)
}

/// Writes the response and closes the connection.
///
/// # Errors
/// The connection fails.
pub(crate) async fn write_response(
    mut stream: UnixStream,
    response: &(impl Serialize + Sync),
) -> std::io::Result<()> {
    stream.write_all(&serde_json::to_vec(response).unwrap_or_default()).await?;
    stream.shutdown().await
}

/// Sends a request to `path` and reads a response of at most `max` bytes; `None` if no process
/// listens there.
///
/// # Errors
/// This user may not connect, the server closes the connection, or its response is malformed.
pub(crate) async fn call<T: DeserializeOwned>(
    path: &Path,
    request: &(impl Serialize + Sync),
    max: u64,
) -> std::io::Result<Option<T>> {
    let mut stream = match UnixStream::connect(path).await {
        Ok(stream) => stream,
        // Whether a server listens is unknown then.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let text = format!(
                "{}: {error}; run it as root, or name the data directory with --data-dir",
                path.display()
            );
            return Err(std::io::Error::new(error.kind(), text));
        }
        Err(_) => return Ok(None),
    };
    stream.write_all(&serde_json::to_vec(request)?).await?;
    stream.shutdown().await?;
    let mut text = Vec::new();
    stream.take(max).read_to_end(&mut text).await?;
    if text.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(serde_json::from_slice(&text)?))
}
