//! The updater: resizes or evicts pods whose requests differ from the recommendation
//! (`pkg/updater`). It has no limit of its rate, which is the default of upstream's
//! `--eviction-rate-limit`, and never exceeds the disruption budgets.

mod actions;
mod budget;
mod priority;
mod resizing;
mod unboost;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::k8s::api::core::v1::{LimitRange, Pod};
use api::k8s::jiff::Timestamp;
use api::selector::LabelSelector;
use base::{Kind, Tasks, clock};
use client::{Client, EventRecorder, Informer, Informers, Queue};
use parking_lot::Mutex;

use crate::admission::matching::{Targets, target_of, targets};
use crate::admission::startup_boost::is_boosted;
use crate::definitions::Definitions;
use crate::policy::limit_range::LimitRanges;
use crate::policy::pod::{ControllerRef, PodView};
use crate::policy::{Features, has_startup_boost, is_stronger, update_mode};
use crate::target::ClusterControllers;
use crate::types::{UpdateMode, VerticalPodAutoscaler, autoscalers};
use actions::Actions;
use budget::DisruptionBudget;
use resizing::{InPlaceDecision, ResizeMemory, can_evict, decide};

/// Time between loops, and the longest time that one may take (`--updater-interval`).
const INTERVAL: Duration = Duration::from_secs(60);
/// The user as which the updater acts.
pub const USER: &str = "system:vpa-updater";
/// Its user agent, and the source of its events.
pub const AGENT: &str = "vpa-updater";

/// Starts the updater; it ends with `tasks`. It runs while the kinds are served.
pub(crate) fn start(
    client: Client,
    (informers, definitions): (&Informers, Definitions),
    tasks: &Tasks,
) {
    let (informers, owner) = (informers.clone(), tasks.clone());
    tasks.spawn(Kind::Critical, "vpa-updater-definitions", async move {
        let follow = async {
            loop {
                definitions.served().await;
                let targets = ClusterControllers::new(&informers, client.clone());
                targets.synced().await;
                let running = owner.child();
                Updater::new(
                    client.clone(),
                    &informers,
                    Arc::new(targets),
                    Features::ALL,
                    &running,
                )
                .start(&running);
                definitions.unserved().await;
                running.shutdown().request();
            }
        };
        tokio::select! {
            () = follow => {}
            () = owner.shutdown().requested() => {}
        }
        Ok::<(), Infallible>(())
    });
}

/// An autoscaler with the selector of its target.
struct Candidate {
    autoscaler: VerticalPodAutoscaler,
    selector: LabelSelector,
}

/// The updater.
pub struct Updater {
    autoscalers: Informer<()>,
    pods: Informer<Pod>,
    limit_ranges: Informer<LimitRange>,
    targets: Arc<dyn Targets>,
    actions: Actions,
    features: Features,
    memory: Mutex<ResizeMemory>,
    /// Boosted pods, as `namespace/name`.
    boosted: Queue<(String, String)>,
}

/// What happens to a pod that may be resized in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Resize,
    Evict,
    Wait,
}

/// As upstream, mode `InPlace` tries a deferred resize again, whatever deferred it.
fn step(decision: InPlaceDecision, mode: UpdateMode) -> Step {
    let is_in_place = mode == UpdateMode::InPlace;
    match decision {
        InPlaceDecision::Approved => Step::Resize,
        InPlaceDecision::Deferred | InPlaceDecision::Infeasible if is_in_place => Step::Resize,
        InPlaceDecision::Evict if !is_in_place => Step::Evict,
        _ => Step::Wait,
    }
}

/// Whether the updater works on the pods of an autoscaler.
fn is_active(autoscaler: &VerticalPodAutoscaler) -> bool {
    !matches!(update_mode(autoscaler), UpdateMode::Off | UpdateMode::Initial)
}

fn read_autoscaler(object: &Object) -> Option<VerticalPodAutoscaler> {
    match serde_json::from_slice(&object.json()) {
        Ok(autoscaler) => Some(autoscaler),
        Err(error) => {
            tracing::debug!(object = %object.key, %error, "vertical-autoscaler: cannot decode");
            None
        }
    }
}

/// A live pod: on a node, not ended and not being deleted.
fn read_live_pod(object: &Object) -> Option<PodView> {
    let pod = PodView::read(&object.value().ok()?);
    let has_ended = ["Succeeded", "Failed"].contains(&&*pod.phase);
    (pod.is_scheduled && !has_ended && !pod.is_deleted).then_some(pod)
}

impl Updater {
    /// Creates the updater, which acts as `client`, for kinds that are served; `targets` reads the
    /// controllers of pods.
    pub fn new(
        client: Client,
        informers: &Informers,
        targets: Arc<dyn Targets>,
        features: Features,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let events = EventRecorder::new(client.clone(), AGENT, "", tasks);
        Arc::new(Self {
            autoscalers: informers.of_gvr(autoscalers()),
            pods: informers.of(),
            limit_ranges: informers.of(),
            targets,
            actions: Actions { client, events },
            features,
            memory: Mutex::default(),
            boosted: Queue::new(),
        })
    }

