//! Snapshots of the store as files in a folder, under k3s's names: taken, listed, deleted and pruned.

pub(crate) mod folder;
pub(crate) mod places;
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

pub(crate) use folder::{Folder, Snapshot};
pub(crate) use places::Places;
pub(crate) use schedule::{Schedule, follow};
pub(crate) use socket::serve;

/// What is put behind the name of a compressed snapshot.
const COMPRESSED: &str = ".zip";

/// How a server takes snapshots when nothing else is said.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder.
    pub(crate) folder: Folder,
    /// First part of the names of scheduled snapshots.
    pub(crate) name: String,
    /// When they are taken; `None` never.
    pub(crate) schedule: Option<Schedule>,
    /// How many of them are kept; 0 keeps all.
    pub(crate) retention: usize,
    /// Whether they are compressed.
    pub(crate) compress: bool,
    /// Name of this node, the second part of every name.
    pub(crate) node: String,
    /// The bucket that has them, too.
    pub(crate) s3: Option<s3::Settings>,
}

/// Takes snapshots of one store, one at a time.
pub(crate) struct Snapshots {
    store: Arc<dyn Backend>,
    pub(crate) settings: Settings,
    one: tokio::sync::Mutex<()>,
}

impl Snapshots {
    /// Of this store.
    pub(crate) fn new(store: &Arc<dyn Backend>, settings: Settings) -> Arc<Self> {
        let store = Arc::clone(store);
        Arc::new(Self { store, settings, one: tokio::sync::Mutex::default() })
    }

    /// Takes one now, named after `name`, this node and the time; where it is, first in the folder.
    ///
    /// # Errors
    /// A sentence; nothing is left of it then, or it says that the folder has it and the bucket has not.
    pub(crate) async fn save(
        &self,
        places: &Places,
        name: &str,
        compress: bool,
    ) -> Result<Vec<Snapshot>, String> {
        let saved = self.save_to(&places.folder, name, compress).await?;
        let Some(bucket) = &places.bucket else { return Ok(vec![saved]) };
        let path = saved.location.strip_prefix("file://").unwrap_or(&saved.location);
        match bucket.put(Path::new(path), &saved.name).await {
            Ok(uploaded) => {
                tracing::info!(snapshot = uploaded.location, "snapshot uploaded");
                Ok(vec![saved, uploaded])
            }
            Err(error) => Err(format!("{} is saved, but not uploaded: {error}", saved.location)),
        }
    }

    async fn save_to(
        &self,
        folder: &Folder,
        name: &str,
        compress: bool,
    ) -> Result<Snapshot, String> {
        let _one =
            self.one.try_lock().map_err(|_| "snapshot save already in progress".to_owned())?;
        let base = format!("{name}-{}", self.settings.node);
        let making = folder.clone();
        let started = blocking(move || making.begin(&base)).await.map_err(|e| e.to_string())?;
        let (name, temporary) = started?;
        let taken = self.take(folder, &name, &temporary, compress).await;
        if taken.is_err() {
            // The error that counts is the first.
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
    ) -> Result<Snapshot, String> {
        let told = |e: &dyn std::fmt::Display| format!("cannot write {}: {e}", temporary.display());
        let (path, made) = (temporary.to_owned(), std::fs::OpenOptions::new);
        let open = move || made().read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = blocking(open).await.map_err(|e| told(&e))?.map_err(|e| told(&e))?;
        let saved = self.store.save(file).await.map_err(|e| told(&e))?;
        let (folder, name, temporary) = (folder.clone(), name.to_owned(), temporary.to_owned());
        let ended = blocking(move || folder.end(&name, &temporary, compress)).await;
        let snapshot = ended.map_err(|e| e.to_string())??;
        tracing::info!(
            snapshot = snapshot.location,
            revision = saved.revision,
            changes = saved.changes,
            bytes = snapshot.size,
            "snapshot saved"
        );
        Ok(snapshot)
    }
}

/// The default folder of a data directory.
pub(crate) fn default_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("server/db/snapshots")
}
