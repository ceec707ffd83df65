//! Whether a pod may use an image that is present: records of who pulled it with which credentials
//! (upstream: `pkg/kubelet/images/pullmanager`, KEP 2535).
//!
//! An image without a record was not pulled by this node, or by a version without records; the
//! default policy lets every pod use it.

mod cache;
mod check;
mod files;
pub(crate) mod metrics;
pub(crate) mod policy;
mod record;
mod store;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Kind, Tasks};
use proto::runtime::v1 as cri;

use crate::image_credentials::keyring::TrackedCredential;
use check::{CheckResult, Step};
use policy::ImageVerification;
use record::{Credentials, PulledRecord};
use store::{RecordStore, StoreSizes};

/// The records of a node, and its policy.
#[derive(Debug)]
pub(crate) struct ImageAccess {
    policy: ImageVerification,
    store: Arc<RecordStore>,
    tasks: Tasks,
}

/// What is known about the access of a pod to an image before its credentials are looked up.
#[derive(Debug)]
pub(crate) enum Access {
    Allowed,
    MustPull,
    /// It depends on the credentials of the pod.
    Compare(AccessComparison),
}

/// The stored credentials, for [`ImageAccess::allows`].
#[derive(Debug)]
pub(crate) struct AccessComparison {
    record: Arc<PulledRecord>,
    image: String,
}

impl ImageAccess {
    /// Opens the records below the directory of the kubelet.
    ///
    /// # Errors
    /// The directories cannot be created.
    pub(crate) async fn open(
        root_dir: &Path,
        policy: ImageVerification,
        max_pods: u32,
        pulls_max: usize,
        tasks: &Tasks,
    ) -> io::Result<Arc<Self>> {
        let sizes = StoreSizes::new(max_pods, pulls_max);
        let root = root_dir.join("image_manager");
        let opened = base::tasks::blocking(move || RecordStore::open(&root, sizes)).await;
        let store = Arc::new(opened.map_err(io::Error::other)??);
        Ok(Arc::new(Self { policy, store, tasks: tasks.clone() }))
    }

    /// Whether intents of an earlier process are left, whose pulls may have ended.
    pub(crate) fn has_intents(&self) -> bool {
        self.store.has_intents()
    }

    /// Makes records of the intents whose image is among those of the runtime.
    pub(crate) async fn finish_intents(&self, images: Vec<cri::Image>) {
        self.blocking("finish image pull intents", move |store| {
            store.finish_intents(&images);
            Ok(())
        })
        .await;
    }

    /// Decides as far as possible without the credentials of the pod. `image` is the name as the
    /// pod has it, `id` that of the image in the runtime.
    pub(crate) async fn check(&self, image: &str, id: &str) -> Access {
        if id.is_empty() {
            return Access::MustPull;
        }
        let store = &self.store;
        let (record, is_pulled) = match store.find(image, id).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(image, %error, "cannot read the records of image pulls");
                metrics::CHECKS.inc(&[CheckResult::Error.label()]);
                return Access::MustPull;
            }
        };
        match check::without_credentials(&self.policy, image, record.as_deref(), is_pulled) {
            Step::Done(result) => {
                metrics::CHECKS.inc(&[result.label()]);
                if result.is_allowed() { Access::Allowed } else { Access::MustPull }
            }
            Step::Compare => match record {
                Some(record) => {
                    Access::Compare(AccessComparison { record, image: image.to_owned() })
                }
                None => Access::MustPull,
            },
        }
    }

    /// Whether credentials of the pod are among the stored ones. A new location or content of a
    /// matching secret is recorded.
    pub(crate) async fn allows(
        &self,
        comparison: AccessComparison,
        credentials: &[TrackedCredential],
    ) -> bool {
        let AccessComparison { record, image } = comparison;
        let found = check::compare(&record, &image, credentials);
        let result = if found.is_some() { CheckResult::Found } else { CheckResult::MustPull };
        metrics::CHECKS.inc(&[result.label()]);
        let Some(found) = found else { return false };
        if let Some(secret) = found.changed {
            let id = record.image_ref.clone();
            self.blocking("write an image pulled record", move |store| {
                store.record_pulled(&image, &id, Some(&Credentials::of_secret(secret)))
            })
            .await;
        }
        true
    }

    /// Records that an image is about to be pulled: from now on it counts as pulled by this node.
    ///
    /// # Errors
    /// The intent cannot be written.
    pub(crate) async fn begin_pull(self: &Arc<Self>, image: &str) -> io::Result<PullIntent> {
        let (store, name) = (Arc::clone(&self.store), image.to_owned());
        let written = base::tasks::blocking(move || store.begin_pull(&name)).await;
        written.map_err(io::Error::other)??;
        Ok(PullIntent { access: Arc::clone(self), image: Some(image.to_owned()) })
    }

    /// Removes records of images that are not in `ids` and that were last changed before `until`,
    /// a time since the Unix epoch.
    pub(crate) async fn prune(&self, ids: Vec<String>, until: Duration) {
        self.blocking("remove image pulled records", move |store| {
            store.prune(&ids, until);
            Ok(())
        })
        .await;
    }

    /// Runs work on the files; an error is logged.
    async fn blocking(
        &self,
        what: &'static str,
        work: impl FnOnce(&RecordStore) -> io::Result<()> + Send + 'static,
    ) {
        let store = Arc::clone(&self.store);
        let outcome = base::tasks::blocking(move || work(&store)).await;
        if let Err(error) = outcome.map_err(io::Error::other).and_then(|outcome| outcome) {
            tracing::error!(%error, "cannot {what}");
        }
    }
}

/// A pull that runs. It ends as failed when this value is dropped.
#[derive(Debug)]
pub(crate) struct PullIntent {
    access: Arc<ImageAccess>,
    /// `None` once the pull has ended.
    image: Option<String>,
}

impl PullIntent {
    /// Records the image, and the credentials that it was pulled with; `None` for those of the
    /// node or none at all. If the record cannot be written, the intent stays, so that the image
    /// counts as pulled by this node.
    pub(crate) async fn succeed(mut self, id: &str, credential: Option<&TrackedCredential>) {
        let Some(image) = self.image.take() else { return };
        let (id, credentials) = (id.to_owned(), Credentials::of_pull(credential));
        let work = move |store: &RecordStore| {
            store.record_pulled(&image, &id, Some(&credentials))?;
            store.end_pull(&image)
        };
        self.access.blocking("write an image pulled record", work).await;
    }
}

impl Drop for PullIntent {
    fn drop(&mut self) {
        let Some(image) = self.image.take() else { return };
        let store = Arc::clone(&self.access.store);
        self.access.tasks.spawn(Kind::Request, "image-pull-intent", async move {
            let ended = base::tasks::blocking(move || store.end_pull(&image)).await;
            ended.map_err(io::Error::other)?
        });
    }
}
