//! The recommender: once per minute it observes the usage of the containers of all autoscalers and
//! writes recommendations into their status (upstream's `recommender`).

mod bounds;
mod checkpoints;
mod estimate;
mod observe;
mod oom;
mod status;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{Event, Pod};
use base::{Backoff, Kind, Shutdown, Tasks, clock};
use client::{Client, Informer, Informers, Patch, Scope, gvr_of};
use serde_json::json;
use tokio::sync::Notify;

use crate::definitions::Definitions;
use crate::model::checkpoint::to_time;
use crate::model::state::State;
use crate::target::ClusterControllers;
use crate::types::{VerticalPodAutoscaler, autoscalers};
use observe::{RoundAutoscaler, is_responsible, observe, observed_pod, resolve};
use oom::OomKills;

pub use observe::UsageSource;

/// The user as which the recommender acts.
pub const USER: &str = "system:vpa-recommender";
/// Its user agent.
pub const AGENT: &str = "vpa-recommender";

/// Time between two rounds (`--recommender-interval`).
const INTERVAL: Duration = Duration::from_secs(60);
/// Seconds between two removals of checkpoints without an autoscaler (`--checkpoints-gc-interval`).
const COLLECT_INTERVAL: i64 = 600;
/// Seconds after which a missing recommendation is logged (`RecommendationMissingMaxDuration`).
const MISSING_MAX: i64 = 30 * 60;
/// Delays between attempts to read the checkpoints.
const LOAD_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Starts the recommender; it ends with `tasks`. Until the kinds are defined it only waits for
/// them.
pub(crate) fn start(
    usage: Arc<dyn UsageSource>,
    client: Client,
    (informers, definitions): (&Informers, Definitions),
    tasks: &Tasks,
) {
    let informers = informers.clone();
    let recommender =
        Recommender { usage, client, informers, definitions, kills: OomKills::default() };
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, AGENT, async move {
        tokio::select! {
            () = recommender.run(&shutdown) => {}
            () = shutdown.requested() => {}
        }
        Ok::<(), Infallible>(())
    });
}

struct Recommender {
    usage: Arc<dyn UsageSource>,
    client: Client,
    informers: Informers,
    definitions: Definitions,
    kills: OomKills,
}

/// The caches while the kinds are served, and what was observed.
struct Running {
    autoscalers: Informer<()>,
    /// An autoscaler changed.
    changed: Arc<Notify>,
    pods: Informer<Pod>,
    controllers: ClusterControllers,
    state: State,
    /// When checkpoints without an autoscaler were deleted.
    collected: i64,
}

/// The current time in seconds since the epoch.
fn unix_seconds() -> i64 {
    i64::try_from(clock::unix_time().as_secs()).unwrap_or(i64::MAX)
}

impl Recommender {
    /// Runs while the kinds are served, each time they are.
    async fn run(&self, shutdown: &Shutdown) {
        self.definitions.served().await;
        let pods = self.informers.of::<Pod>();
        let kills = self.kills.clone();
        pods.on_change(move |change| kills.on_pod(change));
        let evictions = Scope::all(gvr_of::<Event>()).fields("reason=Evicted");
        let evictions = self.informers.scoped::<Event>(evictions);
        let kills = self.kills.clone();
        evictions.on_change(move |change| kills.on_event(change));
        loop {
            if let Some(running) = self.begin(pods.clone(), shutdown).await {
                self.serve(running).await;
            }
            self.kills.record(false);
            self.informers.forget(&autoscalers(), false);
            self.definitions.served().await;
        }
    }

    /// Starts the caches and reads the checkpoints; `None` if the kinds are no longer served.
    async fn begin(&self, pods: Informer<Pod>, shutdown: &Shutdown) -> Option<Running> {
        let autoscalers = self.informers.of_gvr(autoscalers());
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        autoscalers.on_change(move |_| wake.notify_one());
        let controllers = ClusterControllers::new(&self.informers, self.client.clone());
        let all = async {
            autoscalers.synced().await;
            pods.synced().await;
            controllers.synced().await;
        };
        tokio::select! {
            () = all => {}
            () = self.definitions.unserved() => return None,
        }
        let now = unix_seconds();
        let mut running = Running {
            autoscalers,
            changed,
            pods,
            controllers,
            state: State::default(),
            collected: now,
        };
        for object in running.read() {
            running.state.autoscalers.entry(key(&object)).or_default();
        }
        let mut backoff = Backoff::new(LOAD_BACKOFF.0, LOAD_BACKOFF.1);
        while let Err(error) = checkpoints::load(&self.client, &mut running.state, now).await {
            tracing::warn!(%error, "vertical-pod-autoscaler: cannot read checkpoints");
            if !backoff.wait(shutdown).await || !self.definitions.are_served() {
                return None;
            }
        }
        Some(running)
    }

