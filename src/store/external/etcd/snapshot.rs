//! Streams a snapshot of an etcd into a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use base::tasks::blocking;
use proto::etcdserverpb as pb;
use tonic::Request;

use super::error::EtcdError;
use crate::contract::SavedSnapshot;
use crate::external::etcd::client::{Client, into_message};
use crate::snapshot::inspect;

/// Timeout of a part of a snapshot.
const PIECE: Duration = Duration::from_secs(60);

/// Writes etcd's snapshot to an empty file, synced and verified.
///
/// # Errors
/// Errors of the file system and of etcd, and invalid content.
pub(super) async fn save(client: &Client, file: File) -> io::Result<SavedSnapshot> {
    let into_store_error = |error: EtcdError| io::Error::other(error.to_string());
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no further data from etcd");
    let connection =
        tokio::time::timeout(PIECE, client.connections.current()).await.map_err(late)?;
    let mut maintenance = connection.maintenance();
    let received = maintenance.snapshot(Request::new(pb::SnapshotRequest {}));
    let received = tokio::time::timeout(PIECE, received).await.map_err(late)?;
    let mut pieces = into_message(received).map_err(into_store_error)?;
    let (mut at, mut version) = (0_u64, String::new());
    let file = Arc::new(file);
    loop {
        let piece = tokio::time::timeout(PIECE, pieces.message()).await.map_err(late)?;
        let Some(piece) = piece.map_err(EtcdError::of).map_err(into_store_error)? else { break };
        let (to, blob) = (Arc::clone(&file), piece.blob);
        let length = blob.len() as u64;
        let written = blocking(move || to.write_all_at(&blob, at)).await;
        written.map_err(io::Error::other)??;
        at += length;
        if version.is_empty() {
            version = piece.version;
        }
    }
    let checked = blocking(move || {
        file.sync_all()?;
        inspect(&file).map_err(|error| io::Error::other(format!("the snapshot of etcd {error}")))
    });
    let info = checked.await.map_err(io::Error::other)??;
    Ok(SavedSnapshot {
        revision: info.revision,
        size: info.size,
        changes: info.changes,
        storage_version: info.storage_version.unwrap_or(version),
    })
}
