//! The pod manager: runs one worker for each pod of this node, driven by the API, events of the
//! runtime, and what is found on disk.

mod admit;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::ObjectKey;
use api::k8s::api::core::v1 as core;
use base::{Kind, Shutdown};
use client::events::EventType;
use client::{Change, Informer};
use parking_lot::Mutex;
use sorting::CollectOrdered as _;
use tokio::sync::{Notify, mpsc, watch};

use crate::config::{Config, addresses_changed};
use crate::context::Node;
use crate::pods::admission;
use crate::pods::handle::{DesiredPod, WorkerHandle};
use crate::pods::observed::label;
use crate::pods::pod::{Pod, PodOrigin};
use crate::pods::rejection;
use crate::pods::resize;
use crate::pods::resources;
use crate::pods::resources::{ClassRequests, Qos};
use crate::pods::table::PodTable;
use crate::pods::worker::Worker;
use crate::runtime::containerd::events::RuntimeSignal;
use crate::static_pods::document;
use crate::static_pods::mirror::MirrorPod;
use crate::static_pods::sources::StaticPods;
use crate::status::pod::PodFailure;
use crate::volumes;

/// Interval of the full check of runtime and disk, in case an event was lost (the kubelet checks
/// every 2 s; events make this suffice).
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);
/// Minimum interval between wake-ups of all pods when the server's connection flaps.
const WAKE_ALL_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after the server's return before unknown pods are stopped, so that the watch can deliver
/// changes first.
const SWEEP_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of ended workers that await processing.
const DONE_MAX: usize = 64;

/// Keys of pods that the informer reported as changed.
#[derive(Debug, Default)]
struct DirtyPods {
    keys: Mutex<BTreeSet<ObjectKey>>,
    notify: Notify,
}

/// The pod manager.
#[derive(Debug)]
pub(crate) struct PodManager {
    node: Arc<Node>,
    table: PodTable,
    informer: Informer<core::Pod>,
    statics: watch::Receiver<StaticPods>,
    /// The static pods with a worker, for their mirror pods.
    running_statics: watch::Sender<Vec<Arc<Pod>>>,
    dirty: Arc<DirtyPods>,
    /// Pods that ended here and still exist in the API.
    finished: HashSet<Arc<str>>,
    /// Pods for which the node's labels were read again.
    labels_reread: HashSet<Arc<str>>,
    /// Pods that wait for host ports of a pod that is ending, by uid.
    waiting: HashMap<Arc<str>, ObjectKey>,
    done: (mpsc::Sender<Arc<str>>, mpsc::Receiver<Arc<str>>),
    swept: bool,
}

impl PodManager {
    pub(crate) fn new(
        node: Arc<Node>,
        informer: Informer<core::Pod>,
        (statics, running_statics): (watch::Receiver<StaticPods>, watch::Sender<Vec<Arc<Pod>>>),
    ) -> Self {
        let dirty = Arc::new(DirtyPods::default());
        let noted = Arc::clone(&dirty);
        informer.on_change(move |change: &Change| {
            noted.keys.lock().insert(change.object().key.clone());
            noted.notify.notify_one();
        });
        Self {
            node,
            table: PodTable::default(),
            informer,
            statics,
            running_statics,
            dirty,
            finished: HashSet::new(),
            labels_reread: HashSet::new(),
            waiting: HashMap::new(),
            done: mpsc::channel(DONE_MAX),
            swept: false,
        }
    }

    pub(crate) fn table(&self) -> PodTable {
        self.table.clone()
    }

