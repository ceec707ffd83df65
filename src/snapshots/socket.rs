//! The Unix socket by which `kube-lite etcd-snapshot` reaches the server of a data directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Tasks;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::locations::Outcome;
use super::{Error, Folder, Snapshot, Snapshots, s3};
use crate::control_socket::{self, RequestError};
use crate::error_catalogue::CommandError;

/// Maximum size of a request in bytes.
const REQUEST_MAX: u64 = 1 << 20;
/// Maximum size of a response: a hundred thousand snapshots.
const RESPONSE_MAX: u64 = 32 << 20;

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
pub(crate) struct Request {
    /// The operation.
    pub(crate) operation: Operation,
    /// Folder, if not the server's.
    pub(crate) dir: Option<PathBuf>,
    /// Bucket, if not the server's.
    pub(crate) s3: Option<s3::BucketConfig>,
}

/// The response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Response {
    /// Name of this node.
    pub(crate) node: String,
    /// Snapshots taken or listed.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Names of deleted snapshots.
    pub(crate) deleted: Vec<String>,
    /// Error message.
    pub(crate) error: Option<String>,
}

impl Response {
    /// The response of a node for an outcome.
    pub(crate) fn of(node: &str, outcome: Result<Outcome, Error>) -> Self {
        let node = node.to_owned();
        match outcome {
            Ok(Outcome { snapshots, deleted }) => Self { node, snapshots, deleted, error: None },
            Err(error) => Self { node, error: Some(error.to_string()), ..Self::default() },
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
) -> Result<(), CommandError> {
    let socket = path(data_dir);
    let data_dir = data_dir.to_owned();
    control_socket::serve(socket, ("snapshot socket", "snapshot answer"), tasks, move |stream| {
        let (snapshots, data_dir) = (Arc::clone(&snapshots), data_dir.clone());
        async move { handle_connection(&snapshots, &data_dir, stream).await }
    })
}

async fn handle_connection(
    snapshots: &Snapshots,
    data_dir: &Path,
    mut stream: UnixStream,
) -> std::io::Result<()> {
    let outcome = match control_socket::read_request(&mut stream, REQUEST_MAX).await {
        Ok(request) => run(snapshots, data_dir, request).await,
        Err(RequestError::Connection(error)) => return Err(error),
        Err(error) => Err(Error::Request(error)),
    };
    control_socket::write_response(stream, &Response::of(&snapshots.settings.node, outcome)).await
}

async fn run(snapshots: &Snapshots, data_dir: &Path, request: Request) -> Result<Outcome, Error> {
    let settings = &snapshots.settings;
    let folder = match &request.dir {
        Some(dir) => Folder::new(Some(dir), data_dir),
        None => settings.folder.clone(),
    };
    let locations =
        snapshots.locations(folder, request.s3.as_ref().or(settings.s3.as_ref())).await?;
    let changes = request.operation != Operation::List;
    let outcome = match request.operation {
        Operation::Save { name, compress } => {
            let saved = snapshots.save(&locations, &name, compress || settings.compress).await;
            saved.map(|snapshots| Outcome { snapshots, deleted: Vec::new() })
        }
        operation => locations.run(operation, &settings.node, settings.retention).await,
    };
    if changes {
        snapshots.record().await;
    }
    outcome
}

/// Sends a request to the server of a data directory; `None` if no server is running.
///
/// # Errors
/// The server stopped responding.
pub(crate) async fn send(data_dir: &Path, request: &Request) -> std::io::Result<Option<Response>> {
    control_socket::call(&path(data_dir), request, RESPONSE_MAX).await
}
