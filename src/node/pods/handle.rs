//! The manager's handle to a pod worker: what the worker is to do and what it reports.

use std::collections::HashSet;
use std::sync::Arc;

use api::k8s::api::core::v1 as core;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::pods::observed::Observed;
use crate::pods::pod::Pod;
use crate::pods::resize::Deferred;
use crate::runtime::{ContainerEvent, ContainerEventKind};
use crate::status::pod::Verdict;

/// What the pod manager wants of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Desired {
    pub(crate) pod: Arc<Pod>,
    /// The API has it no more: end it, there is nothing to report to.
    pub(crate) removed: bool,
    /// Uid in the API, where a status can be written; a static pod without mirror has none.
    pub(crate) api_uid: Option<String>,
    /// The pod may not run here, or no longer.
    pub(crate) refused: Option<Verdict>,
    /// New resources that the node does not have; `pod` has those it was given.
    pub(crate) resize: Option<Deferred>,
    /// The machine is switched off: containers end within so many seconds, and nothing is started.
    pub(crate) halt: Option<i64>,
}

/// The manager's end of a worker.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) desired: watch::Sender<Desired>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) exits: Arc<Mutex<HashSet<String>>>,
    /// Whether the containers have ended, as [`Desired::halt`] asks.
    pub(crate) halted: Arc<watch::Sender<bool>>,
    /// The newest status and observation, for the node's own API.
    pub(crate) shown: Arc<Mutex<Shown>>,
}

impl Handle {
    /// Takes note of an event of the runtime about a container or sandbox of the pod.
    pub(crate) fn on_runtime_event(&self, event: ContainerEvent) {
        match event.kind {
            // The worker starts every container itself and observes afterwards.
            ContainerEventKind::Started => return,
            ContainerEventKind::Exited => {
                self.exits.lock().insert(event.id);
            }
            ContainerEventKind::OutOfMemory | ContainerEventKind::Deleted => {}
        }
        self.wake.notify_one();
    }
}

/// What others may look at.
#[derive(Debug, Default, Clone)]
pub(crate) struct Shown {
    pub(crate) status: core::PodStatus,
    pub(crate) observed: Arc<Observed>,
    /// How often the relist alone changed something: each time an event was lost or a deadline missed.
    pub(crate) relist_changes: u64,
}