    /// Starts the loop, and the end of startup boosts if the feature is on.
    pub fn start(self: &Arc<Self>, tasks: &Tasks) {
        if self.features.cpu_startup_boost {
            self.start_unboosting(tasks);
        }
        let (updater, shutdown) = (Arc::clone(self), tasks.shutdown().clone());
        tasks.spawn(Kind::Critical, AGENT, async move {
            loop {
                tokio::select! {
                    () = clock::sleep(INTERVAL) => {}
                    () = shutdown.requested() => return Ok::<(), Infallible>(()),
                }
                tokio::select! {
                    done = tokio::time::timeout(INTERVAL, updater.run_once(now())) => {
                        if done.is_err() {
                            tracing::warn!("vertical-autoscaler: updates take too long");
                        }
                    }
                    () = shutdown.requested() => return Ok(()),
                }
            }
        });
    }

    async fn synced(&self) {
        self.autoscalers.synced().await;
        self.pods.synced().await;
        self.limit_ranges.synced().await;
    }

    fn ranges(&self, namespace: &str) -> LimitRanges {
        let ranges = self.limit_ranges.cache().list(namespace);
        let values: Vec<_> = ranges.iter().filter_map(|range| range.value().ok()).collect();
        LimitRanges::merge(values.iter())
    }

