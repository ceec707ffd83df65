//! Passes changes of objects to the state, and what follows from them to the queue.

use std::sync::Arc;

use api::Object;
use client::events::EventType;
use client::{Change, Informer};

use super::claim_view::ClaimView;
use super::pod_deletion::{EVENT, reference};
use super::pools::SliceView;
use super::rule_view::RuleView;
use super::state::{Effect, PodRef, Pods, State};
use super::{Controller, WorkItem, now};
use crate::devices::pod_claims::ClaimPod;

impl Controller {
    /// Adds the listeners of all caches.
    pub(super) fn listen(self: &Arc<Self>) {
        self.on(&self.slices, |state, change, pods| {
            let (old, new) = both(change, SliceView::of);
            state.slice_changed(old.as_ref(), new, pods)
        });
        self.on(&self.rules, |state, change, pods| {
            let (old, new) = both(change, RuleView::of);
            state.rule_changed(old.as_ref(), new, pods)
        });
        self.on(&self.claims, |state, change, pods| {
            let (old, new) = both(change, ClaimView::of);
            state.claim_changed(old.as_ref(), new, pods)
        });
        self.on(&self.pods, |state, change, _| {
            let removed = match change {
                Change::Deleted(pod) => Some(pod),
                Change::Updated { old, new } if old.uid != new.uid => Some(old),
                Change::Added(_) | Change::Updated { .. } => None,
            };
            if let Some(pod) = removed {
                state.pod_removed(&PodRef::of(pod));
            }
            let (old, new) = both(change, ClaimPod::with_claims);
            new.map(|new| state.pod_changed(old.as_ref(), &new)).unwrap_or_default()
        });
    }

    /// Applies the changes of a cache to the state.
    fn on<K: 'static>(
        self: &Arc<Self>,
        informer: &Informer<K>,
        apply: fn(&mut State, &Change, Pods<'_>) -> Vec<Effect>,
    ) {
        // A listener lives as long as its cache, which the controller holds.
        let controller = Arc::downgrade(self);
        informer.on_change(move |change| {
            let Some(controller) = controller.upgrade() else { return };
            let effects =
                apply(&mut controller.state.lock(), change, &|ns, name| controller.pod(ns, name));
            for effect in effects {
                controller.act(effect);
            }
        });
    }

    /// A pod of the cache.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<ClaimPod> {
        self.pods.cache().get(namespace, name).and_then(|object| ClaimPod::of(&object))
    }

    fn act(&self, effect: Effect) {
        match effect {
            Effect::Evict(pod, at) => {
                // A time in the past is now.
                let delay = at.duration_since(now()).try_into().unwrap_or_default();
                self.queue.add_after(WorkItem::Pod(pod), delay);
            }
            Effect::Cancelled(pod) => {
                let text = "Cancelling deletion";
                self.recorder.event_for(reference(&pod), EventType::Normal, EVENT, text);
            }
            Effect::Report(rule, delay) => self.queue.add_after(WorkItem::Rule(rule), delay),
        }
    }
}

/// The views of the object before and after a change; the second is `None` after a removal.
fn both<T>(change: &Change, of: fn(&Object) -> Option<T>) -> (Option<T>, Option<T>) {
    match change {
        Change::Added(new) => (None, of(new)),
        Change::Updated { old, new } => (of(old), of(new)),
        Change::Deleted(old) => (of(old), None),
    }
}
