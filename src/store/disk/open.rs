//! Opening a data directory as a [`Backend`].

use std::path::PathBuf;
use std::sync::Arc;

use base::Tasks;
use base::tasks::blocking;

use super::files::{Directory, Disk};
use super::lock::Lock;
use super::recover::recover;
use super::{ClusterId, DiskWork, OpenError};
use crate::backend::Store;
use crate::kv::Backend;
use crate::raft;

/// How to open a store.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory; made, with mode 0700, when it is not there.
    pub dir: PathBuf,
    /// Whose data must be in it; `None` takes what is there, or a new identity for an empty directory.
    pub cluster: Option<ClusterId>,
    /// Whether [`crate::Durability::Lazy`] is honoured; otherwise every write is synced before it is acknowledged.
    pub lazy: bool,
}

impl Config {
    /// The defaults for `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), cluster: None, lazy: true }
    }
}

/// Opens or makes the store in a directory; resolves once it leads and has applied its whole log. Its tasks end in order, with everything on disk, when `tasks` shuts down; give it
/// a set that is shut down behind everything that writes.
///
/// # Errors
/// See [`OpenError`]; except for finishing what an interrupted process began, nothing in the directory was changed then.
pub async fn open(config: Config, tasks: &Tasks) -> Result<Arc<dyn Backend>, OpenError> {
    let options = raft::Options { lazy: config.lazy, work: DiskWork::Threads };
    let opened = blocking(move || {
        base::fs::create_dir(&config.dir, 0o700)
            .map_err(OpenError::io("create", "the directory"))?;
        let lock = Lock::take(&config.dir)?;
        let disk: Arc<dyn Disk> = Arc::new(Directory(config.dir));
        Ok((recover(&disk, config.cluster)?, lock))
    });
    let failed = |panic| OpenError::Io {
        action: "read",
        file: "the files".to_owned(),
        source: std::io::Error::other(panic),
    };
    let (recovered, lock) = opened.await.map_err(failed)??;
    let (shared, engine) = raft::start(recovered, options, Some(lock), tasks).await?;
    Ok(Store::start(shared, engine, tasks))
}

#[cfg(test)]
mod tests;
