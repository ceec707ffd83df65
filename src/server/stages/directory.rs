//! Stage `directory`: locks the data directory and identifies the store in it.

use std::fs::File;
use std::path::PathBuf;

use crate::error_catalogue::{CommandError, DATA_DIR};
use crate::server::config::Config;
use crate::server::store_identity::StoreIdentity;
use crate::server::{data_dir, datastore};

/// The data directory of this server, which no other process uses.
pub(crate) struct ServerDirectory {
    /// Locks `server/` until this is dropped.
    pub(crate) lock: File,
    /// Directory of the embedded store.
    pub(crate) db: PathBuf,
    /// Recorded identity of the store; `None` before a join and with an external datastore.
    pub(crate) identity: Option<StoreIdentity>,
}

/// Opens the data directory, and puts CAs and keys in force that wait for this start.
///
/// # Errors
/// The directory belongs to another program or process, or the store or a file of it is missing.
pub(crate) fn open_directory(config: &Config) -> Result<ServerDirectory, CommandError> {
    let data_dir = &config.machine.data_dir;
    data_dir::check(data_dir)?;
    base::fs::create_dir(data_dir, 0o700).map_err(|e| DATA_DIR.error(e))?;
    // The store has its own lock. This one protects the files next to the store, and is taken
    // before any of them changes.
    let path = data_dir.join("server");
    base::fs::create_dir(&path, 0o700).map_err(|e| DATA_DIR.error(e))?;
    let lock = crate::machine::lock(&path.join("lock"))?;
    let db = datastore::folder(config)?;
    let identity = StoreIdentity::open(config, &db)?;
    // Before anything reads a CA.
    match &identity {
        Some(own) if cluster::rotation::is_pending(data_dir) => own.forget_files()?,
        Some(own) => own.check_files()?,
        None => {}
    }
    let changed = cluster::rotation::apply_pending(data_dir).map_err(|e| DATA_DIR.error(e))?;
    if !changed.is_empty() {
        tracing::info!(files = changed.join(" "), "server: replaced CAs and keys");
    }
    Ok(ServerDirectory { lock, db, identity })
}
