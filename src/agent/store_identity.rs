//! The store that this node belongs to, learned from the first server and recorded, so that no pod
//! ends because of a server with another store.

use std::path::PathBuf;
use std::sync::Arc;

use base::pki::store_id::StoreId;
use base::pki::trust::Servers;
use base::{Kind, Shutdown, Tasks};
use serde::{Deserialize, Serialize};

/// The file, in the agent's directory.
const FILE: &str = "store.json";
/// Maximum size of the file in bytes.
const BYTES_MAX: usize = 4096;

/// The content of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    store: String,
    #[serde(default)]
    replaced_at: u64,
}

/// Makes `servers` trust only servers of the recorded store, or records that of the first one,
/// until shutdown.
///
/// # Errors
/// The file cannot be read.
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
                tracing::warn!(%path, %error, "store identity: cannot read the file, using the store of the server");
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
                    tracing::warn!(store = %now, %before, "store identity: the store of the servers was replaced");
                }
                _ => {
                    tracing::info!(store = %now, "store identity: recorded the store of the server")
                }
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
                tracing::warn!(%error, "store identity: cannot record the store");
            }
        }
        tokio::select! {
            changed = store.changed() => if changed.is_err() { return Ok(()) },
            () = shutdown.requested() => return Ok(()),
        }
    }
}
