//! The locations of snapshots: a folder, and optionally an S3 bucket.

use base::tasks::blocking;

use super::s3::{self, Bucket};
use super::socket::Operation;
use super::{Folder, Snapshot};

/// The locations of a server or a command.
pub(crate) struct Places {
    pub(crate) folder: Folder,
    pub(crate) bucket: Option<Bucket>,
}

impl Places {
    /// Does not connect yet.
    ///
    /// # Errors
    /// The invalid setting.
    pub(crate) async fn open(
        folder: Folder,
        settings: Option<&s3::Settings>,
    ) -> Result<Self, String> {
        let bucket = match settings {
            Some(settings) => Some(Bucket::open(settings.clone()).await?),
            None => None,
        };
        Ok(Self { folder, bucket })
    }

    async fn in_folder<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let folder = self.folder.clone();
        blocking(move || work(&folder)).await.map_err(|e| e.to_string())?
    }

    /// Runs a request that needs no store; returns snapshots, and names of deleted ones. A given
    /// retention applies to the folder and the bucket.
    ///
    /// # Errors
    /// An error message; changes in the folder are not undone.
    pub(crate) async fn act(
        &self,
        operation: Operation,
        node: &str,
        retention: usize,
    ) -> Result<(Vec<Snapshot>, Vec<String>), String> {
        match operation {
            Operation::Save { .. } => Err("only a server that runs takes snapshots".to_owned()),
            Operation::List => {
                let mut all = self.in_folder(Folder::list).await?;
                if let Some(bucket) = &self.bucket {
                    all.extend(bucket.list().await?);
                }
                Ok((all, Vec::new()))
            }
            Operation::Delete(names) => {
                let own = names.clone();
                let mut deleted = self.in_folder(move |folder| folder.delete(&own)).await?;
                if let Some(bucket) = &self.bucket {
                    deleted.extend(bucket.delete(&names).await?);
                }
                Ok((Vec::new(), distinct(deleted)))
            }
            Operation::Prune { name, keep } => {
                let further = keep.or_else(|| self.bucket.as_ref().map(Bucket::retention));
                let keep = keep.unwrap_or(retention);
                let deleted = self.prune(&name, node, keep, further.unwrap_or(keep)).await?;
                Ok((Vec::new(), deleted))
            }
        }
    }

    /// Deletes the oldest snapshots of a name beyond the retention of the folder and of the bucket.
    ///
    /// # Errors
    /// An error message.
    pub(crate) async fn prune(
        &self,
        name: &str,
        node: &str,
        keep: usize,
        keep_in_bucket: usize,
    ) -> Result<Vec<String>, String> {
        let (own, of) = (name.to_owned(), node.to_owned());
        let mut deleted = self.in_folder(move |folder| folder.prune(&own, &of, keep)).await?;
        if let Some(bucket) = &self.bucket {
            deleted.extend(bucket.prune(name, node, keep_in_bucket).await?);
        }
        Ok(distinct(deleted))
    }
}

fn distinct(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.dedup();
    names
}
