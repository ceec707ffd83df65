//! The contexts that all parts of one node agent share: identity, runtime, API and caches.
//!
//! A function that needs one or two of the contexts takes those instead of the whole [`Node`].

mod labels;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::Quantity;
use api::k8s::api::core::v1 as core;
use api::k8s::api::core::v1::Service;
use arc_swap::ArcSwap;
use base::Tasks;
use client::{Client, EventRecorder, Informer, Informers};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::credentials::pod_certificates::PodCertificates;
use crate::credentials::tokens::Tokens;
use crate::credentials::trust_bundles::TrustBundles;
use crate::csi::Csi;
use crate::devices::DeviceManager;
use crate::dynamic_resources::DynamicResources;
use crate::events::NodeEventRecorder;
use crate::eviction::pressure::NodePressure;
use crate::image_access::ImageAccess;
use crate::image_credentials::ImageCredentials;
use crate::image_registry::ImageRegistry;
use crate::machine::Machine;
use crate::pods::admission::supported_fields::NodeFeatures;
use crate::pods::objects::ReferencedObjects;
use crate::pods::probe_metrics::ProbeMetrics;
use crate::resource_managers::ResourceManagers;
use crate::runtime::image_folder::PinnedImages;
use crate::runtime::images::pause;
use crate::runtime::operations::OperationMetrics;
use crate::runtime::registries::Registries;
use crate::runtime::{Runtime, RuntimeVersion};
use crate::status::writer::StatusWriter;
use crate::user_namespaces::UserNamespaces;
use crate::volumes::scsi::Scsi;
use crate::volumes::selinux::Selinux;

use labels::Labels;

/// One node agent.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) tasks: Tasks,
    pub(crate) identity: NodeIdentity,
    pub(crate) runtime: RuntimeHandles,
    pub(crate) api: ApiHandles,
    pub(crate) caches: NodeCaches,
    /// CSI drivers and their volumes.
    pub(crate) csi: Arc<Csi>,
    /// iSCSI and Fibre Channel volumes.
    pub(crate) scsi: Arc<Scsi>,
    /// SELinux labels of volumes.
    pub(crate) selinux: Arc<Selinux>,
    pub(crate) devices: Arc<DeviceManager>,
    /// CPUs and memory of containers, and their alignment with devices.
    pub(crate) resource_managers: Arc<ResourceManagers>,
    /// ResourceClaims of pods and the drivers that prepare them.
    pub(crate) dynamic_resources: Arc<DynamicResources>,
    /// Ranges of ids of pods with a user namespace of their own.
    pub(crate) user_namespaces: Arc<UserNamespaces>,
}

/// What the node is: its configuration and its machine. Set once at the start.
#[derive(Debug)]
pub(crate) struct NodeIdentity {
    pub(crate) config: Config,
    pub(crate) machine: Machine,
    pub(crate) features: NodeFeatures,
}

/// What runs containers: the CRI runtime, cgroups and image registries.
#[derive(Debug)]
pub(crate) struct RuntimeHandles {
    pub(crate) cri: Arc<dyn Runtime>,
    pub(crate) version: RuntimeVersion,
    /// Counts and durations of CRI calls, for the metrics.
    pub(crate) operations: Arc<OperationMetrics>,
    pub(crate) cgroups: Cgroups,
    /// Results of probes, for the metrics.
    pub(crate) probes: Arc<ProbeMetrics>,
    /// The registries file as last read.
    pub(crate) registries: Arc<ArcSwap<Registries>>,
    /// The registry of this node; `None` with a runtime that the agent does not supervise.
    pub(crate) image_registry: Option<Arc<ImageRegistry>>,
    /// Images that garbage collection keeps.
    pub(crate) pinned: PinnedImages,
    /// Who may use images that are present; `None` before the start and in simulations, where
    /// every pod may.
    pub(crate) image_access: Option<Arc<ImageAccess>>,
    /// Credentials for image pulls besides those of the registries file.
    pub(crate) credentials: ImageCredentials,
    /// Limits image pulls that run at the same time.
    pub(crate) pulls: Semaphore,
}

impl RuntimeHandles {
    pub(crate) fn new(
        cri: Arc<dyn Runtime>,
        version: RuntimeVersion,
        operations: Arc<OperationMetrics>,
        cgroups: Cgroups,
        config: &Config,
    ) -> Self {
        let pause_image = config.runtime.pause_image.as_deref();
        Self {
            cri,
            version,
            operations,
            cgroups,
            probes: Arc::default(),
            registries: Arc::new(ArcSwap::from_pointee(config.runtime.registries.clone())),
            image_registry: None,
            image_access: None,
            pinned: PinnedImages::new(pause_image.unwrap_or(pause::IMAGE)),
            credentials: ImageCredentials::new(
                &config.root_dir,
                config.credential_providers.as_ref(),
            ),
            pulls: Semaphore::new(config.image_pulls_max),
        }
    }
}

