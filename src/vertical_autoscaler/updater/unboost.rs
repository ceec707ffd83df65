//! The end of startup boosts: a pod that is ready for the time of its boost is resized to what it
//! shall have without the boost.

use std::sync::Arc;
use std::time::Duration;

use base::Tasks;
use client::{Action, run_workers};

use super::actions::UpdateError;
use super::resizing::can_unboost;
use super::{Updater, controlling, now, read_live_pod};
use crate::admission::startup_boost::{ANNOTATION_PREFIX, expired, is_boosted, remaining};
use crate::policy::pod::PodView;

/// Pods whose boost ends at the same time (`--concurrent-cpu-startup-boost-syncs`).
const WORKERS: usize = 1;
/// Attempts to find the autoscaler of a pod (`maxVPALookupRetries`) before a pause.
const LOOKUPS_MAX: u32 = 5;
/// The pause after these attempts, unless the pod changes (upstream's `defaultResyncPeriod`).
const LOOKUP_PAUSE: Duration = Duration::from_secs(10 * 60);

/// Why the boost of a pod does not end yet; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnboostError {
    #[error("no autoscaler controls the pod")]
    NoAutoscaler,
    #[error("the pod cannot be resized yet")]
    NotNow,
    #[error("the pod is not ready in the cache")]
    NotReady,
    #[error(transparent)]
    Update(#[from] UpdateError),
}

impl Updater {
    /// Queues each ready pod with a boost.
    pub(super) fn follow_boosted_pods(&self) {
        let queue = self.boosted.clone();
        self.pods.on_change(move |change| {
            let object = change.object();
            // Most pods have no boost: only a pod with the annotation's text is decoded.
            let has_text = std::str::from_utf8(object.raw())
                .is_ok_and(|text| text.contains(ANNOTATION_PREFIX));
            if !has_text {
                return;
            }
            let pod = read_live_pod(object);
            if pod.is_some_and(|pod| is_boosted(&pod) && is_ready(&pod)) {
                queue.add((object.key.namespace.to_string(), object.key.name.to_string()));
            }
        });
    }

    /// Ends the boosts of pods.
    pub(super) fn start_unboosting(self: &Arc<Self>, tasks: &Tasks) {
        self.follow_boosted_pods();
        let updater = Arc::clone(self);
        run_workers(tasks, "vpa-startup-boost", WORKERS, &self.boosted, move |key| {
            let updater = Arc::clone(&updater);
            async move { updater.unboost(key).await }
        });
    }

    /// `processNextBoostItem`.
    pub(super) async fn unboost(&self, key: (String, String)) -> Result<Action, UnboostError> {
        self.synced().await;
        let (namespace, name) = &key;
        let object = self.pods.cache().get(namespace, name);
        let pod = object.and_then(|object| read_live_pod(&object));
        let Some(pod) = pod.filter(is_boosted) else { return Ok(Action::Done) };
        let controller = match &pod.controller {
            Some(owner) => self.top_most(namespace, owner).await,
            None => None,
        };
        let candidates = self.candidates(namespace, |_| true).await;
        let all: Vec<_> = candidates.iter().collect();
        let index = controlling(&pod, controller.as_ref(), &all);
        let Some(candidate) = index.and_then(|index| candidates.get(index)) else {
            let is_last = self.boosted.failures(&key) > LOOKUPS_MAX;
            let pause = Action::After(LOOKUP_PAUSE);
            return if is_last { Ok(pause) } else { Err(UnboostError::NoAutoscaler) };
        };
        let (autoscaler, now) = (&candidate.autoscaler, now());
        if expired(&pod, autoscaler, now).is_empty() {
            return remaining(&pod, autoscaler, now)
                .map(Action::After)
                .ok_or(UnboostError::NotReady);
        }
        let live: Vec<PodView> = self
            .pods
            .cache()
            .list(namespace)
            .iter()
            .filter(|object| candidate.selector.matches(&***object))
            .filter_map(|object| read_live_pod(object))
            .collect();
        let mut budget = self.budget(autoscaler, &live).await;
        if !can_unboost(&pod, autoscaler, &budget, now) {
            return Err(UnboostError::NotNow);
        }
        let ranges = self.ranges(namespace);
        self.actions.resize(&pod, autoscaler, (&ranges, &mut budget), now).await?;
        Ok(Action::Done)
    }
}

fn is_ready(pod: &PodView) -> bool {
    pod.condition("Ready").is_some_and(|ready| ready.is_true)
}
