//! The socket over which `kube-lite certificate rotate-ca` reaches the server of a data directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Tasks;
use tokio::net::UnixStream;

use super::{CaRotation, RotateCaResponse};
use crate::control_socket::{self, RequestError};
use crate::error_catalogue::CommandError;

/// Maximum size of a request and a response in bytes: eleven files as JSON.
const MESSAGE_MAX: u64 = 4 << 20;

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("server/certificate.sock")
}

/// Serves requests until shutdown.
///
/// # Errors
/// The socket cannot be created.
pub(crate) fn serve(
    data_dir: &Path,
    rotation: Arc<CaRotation>,
    tasks: &Tasks,
) -> Result<(), CommandError> {
    let shutdown = tasks.shutdown().clone();
    control_socket::serve(
        path(data_dir),
        ("certificate socket", "certificate answer"),
        tasks,
        move |stream| {
            let (rotation, shutdown) = (Arc::clone(&rotation), shutdown.clone());
            async move {
                tokio::select! {
                    handled = handle_connection(&rotation, stream) => handled,
                    () = shutdown.requested() => Ok(()),
                }
            }
        },
    )
}

async fn handle_connection(rotation: &CaRotation, mut stream: UnixStream) -> std::io::Result<()> {
    let response = match control_socket::read_request(&mut stream, MESSAGE_MAX).await {
        Ok(request) => match rotation.rotate(request).await {
            Ok(files) => RotateCaResponse::Ok(files),
            Err(errors) => RotateCaResponse::Err(errors.0),
        },
        Err(RequestError::Connection(error)) => return Err(error),
        Err(error) => RotateCaResponse::Err(vec![error.to_string()]),
    };
    control_socket::write_response(stream, &response).await
}

/// Sends a request to the server of a data directory; `None` if no server is running.
///
/// # Errors
/// The server stopped responding.
pub(crate) async fn send(
    data_dir: &Path,
    request: &super::RotateCaRequest,
) -> std::io::Result<Option<RotateCaResponse>> {
    control_socket::call(&path(data_dir), request, MESSAGE_MAX).await
}
