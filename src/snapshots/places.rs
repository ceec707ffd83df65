//! Where snapshots are: a folder, and a bucket of S3 beside it when there is one.

use base::tasks::blocking;

use super::s3::{self, Bucket};
use super::socket::Operation;
use super::{Folder, Snapshot};

/// All places of one server or command.
pub(crate) struct Places {
    pub(crate) folder: Folder,
    pub(crate) bucket: Option<Bucket>,
}

impl Places {
    /// Nothing is dialled yet.
    ///
    /// # Errors
    /// What of the settings cannot be used.
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

    /// What needs no store: snapshots, and names of deleted ones. The bucket keeps as many as the folder when a number is asked for.
    ///
    /// # Errors
    /// A sentence; what was done in the folder stays done.
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

    /// Deletes the oldest snapshots of a name beyond so many in the folder, and so many in the bucket.
    ///
    /// # Errors
    /// A sentence.
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