    /// Runs until shutdown; pods keep running after that.
    pub(crate) async fn run(
        mut self,
        mut signals: mpsc::Receiver<RuntimeSignal>,
        lost: impl Fn() + Send,
        shutdown: Shutdown,
    ) -> Result<(), std::convert::Infallible> {
        let synced = self.informer.clone();
        let mut first_list = std::pin::pin!(async move { synced.synced().await });
        let (mut listed, mut static_pods_read) = (false, false);
        let mut sweep_at = base::clock::now();
        let mut next_sweep = base::clock::now() + SWEEP_INTERVAL;
        let transport = Arc::clone(self.node.api.client.transport());
        let mut back = transport.back();
        let mut addresses = self.node.identity.config.addresses.clone();
        loop {
            tokio::select! {
                () = shutdown.requested() => return Ok(()),
                () = &mut first_list, if !listed => listed = true,
                () = self.dirty.notify.notified() => {}
                Ok(()) = self.statics.changed() => {
                    static_pods_read = self.statics.borrow().is_complete();
                    self.reconcile_static_pods();
                }
                signal = signals.recv() => match signal {
                    Some(signal) => self.on_runtime_event(signal, &lost),
                    None => return Ok(()),
                },
                Some(uid) = self.done.1.recv() => self.on_worker_ended(&uid),
                () = &mut back => {
                    // Tokens may be due, and statuses may not have been sent.
                    self.wake_all();
                    self.node.caches.status_changed.notify_one();
                    sweep_at = base::clock::now() + SWEEP_DELAY;
                    let transport = &transport;
                    back = Box::pin(async move {
                        base::clock::sleep(WAKE_ALL_INTERVAL).await;
                        transport.back().await;
                    });
                }
                // Pod statuses contain the addresses.
                () = addresses_changed(&mut addresses) => self.wake_all(),
                () = tokio::time::sleep_until(sweep_at),
                    if listed && !self.swept && sweep_at > base::clock::now() => {}
                () = tokio::time::sleep_until(next_sweep) => {
                    next_sweep = base::clock::now() + SWEEP_INTERVAL;
                    self.swept = false;
                }
            }
            let keys = std::mem::take(&mut *self.dirty.keys.lock());
            for key in keys {
                self.reconcile(&key);
            }
            // Unknown pods are only stopped by the word of a server: the cache on disk may be older
            // than the pod.
            let may_sweep = listed && static_pods_read && !transport.is_away();
            if may_sweep && !self.swept && sweep_at <= base::clock::now() {
                self.swept = true;
                self.remove_orphans().await;
            }
        }
    }

    fn on_runtime_event(&mut self, signal: RuntimeSignal, lost: &impl Fn()) {
        match signal {
            RuntimeSignal::Event(event) => {
                let Some(uid) = self.node.caches.container_owners.get(&event.id) else { return };
                let table = self.table.0.read();
                let Some(handle) = table.get(&uid) else { return };
                handle.on_runtime_event(event);
            }
            RuntimeSignal::Restarted => {
                self.swept = false;
                self.wake_all();
            }
            RuntimeSignal::Lost => lost(),
        }
    }

    fn wake_all(&self) {
        for handle in self.table.0.read().values() {
            handle.wake.notify_one();
        }
    }

    fn on_worker_ended(&mut self, uid: &Arc<str>) {
        let handle = self.table.0.write().remove(uid);
        if let Some(handle) = handle {
            let pod = Arc::clone(&handle.desired.borrow().pod);
            let static_waits = self.waiting.values().any(|key| self.is_static(key));
            // Other pods may wait for its resources.
            self.resume_waiting();
            if pod.origin == PodOrigin::Static || static_waits {
                // Its manifest may be back, or a newer one may wait for its end.
                self.reconcile_static_pods();
            }
            if pod.origin == PodOrigin::Api {
                self.finished.insert(Arc::clone(uid));
                self.dirty.keys.lock().insert(pod.key.clone());
                self.dirty.notify.notify_one();
            }
        }
    }

    fn is_static(&self, key: &ObjectKey) -> bool {
        self.statics.borrow().pods().iter().any(|pod| pod.key == *key)
    }

    /// Updates the workers of one key to the state in the API.
    fn reconcile(&mut self, key: &ObjectKey) {
        let object = self.informer.cache().get(&key.namespace, &key.name);
        self.remove_replaced(key, object.as_ref().map(|o| &o.uid));
        self.update_mirror_uid(key, object.as_deref().and_then(MirrorPod::from_object).as_ref());
        let Some(object) = object else { return self.forget_deleted() };
        if self.finished.contains(&object.uid) {
            return;
        }
        let Some(pod) = Pod::from_object(&object) else { return };
        if pod.is_mirror() {
            return;
        }
        let pod = Arc::new(pod);
        let Some(handle) = self.table.get(&pod.uid) else { return self.admit_and_start(pod) };
        if let Some(status) = pod.api_status() {
            self.node.api.status.on_api_status(&pod.uid, object.resource_version, status);
        }
        self.update_worker(&handle, pod);
    }

