//! The socket over which `kube-lite secrets-encrypt` reaches the server of a data directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Tasks;
use encryption::Wish;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::{SecretsEncryption, Status};
use crate::control_socket::{self, Reply, RequestError};
use crate::error_catalogue::CommandError;

/// Maximum size of a request and a response in bytes.
const MESSAGE_MAX: u64 = 1 << 20;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Request {
    /// Returns the state.
    Status,
    /// Changes keys.
    Change(Wish),
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Response {
    /// The state.
    Status(Status),
    /// The report of a change.
    Done(String),
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("server/secrets-encrypt.sock")
}

/// Serves requests until shutdown.
///
/// # Errors
/// The socket cannot be created.
pub(crate) fn serve(
    data_dir: &Path,
    encryption: Arc<SecretsEncryption>,
    tasks: &Tasks,
) -> Result<(), CommandError> {
    let names = ("secrets-encrypt socket", "secrets-encrypt answer");
    let shutdown = tasks.shutdown().clone();
    control_socket::serve(path(data_dir), names, tasks, move |stream| {
        let (encryption, shutdown) = (Arc::clone(&encryption), shutdown.clone());
        async move {
            tokio::select! {
                handled = handle_connection(&encryption, stream) => handled,
                () = shutdown.requested() => Ok(()),
            }
        }
    })
}

async fn handle_connection(
    encryption: &Arc<SecretsEncryption>,
    mut stream: UnixStream,
) -> std::io::Result<()> {
    let reply = match control_socket::read_request(&mut stream, MESSAGE_MAX).await {
        Ok(Request::Status) => Reply::from_outcome(encryption.status().await.map(Response::Status)),
        Ok(Request::Change(wish)) => {
            Reply::from_outcome(encryption.change(wish).await.map(Response::Done))
        }
        Err(RequestError::Connection(error)) => return Err(error),
        Err(error) => Reply::Err(error.to_string()),
    };
    control_socket::write_response(stream, &reply).await
}

/// Sends a request to the server of a data directory; `None` if no server is running.
///
/// # Errors
/// The server stopped responding.
pub(crate) async fn send(
    data_dir: &Path,
    request: Request,
) -> std::io::Result<Option<Reply<Response>>> {
    control_socket::call(&path(data_dir), &request, MESSAGE_MAX).await
}
