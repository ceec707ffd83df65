//! Snapshots of the store as files in a folder and objects in an S3 bucket, with the names and
//! formats of k3s.

mod error;
pub(crate) mod folder;
pub(crate) mod locations;
pub(crate) mod metrics;
mod objects;
pub(crate) mod s3;
mod schedule;
pub(crate) mod socket;
pub(crate) mod source;
pub(crate) mod zip;

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::tasks::blocking;
use base::{Kind, Tasks};
use client::Client;
use store::Backend;

use crate::error_catalogue::{BAD_VALUE, CommandError};

pub(crate) use error::Error;
use folder::is_valid_name;
pub(crate) use folder::{Folder, Snapshot, default_dir};
pub(crate) use locations::SnapshotLocations;
pub(crate) use objects::SnapshotObjects;
use s3::secret::SecretReader;
pub(crate) use schedule::{Schedule, follow};
pub(crate) use socket::serve;

/// The user that the snapshots of a server act as in the API: it reads the Secret with the settings
/// of the bucket.
pub(crate) const USER: &str = "system:etcd-snapshot-controller";
/// Its user agent.
pub(crate) const AGENT: &str = "etcd-snapshot-controller";
/// First and longest delay between attempts to write the objects after the start.
const OBJECTS_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

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
    pub(crate) s3: Option<s3::BucketConfig>,
}

/// Takes snapshots of one store, one at a time.
pub(crate) struct Snapshots {
    store: Arc<dyn Backend>,
    pub(crate) settings: Settings,
    secrets: SecretReader,
    objects: SnapshotObjects,
    /// Held while a snapshot is taken.
    running: tokio::sync::Mutex<()>,
}

impl Snapshots {
    /// Takes snapshots of this store; `client` reads Secrets with the settings of a bucket, and
    /// `objects` are the records of the snapshots.
    pub(crate) fn new(
        store: &Arc<dyn Backend>,
        settings: Settings,
        client: Client,
        objects: SnapshotObjects,
    ) -> Arc<Self> {
        let (store, secrets) = (Arc::clone(store), SecretReader::new(client));
        let running = tokio::sync::Mutex::default();
        Arc::new(Self { store, settings, secrets, objects, running })
    }

    /// Makes the objects equal to what is in the server's folder and bucket.
    ///
    /// # Errors
    /// The folder cannot be read, or the API server rejects a request.
    async fn reconcile(&self) -> Result<(), Error> {
        let started = base::clock::now();
        let outcome = self.reconcile_objects().await;
        metrics::observe(&metrics::RECONCILE, started, &outcome);
        outcome
    }

    async fn reconcile_objects(&self) -> Result<(), Error> {
        let started = base::clock::now();
        let folder = self.settings.folder.clone();
        let local = blocking(move || folder.list()).await?;
        metrics::observe(&metrics::RECONCILE_LOCAL, started, &local);
        let mut stored = objects::Stored { local: local?, remote: None };
        if self.settings.s3.is_some() {
            let started = base::clock::now();
            let listed = self.list_bucket().await;
            metrics::observe(&metrics::RECONCILE_S3, started, &listed);
            match listed {
                Ok(remote) => stored.remote = remote,
                // The objects of the folder are right nevertheless.
                Err(error) => tracing::warn!(%error, "snapshots: cannot list the bucket"),
            }
        }
        self.objects.reconcile(&stored).await.map_err(Error::Objects)
    }

    /// The snapshots in the server's bucket, and the description of the bucket.
    async fn list_bucket(&self) -> Result<Option<(Vec<Snapshot>, serde_json::Value)>, Error> {
        let settings = &self.settings;
        let locations = self.locations(settings.folder.clone(), settings.s3.as_ref()).await?;
        let Some(bucket) = &locations.bucket else { return Ok(None) };
        Ok(Some((bucket.list().await?, bucket.description())))
    }

    /// Makes the objects equal to what is stored after an operation, whose outcome does not depend
    /// on it.
    pub(crate) async fn record(&self) {
        match self.reconcile().await {
            Ok(()) => {}
            // A server without addons has no definition of the kind.
            Err(Error::Objects(error)) if error.is_not_found() => {}
            Err(error) => tracing::warn!(%error, "snapshots: cannot write the ETCDSnapshotFiles"),
        }
    }

    /// Records the snapshots of earlier runs, once the kind is served.
    pub(crate) fn start(self: &Arc<Self>, tasks: &Tasks) {
        let (snapshots, shutdown) = (Arc::clone(self), tasks.shutdown().clone());
        tasks.spawn(Kind::Request, "snapshot objects", async move {
            let mut backoff = base::Backoff::new(OBJECTS_RETRY.0, OBJECTS_RETRY.1);
            while let Err(error) = snapshots.reconcile().await {
                if !objects::wait_for_kind(&mut backoff, &shutdown).await {
                    tracing::debug!(%error, "snapshots: the ETCDSnapshotFiles are not written");
                    break;
                }
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }

    /// Opens a folder and a bucket.
    ///
    /// # Errors
    /// The settings of the bucket are invalid or cannot be read.
    pub(crate) async fn locations(
        &self,
        folder: Folder,
        bucket: Option<&s3::BucketConfig>,
    ) -> Result<SnapshotLocations, Error> {
        SnapshotLocations::open(folder, bucket, Some(&self.secrets)).await
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
        let started = base::clock::now();
        let outcome = self.save_and_upload(locations, name, compress).await;
        metrics::observe(&metrics::SAVE, started, &outcome);
        outcome
    }

    async fn save_and_upload(
        &self,
        locations: &SnapshotLocations,
        name: &str,
        compress: bool,
    ) -> Result<Vec<Snapshot>, Error> {
        let started = base::clock::now();
        let saved = self.save_to(&locations.folder, name, compress).await;
        metrics::observe(&metrics::SAVE_LOCAL, started, &saved);
        let saved = saved?;
        let Some(bucket) = &locations.bucket else { return Ok(vec![saved]) };
        let path = saved.location.strip_prefix("file://").unwrap_or(&saved.location);
        let started = base::clock::now();
        let uploaded = bucket.put(Path::new(path), &saved.name).await;
        metrics::observe(&metrics::SAVE_S3, started, &uploaded);
        match uploaded {
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

/// A time as in objects.
pub(crate) fn rfc3339(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
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
