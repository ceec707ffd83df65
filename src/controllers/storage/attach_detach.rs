//! Attaches volumes to the nodes of their pods and detaches them when no pod needs them.
//!
//! For CSI volumes the driver's external-attacher does the work: a VolumeAttachment asks it to
//! attach a volume to a node, its deletion asks it to detach the volume. Nodes reach disks of iSCSI
//! and Fibre Channel themselves ([`scsi`]). The state is that of the caches; what this process
//! remembers are running operations, delays of failed ones and since when a volume is not needed.
//! Upstream looks at all volumes ten times a second, each minute and each three minutes; here a
//! change of an object wakes the volumes that it concerns.
//!
//! Volumes of in-tree plugins that a CSI driver replaces are volumes of this driver. Not supported,
//! as no such volume exists here: flexvolumes. Inline CSI volumes are never attached.

mod desired;
mod detach;
mod listeners;
pub(crate) mod metrics;
mod multi_attach;
mod names;
mod node_status;
mod node_view;
mod operations;
mod reconcile;
mod scsi;
#[cfg(test)]
mod tests;
mod view;
mod volume_attachment;
mod volume_state;

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use api::k8s::api::storage::v1::{CSIDriver, VolumeAttachment};
use base::Tasks;
use client::{Client, EventRecorder, Informer, Informers, Queue, run_workers};
use parking_lot::Mutex;

use self::names::{NodeName, VolumeName};
use self::node_status::NodeReports;
use self::scsi::DiskAttachments;
use self::volume_state::VolumeState;
use crate::framework::context::Context;

/// The name of the controller.
const CONTROLLER: &str = "persistentvolume-attach-detach-controller";
/// Service account and source of events.
const ACCOUNT: &str = "attachdetach-controller";
/// Volumes and nodes that are reconciled at the same time: each waits for at most a few requests to
/// the API server, never for a driver.
const WORKERS: usize = 4;

/// What is reconciled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WorkItem {
    /// The attachments of a volume.
    Volume(VolumeName),
    /// `status.volumesAttached` of a node.
    Node(NodeName),
}

struct Controller {
    client: Client,
    recorder: EventRecorder,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    nodes: Informer<Node>,
    drivers: Informer<CSIDriver>,
    attachments: Informer<VolumeAttachment>,
    queue: Queue<WorkItem>,
    /// Volumes that are or were attached, or that pods need.
    states: Mutex<HashMap<VolumeName, VolumeState>>,
    reports: Mutex<NodeReports>,
    disks: DiskAttachments,
    /// False with `--disable-force-detach-on-timeout`.
    forces_on_timeout: bool,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(ACCOUNT);
    let recorder = context.recorder(&client, ACCOUNT);
    let forces_on_timeout = context.config.tuning.force_detach_on_timeout;
    let controller = Controller::new(client, recorder, &context.informers, forces_on_timeout);
    controller.run(&context.tasks);
}

impl Controller {
    fn new(
        client: Client,
        recorder: EventRecorder,
        informers: &Informers,
        forces_on_timeout: bool,
    ) -> Self {
        Self {
            client,
            recorder,
            pods: informers.of(),
            claims: informers.of(),
            volumes: informers.of(),
            nodes: informers.of(),
            drivers: informers.of(),
            attachments: informers.of(),
            queue: Queue::new(),
            states: Mutex::default(),
            reports: Mutex::default(),
            disks: DiskAttachments::default(),
            forces_on_timeout,
        }
    }

    /// Adds the listeners and starts the workers.
    fn run(self, tasks: &Tasks) {
        let controller = Arc::new(self);
        controller.listen();
        crate::framework::collectors::collect(&controller, Controller::count);
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

    /// Resolves when all caches are complete: before that, a volume may look unneeded.
    async fn synced(&self) {
        self.pods.synced().await;
        self.claims.synced().await;
        self.volumes.synced().await;
        self.nodes.synced().await;
        self.drivers.synced().await;
        self.attachments.synced().await;
    }
}

impl Drop for Controller {
    /// Another server leads from now on, and counts.
    fn drop(&mut self) {
        metrics::TOTAL_VOLUMES.reset();
    }
}