    /// Rounds until the kinds are no longer served. Without autoscalers nothing wakes up.
    async fn serve(&self, mut running: Running) {
        while self.definitions.are_served() {
            let is_idle = running.read().is_empty();
            self.kills.record(!is_idle);
            self.round(&mut running).await;
            let next = async {
                match is_idle {
                    true => running.changed.notified().await,
                    false => clock::sleep(INTERVAL).await,
                }
            };
            tokio::select! {
                () = next => {}
                () = self.definitions.unserved() => {}
            }
        }
    }

    /// One round: observe, recommend, write statuses and checkpoints, remove what is outdated.
    async fn round(&self, running: &mut Running) {
        let now = unix_seconds();
        let lookup = running.controllers.lookup();
        let mut all = Vec::new();
        for object in running.read() {
            let (selector, target) = resolve(&lookup, &object).await;
            let key = key(&object);
            let candidates = match selector.is_nothing() {
                true => Vec::new(),
                false => running.pods.cache().list(&key.0),
            };
            let pods = candidates.iter().filter_map(|pod| observed_pod(pod, &selector)).collect();
            all.push(RoundAutoscaler { key, object, selector, target, pods });
        }
        observe(&mut running.state, &all, &self.kills.take(), &*self.usage, now);
        for one in &all {
            self.write_status(&mut running.state, one, now).await;
        }
        checkpoints::write(&self.client, &mut running.state, now).await;
        if all.is_empty() || now.saturating_sub(running.collected) >= COLLECT_INTERVAL {
            running.collected = now;
            let cache = running.autoscalers.cache();
            let exists = |namespace: &str, name: &str| cache.get(namespace, name).is_some();
            checkpoints::collect(&self.client, exists).await;
        }
        running.state.collect(now);
    }

    /// Writes the status of an autoscaler if it changed.
    async fn write_status(&self, state: &mut State, one: &RoundAutoscaler, now: i64) {
        let Some(observed) = state.autoscalers.get_mut(&one.key) else { return };
        let has_pods = !one.pods.is_empty();
        let status = status::status(&one.object, &one.target, observed, has_pods, to_time(now));
        let (namespace, name) = &one.key;
        let is_missing = status.recommendation.as_ref();
        if is_missing.is_none_or(|all| all.container_recommendations.is_empty()) {
            let since = *observed.missing_since.get_or_insert(now);
            if now.saturating_sub(since) > MISSING_MAX {
                observed.missing_since = Some(now);
                tracing::info!(
                    namespace,
                    name,
                    "vertical-pod-autoscaler: no recommendation for more than 30 minutes"
                );
            }
        } else {
            observed.missing_since = None;
        }
        if status == one.object.status {
            return;
        }
        let patch = json!([{"op": "add", "path": "/status", "value": status}]);
        let patch = Patch::Json(&patch);
        match self.client.patch_value(&autoscalers(), namespace, name, "status", &patch).await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(namespace, name, %error,
                    "vertical-pod-autoscaler: cannot write a status");
            }
            _ => {}
        }
    }
}

impl Running {
    /// The autoscalers for which this recommender is responsible.
    fn read(&self) -> Vec<VerticalPodAutoscaler> {
        let mut all = Vec::new();
        for object in self.autoscalers.cache().list("") {
            match serde_json::from_slice::<VerticalPodAutoscaler>(object.raw()) {
                Ok(autoscaler) if is_responsible(&autoscaler) => all.push(autoscaler),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(object = %object.key, %error,
                        "vertical-pod-autoscaler: an object cannot be read");
                }
            }
        }
        all
    }
}

/// Namespace and name of an autoscaler.
fn key(autoscaler: &VerticalPodAutoscaler) -> (String, String) {
    let metadata = &autoscaler.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}