    /// Marks the workers of API pods with this key and another uid than `current` as removed.
    fn remove_replaced(&mut self, key: &ObjectKey, current: Option<&Arc<str>>) {
        let mut removed = false;
        for handle in self.table.0.read().values() {
            let is_other = {
                let desired = handle.desired.borrow();
                desired.pod.key == *key
                    && desired.pod.origin == PodOrigin::Api
                    && Some(&desired.pod.uid) != current
            };
            if is_other {
                self.node.devices.begin_release(&handle.desired.borrow().pod.uid);
                removed |=
                    handle.desired.send_if_modified(|d| !std::mem::replace(&mut d.removed, true));
            }
        }
        if removed {
            self.resume_waiting();
        }
    }

    /// Drops the records of pods that no longer exist in the API.
    fn forget_deleted(&mut self) {
        let cached = self.informer.cache();
        let existing: HashSet<Arc<str>> =
            cached.list("").iter().map(|o| Arc::clone(&o.uid)).collect();
        self.finished.retain(|uid| existing.contains(uid));
        self.labels_reread.retain(|uid| existing.contains(uid));
    }

    /// Gives a changed pod to its worker.
    fn update_worker(&mut self, handle: &WorkerHandle, pod: Arc<Pod>) {
        let current = Arc::clone(&handle.desired.borrow().pod);
        let (pod, resize) = self.allocate(&current, pod);
        self.report_resize(handle, &current, &pod, resize.as_ref());
        let frees_resources = pod.is_api_terminal() && !current.is_api_terminal()
            || resize::resources_differ(&current, &pod);
        handle.desired.send_if_modified(|d| {
            // An update that only returns the node's own status is stored without waking the
            // worker.
            let is_relevant = !pod.is_equivalent(&d.pod) || d.resize != resize;
            (d.pod, d.resize) = (pod, resize);
            is_relevant
        });
        if frees_resources {
            self.update_class_groups(None);
            self.resume_waiting();
        }
    }

    /// Starts the worker of a new pod, which reports the rejection of a pod that is not admitted.
    fn admit_and_start(&mut self, pod: Arc<Pod>) {
        if self.waits_for_host_ports(&pod) {
            return;
        }
        let rejection = self.admit(&pod);
        let by_labels = rejection.as_ref().is_some_and(|r| r.reason == admission::NODE_AFFINITY);
        if by_labels && self.labels_reread.insert(Arc::clone(&pod.uid)) {
            // The cached labels may be outdated, and the pod may be here because of the new ones.
            return self.read_labels(pod.key.clone());
        }
        self.report_rejection(&pod, rejection.as_ref());
        let (pod, resize) = self.allocate(&resize::with_allocated_resources(&pod), pod);
        self.update_class_groups(Some(&pod));
        let api_uid = Some(pod.uid.to_string());
        let desired = DesiredPod { api_uid, rejection, resize, ..DesiredPod::new(pod) };
        self.start_worker(desired);
    }

    fn report_rejection(&self, pod: &Pod, rejection: Option<&PodFailure>) {
        let Some(rejection) = rejection else { return };
        rejection::count(&rejection.reason);
        let message = &rejection.message;
        let message = message.strip_prefix(rejection::STATUS_PREFIX).unwrap_or(message);
        self.node.api.events.pod_event(pod, EventType::Warning, &rejection.reason, message);
    }

    /// Updates the workers of static pods to the manifests. A changed pod waits for the end of its
    /// predecessor.
    fn reconcile_static_pods(&mut self) {
        let wanted = self.statics.borrow_and_update().pods();
        let mut running = Vec::new();
        for handle in self.table.0.read().values() {
            let pod = Arc::clone(&handle.desired.borrow().pod);
            if pod.origin != PodOrigin::Static {
                continue;
            }
            let of_manifest = wanted.iter().find(|p| p.uid == pod.uid);
            if !of_manifest.is_some_and(|p| document::is_of_same_document(p, &pod)) {
                handle.desired.send_if_modified(|d| d.set_removed(of_manifest.is_some()));
            }
            running.push(pod);
        }
        for pod in wanted {
            if running.iter().any(|p| p.key == pod.key || p.uid == pod.uid) {
                continue;
            }
            if self.waits_for_host_ports(&pod) {
                continue;
            }
            let mirror = self.informer.cache().get(pod.namespace(), pod.name());
            let mirror =
                mirror.as_deref().and_then(MirrorPod::from_object).filter(|m| m.mirrors(&pod));
            let rejection = self.admit(&pod);
            self.report_rejection(&pod, rejection.as_ref());
            self.update_class_groups(Some(&pod));
            let api_uid = mirror.map(|m| m.uid.to_string());
            self.start_worker(DesiredPod { api_uid, rejection, ..DesiredPod::new(pod) });
        }
        self.publish_running_statics();
    }

