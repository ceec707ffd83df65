//! The scheduler's loop, and the informers that feed it.

mod csi_nodes;
mod listen;

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
use tokio::sync::{Notify, Semaphore};

use crate::bind::claims::ClaimWriter;
use crate::bind::{BindError, Writer};
use crate::config::Configuration;
use crate::devices::store::Devices;
use crate::event::{Event, EventLabels};
use crate::extender::ExtenderClients;
use crate::listers::Listers;
use crate::metrics;
use crate::pod_info::PodOwner;
use crate::profile::{DEFAULT_SCHEDULER, scheduler_name};
use crate::state::{CycleResult, Decision, DetachedCycle, NextCycle, State};
use csi_nodes::CsiNodes;

/// Most bindings that run at the same time; more wait.
const BINDINGS_MAX: usize = 128;
/// Index of volume attachments by `spec.nodeName`.
const BY_NODE: &str = "scheduler-node";

struct Caches {
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    namespaces: Informer<Namespace>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    csi_node_informer: Informer<CSINode>,
    csi_nodes: Arc<CsiNodes>,
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
    fn pod_object(&self, namespace: &str, name: &str) -> Option<Arc<api::Object>> {
        self.pods.cache().get(namespace, name)
    }

    fn node_object(&self, name: &str) -> Option<Arc<api::Object>> {
        self.nodes.cache().get("", name)
    }

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

    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.csi_nodes.get(name)
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
    /// Changes the state and wakes the loop. `update` returns the name of the event.
    fn update(&self, update: impl FnOnce(&mut State) -> Option<&'static str>) {
        let start = clock::now();
        let label = update(&mut self.state.lock());
        self.wake.notify_one();
        if let Some(label) = label {
            metrics::event_handled(label, start);
        }
    }

    fn on_event(&self, event: &Event<'_>, label: &'static str) {
        self.update(|state| {
            state.on_event(event, label, clock::now());
            Some(label)
        });
    }

    /// Reports the change of an object of the kind with these names of events.
    fn on_change(&self, event: &Event<'_>, labels: EventLabels, change: &Change) {
        let [add, update, delete] = labels;
        let label = match change {
            Change::Added(_) => add,
            Change::Updated { .. } => update,
            Change::Deleted(_) => delete,
        };
        self.on_event(event, label);
    }
}

/// Starts the scheduler; `client` acts as `system:kube-scheduler`.
pub fn start(configuration: &Configuration, client: Client, informers: &Informers, tasks: &Tasks) {
    let devices = Arc::<Devices>::default();
    let state = Mutex::new(State::new(configuration, Arc::clone(&devices)));
    let shared = Arc::new(Shared { state, wake: Notify::new() });
    let caches = Caches {
        pods: informers.of(),
        nodes: informers.of(),
        namespaces: informers.of(),
        claims: informers.of(),
        volumes: informers.of(),
        classes: informers.of(),
        csi_node_informer: informers.of(),
        csi_nodes: Arc::default(),
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
    let extenders = ExtenderClients::new(&configuration.extenders, tasks);
    let volumes_changed = listen::listen(&shared, &caches);
    if !configuration.extenders.is_empty() {
        listen::listen_for_extenders(&shared, &caches);
    }
    listen::listen_to_devices(&shared, &caches);
    let recorder = EventRecorder::new(client.clone(), DEFAULT_SCHEDULER, "", tasks);
    let reported = Arc::downgrade(&shared);
    metrics::report_with(move |snapshot| {
        if let Some(shared) = reported.upgrade() {
            shared.state.lock().report(snapshot);
        }
    });
    let to = Arc::clone(&shared);
    let resource_claims = ClaimWriter {
        client: client.clone(),
        recorder: recorder.clone(),
        devices: Arc::clone(&caches.devices),
        on_change: Arc::new(move |change, devices| {
            to.on_event(&Event::ResourceClaim { change, devices }, listen::RESOURCE_CLAIM[1]);
        }),
    };
    let writer = Writer {
        client,
        resource_claims,
        recorder,
        extenders: extenders.clone(),
        pods: caches.pods.clone(),
        claims: caches.claims.clone(),
        volumes: caches.volumes.clone(),
        volumes_changed,
        profiles: configuration.profiles.clone(),
    };
    let run = run(shared, caches, extenders, writer, tasks.clone());
    tasks.spawn(Kind::Critical, "scheduler", run);
}

async fn run(
    shared: Arc<Shared>,
    caches: Caches,
    extenders: ExtenderClients,
    writer: Writer,
    tasks: Tasks,
) -> Result<(), Infallible> {
    let shutdown = tasks.shutdown().clone();
    let synced = async {
        // Pods first: without them, nodes look empty and would be filled twice.
        caches.pods.synced().await;
        caches.nodes.synced().await;
        caches.claims.synced().await;
        caches.volumes.synced().await;
        caches.classes.synced().await;
        caches.csi_node_informer.synced().await;
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
            NextCycle::Detached(cycle) => run_detached(&shared, &caches, &extenders, *cycle).await,
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
async fn run_detached(
    shared: &Shared,
    caches: &Arc<Caches>,
    extenders: &ExtenderClients,
    cycle: DetachedCycle,
) -> CycleResult {
    let (caches, extenders) = (Arc::clone(caches), extenders.clone());
    let pod = Arc::clone(cycle.pod());
    let decision = base::tasks::blocking(move || cycle.run(&*caches, &pick, &extenders)).await;
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
        CycleResult::Bind(attempt, pod, node, writes) => {
            let Err(error) = writer.bind(&pod, &node, &writes).await else {
                attempt.scheduled(scheduler_name(&pod));
                return Ok(());
            };
            tracing::debug!(pod.namespace, pod.name, node, %error, "binding failed");
            shared.update(|s| {
                s.forget(&pod, clock::now());
                None
            });
            attempt.failed(scheduler_name(&pod));
            Ok(writer.failed(&pod, &error.message()).await?)
        }
        CycleResult::Unschedulable(attempt, pod, why) => {
            attempt.unschedulable(scheduler_name(&pod));
            Ok(writer.unschedulable(&pod, &why).await?)
        }
        CycleResult::Failed(attempt, pod, message) => {
            attempt.failed(scheduler_name(&pod));
            Ok(writer.failed(&pod, &message).await?)
        }
        CycleResult::Abandoned(pod, writes) => {
            writer.unreserve(&pod, &writes).await;
            Ok(())
        }
        CycleResult::Idle(_) => Ok(()),
    }
}
