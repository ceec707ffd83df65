//! Monitors memory, disks and processes of the node: sets the pressure conditions, removes what is
//! unused, and evicts pods if that does not suffice (upstream's eviction manager).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::Shutdown;
use client::events::EventType;

use crate::config::thresholds::{EvictionThreshold, Signal};
use crate::context::Node;
use crate::eviction::layout::FileSystemLayout;
use crate::eviction::measure::{self, FileSystemPaths};
use crate::eviction::message::{EvictionMessage, message};
use crate::eviction::metrics::{EVICTIONS, STATS_AGE};
use crate::eviction::ranking::{self, PodUsage};
use crate::eviction::state::{Evaluation, EvictionState, Observations, threshold_met};
use crate::eviction::{grace, local_storage};
use crate::housekeeping::{dead_containers, image_gc};
use crate::pods::handle::WorkerHandle;
use crate::pods::pod::Pod;
use crate::pods::table::PodTable;
use crate::runtime::{ImageFileSystems, RuntimeError};
use crate::status::pod::PodFailure;

/// How often the node is measured (the kubelet's `evictionMonitoringPeriod`).
const INTERVAL: Duration = Duration::from_secs(10);
/// How long the node waits for evicted pods to end before it is measured again
/// (`podCleanupTimeout`).
const CLEANUP_WAIT: Duration = Duration::from_secs(30);

/// Runs until shutdown.
pub(crate) async fn run(
    node: Arc<Node>,
    table: PodTable,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut monitor = EvictionMonitor {
        state: EvictionState::default(),
        file_systems: None,
        measured: None,
        node,
        table,
    };
    loop {
        let evicted = monitor.sync().await;
        let pause = async {
            if evicted.is_empty() {
                base::clock::sleep(INTERVAL).await;
            } else {
                wait_for_end(&evicted).await;
            }
        };
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = pause => {}
        }
    }
}

/// Waits until the containers of evicted pods have ended, for a limited time.
async fn wait_for_end(evicted: &[Arc<WorkerHandle>]) {
    let ends = async {
        for handle in evicted {
            // The worker of a removed pod is gone.
            let _ = handle.halted.subscribe().wait_for(|halted| *halted).await;
        }
    };
    if tokio::time::timeout(CLEANUP_WAIT, ends).await.is_err() {
        tracing::warn!(pods = evicted.len(), "evicted pods did not end in time");
    }
}

/// The file systems of the node.
#[derive(Debug, Clone, PartialEq)]
struct FileSystems {
    paths: FileSystemPaths,
    layout: FileSystemLayout,
}

struct EvictionMonitor {
    node: Arc<Node>,
    table: PodTable,
    state: EvictionState,
    /// As detected once; `None` until the runtime reports its own.
    file_systems: Option<FileSystems>,
    /// The file systems for which the thresholds are configured.
    measured: Option<FileSystems>,
}

impl EvictionMonitor {
    /// Measures the node once and acts on it; returns the pods that are evicted.
    async fn sync(&mut self) -> Vec<Arc<WorkerHandle>> {
        let file_systems = self.detect().await;
        let observations = self.observe(&file_systems.paths).await;
        let now = base::clock::now();
        let Evaluation { conditions, due } = self.state.evaluate(&observations, now);
        if self.node.caches.pressure.record(conditions, now) {
            self.node.caches.status_changed.notify_one();
        }
        let evicted = self.enforce_limits(file_systems.layout).await;
        if !evicted.is_empty() {
            return evicted;
        }
        match due.first() {
            Some(first) => {
                let first = *first;
                self.reclaim(first, &due, &observations, &file_systems).await.into_iter().collect()
            }
            None => Vec::new(),
        }
    }

    /// Returns the file systems, and configures the thresholds that follow from them.
    async fn detect(&mut self) -> FileSystems {
        let found = match &self.file_systems {
            Some(known) => known.clone(),
            None => {
                let reported = self.node.runtime.cri.image_file_systems().await;
                let is_final = reported.is_ok();
                let found = self.file_systems_with(reported.unwrap_or_default()).await;
                self.file_systems = is_final.then(|| found.clone());
                found
            }
        };
        if self.measured.as_ref() != Some(&found) {
            let configured = self.node.identity.config.eviction.list();
            let (thresholds, replaced) = found.layout.with_container_fs(&configured);
            for signal in replaced {
                tracing::warn!(signal, "threshold ignored: it follows from nodefs or imagefs");
            }
            self.state.configure(thresholds);
            self.measured = Some(found.clone());
        }
        found
    }

    async fn file_systems_with(&self, reported: ImageFileSystems) -> FileSystems {
        let paths = FileSystemPaths::new(&self.node.identity.config, &reported);
        let of_layout = paths.clone();
        let layout = base::tasks::blocking(move || of_layout.layout()).await;
        FileSystems { paths, layout: layout.unwrap_or(FileSystemLayout::Single) }
    }

    async fn observe(&self, paths: &FileSystemPaths) -> Observations {
        let (node, paths) = (Arc::clone(&self.node), paths.clone());
        base::tasks::blocking(move || measure::node(&node, &paths)).await.unwrap_or_default()
    }

    /// Evicts pods that exceed their own limits on local storage.
    async fn enforce_limits(&self, layout: FileSystemLayout) -> Vec<Arc<WorkerHandle>> {
        let limited = |p: &Arc<Pod>| local_storage::has_limits(p) && !p.is_critical();
        let pods: Vec<Arc<Pod>> = active(&self.table).into_iter().filter(limited).collect();
        if pods.is_empty() {
            return Vec::new();
        }
        let used = match measure::pods(&self.node, &pods).await {
            Ok(used) => used,
            Err(error) => {
                tracing::debug!(%error, "cannot measure pods with limits on local storage");
                return Vec::new();
            }
        };
        let layers_count = layout == FileSystemLayout::Single;
        let mut evicted = Vec::new();
        for pod in &pods {
            let used = used.get(&*pod.uid);
            let excess = used.and_then(|used| local_storage::excess(pod, used, layers_count));
            let Some(excess) = excess else { continue };
            let message =
                EvictionMessage { text: excess.message, annotations: BTreeMap::default() };
            if let Some(handle) = self.evict(pod, message, ranking::GRACE, false) {
                EVICTIONS.inc(&[excess.signal]);
                evicted.push(handle);
            }
        }
        evicted
    }

