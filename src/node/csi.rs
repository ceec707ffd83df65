//! CSI drivers of the node, and what is known about their volumes: which ones are in use, attached,
//! staged and published. `volumes::csi` sets volumes up and tears them down.
//!
//! What has to be torn down is on disk ([`record`]), so that nothing is lost with the process. The
//! state in memory only avoids calls that would be repeated otherwise.

pub(crate) mod attachment;
pub(crate) mod driver_client;
pub(crate) mod drivers;
pub(crate) mod error;
mod in_use;
pub(crate) mod locks;
pub(crate) mod metrics;
mod node_info;
mod node_objects;
pub(crate) mod paths;
pub(crate) mod record;
mod registration;
pub(crate) mod source;
pub(crate) mod unstaging;
mod usage;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use api::Quantity;
use api::k8s::api::core::v1 as core;
use api::k8s::api::storage::v1::{CSIDriver, CSIDriverSpec};
use client::{Change, Client, Informer, Informers};
use parking_lot::Mutex;
use sorting::CollectOrdered as _;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::config::Config;
use crate::pods::objects::OBJECTS_WAIT;
use crate::pods::pod::Pod;
use crate::volume_usage::UsageCache;

use drivers::CsiDrivers;
use error::CsiError;
use in_use::VolumesInUse;
use locks::OperationLocks;
use node_info::{NodeInfoError, NodeInfoWriter};
use record::StagedVolume;
pub(crate) use registration::CsiPluginHandler;
use source::may_be_attached;
use unstaging::UnstagingVolumes;

/// What this process knows about the size of a volume.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct VolumeSize {
    /// The size on this node.
    pub(crate) size: Option<Quantity>,
    /// The driver failed to enlarge the volume with a final error.
    pub(crate) has_failed: bool,
    /// The driver does not enlarge the volume while it is in use.
    pub(crate) is_blocked: bool,
}

/// CSI drivers and volumes of this node.
#[derive(Debug)]
pub(crate) struct Csi {
    /// The directory of the kubelet.
    pub(crate) root: PathBuf,
    pub(crate) node_name: String,
    pub(crate) client: Client,
    pub(crate) informers: Informers,
    pub(crate) own_node: Informer<core::Node>,
    pub(crate) drivers: CsiDrivers,
    /// The CSIDriver objects, followed from the first use on.
    pub(crate) driver_objects: OnceLock<Informer<CSIDriver>>,
    pub(crate) driver_objects_changed: Arc<watch::Sender<()>>,
    pub(crate) node_info: NodeInfoWriter,
    /// Why the CSINode does not exist yet; the node is not ready before.
    pub(crate) node_info_problem: Mutex<Option<String>>,
    pub(crate) in_use: VolumesInUse,
    pub(crate) unstaging: UnstagingVolumes,
    pub(crate) locks: OperationLocks,
    /// Paths at which volumes are staged completely.
    pub(crate) staged: Mutex<HashSet<PathBuf>>,
    /// Paths at which volumes are published completely, with the time of the last publication.
    pub(crate) published: Mutex<HashMap<PathBuf, Instant>>,
    /// Sizes of volumes by their unique names.
    pub(crate) sizes: Mutex<HashMap<String, VolumeSize>>,
    /// How full volumes are.
    usage: UsageCache,
    pub(crate) waiting: WaitingPods,
    /// Wakes the reporter of the node status.
    pub(crate) status_changed: Arc<Notify>,
}