/// What talks to the API server: clients, informers and writers.
#[derive(Debug)]
pub(crate) struct ApiHandles {
    pub(crate) client: Client,
    pub(crate) events: NodeEventRecorder,
    pub(crate) status: StatusWriter,
    pub(crate) services: Informer<Service>,
    /// The Node object of this node.
    pub(crate) own_node: Informer<core::Node>,
    pub(crate) objects: ReferencedObjects,
    pub(crate) tokens: Tokens,
    pub(crate) trust_bundles: TrustBundles,
    pub(crate) pod_certificates: PodCertificates,
}

impl ApiHandles {
    /// `own_node` is the informer of this node's Node object.
    pub(crate) fn new(
        client: &Client,
        informers: &Informers,
        own_node: Informer<core::Node>,
        config: &Config,
        tasks: &Tasks,
    ) -> Self {
        let recorder = EventRecorder::new(client.clone(), "kubelet", &config.node_name, tasks);
        let events = NodeEventRecorder::new(recorder, &config.node_name);
        Self {
            status: StatusWriter::default(),
            services: config.network.as_ref().unwrap_or(informers).of::<Service>(),
            objects: ReferencedObjects::new(client.clone(), tasks.clone()),
            tokens: Tokens::new(client.clone(), tasks.clone()),
            trust_bundles: TrustBundles::new(informers.clone()),
            pod_certificates: PodCertificates::new(
                client.clone(),
                informers.clone(),
                own_node.clone(),
                events.clone(),
                config,
            ),
            client: client.clone(),
            events,
            own_node,
        }
    }
}

/// State of the node that changes while the agent runs.
#[derive(Debug)]
pub(crate) struct NodeCaches {
    pub(crate) allocatable: ArcSwap<BTreeMap<String, Quantity>>,
    pub(crate) labels: Labels,
    /// The pod of each container and sandbox, for events of the runtime.
    pub(crate) container_owners: ContainerOwners,
    pub(crate) block_devices: BlockDevices,
    pub(crate) pressure: NodePressure,
    /// Why the runtime cannot connect pods yet, from its last status.
    pub(crate) network_problem: Mutex<Option<String>>,
    /// Wakes the reporter of the node status.
    pub(crate) status_changed: Arc<Notify>,
}

impl NodeCaches {
    pub(crate) async fn new(
        client: &Client,
        tasks: &Tasks,
        allocatable: BTreeMap<String, Quantity>,
        config: &Config,
    ) -> Self {
        Self {
            allocatable: ArcSwap::from_pointee(allocatable),
            labels: Labels::open(client, tasks).await,
            container_owners: ContainerOwners::default(),
            block_devices: BlockDevices::default(),
            pressure: NodePressure::new(config.pressure_transition),
            network_problem: Mutex::default(),
            status_changed: Arc::default(),
        }
    }
}

/// Pod uids by the id of a container or sandbox.
#[derive(Debug, Default)]
pub(crate) struct ContainerOwners(Mutex<HashMap<String, Arc<str>>>);

impl ContainerOwners {
    pub(crate) fn get(&self, id: &str) -> Option<Arc<str>> {
        self.0.lock().get(id).cloned()
    }

    pub(crate) fn insert(&self, id: &str, uid: &Arc<str>) {
        self.0.lock().insert(id.to_owned(), Arc::clone(uid));
    }

    /// Removes the containers and sandboxes of a pod.
    pub(crate) fn remove_pod(&self, uid: &str) {
        self.0.lock().retain(|_, owner| **owner != *uid);
    }
}

/// Block devices of this node that are volumes of pods, by the uid of the pod and the name of the
/// volume in it.
#[derive(Debug, Default)]
pub(crate) struct BlockDevices(Mutex<HashMap<Arc<str>, HashMap<String, PathBuf>>>);

impl BlockDevices {
    pub(crate) fn get(&self, uid: &str, volume: &str) -> Option<PathBuf> {
        self.0.lock().get(uid)?.get(volume).cloned()
    }

    pub(crate) fn insert(&self, uid: &Arc<str>, volume: &str, device: &Path) {
        let mut devices = self.0.lock();
        let of_pod = devices.entry(Arc::clone(uid)).or_default();
        of_pod.insert(volume.to_owned(), device.to_owned());
    }

    /// Removes the devices of a pod.
    pub(crate) fn remove_pod(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
