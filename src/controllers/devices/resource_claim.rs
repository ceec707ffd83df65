//! Creates the ResourceClaims of pods from templates, and releases, deallocates and deletes claims
//! whose pods do not need them any more.
//!
//! Names, events, errors and metrics are those of upstream's controller. The features are those of
//! 1.37: DRAAdminAccess and DRAPrioritizedList are on without a choice; GenericWorkload and
//! DRAWorkloadResourceClaims are off, so that claims of PodGroups are neither created nor reserved,
//! and their reservations are kept.

mod claim_count;
mod claim_sync;
mod created;
mod listeners;
mod new_claim;
mod pod_sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::k8s::api::core::v1::Pod;
use api::k8s::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use base::Tasks;
use client::{Action, Client, EventRecorder, Informer, Informers, Queue, run_workers};
use parking_lot::Mutex;

use self::claim_count::ClaimCount;
use self::created::CreatedClaims;
use super::metrics;
use super::pod_claims::{NameError, OwnerError};
use super::uid_cache::UidCache;
use crate::framework::context::Context;

/// The name of the controller.
const CONTROLLER: &str = "resourceclaim-controller";
/// Its service account.
const ACCOUNT: &str = "resource-claim-controller";
/// Source of events.
const COMPONENT: &str = "resource_claim";
/// Number of workers. Upstream's 50 hide the latency of its connection; requests in the process
/// have none.
const WORKERS: usize = 8;
/// The annotation of a generated claim: the name of the entry of `spec.resourceClaims`.
const POD_CLAIM_ANNOTATION: &str = "resource.kubernetes.io/pod-claim-name";
/// The finalizer of an allocated claim.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// What is reconciled: namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum WorkItem {
    /// The reservations, the allocation and the existence of a claim.
    Claim(Arc<str>, Arc<str>),
    /// The claims of a pod.
    Pod(Arc<str>, Arc<str>),
}

/// Why a work item failed.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    /// Not retried: the feature cannot be switched on.
    #[error(
        "get PodGroup for Pod {namespace}/{pod}: Pod is a member of PodGroup {group} but \
         GenericWorkload feature is disabled"
    )]
    PodGroup { namespace: Arc<str>, pod: Arc<str>, group: String },
    /// The claim of a pod claim could not be found or created.
    #[error("pod {namespace}/{pod}, PodResourceClaim {claim}: {source}")]
    PodClaim { namespace: Arc<str>, pod: Arc<str>, claim: String, source: PodClaimError },
    /// The names of new claims could not be recorded.
    #[error("update pod {namespace}/{pod} ResourceClaimStatuses: {source}")]
    PodStatus { namespace: Arc<str>, pod: Arc<str>, source: client::Error },
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Owner(#[from] OwnerError),
    #[error("reserve claim {namespace}/{claim}: {source}")]
    Reserve { namespace: Arc<str>, claim: String, source: client::Error },
    #[error("delete unused generated claim {namespace}/{claim}: {source}")]
    Delete { namespace: String, claim: String, source: client::Error },
    #[error(transparent)]
    Api(#[from] client::Error),
}

impl SyncError {
    /// Another attempt cannot succeed.
    fn is_permanent(&self) -> bool {
        matches!(self, Self::PodGroup { .. })
    }
}

/// Why there is no claim for a pod claim.
#[derive(Debug, thiserror::Error)]
enum PodClaimError {
    #[error("checking for claim before creating it: {0}")]
    Name(NameError),
    #[error("checking claim existence: {0}")]
    Existence(client::Error),
    #[error("resource claim template {0:?}: resourceclaimtemplate.resource.k8s.io {0:?} not found")]
    NoTemplate(String),
    /// The claim has no name yet, which leaves a gap in upstream's text.
    #[error("create ResourceClaim : {0}")]
    Create(client::Error),
}

struct Controller {
    client: Client,
    recorder: EventRecorder,
    pods: Informer<Pod>,
    claims: Informer<ResourceClaim>,
    templates: Informer<ResourceClaimTemplate>,
    queue: Queue<WorkItem>,
    /// Claims that this process created and that the cache may not have yet.
    created: Mutex<CreatedClaims>,
    /// Pods that are known to be gone, whose reservations need no request.
    deleted_pods: Mutex<UidCache>,
    count: Mutex<ClaimCount>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(ACCOUNT);
    let recorder = context.recorder(&client, COMPONENT);
    Controller::new(client, recorder, &context.informers).run(&context.tasks);
}

impl Controller {
    fn new(client: Client, recorder: EventRecorder, informers: &Informers) -> Self {
        Self {
            client,
            recorder,
            pods: informers.of(),
            claims: informers.of(),
            templates: informers.of(),
            queue: Queue::new(),
            created: Mutex::default(),
            deleted_pods: Mutex::default(),
            count: Mutex::default(),
        }
    }

    /// Adds the listeners and starts the workers.
    fn run(self, tasks: &Tasks) {
        let controller = Arc::new(self);
        controller.listen();
        let queue = controller.queue.clone();
        queue.set_name(crate::framework::queue_names::of(CONTROLLER));
        run_workers(tasks, CONTROLLER, WORKERS, &queue, move |item| {
            let controller = Arc::clone(&controller);
            async move {
                controller.synced().await;
                controller.reconcile(item).await
            }
        });
    }

    /// Resolves when all caches are complete.
    async fn synced(&self) {
        self.pods.synced().await;
        self.claims.synced().await;
        self.templates.synced().await;
    }

    async fn reconcile(&self, item: WorkItem) -> Result<Action, SyncError> {
        let result = match &item {
            WorkItem::Claim(namespace, name) => self.sync_claim(namespace, name).await,
            WorkItem::Pod(namespace, name) => self.sync_pod(namespace, name).await,
        };
        match result {
            Err(error) if error.is_permanent() => {
                tracing::warn!(?item, %error, "work item failed and is not retried");
                Ok(Action::Done)
            }
            other => other.map(|()| Action::Done),
        }
    }
}

impl Drop for Controller {
    /// Another server leads from now on, and counts.
    fn drop(&mut self) {
        metrics::CLAIMS.reset();
    }
}
