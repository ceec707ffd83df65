//! Snapshots of the store as files in a folder and objects in an S3 bucket, with the names and
//! formats of k3s.

mod error;
pub(crate) mod folder;
pub(crate) mod locations;
pub(crate) mod s3;
mod schedule;
pub(crate) mod socket;
pub(crate) mod source;
pub(crate) mod zip;

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::tasks::blocking;
use store::Backend;

use crate::error_catalogue::{BAD_VALUE, CommandError};

pub(crate) use error::Error;
pub(crate) use folder::{Folder, Snapshot};
pub(crate) use locations::SnapshotLocations;
pub(crate) use schedule::{Schedule, follow};
pub(crate) use socket::serve;

/// Extension of a compressed snapshot.
const COMPRESSED: &str = ".zip";

/// The snapshot settings of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder of the snapshots.
    pub(crate) folder: Folder,
    /// Prefix of the names of scheduled snapshots.
    pub(crate) name: String,
    /// When snapshots are taken; `None` for never.
    pub(crate) schedule: Option<Schedule>,
    /// Number of scheduled snapshots to keep; 0 keeps all.
    pub(crate) retention: usize,
    /// Whether scheduled snapshots are compressed.
    pub(crate) compress: bool,
    /// Name of this node, which follows the prefix in every name.
    pub(crate) node: String,
    /// The bucket in which snapshots are stored as well.
    pub(crate) s3: Option<s3::Settings>,
}

/// Takes snapshots of one store, one at a time.
pub(crate) struct Snapshots {
    store: Arc<dyn Backend>,
    pub(crate) settings: Settings,
    /// Held while a snapshot is taken.
    running: tokio::sync::Mutex<()>,
}

impl Snapshots {
    /// Takes snapshots of this store.
    pub(crate) fn new(store: &Arc<dyn Backend>, settings: Settings) -> Arc<Self> {
        let store = Arc::clone(store);
        Arc::new(Self { store, settings, running: tokio::sync::Mutex::default() })
    }

    /// Takes a snapshot now, named after `name`, this node and the time; its locations, the folder
    /// first.
    ///
    /// # Errors
    /// The snapshot was not taken, or it is in the folder but not in the bucket.
    pub(crate) async fn save(
        &self,
        locations: &SnapshotLocations,
        name: &str,
        compress: bool,
    ) -> Result<Vec<Snapshot>, Error> {
        let saved = self.save_to(&locations.folder, name, compress).await?;
        let Some(bucket) = &locations.bucket else { return Ok(vec![saved]) };
        let path = saved.location.strip_prefix("file://").unwrap_or(&saved.location);
        match bucket.put(Path::new(path), &saved.name).await {
            Ok(uploaded) => {
                tracing::info!(snapshot = uploaded.location, "snapshots: uploaded");
                Ok(vec![saved, uploaded])
            }
            Err(source) => Err(Error::NotUploaded { location: saved.location, source }),
        }
    }

    async fn save_to(
        &self,
        folder: &Folder,
        name: &str,
        compress: bool,
    ) -> Result<Snapshot, Error> {
        let _running = self.running.try_lock().map_err(|_| Error::InProgress)?;
        let base = format!("{name}-{}", self.settings.node);
        let target = folder.clone();
        let (name, temporary) = blocking(move || target.start_file(&base)).await??;
        let taken = self.take(folder, &name, &temporary, compress).await;
        if taken.is_err() {
            // Only the first error is reported.
            let _ = std::fs::remove_file(&temporary);
        }
        taken
    }

    async fn take(
        &self,
        folder: &Folder,
        name: &str,
        temporary: &Path,
        compress: bool,
    ) -> Result<Snapshot, Error> {
        let path = temporary.to_owned();
        let create = move || {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600).open(path)
        };
        let failed = |source| Error::WriteFile { path: temporary.to_owned(), source };
        let file = blocking(create).await?.map_err(failed)?;
        let saved = self.store.save(file).await.map_err(failed)?;
        let (folder, name, temporary) = (folder.clone(), name.to_owned(), temporary.to_owned());
        let snapshot = blocking(move || folder.finish_file(&name, &temporary, compress)).await??;
        tracing::info!(
            snapshot = snapshot.location,
            revision = saved.revision,
            changes = saved.changes,
            bytes = snapshot.size,
            "snapshots: saved"
        );
        Ok(snapshot)
    }
}

/// Checks that the value of `--<flag>` can be part of the file name of a snapshot.
///
/// # Errors
/// The name has other characters.
pub(crate) fn check_name(flag: &str, name: &str) -> Result<(), CommandError> {
    if is_valid_name(name) {
        return Ok(());
    }
    Err(BAD_VALUE.usage_error(format!(
        "--{flag}={name}: must be letters, digits, '-', '_' and '.', and must not begin with '.'"
    )))
}

/// Whether a text can be (part of) the file name of a snapshot.
fn is_valid_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(is_plain)
}

/// The default folder of a data directory.
pub(crate) fn default_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("server/db/snapshots")
}
