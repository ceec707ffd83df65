//! `Maintenance.Snapshot`: streams the state as a database file, in chunks of etcd's size.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::tasks::blocking;
use futures::{Stream, stream};
use proto::etcdserverpb::SnapshotResponse;
use store::SavedSnapshot;
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use crate::service::Etcd;

/// Chunk size, etcd's `snapshotSendBufferSize`.
const PIECE: u64 = 32 * 1024;

/// Size of the trailing sha256, which is a chunk of its own.
const SUM: u64 = 32;

/// A snapshot being sent.
struct Sending {
    file: Arc<File>,
    saved: SavedSnapshot,
    sent: u64,
    _place: OwnedSemaphorePermit,
}

fn failed(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("etcdserver: no snapshot can be taken: {error}"))
}

impl Etcd {
    /// Takes a snapshot and streams it at the client's pace.
    pub(crate) async fn send_snapshot(
        &self,
    ) -> Result<impl Stream<Item = Result<SnapshotResponse, Status>> + use<>, Status> {
        let place = Arc::clone(&self.snapshots).try_acquire_owned();
        let place =
            place.map_err(|_| Status::resource_exhausted("etcdserver: too many requests"))?;
        let scratch = self.scratch.clone();
        let file = blocking(move || base::fs::scratch(&scratch)).await.map_err(failed)?;
        let file = file.map_err(failed)?;
        let saved = self.backend.save(file.try_clone().map_err(failed)?).await.map_err(failed)?;
        let sending = Sending { file: Arc::new(file), saved, sent: 0, _place: place };
        Ok(stream::try_unfold(sending, next))
    }
}

async fn next(mut sending: Sending) -> Result<Option<(SnapshotResponse, Sending)>, Status> {
    let (sent, size) = (sending.sent, sending.saved.size);
    // The remaining bytes are those of the database alone.
    let pages = size.saturating_sub(SUM);
    let take = if sent < pages { PIECE.min(pages - sent) } else { size.saturating_sub(sent) };
    if take == 0 {
        return Ok(None);
    }
    let file = Arc::clone(&sending.file);
    let piece = blocking(move || {
        let mut piece = vec![0; usize::try_from(take).unwrap_or(0)];
        file.read_exact_at(&mut piece, sent).map(|()| piece)
    });
    let blob = piece.await.map_err(failed)?.map_err(failed)?;
    sending.sent = sent + take;
    let answer = SnapshotResponse {
        header: None,
        remaining_bytes: pages.saturating_sub(sending.sent),
        blob: blob.into(),
        version: sending.saved.storage_version.clone(),
    };
    Ok(Some((answer, sending)))
}
