//! The locations of snapshots: a folder, and optionally an S3 bucket.

use base::tasks::blocking;
use sorting::CompactSort as _;

use super::s3::secret::SecretReader;
use super::s3::{self, Bucket, BucketConfig};
use super::socket::Operation;
use super::{Error, Folder, Snapshot};

/// The result of an operation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Snapshots taken or listed.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Names of deleted snapshots.
    pub(crate) deleted: Vec<String>,
}

/// The locations of snapshots of a server or a command.
pub(crate) struct SnapshotLocations {
    pub(crate) folder: Folder,
    pub(crate) bucket: Option<Bucket>,
}

impl SnapshotLocations {
    /// Opens the locations, without connecting to the bucket. `secrets` reads the settings of a
    /// bucket that are in a Secret.
    ///
    /// # Errors
    /// The settings of the bucket are invalid or cannot be read.
    pub(crate) async fn open(
        folder: Folder,
        bucket: Option<&BucketConfig>,
        secrets: Option<&SecretReader>,
    ) -> Result<Self, Error> {
        let bucket = match bucket {
            Some(config) => {
                let settings =
                    s3::secret::resolve(config, secrets).await.map_err(s3::Error::from)?;
                Some(Bucket::open(settings).await?)
            }
            None => None,
        };
        Ok(Self { folder, bucket })
    }

    async fn in_folder<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let folder = self.folder.clone();
        blocking(move || work(&folder)).await?
    }

    /// Runs an operation that needs no store. A given retention applies to the folder and the
    /// bucket.
    ///
    /// # Errors
    /// The folder or the bucket cannot be used; changes in the folder are not undone.
    pub(crate) async fn run(
        &self,
        operation: Operation,
        node: &str,
        retention: usize,
    ) -> Result<Outcome, Error> {
        match operation {
            Operation::Save { .. } => Err(Error::NeedsServer),
            Operation::List => {
                let mut all = self.in_folder(Folder::list).await?;
                if let Some(bucket) = &self.bucket {
                    all.extend(bucket.list().await?);
                }
                Ok(Outcome { snapshots: all, deleted: Vec::new() })
            }
            Operation::Delete(names) => {
                let in_folder = names.clone();
                let mut deleted = self.in_folder(move |folder| folder.delete(&in_folder)).await?;
                if let Some(bucket) = &self.bucket {
                    deleted.extend(bucket.delete(&names).await?);
                }
                Ok(Outcome { snapshots: Vec::new(), deleted: distinct(deleted) })
            }
            Operation::Prune { name, keep } => {
                let in_bucket = keep.or_else(|| self.bucket.as_ref().map(Bucket::retention));
                let keep = keep.unwrap_or(retention);
                let deleted = self.prune(&name, node, keep, in_bucket.unwrap_or(keep)).await?;
                Ok(Outcome { snapshots: Vec::new(), deleted })
            }
        }
    }

    /// Deletes the oldest snapshots of a name beyond the retention of the folder and of the bucket.
    ///
    /// # Errors
    /// The folder or the bucket cannot be used.
    pub(crate) async fn prune(
        &self,
        name: &str,
        node: &str,
        keep: usize,
        keep_in_bucket: usize,
    ) -> Result<Vec<String>, Error> {
        let (prefix, of_node) = (name.to_owned(), node.to_owned());
        let prune = move |folder: &Folder| folder.prune(&prefix, &of_node, keep);
        let mut deleted = self.in_folder(prune).await?;
        if let Some(bucket) = &self.bucket {
            deleted.extend(bucket.prune(name, node, keep_in_bucket).await?);
        }
        Ok(distinct(deleted))
    }
}

fn distinct(mut names: Vec<String>) -> Vec<String> {
    names.compact_sort();
    names.dedup();
    names
}