impl Csi {
    /// `own_node` is the informer of this node's Node object; `status_changed` wakes the reporter
    /// of its status.
    pub(crate) fn new(
        client: &Client,
        informers: &Informers,
        own_node: Informer<core::Node>,
        config: &Config,
        status_changed: Arc<Notify>,
    ) -> Arc<Self> {
        let waiting = WaitingPods::default();
        wake_on_attachments(&own_node, waiting.clone());
        Arc::new(Self {
            root: config.root_dir.clone(),
            node_name: config.node_name.clone(),
            client: client.clone(),
            informers: informers.clone(),
            own_node,
            drivers: CsiDrivers::default(),
            driver_objects: OnceLock::new(),
            driver_objects_changed: Arc::default(),
            node_info: NodeInfoWriter::new(client.clone(), &config.node_name),
            node_info_problem: Mutex::new(Some("CSINode is not yet initialized".to_owned())),
            in_use: VolumesInUse::default(),
            unstaging: UnstagingVolumes::default(),
            locks: OperationLocks::default(),
            staged: Mutex::default(),
            published: Mutex::default(),
            sizes: Mutex::default(),
            usage: UsageCache::default(),
            waiting,
            status_changed,
        })
    }

    /// Creates the CSINode of this node, or updates it. The Node must exist.
    ///
    /// # Errors
    ///
    /// The last error, which is also the reason why the node is not ready.
    pub(crate) async fn initialize(&self) -> Result<(), NodeInfoError> {
        let outcome = self.node_info.initialize().await;
        let problem = outcome.as_ref().err();
        *self.node_info_problem.lock() =
            problem.map(|error| format!("failed to initialize CSINode: {error}"));
        self.status_changed.notify_one();
        outcome
    }

    /// Returns why the node is not ready for CSI volumes.
    pub(crate) fn problem(&self) -> Option<String> {
        self.node_info_problem.lock().clone()
    }

    /// Returns `status.volumesInUse` of the Node. A volume leaves the list also while pods use it
    /// when its CSIDriver declares that attachments have no effect: its VolumeAttachment is
    /// deleted.
    pub(crate) fn volumes_in_use(&self) -> Vec<String> {
        let objects = self.driver_objects.get();
        self.in_use.list(self.unstaging.in_use(), |name| {
            let object = objects.and_then(|all| all.get("", paths::driver_of(name)?));
            object.is_none_or(|object| object.spec.attach_required != Some(false))
        })
    }

    /// Records the status of the Node as it was read or written: pods may go on whose volumes it
    /// lists.
    pub(crate) fn on_node_status(&self, status: Option<&core::NodeStatus>) {
        let listed = status.and_then(|s| s.volumes_in_use.as_ref()).into_iter().flatten();
        if self.in_use.set_reported(listed.cloned().collect()) {
            self.waiting.wake();
        }
    }

    /// Marks volumes as in use that an earlier process mounted, before the status of the Node is
    /// first written. `status` is that of the earlier process. Returns the volumes that it left
    /// staged for no pod, and whether each is in use.
    pub(crate) async fn read_volumes_in_use(
        &self,
        status: Option<&core::NodeStatus>,
    ) -> Vec<(StagedVolume, bool)> {
        let in_use = status.and_then(|s| s.volumes_in_use.clone()).unwrap_or_default();
        let attached = status.and_then(|s| s.volumes_attached.as_ref()).into_iter().flatten();
        let mut listed: BTreeSet<String> = attached.map(|a| a.name.clone()).collect_set();
        listed.extend(in_use);
        let root = self.root.clone();
        let read = base::tasks::blocking(move || {
            (record::volumes_of_all_pods(&root), record::unused_staged(&root))
        });
        let (held, unused) = read.await.unwrap_or_default();
        // Only volumes that are attached are listed in the status.
        for (uid, name) in held.iter().filter(|(_, n)| listed.contains(n)) {
            self.in_use.hold(name, uid);
        }
        self.on_node_status(status);
        let with_use = |volume: StagedVolume| {
            let is_in_use = listed.contains(&volume.unique_name());
            (volume, is_in_use)
        };
        unused.into_iter().map(with_use).collect()
    }

    /// The CSIDriver objects.
    fn driver_objects(&self) -> &Informer<CSIDriver> {
        self.driver_objects.get_or_init(|| {
            let informer = self.informers.of::<CSIDriver>();
            let (waiting, changed) =
                (self.waiting.clone(), Arc::clone(&self.driver_objects_changed));
            let status_changed = Arc::clone(&self.status_changed);
            informer.on_change(move |_| {
                changed.send_replace(());
                // Whether volumes are in use depends on the objects, too.
                status_changed.notify_one();
                waiting.wake();
            });
            informer
        })
    }

