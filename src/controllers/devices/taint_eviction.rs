//! Deletes pods that use a device with a `NoExecute` taint that their ResourceClaim does not
//! tolerate, at once or after `tolerationSeconds`, and reports the progress in the status of
//! DeviceTaintRules.
//!
//! Changes of objects update [`state::State`] and never wait; the workers write. A pod without
//! claims in its specification is never evicted, also if the scheduler created a claim for its
//! extended resources, as upstream.

mod claim_view;
mod eviction;
mod listeners;
mod pod_deletion;
mod pools;
mod rule_status;
mod rule_view;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::Gvr;
use api::k8s::api::core::v1::Pod;
use api::k8s::api::resource::v1::{DeviceTaintRule, ResourceClaim};
use api::k8s::jiff::{SignedDuration, Timestamp};
use base::{Tasks, clock};
use client::{Action, Client, EventRecorder, Informer, Informers, Queue, Scope, run_workers};
use parking_lot::Mutex;

use self::state::{PodRef, RuleRef, State};
use crate::framework::context::Context;

/// The name of the controller, of its service account, of its field manager and of the source of
/// its events.
const CONTROLLER: &str = "device-taint-eviction-controller";
/// Number of workers (upstream's default of `--concurrent-device-taint-eviction-syncs`).
const WORKERS: usize = 8;

/// What the workers do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WorkItem {
    /// Deletes a pod if it is still pending and its time has come.
    Pod(PodRef),
    /// Writes the status of a rule.
    Rule(RuleRef),
}

struct Controller {
    client: Client,
    recorder: EventRecorder,
    pods: Informer<Pod>,
    claims: Informer<ResourceClaim>,
    slices: Informer<()>,
    rules: Informer<DeviceTaintRule>,
    queue: Queue<WorkItem>,
    state: Mutex<State>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let recorder = context.recorder(&client, CONTROLLER);
    Controller::new(client, recorder, &context.informers).run(&context.tasks);
}

impl Controller {
    fn new(client: Client, recorder: EventRecorder, informers: &Informers) -> Self {
        let slices = Gvr::new("resource.k8s.io", "v1", "resourceslices");
        Self {
            client,
            recorder,
            pods: informers.of(),
            claims: informers.of(),
            slices: informers.scoped(Scope::all(slices)),
            rules: informers.of(),
            queue: Queue::new(),
            state: Mutex::default(),
        }
    }

    /// Adds the listeners and starts the workers.
    fn run(self, tasks: &Tasks) {
        let controller = Arc::new(self);
        controller.listen();
        let queue = controller.queue.clone();
        run_workers(tasks, CONTROLLER, WORKERS, &queue, move |item| {
            let controller = Arc::clone(&controller);
            async move {
                controller.synced().await;
                controller.reconcile(&item).await
            }
        });
    }

    /// Resolves when all caches are complete: before that, a taint may look untolerated.
    async fn synced(&self) {
        self.pods.synced().await;
        self.claims.synced().await;
        self.slices.synced().await;
        self.rules.synced().await;
    }

    async fn reconcile(&self, item: &WorkItem) -> Result<Action, WorkError> {
        match item {
            WorkItem::Pod(pod) => Ok(self.delete_pod(pod).await?),
            WorkItem::Rule(rule) => self.update_status(rule).await,
        }
    }
}

/// Why a work item failed; it is retried.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Pod(#[from] client::Error),
    #[error("add condition to DeviceTaintRule status: {0}")]
    Status(client::Error),
}

/// The wall-clock time.
fn now() -> Timestamp {
    let since = SignedDuration::try_from(clock::unix_time()).unwrap_or(SignedDuration::MAX);
    Timestamp::from_duration(since).unwrap_or(Timestamp::MAX)
}