    /// The autoscalers of a namespace, all if empty, for which `filter` holds, with selectors.
    async fn candidates(
        &self,
        namespace: &str,
        filter: impl Fn(&VerticalPodAutoscaler) -> bool,
    ) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for object in self.autoscalers.cache().list(namespace) {
            let Some(autoscaler) = read_autoscaler(&object).filter(|a| filter(a)) else { continue };
            let Some(target) = target_of(&autoscaler) else { continue };
            match self.targets.selector(&object.key.namespace, &target).await {
                Ok(selector) => candidates.push(Candidate { autoscaler, selector }),
                Err(error) => {
                    tracing::debug!(object = %object.key, %error, "vertical-autoscaler: no selector");
                }
            }
        }
        candidates
    }

    /// One loop at the time `now`.
    async fn run_once(&self, now: Timestamp) {
        self.synced().await;
        let candidates = self.candidates("", is_active).await;
        let mut namespaces: BTreeMap<&str, Vec<&Candidate>> = BTreeMap::new();
        for candidate in &candidates {
            let namespace = candidate.autoscaler.metadata.namespace.as_deref().unwrap_or_default();
            namespaces.entry(namespace).or_default().push(candidate);
        }
        let mut controlled = Vec::new();
        for (namespace, candidates) in namespaces {
            controlled.extend(self.controlled_pods(namespace, &candidates).await);
        }
        {
            let pods = controlled.iter().flat_map(|(_, pods)| pods);
            let live: HashMap<&str, &PodView> = pods.map(|pod| (&*pod.uid, pod)).collect();
            self.memory.lock().retain(|uid| live.get(uid).copied());
        }
        for (candidate, pods) in controlled {
            self.update(&candidate.autoscaler, &pods, now).await;
        }
    }

    /// The live pods of a namespace by the autoscaler that controls them.
    async fn controlled_pods<'a>(
        &self,
        namespace: &str,
        candidates: &[&'a Candidate],
    ) -> Vec<(&'a Candidate, Vec<PodView>)> {
        let mut controllers: HashMap<ControllerRef, Option<ControllerRef>> = HashMap::new();
        let mut controlled: Vec<_> = candidates.iter().map(|c| (*c, Vec::new())).collect();
        for object in self.pods.cache().list(namespace) {
            let Some(pod) = read_live_pod(&object) else { continue };
            let Some(owner) = pod.controller.clone() else { continue };
            let controller = match controllers.get(&owner) {
                Some(known) => known.clone(),
                None => {
                    let found = self.top_most(namespace, &owner).await;
                    controllers.insert(owner, found.clone());
                    found
                }
            };
            let index = controlling(&pod, controller.as_ref(), candidates);
            if let Some((_, pods)) = index.and_then(|index| controlled.get_mut(index)) {
                pods.push(pod);
            }
        }
        controlled
    }

    async fn top_most(&self, namespace: &str, owner: &ControllerRef) -> Option<ControllerRef> {
        match self.targets.top_most(namespace, owner).await {
            Ok(controller) => controller,
            Err(error) => {
                let (kind, name) = (&owner.kind, &owner.name);
                tracing::debug!(namespace, kind, name, %error, "vertical-autoscaler: no controller");
                None
            }
        }
    }

    async fn budget(
        &self,
        autoscaler: &VerticalPodAutoscaler,
        pods: &[PodView],
    ) -> DisruptionBudget {
        let mut replicas = HashMap::new();
        for pod in pods {
            if let Some(controller) = &pod.controller
                && !replicas.contains_key(controller)
            {
                let count = self.actions.replicas(&pod.namespace, controller).await;
                replicas.insert(controller.clone(), count);
            }
        }
        DisruptionBudget::new(pods, autoscaler, |one| replicas.get(one).copied().flatten())
    }

    /// Updates the live pods of an autoscaler.
    async fn update(&self, autoscaler: &VerticalPodAutoscaler, pods: &[PodView], now: Timestamp) {
        let mode = update_mode(autoscaler);
        if pods.is_empty() || mode == UpdateMode::InPlace && !self.features.in_place {
            return;
        }
        let ranges = self.ranges(autoscaler.metadata.namespace.as_deref().unwrap_or_default());
        let mut budget = self.budget(autoscaler, pods).await;
        let excludes_boosted = self.features.cpu_startup_boost && has_startup_boost(autoscaler);
        let available = pods.iter().filter(|pod| !excludes_boosted || !is_boosted(pod));
        let at = (self.features, now);
        let evictions = match mode {
            UpdateMode::InPlace | UpdateMode::InPlaceOrRecreate => {
                let order = {
                    let mut memory = self.memory.lock();
                    let resizable: Vec<&PodView> = available
                        .filter(|pod| {
                            let decision = decide(pod, autoscaler, &budget, &mut memory, at);
                            if decision == InPlaceDecision::InfeasibleCached {
                                self.actions.report_skipped(pod);
                            }
                            step(decision, mode) != Step::Wait
                        })
                        .collect();
                    let resizable = resizable.into_iter();
                    priority::update_order(resizable, autoscaler, &ranges, &memory, at)
                };
                self.resize_all(autoscaler, order, (&ranges, &mut budget), now).await
            }
            _ => {
                let mut memory = self.memory.lock();
                let evictable: Vec<&PodView> =
                    available.filter(|pod| can_evict(pod, &budget, &mut memory, now)).collect();
                priority::update_order(evictable.into_iter(), autoscaler, &ranges, &memory, at)
            }
        };
        for pod in evictions {
            if !can_evict(pod, &budget, &mut self.memory.lock(), now) {
                continue;
            }
            match self.actions.evict(pod, autoscaler).await {
                Ok(()) => budget.record_eviction(pod),
                Err(error) => {
                    let (namespace, name) = (&pod.namespace, &pod.name);
                    tracing::info!(namespace, name, %error, "vertical-autoscaler: eviction failed");
                }
            }
        }
    }

    /// Resizes pods in place; returns those that are evicted instead.
    async fn resize_all<'a>(
        &self,
        autoscaler: &VerticalPodAutoscaler,
        order: Vec<&'a PodView>,
        (ranges, budget): (&LimitRanges, &mut DisruptionBudget),
        now: Timestamp,
    ) -> Vec<&'a PodView> {
        let mode = update_mode(autoscaler);
        let mut evictions = Vec::new();
        for pod in order {
            let decision =
                decide(pod, autoscaler, budget, &mut self.memory.lock(), (self.features, now));
            match step(decision, mode) {
                Step::Resize => {}
                Step::Evict => {
                    evictions.push(pod);
                    continue;
                }
                Step::Wait => continue,
            }
            if decision == InPlaceDecision::Infeasible {
                self.memory.lock().record_infeasible(pod, autoscaler);
            }
            match self.actions.resize(pod, autoscaler, (ranges, budget), now).await {
                Ok(()) => {}
                Err(error) => {
                    let (namespace, name) = (&pod.namespace, &pod.name);
                    tracing::info!(namespace, name, %error, "vertical-autoscaler: resize failed");
                    if mode != UpdateMode::InPlace {
                        evictions.push(pod);
                    } else if error.is_infeasible() {
                        self.memory.lock().record_infeasible(pod, autoscaler);
                    }
                }
            }
        }
        evictions
    }
}

/// The candidate that controls a pod with this top-most controller
/// (`GetControllingVPAForPod`).
fn controlling(
    pod: &PodView,
    controller: Option<&ControllerRef>,
    candidates: &[&Candidate],
) -> Option<usize> {
    let controller = controller?;
    let mut strongest: Option<usize> = None;
    for (index, candidate) in candidates.iter().enumerate() {
        let autoscaler = &candidate.autoscaler;
        let other = strongest.and_then(|index| candidates.get(index));
        if targets(autoscaler, controller)
            && candidate.selector.matches(&pod.labels)
            && other.is_none_or(|other| is_stronger(autoscaler, &other.autoscaler))
        {
            strongest = Some(index);
        }
    }
    strongest
}

/// The time of the wall clock.
fn now() -> Timestamp {
    let seconds = i64::try_from(clock::unix_time().as_secs()).unwrap_or_default();
    Timestamp::from_second(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests;