    /// Returns the specification of the object of a driver, if it has one.
    pub(crate) async fn driver_object(
        &self,
        driver: &str,
    ) -> Result<Option<CSIDriverSpec>, CsiError> {
        let objects = self.driver_objects();
        if tokio::time::timeout(OBJECTS_WAIT, objects.synced()).await.is_err() {
            return Err(CsiError::NotSynced);
        }
        Ok(objects.get("", driver).map(|object| object.spec))
    }

    /// Registers how a pod with volumes that are attached is woken when what it waits for happens.
    pub(crate) fn follow(&self, pod: &Pod, wake: &Arc<Notify>) {
        if pod.spec().volumes.iter().flatten().any(may_be_attached) {
            self.waiting.follow(&pod.uid, wake);
        }
    }

    /// Drops the state of a pod that ended.
    pub(crate) fn forget(&self, pod: &Pod) {
        self.stop_following(&pod.uid);
    }

    /// Ends [`Csi::follow`] and [`Csi::wait`] of a pod or task.
    pub(crate) fn stop_following(&self, key: &str) {
        self.waiting.forget(key);
    }

    /// Wakes a pod once something that its volumes may wait for happens. `wake` is needed for pods
    /// that are being stopped; the others are followed.
    pub(crate) fn wait(&self, uid: &Arc<str>, wake: Option<&Arc<Notify>>) {
        if let Some(wake) = wake {
            self.waiting.follow(uid, wake);
        }
        self.waiting.wait(uid);
    }

    /// Wakes the pods that wait, as something happened that their volumes may wait for.
    pub(crate) fn wake_waiting(&self) {
        self.waiting.wake();
    }

    /// Ends [`Csi::wait`]: the volumes of the pod are set up.
    pub(crate) fn stop_waiting(&self, uid: &str) {
        self.waiting.stop(uid);
    }

    /// Renders the metrics of the calls to drivers in the Prometheus text format.
    pub(crate) fn render_metrics(&self) -> String {
        self.drivers.render_metrics()
    }
}

/// Wakes waiting pods when a volume is attached to the node or detached.
fn wake_on_attachments(own_node: &Informer<core::Node>, waiting: WaitingPods) {
    let attached = Mutex::new(BTreeSet::new());
    own_node.on_change(move |change| {
        let (Change::Added(object) | Change::Updated { new: object, .. }) = change else { return };
        let Some(node) = client::informer::decode::<core::Node>(object) else { return };
        let now: BTreeSet<String> = attachment::attached(&node).map(str::to_owned).collect_set();
        let mut attached = attached.lock();
        if *attached != now {
            *attached = now;
            waiting.wake();
        }
    });
}

/// The pods whose CSI volumes wait for something; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitingPods(Arc<Mutex<WaitingState>>);

#[derive(Debug, Default)]
struct WaitingState {
    wakes: HashMap<Arc<str>, Arc<Notify>>,
    waiting: HashSet<Arc<str>>,
}

impl WaitingPods {
    fn follow(&self, uid: &Arc<str>, wake: &Arc<Notify>) {
        self.0.lock().wakes.insert(Arc::clone(uid), Arc::clone(wake));
    }

    fn forget(&self, uid: &str) {
        let mut state = self.0.lock();
        state.wakes.remove(uid);
        state.waiting.remove(uid);
    }

    fn wait(&self, uid: &Arc<str>) {
        self.0.lock().waiting.insert(Arc::clone(uid));
    }

    fn stop(&self, uid: &str) {
        self.0.lock().waiting.remove(uid);
    }

    /// Wakes all pods that wait; each has to wait again if it still does.
    fn wake(&self) {
        let mut state = self.0.lock();
        let waiting = std::mem::take(&mut state.waiting);
        for wake in waiting.iter().filter_map(|uid| state.wakes.get(uid)) {
            wake.notify_one();
        }
    }
}