    /// Publishes the static pods with a worker, if they changed.
    fn publish_running_statics(&self) {
        let all = self.table.all().into_iter().map(|(pod, _)| pod);
        let mut running: Vec<_> = all.filter(|pod| pod.origin == PodOrigin::Static).collect();
        running.sort_by(|a, b| a.uid.cmp(&b.uid));
        self.running_statics.send_if_modified(|published| {
            let is_same = published.len() == running.len()
                && published.iter().zip(&running).all(|(old, new)| Arc::ptr_eq(old, new));
            if !is_same {
                *published = running;
            }
            !is_same
        });
    }

    /// Tells the worker of a static pod the uid of its mirror pod.
    fn update_mirror_uid(&self, key: &ObjectKey, mirror: Option<&MirrorPod>) {
        for handle in self.table.0.read().values() {
            handle.desired.send_if_modified(|d| {
                if d.pod.origin != PodOrigin::Static || d.pod.key != *key {
                    return false;
                }
                let uid = mirror.filter(|m| m.mirrors(&d.pod)).map(|m| m.uid.to_string());
                let changed = d.api_uid != uid;
                d.api_uid = uid;
                changed
            });
        }
    }

    /// Sets the CPU weight of the burstable class, and the protected memory of both classes, to the
    /// sums of the pods' requests, those of a `new` pod included.
    fn update_class_groups(&self, new: Option<&Arc<Pod>>) {
        let pods = self.table.all().into_iter().map(|(p, _)| p).chain(new.cloned());
        let (mut milli, mut memory) = (0_i64, ClassRequests::default());
        for pod in pods.filter(|p| !p.is_api_terminal()) {
            let requests = resources::pod_requests(&pod);
            match resources::qos(&pod) {
                Qos::Burstable => {
                    milli = milli.saturating_add(requests.cpu_milli);
                    memory.burstable = memory.burstable.saturating_add(requests.memory);
                }
                Qos::Guaranteed => {
                    memory.guaranteed = memory.guaranteed.saturating_add(requests.memory);
                }
                Qos::BestEffort => {}
            }
        }
        let cgroups = &self.node.runtime.cgroups;
        let protect = || match cgroups.memory().is_tiered() {
            true => cgroups.protect_memory(memory),
            // The start has cleared what another policy left.
            false => Ok(()),
        };
        if let Err(error) = cgroups.set_burstable_shares(milli).and_then(|()| protect()) {
            tracing::debug!(%error, "cannot update the groups of the classes of pods");
        }
    }

    fn start_worker(&self, desired: DesiredPod) {
        let uid = Arc::clone(&desired.pod.uid);
        let (worker, handle) = Worker::new(Arc::clone(&self.node), desired);
        self.table.0.write().insert(Arc::clone(&uid), Arc::new(handle));
        let done = self.done.0.clone();
        self.node.tasks.spawn(Kind::Request, "pod-worker", async move {
            let outcome = worker.run().await;
            let _ = done.send(uid).await;
            outcome
        });
    }

