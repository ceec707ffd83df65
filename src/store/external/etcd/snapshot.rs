//! Streams a snapshot of an etcd into a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use base::tasks::blocking;
use proto::etcdserverpb as pb;
use tonic::Request;

use super::calls::{Calls, plain};
use super::error::Refusal;
use crate::contract::Saved;
use crate::snapshot::inspect;

/// How long a piece of a snapshot may take.
const PIECE: Duration = Duration::from_secs(60);

/// Writes etcd's snapshot to an empty file, synced, and reads it back.
///
/// # Errors
/// The file system's, etcd's, and what is wrong with what it sent.
pub(super) async fn save(calls: &Calls, file: File) -> io::Result<Saved> {
    let told = |refusal: Refusal| io::Error::other(refusal.to_string());
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "etcd does not go on with it");
    let line = tokio::time::timeout(PIECE, calls.lines.line()).await.map_err(late)?;
    let mut client = line.maintenance();
    let asked = client.snapshot(Request::new(pb::SnapshotRequest {}));
    let asked = tokio::time::timeout(PIECE, asked).await.map_err(late)?;
    let mut pieces = plain(asked).map_err(told)?;
    let (mut at, mut version) = (0_u64, String::new());
    let file = Arc::new(file);
    loop {
        let piece = tokio::time::timeout(PIECE, pieces.message()).await.map_err(late)?;
        let Some(piece) = piece.map_err(Refusal::of).map_err(told)? else { break };
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
        inspect(&file).map_err(|error| io::Error::other(format!("what etcd sent {error}")))
    });
    let facts = checked.await.map_err(io::Error::other)??;
    Ok(Saved {
        revision: facts.revision,
        size: facts.size,
        changes: facts.changes,
        storage_version: facts.storage_version.unwrap_or(version),
    })
}
