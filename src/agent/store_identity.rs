//! Which store this node belongs to: learned from the first server, and kept, so that no pod ends for a server of another one.

use std::path::PathBuf;
use std::sync::Arc;

use base::pki::store_id::StoreId;
use base::pki::trust::Servers;
use base::{Kind, Shutdown, Tasks};
use serde::{Deserialize, Serialize};

/// The file, in the agent's directory.
const FILE: &str = "store.json";
/// Bytes read of it.
const BYTES_MAX: usize = 4096;

/// What the file holds.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    store: String,
    #[serde(default)]
    replaced_at: u64,
}

/// Has `servers` believe only those of the store that was recorded, and records the first one otherwise, until shutdown.
///
/// # Errors
/// When the file cannot be read.
pub(super) fn follow(
    directory: PathBuf,
    servers: &Arc<Servers>,
    tasks: &Tasks,
) -> std::io::Result<()> {
    let path = directory.join(FILE);
    let recorded = match base::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        read => Some(read?),
    };
    let parse = |bytes: Vec<u8>| {
        let bytes = bytes.get(..BYTES_MAX.min(bytes.len())).unwrap_or_default();
        serde_json::from_slice::<Record>(bytes)
            .inspect_err(|error| {
                let path = path.display();
                tracing::warn!(%path, %error, "the store of this node cannot be read: taking it from the server");
            })
            .ok()
            .map(|Record { store, replaced_at }| StoreId { store, replaced_at })
    };
    let known = recorded.and_then(parse);
    servers.expect_store(known.clone());
    let (servers, shutdown) = (Arc::clone(servers), tasks.shutdown().clone());
    tasks.spawn(Kind::Request, "store identity", record(path, known, servers, shutdown));
    Ok(())
}

async fn record(
    path: PathBuf,
    mut known: Option<StoreId>,
    servers: Arc<Servers>,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut store = servers.store();
    loop {
        let now = store.borrow_and_update().clone();
        if let Some(now) = now.filter(|now| known.as_ref() != Some(now)) {
            match &known {
                Some(before) if before.store != now.store => {
                    tracing::warn!(store = %now, %before, "the servers have another store in the place of the former one");
                }
                _ => tracing::info!(store = %now, "this node belongs to the store of its server"),
            }
            known = Some(now.clone());
            let path = path.clone();
            let written = base::tasks::blocking(move || {
                let StoreId { store, replaced_at } = now;
                let text = serde_json::to_vec(&Record { store, replaced_at })?;
                base::fs::write_atomic(&path, &text, 0o600)
            });
            let written = written.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            if let Err(error) = written {
                tracing::warn!(%error, "cannot record the store of this node");
            }
        }
        tokio::select! {
            changed = store.changed() => if changed.is_err() { return Ok(()) },
            () = shutdown.requested() => return Ok(()),
        }
    }
}