    /// Reclaims the resource of the first threshold that is due; returns the pod that is evicted.
    async fn reclaim(
        &self,
        first: EvictionThreshold,
        due: &[EvictionThreshold],
        observations: &Observations,
        file_systems: &FileSystems,
    ) -> Option<Arc<WorkerHandle>> {
        let resource = first.signal.resource();
        tracing::warn!(
            signal = first.signal.name(),
            available = observations.get(&first.signal).map(|o| o.available.to_string()),
            "eviction threshold met"
        );
        self.node.api.events.node_event(
            EventType::Warning,
            "EvictionThresholdMet",
            format!("Attempting to reclaim {}", resource.name()),
        );
        if self.reclaim_unused(first.signal, file_systems).await {
            tracing::info!(resource = resource.name(), "reclaimed without an eviction");
            return None;
        }
        let pods: Vec<Arc<Pod>> = active(&self.table);
        let ranked = match self.ranked(&pods, first.signal, file_systems.layout).await {
            Ok(ranked) => ranked,
            Err(error) => {
                tracing::warn!(%error, "cannot measure pods, none is evicted");
                return None;
            }
        };
        for threshold in due {
            if let Some(observed) = observations.get(&threshold.signal) {
                STATS_AGE.took(&[threshold.signal.name()], observed.at.elapsed());
            }
        }
        self.evict_first(&ranked, first, threshold_met(resource, due, observations))
    }

    /// Evicts the first pod that is not critical.
    fn evict_first(
        &self,
        ranked: &[(Arc<Pod>, Option<PodUsage>)],
        threshold: EvictionThreshold,
        met: Option<(api::Quantity, api::Quantity)>,
    ) -> Option<Arc<WorkerHandle>> {
        let resource = threshold.signal.resource();
        for (pod, used) in ranked {
            if pod.is_critical() {
                tracing::debug!(pod = %pod.key, "critical pod is not evicted");
                continue;
            }
            let message = message(pod, used.as_ref(), resource, met);
            let grace = grace(&self.node.identity.config, threshold, pod);
            if let Some(handle) = self.evict(pod, message, grace, true) {
                EVICTIONS.inc(&[threshold.signal.name()]);
                return Some(handle);
            }
        }
        tracing::warn!(resource = resource.name(), "no pod to evict");
        None
    }

    /// Removes dead containers and unused images, as the layout requires; returns whether no
    /// threshold is met afterwards.
    async fn reclaim_unused(&self, signal: Signal, file_systems: &FileSystems) -> bool {
        let node = &self.node;
        let reclaim = file_systems.layout.reclaim(signal);
        if reclaim.containers {
            dead_containers::remove(&node.identity.config, &node.runtime, &self.table).await;
        }
        if reclaim.images {
            image_gc::free_images(&node.runtime, &self.table).await;
        }
        (reclaim.containers || reclaim.images)
            && self.state.is_reclaimed(&self.observe(&file_systems.paths).await)
    }

    /// The pods in the order in which they are evicted, with their usage.
    async fn ranked(
        &self,
        pods: &[Arc<Pod>],
        signal: Signal,
        layout: FileSystemLayout,
    ) -> Result<Vec<(Arc<Pod>, Option<PodUsage>)>, RuntimeError> {
        let used = measure::pods(&self.node, pods).await?;
        let measured: Vec<(&Pod, Option<&PodUsage>)> =
            pods.iter().map(|pod| (&**pod, used.get(&*pod.uid))).collect();
        let order = ranking::rank(&measured, layout.order(signal));
        let of = |index: usize| {
            let pod = pods.get(index)?;
            Some((Arc::clone(pod), used.get(&*pod.uid).cloned()))
        };
        Ok(order.into_iter().filter_map(of).collect())
    }

    /// Ends a pod; `None` if it is gone.
    fn evict(
        &self,
        pod: &Pod,
        message: EvictionMessage,
        grace: i64,
        disruption: bool,
    ) -> Option<Arc<WorkerHandle>> {
        let handle = self.table.get(&pod.uid)?;
        let EvictionMessage { text: message, annotations } = message;
        tracing::warn!(pod = %pod.key, message, "pod evicted");
        self.node.api.events.annotated_pod_event(
            pod,
            annotations,
            EventType::Warning,
            ranking::REASON,
            message.clone(),
        );
        let reason = ranking::REASON.to_owned();
        let failure = PodFailure { reason, message, grace: Some(grace), disruption };
        handle.desired.send_modify(|d| d.rejection = Some(failure));
        Some(handle)
    }
}

/// Pods that run or are about to start, in the order of their names.
fn active(table: &PodTable) -> Vec<Arc<Pod>> {
    let is_final = |phase: Option<&str>| matches!(phase, Some("Succeeded" | "Failed"));
    let is_active = |pod: &Arc<Pod>| {
        let Some(handle) = table.get(&pod.uid) else { return false };
        let desired = handle.desired.borrow();
        desired.rejection.is_none()
            && !desired.removed
            && !pod.is_deleted()
            && !pod.is_api_terminal()
            && !is_final(handle.reported.lock().status.phase.as_deref())
    };
    table.active().into_iter().filter(is_active).collect()
}