    /// Removes sandboxes, containers, directories and cgroups that belong to no known pod.
    async fn remove_orphans(&self) {
        let (Ok(sandboxes), Ok(containers)) = (
            self.node.runtime.cri.sandboxes(None).await,
            self.node.runtime.cri.containers(None).await,
        ) else {
            return;
        };
        let known: HashSet<Arc<str>> = self.table.0.read().keys().cloned().collect();
        let mut orphans: HashMap<String, core::Pod> = HashMap::new();
        let all = sandboxes.iter().map(|s| (&s.labels, None)).chain(
            containers.iter().map(|c| (&c.labels, c.annotations.get(label::TERMINATION_GRACE))),
        );
        for (labels, grace) in all {
            let Some(uid) = labels.get(label::POD_UID).filter(|uid| !known.contains(uid.as_str()))
            else {
                continue;
            };
            let orphan = orphans.entry(uid.clone()).or_default();
            orphan.metadata.name = labels.get(label::POD_NAME).cloned();
            orphan.metadata.namespace = labels.get(label::POD_NAMESPACE).cloned();
            orphan.metadata.uid = Some(uid.clone());
            let spec = orphan.spec.get_or_insert_default();
            if let Some(seconds) = grace.and_then(|g| g.parse().ok()) {
                spec.termination_grace_period_seconds = Some(seconds);
            }
        }
        let on_disk = std::fs::read_dir(self.node.identity.config.root_dir.join("pods"))
            .into_iter()
            .flatten()
            .flatten();
        self.node.api.tokens.retain_pods(known.clone());
        let left: BTreeSet<String> = on_disk
            .filter_map(|e| e.file_name().into_string().ok())
            .chain(self.node.runtime.cgroups.pods())
            .filter(|uid| !known.contains(uid.as_str()) && !orphans.contains_key(uid))
            .collect_set();
        let exists = |uid: &str| known.contains(uid) || orphans.contains_key(uid);
        self.node.devices.retain_pods(exists).await;
        self.node.resource_managers.retain_pods(exists).await;
        self.node.dynamic_resources.release_orphans(exists);
        self.node.user_namespaces.retain_pods(exists).await;
        for uid in left {
            if volumes::has_csi_volumes(&self.node.identity.config, &uid) {
                // Their drivers may not be registered yet, so that a worker attempts it again.
                let orphan = orphan_of_directory(&self.node.identity.config, &uid);
                orphans.insert(uid, orphan);
                continue;
            }
            tracing::info!(uid, "removing remains of a deleted pod");
            if let Err(error) = volumes::tear_down(&self.node, &uid).await {
                tracing::warn!(uid, %error, "cannot remove the directory of a deleted pod");
            }
            self.node.runtime.cgroups.remove(&uid);
        }
        for (_, object) in orphans {
            let Some(pod) = Pod::new(object, PodOrigin::Api) else { continue };
            tracing::info!(pod = %pod.key, uid = %pod.uid, "stopping a pod that is not in the API");
            self.start_worker(DesiredPod { removed: true, ..DesiredPod::new(Arc::new(pod)) });
        }
    }
}

/// Describes a pod of which only the directory is left; its log directory has its name.
fn orphan_of_directory(config: &Config, uid: &str) -> core::Pod {
    let logs = std::fs::read_dir(&config.pod_logs_dir).into_iter().flatten().flatten();
    let mut names = logs.filter_map(|entry| entry.file_name().into_string().ok());
    let found = names.find_map(|name| {
        let (namespace, pod) = name.strip_suffix(uid)?.strip_suffix('_')?.split_once('_')?;
        Some((namespace.to_owned(), pod.to_owned()))
    });
    let (namespace, name) = found.unwrap_or_else(|| (String::new(), uid.to_owned()));
    let mut orphan = core::Pod { spec: Some(core::PodSpec::default()), ..core::Pod::default() };
    orphan.metadata.namespace = Some(namespace);
    orphan.metadata.name = Some(name);
    orphan.metadata.uid = Some(uid.to_owned());
    orphan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_pod_is_named_by_its_logs() {
        let home = tempfile::tempdir().unwrap();
        let path = || home.path().to_path_buf();
        let mut config = Config::new("n", std::net::Ipv4Addr::LOCALHOST.into(), path(), path());
        config.pod_logs_dir = path();
        std::fs::create_dir_all(home.path().join("shop_web-0_u1")).unwrap();
        let names = |uid: &str| {
            let orphan = orphan_of_directory(&config, uid);
            let pod = Pod::new(orphan, PodOrigin::Api).unwrap();
            (pod.namespace().to_owned(), pod.name().to_owned())
        };
        assert_eq!(names("u1"), ("shop".to_owned(), "web-0".to_owned()));
        assert_eq!(names("u2"), (String::new(), "u2".to_owned()));
    }
}
