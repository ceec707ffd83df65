//! The scheduler's loop, and the informers that feed it.

use std::convert::Infallible;
use std::sync::Arc;

use api::k8s::api::apps::v1::{ReplicaSet, StatefulSet};
use api::k8s::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use api::k8s::api::policy::v1::PodDisruptionBudget;
use api::k8s::api::resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice};
use api::k8s::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;
use base::{Kind, Shutdown, Tasks, clock};
use client::informer::decode;
use client::labels::Labels;
use client::{Change, Client, EventRecorder, Informer, Informers};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};

use crate::bind::claims::ClaimWriter;
use crate::bind::{BindError, Writer};
use crate::config::Configuration;
use crate::devices::request::ClaimName;
use crate::devices::slice::Slice;
use crate::devices::store::Devices;
use crate::event::Event;
use crate::listers::Listers;
use crate::pod_info::{PodInfo, PodOwner};
use crate::profile::DEFAULT_SCHEDULER;
use crate::state::{CycleResult, Decision, DetachedCycle, NextCycle, State};

/// Most bindings that run at the same time; more wait.
const BINDINGS_MAX: usize = 128;
/// Index of volume attachments by `spec.nodeName`.
const BY_NODE: &str = "scheduler-node";

struct Caches {
    namespaces: Informer<Namespace>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    csi_nodes: Informer<CSINode>,
    csi_drivers: Informer<CSIDriver>,
    csi_storage_capacities: Informer<CSIStorageCapacity>,
    attachments: Informer<VolumeAttachment>,
    budgets: Informer<PodDisruptionBudget>,
    services: Informer<Service>,
    replication_controllers: Informer<ReplicationController>,
    replica_sets: Informer<ReplicaSet>,
    stateful_sets: Informer<StatefulSet>,
    devices: Arc<Devices>,
    device_informers: DeviceInformers,
}

/// The informers that feed [`Devices`].
struct DeviceInformers {
    claims: Informer<ResourceClaim>,
    slices: Informer<ResourceSlice>,
    classes: Informer<DeviceClass>,
    rules: Informer<DeviceTaintRule>,
}

impl Listers for Caches {
    fn namespace_labels(&self, name: &str) -> Option<Labels> {
        self.namespaces.cache().get("", name).map(|namespace| object_labels(&namespace))
    }

    fn namespaces(&self, selector: &LabelSelector) -> Vec<String> {
        let all = self.namespaces.cache().list("").into_iter();
        let selected = all.filter(|n| client::labels::selects(selector, Some(&object_labels(n))));
        selected.map(|namespace| namespace.key.name.to_string()).collect()
    }

    fn service_selectors(&self, namespace: &str) -> Vec<Labels> {
        let services = self.services.list(namespace).into_iter();
        services.filter_map(|service| service.spec?.selector).collect()
    }

    fn selector(&self, namespace: &str, owner: &PodOwner) -> Option<LabelSelector> {
        match owner {
            PodOwner::ReplicationController(name) => {
                let match_labels =
                    self.replication_controllers.get(namespace, name)?.spec?.selector;
                Some(LabelSelector { match_labels, ..LabelSelector::default() })
            }
            PodOwner::ReplicaSet(name) => {
                Some(self.replica_sets.get(namespace, name)?.spec.selector)
            }
            PodOwner::StatefulSet(name) => {
                Some(self.stateful_sets.get(namespace, name)?.spec.selector)
            }
        }
    }

    fn pod_disruption_budgets(&self) -> Vec<PodDisruptionBudget> {
        self.budgets.list("")
    }

    fn claim(&self, namespace: &str, name: &str) -> Option<PersistentVolumeClaim> {
        self.claims.get(namespace, name)
    }

    fn volume(&self, name: &str) -> Option<PersistentVolume> {
        self.volumes.get("", name)
    }

    fn volumes(&self) -> Vec<PersistentVolume> {
        self.volumes.list("")
    }

    fn storage_class(&self, name: &str) -> Option<StorageClass> {
        self.classes.get("", name)
    }

    fn csi_node(&self, name: &str) -> Option<CSINode> {
        self.csi_nodes.get("", name)
    }

    fn csi_driver(&self, name: &str) -> Option<CSIDriver> {
        self.csi_drivers.get("", name)
    }

    fn csi_storage_capacities(&self) -> Vec<CSIStorageCapacity> {
        self.csi_storage_capacities.list("")
    }

    fn devices(&self) -> Option<&Arc<Devices>> {
        Some(&self.devices)
    }

    fn volume_attachments(&self, node: &str) -> Vec<VolumeAttachment> {
        self.attachments.by_index(BY_NODE, node)
    }
}

