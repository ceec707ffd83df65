//! Dynamic resource allocation on this node: has the drivers of ResourceClaims prepare the devices
//! of pods and release them, gives the devices to containers, and reports their health.
//!
//! Which claims pods use is on disk ([`checkpoint`]) before a driver is called, so that devices are
//! also released after the process was replaced. A node without drivers has no task of this module.

mod checkpoint;
mod claim;
mod claims;
mod connection;
mod container;
mod drivers;
mod error;
mod health;
mod health_stream;
mod metrics;
mod orphans;
mod plugin;
mod pod_status;
mod prepare;
mod registration;
mod resource_slices;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use base::Tasks;
use client::{Client, Informer};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config::Config;
use crate::pods::pod::Pod;
use crate::pods::resource_claims::has_claims;

use checkpoint::CheckpointError;
use claims::ClaimCache;
use drivers::DraDrivers;
pub(crate) use error::PrepareFailed;
use health::HealthCache;
use orphans::OrphanClaims;
pub(crate) use registration::DraPluginHandler;
use resource_slices::{SliceCleaner, WIPING_DELAY};

/// The workers of pods with claims.
#[derive(Debug, Default)]
struct FollowingPods {
    wakes: HashMap<Arc<str>, Arc<Notify>>,
    /// Those that wait for a driver.
    waiting: HashSet<Arc<str>>,
}

/// The claims of the pods of this node, and the drivers that prepare them.
#[derive(Debug)]
pub(crate) struct DynamicResources {
    client: Client,
    tasks: Tasks,
    drivers: DraDrivers,
    claims: Mutex<ClaimCache>,
    /// The file with the claims. It is written by one task at a time, with the state at that time.
    checkpoint: Arc<tokio::sync::Mutex<PathBuf>>,
    health: HealthCache,
    pods: Mutex<FollowingPods>,
    orphans: OrphanClaims,
    /// Deadline of calls to drivers.
    call_timeout: Duration,
}

impl DynamicResources {
    /// Reads the state of an earlier process, and removes the ResourceSlices of this node: drivers
    /// publish them again when they register. `own_node` is the informer of this node's Node
    /// object.
    ///
    /// # Errors
    ///
    /// The record of the claims is damaged or cannot be created.
    pub(crate) async fn start(
        client: &Client,
        own_node: Informer<Node>,
        config: &Config,
        tasks: &Tasks,
    ) -> std::io::Result<Arc<Self>> {
        let cleaner = SliceCleaner::new(client, own_node, &config.node_name, WIPING_DELAY, tasks);
        cleaner.clean_all();
        let (root, path) = (config.root_dir.clone(), config.root_dir.join(checkpoint::CHECKPOINT));
        let read = move || (checkpoint::load(&root), HealthCache::open(&root));
        let (claims, health) = base::tasks::blocking(read).await?;
        let claims = ClaimCache::of_states(claims.map_err(std::io::Error::other)?);
        Ok(Arc::new(Self::new(client, cleaner, (claims, path), health, tasks)))
    }

    fn new(
        client: &Client,
        cleaner: Arc<SliceCleaner>,
        (claims, checkpoint): (ClaimCache, PathBuf),
        health: HealthCache,
        tasks: &Tasks,
    ) -> Self {
        Self {
            client: client.clone(),
            tasks: tasks.clone(),
            drivers: DraDrivers::new(cleaner),
            claims: Mutex::new(claims),
            checkpoint: Arc::new(tokio::sync::Mutex::new(checkpoint)),
            health,
            pods: Mutex::default(),
            orphans: OrphanClaims::default(),
            call_timeout: plugin::CALL_TIMEOUT,
        }
    }

    /// Creates the state of a node on which no pod uses claims.
    #[cfg(test)]
    pub(crate) fn without_claims(
        client: &Client,
        own_node: Informer<Node>,
        config: &Config,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let cleaner = SliceCleaner::new(client, own_node, &config.node_name, WIPING_DELAY, tasks);
        let claims = (ClaimCache::default(), config.root_dir.join(checkpoint::CHECKPOINT));
        let health = HealthCache::open(&config.root_dir);
        Arc::new(Self::new(client, cleaner, claims, health, tasks))
    }

    /// Writes the claims to disk.
    async fn save(&self) -> Result<(), CheckpointError> {
        let path = Arc::clone(&self.checkpoint).lock_owned().await;
        let states = self.claims.lock().states();
        // The lock is held to the end of the write, even if this future is dropped earlier.
        base::tasks::blocking(move || checkpoint::write(&path, Some(&states))).await?
    }

    /// Whether claims of a pod are prepared or may be: it does not end before they are released
    /// (`PodMightNeedToUnprepareResources`).
    pub(crate) fn is_used_by(&self, pod: &str) -> bool {
        self.claims.lock().has_pod(pod)
    }

    /// Registers how a pod with claims is woken: when the health of its devices changes, and when a
    /// driver that it waits for registers.
    pub(crate) fn follow(&self, pod: &Pod, wake: &Arc<Notify>) {
        if has_claims(pod) {
            self.pods.lock().wakes.insert(Arc::clone(&pod.uid), Arc::clone(wake));
        }
    }

    /// Wakes a pod once when a driver is registered or connected. `wake` is needed for pods that
    /// are being stopped; the others are followed.
    pub(crate) fn wait(&self, pod: &Arc<str>, wake: Option<&Arc<Notify>>) {
        let mut pods = self.pods.lock();
        if let Some(wake) = wake {
            pods.wakes.insert(Arc::clone(pod), Arc::clone(wake));
        }
        pods.waiting.insert(Arc::clone(pod));
    }

    /// Ends [`DynamicResources::wait`]: the claims of the pod are prepared.
    fn stop_waiting(&self, pod: &str) {
        self.pods.lock().waiting.remove(pod);
    }

    /// Drops the state of a pod that ended.
    pub(crate) fn forget(&self, pod: &str) {
        let mut pods = self.pods.lock();
        pods.wakes.remove(pod);
        pods.waiting.remove(pod);
    }

    /// Wakes everything that waits for a driver.
    fn wake_waiting(&self) {
        let mut pods = self.pods.lock();
        let waiting = std::mem::take(&mut pods.waiting);
        for wake in waiting.iter().filter_map(|uid| pods.wakes.get(uid)) {
            wake.notify_one();
        }
        self.orphans.retry();
    }

    /// Wakes pods whose devices changed.
    fn wake_pods<'a>(&self, uids: impl Iterator<Item = &'a String>) {
        let pods = self.pods.lock();
        for wake in uids.filter_map(|uid| pods.wakes.get(uid.as_str())) {
            wake.notify_one();
        }
    }

    /// Renders the metrics in the Prometheus text format.
    pub(crate) fn render_metrics(&self) -> String {
        let claims = self.claims.lock();
        metrics::render(claims.in_use().into_iter())
    }
}