fn object_labels(object: &api::Object) -> Labels {
    object.labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

struct Shared {
    state: Mutex<State>,
    wake: Notify,
}

impl Shared {
    /// Changes the state and wakes the loop.
    fn update(&self, update: impl FnOnce(&mut State)) {
        update(&mut self.state.lock());
        self.wake.notify_one();
    }

    fn on_event(&self, event: &Event<'_>) {
        self.update(|state| state.on_event(event, clock::now()));
    }
}

/// Starts the scheduler; `client` acts as `system:kube-scheduler`.
pub fn start(configuration: &Configuration, client: Client, informers: &Informers, tasks: &Tasks) {
    let devices = Arc::<Devices>::default();
    let state = Mutex::new(State::new(configuration, Arc::clone(&devices)));
    let shared = Arc::new(Shared { state, wake: Notify::new() });
    let caches = Caches {
        namespaces: informers.of(),
        claims: informers.of(),
        volumes: informers.of(),
        classes: informers.of(),
        csi_nodes: informers.of(),
        csi_drivers: informers.of(),
        csi_storage_capacities: informers.of(),
        attachments: informers.of(),
        budgets: informers.of(),
        services: informers.of(),
        replication_controllers: informers.of(),
        replica_sets: informers.of(),
        stateful_sets: informers.of(),
        devices,
        device_informers: DeviceInformers {
            claims: informers.of(),
            slices: informers.of(),
            classes: informers.of(),
            rules: informers.of(),
        },
    };
    caches.attachments.add_index(BY_NODE, |object| {
        decode::<VolumeAttachment>(object).map(|a| a.spec.node_name).into_iter().collect()
    });
    let (pods, nodes) = (informers.of::<Pod>(), informers.of::<Node>());
    let volumes_changed = listen(&shared, &caches, &pods, &nodes);
    listen_to_devices(&shared, &caches);
    let recorder = EventRecorder::new(client.clone(), DEFAULT_SCHEDULER, "", tasks);
    let to = Arc::clone(&shared);
    let resource_claims = ClaimWriter {
        client: client.clone(),
        recorder: recorder.clone(),
        devices: Arc::clone(&caches.devices),
        on_change: Arc::new(move |change, devices| {
            to.on_event(&Event::ResourceClaim { change, devices });
        }),
    };
    let writer = Writer {
        client,
        resource_claims,
        recorder,
        pods: pods.clone(),
        claims: caches.claims.clone(),
        volumes: caches.volumes.clone(),
        volumes_changed,
        profiles: configuration.profiles.clone(),
    };
    let run = run(shared, caches, (pods, nodes), writer, tasks.clone());
    tasks.spawn(Kind::Critical, "scheduler", run);
}

fn listen(
    shared: &Arc<Shared>,
    caches: &Caches,
    pods: &Informer<Pod>,
    nodes: &Informer<Node>,
) -> watch::Receiver<u64> {
    let to = Arc::clone(shared);
    pods.on_change(move |change| pod_changed(&to, change));
    let to = Arc::clone(shared);
    nodes.on_change(move |change| match change {
        Change::Deleted(node) => to.update(|s| s.remove_node(&node.key.name)),
        Change::Added(node) | Change::Updated { new: node, .. } => {
            if let Some(node) = decode::<Node>(node) {
                to.update(|s| s.set_node(&node, clock::now()));
            }
        }
    });
    let (sender, receiver) = watch::channel(0_u64);
    let count = Arc::new(move || sender.send_modify(|n| *n = n.wrapping_add(1)));
    let (to, changed) = (Arc::clone(shared), Arc::clone(&count));
    caches.claims.on_change(move |change| {
        changed();
        let key = &change.object().key;
        to.on_event(&Event::PersistentVolumeClaim { namespace: &key.namespace, name: &key.name });
    });
    let to = Arc::clone(shared);
    caches.volumes.on_change(move |_| {
        count();
        to.on_event(&Event::PersistentVolume);
    });
    let to = Arc::clone(shared);
    caches.classes.on_change(move |_| to.on_event(&Event::StorageClass));
    let to = Arc::clone(shared);
    caches.csi_nodes.on_change(move |change| csi_node_changed(&to, change));
    let to = Arc::clone(shared);
    caches.csi_drivers.on_change(move |change| csi_driver_changed(&to, change));
    let to = Arc::clone(shared);
    caches
        .csi_storage_capacities
        .on_change(move |change| csi_storage_capacity_changed(&to, change));
    let to = Arc::clone(shared);
    caches.attachments.on_change(move |change| {
        if matches!(change, Change::Deleted(_)) {
            to.on_event(&Event::VolumeAttachmentDelete);
        }
    });
    let to = Arc::clone(shared);
    caches.namespaces.on_change(move |change| {
        if !matches!(change, Change::Updated { old, new } if old.labels == new.labels) {
            to.on_event(&Event::Namespace);
        }
    });
    receiver
}

/// Keeps the indexes of devices up to date. The indexes change before the queue gets the event, so
/// that hints see the new state.
fn listen_to_devices(shared: &Arc<Shared>, caches: &Caches) {
    let informers = &caches.device_informers;
    let (to, devices) = (Arc::clone(shared), Arc::clone(&caches.devices));
    informers.claims.on_change(move |change| {
        let object = change.object();
        let change = if matches!(change, Change::Deleted(_)) {
            let (namespace, name) = (object.key.namespace.to_string(), object.key.name.to_string());
            devices.remove_claim(&ClaimName { namespace, name })
        } else {
            decode::<ResourceClaim>(object).and_then(|mut claim| {
                claim.metadata.resource_version = Some(object.resource_version.to_string());
                devices.observe_claim(claim)
            })
        };
        if let Some(change) = change {
            to.on_event(&Event::ResourceClaim { change: &change, devices: &devices });
        }
    });
    let (to, devices) = (Arc::clone(shared), Arc::clone(&caches.devices));
    informers.classes.on_change(move |change| class_changed(&to, &devices, change));
    let (to, devices) = (Arc::clone(shared), Arc::clone(&caches.devices));
    informers.slices.on_change(move |change| slice_changed(&to, &devices, change));
    let (to, devices) = (Arc::clone(shared), Arc::clone(&caches.devices));
    informers.rules.on_change(move |change| {
        let object = change.object();
        let is_deleted = matches!(change, Change::Deleted(_));
        let rule = if is_deleted { None } else { decode::<DeviceTaintRule>(object) };
        if devices.set_rule(&object.key.name, rule) {
            to.on_event(&Event::ResourceSlice);
        }
    });
}

fn class_changed(shared: &Shared, devices: &Devices, change: &Change) {
    let (old, new) = match change {
        Change::Added(new) => (None, new),
        Change::Updated { old, new } => (decode::<DeviceClass>(old), new),
        Change::Deleted(old) => return devices.remove_class(&old.key.name),
    };
    if let Some(new) = decode::<DeviceClass>(new) {
        devices.set_class(new.clone());
        shared.on_event(&Event::DeviceClass { old: old.as_ref(), new: &new });
    }
}

fn slice_changed(shared: &Shared, devices: &Devices, change: &Change) {
    let object = change.object();
    if matches!(change, Change::Deleted(_)) {
        return devices.remove_slice(&object.key.name);
    }
    let Some(slice) = decode::<ResourceSlice>(object) else { return };
    match Slice::new(&slice) {
        Ok(slice) => devices.set_slice(slice),
        Err(error) => {
            tracing::warn!(slice = %object.key, %error, "ignoring a ResourceSlice");
            devices.remove_slice(&object.key.name);
        }
    }
    shared.on_event(&Event::ResourceSlice);
}

fn csi_node_changed(shared: &Shared, change: &Change) {
    match change {
        Change::Added(_) => shared.on_event(&Event::CsiNodeAdd),
        Change::Updated { old, new } => {
            if let (Some(old), Some(new)) = (decode::<CSINode>(old), decode::<CSINode>(new)) {
                shared.on_event(&Event::CsiNodeUpdate { old: &old, new: &new });
            }
        }
        Change::Deleted(_) => {}
    }
}

fn csi_driver_changed(shared: &Shared, change: &Change) {
    if let Change::Updated { old, new } = change
        && let (Some(old), Some(new)) = (decode::<CSIDriver>(old), decode::<CSIDriver>(new))
    {
        shared.on_event(&Event::CsiDriverUpdate { old: &old, new: &new });
    }
}

fn csi_storage_capacity_changed(shared: &Shared, change: &Change) {
    let (old, new) = match change {
        Change::Added(new) => (None, new),
        Change::Updated { old, new } => (decode::<CSIStorageCapacity>(old), new),
        Change::Deleted(_) => return,
    };
    if let Some(new) = decode::<CSIStorageCapacity>(new) {
        shared.on_event(&Event::CsiStorageCapacity { old: old.as_ref(), new: &new });
    }
}

fn pod_changed(shared: &Shared, change: &Change) {
    let object = change.object();
    if matches!(change, Change::Deleted(_)) {
        let key = (object.key.namespace.to_string(), object.key.name.to_string());
        return shared.update(|s| s.remove_pod(&key, clock::now()));
    }
    let Some(pod) = decode::<Pod>(object) else { return };
    let generation = |o: &api::Object| client::meta(o).and_then(|m| m.generation);
    let spec_changed = match change {
        Change::Updated { old, new } => {
            generation(old) != generation(new) || old.labels != new.labels
        }
        Change::Added(_) | Change::Deleted(_) => false,
    };
    let info = PodInfo::new(&pod);
    shared.update(|s| s.set_pod(info, spec_changed, clock::now()));
}

async fn run(
    shared: Arc<Shared>,
    caches: Caches,
    first: (Informer<Pod>, Informer<Node>),
    writer: Writer,
    tasks: Tasks,
) -> Result<(), Infallible> {
    let shutdown = tasks.shutdown().clone();
    let synced = async {
        // Pods first: without them, nodes look empty and would be filled twice.
        first.0.synced().await;
        first.1.synced().await;
        caches.claims.synced().await;
        caches.volumes.synced().await;
        caches.classes.synced().await;
        caches.csi_nodes.synced().await;
        caches.csi_drivers.synced().await;
        caches.csi_storage_capacities.synced().await;
        caches.attachments.synced().await;
        caches.namespaces.synced().await;
        caches.budgets.synced().await;
        caches.services.synced().await;
        caches.replication_controllers.synced().await;
        caches.replica_sets.synced().await;
        caches.stateful_sets.synced().await;
        caches.device_informers.claims.synced().await;
        caches.device_informers.slices.synced().await;
        caches.device_informers.classes.synced().await;
        caches.device_informers.rules.synced().await;
    };
    tokio::select! {
        () = synced => {}
        () = shutdown.requested() => return Ok(()),
    }
    let caches = Arc::new(caches);
    let permits = Arc::new(Semaphore::new(BINDINGS_MAX));
    while !shutdown.is_requested() {
        let next = shared.state.lock().next_cycle(&*caches, clock::now(), &pick);
        let result = match next {
            NextCycle::Done(result) => result,
            NextCycle::Detached(cycle) => run_detached(&shared, &caches, *cycle).await,
        };
        if let CycleResult::Idle(until) = result {
            idle(&shared, until, &shutdown).await;
            continue;
        }
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
        let (shared, writer) = (Arc::clone(&shared), writer.clone());
        tasks.spawn(Kind::Request, "bind", async move {
            let _permit = permit;
            write(&shared, &writer, result).await
        });
    }
    Ok(())
}

/// Runs a cycle that may take long, away from the workers and without the lock.
async fn run_detached(shared: &Shared, caches: &Arc<Caches>, cycle: DetachedCycle) -> CycleResult {
    let (caches, pod) = (Arc::clone(caches), Arc::clone(cycle.pod()));
    let decision = base::tasks::blocking(move || cycle.run(&*caches, &pick)).await;
    let decision = decision.unwrap_or_else(|error| Decision::Failed(error.to_string()));
    shared.state.lock().finish_cycle(pod, decision, clock::now())
}

async fn idle(shared: &Shared, until: Option<tokio::time::Instant>, shutdown: &Shutdown) {
    let due = async {
        match until {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = shared.wake.notified() => {}
        () = due => {}
        () = shutdown.requested() => {}
    }
}

/// A random index below `n`, so that nodes of equal score share the load.
fn pick(n: usize) -> usize {
    usize::try_from(clock::random_u64() % n.max(1) as u64).unwrap_or(0)
}

async fn write(shared: &Shared, writer: &Writer, result: CycleResult) -> Result<(), BindError> {
    match result {
        CycleResult::Bind(pod, node, writes) => {
            let bound = writer.bind(&pod, &node, &writes).await;
            if let Err(error) = &bound {
                let name = format_args!("{}/{}", pod.namespace, pod.name);
                tracing::debug!(pod = %name, node, %error, "binding failed");
                shared.update(|s| s.forget(&pod, clock::now()));
            }
            match bound {
                Err(BindError::Claims(error)) => {
                    let text = format!("running PreBind plugin \"DynamicResources\": {error}");
                    Ok(writer.not_scheduled(&pod, "SchedulerError", &text, "").await?)
                }
                Err(BindError::Provisioning(error)) => {
                    let text = format!(
                        "running PreBind plugin \"VolumeBinding\": binding volumes: {error}"
                    );
                    Ok(writer.not_scheduled(&pod, "SchedulerError", &text, "").await?)
                }
                Err(error) if error.is_expected() => Ok(()),
                other => other,
            }
        }
        CycleResult::Unschedulable(pod, why) => Ok(writer.unschedulable(&pod, &why).await?),
        CycleResult::Failed(pod, message) => {
            Ok(writer.not_scheduled(&pod, "SchedulerError", &message, "").await?)
        }
        CycleResult::Abandoned(pod, writes) => {
            writer.unreserve(&pod, &writes).await;
            Ok(())
        }
        CycleResult::Idle(_) => Ok(()),
    }
}
