//! What is known about claims, devices, rules and pods that must be evicted, and how changes of
//! objects affect it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::jiff::Timestamp;
use api::{Object, ObjectKey};
use sorting::CollectOrdered as _;

use super::claim_view::{AllocatedDevice, ClaimView, Consumer};
use super::eviction::{Eviction, Reason, eviction};
use super::pools::{PoolId, Pools, SliceView};
use super::rule_view::RuleView;
use crate::devices::pod_claims::ClaimPod;
use crate::devices::uid_cache::UidCache;

/// The time between a change and the status of a rule that reports it, and between two reports
/// (upstream's `ruleStatusPeriod`).
pub(super) const STATUS_PERIOD: Duration = Duration::from_secs(10);

/// One pod; another pod of the same name has another UID.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PodRef {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) uid: Arc<str>,
}

impl PodRef {
    /// The pod of an object.
    pub(super) fn of(object: &Object) -> Self {
        let ObjectKey { namespace, name } = object.key.clone();
        Self { namespace, name, uid: Arc::clone(&object.uid) }
    }
}

/// One rule; another rule of the same name has another UID.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RuleRef {
    pub(super) name: Arc<str>,
    pub(super) uid: Arc<str>,
}

/// What a change of the state requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// The pod must be deleted at this time.
    Evict(PodRef, Timestamp),
    /// The pod need not be deleted any more.
    Cancelled(PodRef),
    /// The status of the rule must be written after this time.
    Report(RuleRef, Duration),
}

/// An allocated claim and its eviction.
#[derive(Debug, Clone, PartialEq)]
struct AllocatedClaim {
    claim: ClaimView,
    eviction: Option<Eviction>,
}

/// The pods of a cache by namespace and name.
pub(super) type Pods<'a> = &'a dyn Fn(&str, &str) -> Option<ClaimPod>;

/// The state.
#[derive(Debug, Default)]
pub(super) struct State {
    claims: HashMap<ObjectKey, AllocatedClaim>,
    pools: Pools,
    /// Rules whose taint evicts, by name.
    rules: BTreeMap<Arc<str>, RuleView>,
    /// Pods that were evicted because of a rule since the start of the controller, by the UID of
    /// each rule that exists.
    evicted_by: HashMap<Arc<str>, u64>,
    /// Pods that must be deleted; the queue may contain others.
    pending: HashMap<PodRef, Eviction>,
    /// Pods that need no further look.
    evicted: UidCache,
}

/// The eviction of a claim with these devices.
fn claim_eviction<'a>(
    devices: &[AllocatedDevice],
    pools: &Pools,
    rules: impl Iterator<Item = &'a RuleView> + Clone,
) -> Option<Eviction> {
    let of_device = |device: &AllocatedDevice| -> Vec<_> {
        let published = pools.taints(&device.pool, &device.device).map(|(index, taint)| {
            let PoolId { driver, pool } = device.pool.clone();
            (Reason::Slice { driver, pool, device: device.device.as_str().into(), index }, taint)
        });
        let selecting = rules.clone().filter(|rule| rule.selects(&device.pool, &device.device));
        let of_rules = selecting.map(|rule| (rule.reason(), &rule.spec.taint));
        // The lifetimes of both differ.
        let taints: Vec<_> = published.map(|(r, t)| (r, t.clone())).collect();
        let rules = of_rules.map(|(r, t)| (r, t.clone()));
        taints.into_iter().chain(rules).collect()
    };
    let found: Vec<_> =
        devices.iter().map(|device| (of_device(device), device.tolerations.as_slice())).collect();
    eviction(found.iter().flat_map(|(taints, tolerations)| {
        taints.iter().map(|(reason, taint)| (reason.clone(), taint, *tolerations))
    }))
}

impl State {
    fn eviction_of(&self, claim: &ClaimView) -> Option<Eviction> {
        let devices = claim.devices.as_deref().unwrap_or_default();
        claim_eviction(devices, &self.pools, self.rules.values())
    }

    /// A claim was added, changed or removed.
    pub(super) fn claim_changed(
        &mut self,
        old: Option<&ClaimView>,
        new: Option<ClaimView>,
        pods: Pods<'_>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(new) = new else {
            if let Some(old) = old {
                self.claims.remove(&old.key);
                self.look_at_consumers(old, pods, &mut effects);
            }
            return effects;
        };
        if let Some(old) = old.filter(|old| old.uid != new.uid) {
            effects.extend(self.claim_changed(Some(old), None, pods));
            effects.extend(self.claim_changed(None, Some(new), pods));
            return effects;
        }
        let was_allocated = old.is_some_and(|old| old.devices.is_some());
        if new.devices.is_none() && !was_allocated {
            return effects;
        }
        if new.devices.is_none() {
            self.claims.remove(&new.key);
        } else {
            // An allocation never changes, so the eviction stays.
            let known = self.claims.get(&new.key).filter(|_| was_allocated);
            let eviction =
                known.map_or_else(|| self.eviction_of(&new), |known| known.eviction.clone());
            let claim = new.clone();
            self.claims.insert(new.key.clone(), AllocatedClaim { claim, eviction });
        }
        if let Some(old) = old.filter(|old| old.reserved_for != new.reserved_for) {
            self.look_at_consumers(old, pods, &mut effects);
        }
        self.look_at_consumers(&new, pods, &mut effects);
        effects
    }

    /// A rule was added, changed or removed.
    pub(super) fn rule_changed(
        &mut self,
        old: Option<&RuleView>,
        new: Option<RuleView>,
        pods: Pods<'_>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let (Some(old), Some(new)) = (old, &new) {
            if old == new {
                return effects;
            }
        }
        if let Some(old) = old {
            self.rules.remove(&old.rule.name);
            if new.as_ref().is_none_or(|new| new.rule.uid != old.rule.uid) {
                self.evicted_by.remove(&old.rule.uid);
            }
        }
        if let Some(new) = new {
            self.evicted_by.entry(Arc::clone(&new.rule.uid)).or_default();
            // The first report precedes evictions.
            effects.push(Effect::Report(new.rule.clone(), Duration::ZERO));
            if new.evicts() {
                self.rules.insert(Arc::clone(&new.rule.name), new);
            }
        }
        self.recompute(|_| true, pods, &mut effects);
        effects
    }

    /// A slice was added, changed or removed.
    pub(super) fn slice_changed(
        &mut self,
        old: Option<&SliceView>,
        new: Option<SliceView>,
        pods: Pods<'_>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let (Some(before), Some(after)) = (old, &new) {
            if before.pool != after.pool {
                effects.extend(self.slice_changed(old, None, pods));
                effects.extend(self.slice_changed(None, new, pods));
                return effects;
            }
        }
        let Some(id) = old.or(new.as_ref()).map(|slice| slice.pool.clone()) else { return effects };
        let owned = |pools: &Pools| -> BTreeMap<String, Vec<_>> {
            let found = pools.evicting(&id).into_iter();
            found
                .map(|(device, taints)| (device.to_owned(), taints.into_iter().cloned().collect()))
                .collect()
        };
        let before = owned(&self.pools);
        if let Some(old) = old {
            self.pools.remove(old);
        }
        if let Some(new) = new {
            self.pools.add(new);
        }
        let after = owned(&self.pools);
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect_set();
        let changed: BTreeSet<&String> =
            names.into_iter().filter(|name| before.get(*name) != after.get(*name)).collect_set();
        if !changed.is_empty() {
            let uses =
                |device: &AllocatedDevice| device.pool == id && changed.contains(&device.device);
            let concerns = |claim: &ClaimView| claim.devices.iter().flatten().any(uses);
            self.recompute(concerns, pods, &mut effects);
        }
        effects
    }

    /// Computes the evictions of claims again and looks at the pods of those that changed.
    fn recompute(
        &mut self,
        concerns: impl Fn(&ClaimView) -> bool,
        pods: Pods<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let mut changed = Vec::new();
        for allocated in self.claims.values_mut().filter(|a| concerns(&a.claim)) {
            let devices = allocated.claim.devices.as_deref().unwrap_or_default();
            let eviction = claim_eviction(devices, &self.pools, self.rules.values());
            if eviction != allocated.eviction {
                allocated.eviction = eviction;
                changed.push(allocated.claim.clone());
            }
        }
        for claim in changed {
            self.look_at_consumers(&claim, pods, effects);
        }
    }

    /// A pod was added or changed; pods are looked at once they have a node or claims are recorded.
    pub(super) fn pod_changed(&mut self, old: Option<&ClaimPod>, new: &ClaimPod) -> Vec<Effect> {
        let mut effects = Vec::new();
        let is_same = |old: &ClaimPod| {
            old.uid == new.uid && old.node_name == new.node_name && old.statuses == new.statuses
        };
        if !old.is_some_and(is_same) {
            self.look_at(new, &mut effects);
        }
        effects
    }

    /// A pod was removed.
    pub(super) fn pod_removed(&mut self, pod: &PodRef) {
        self.pending.remove(pod);
    }

    fn look_at_consumers(&mut self, claim: &ClaimView, pods: Pods<'_>, effects: &mut Vec<Effect>) {
        for Consumer { name, uid, .. } in claim.reserved_for.iter().filter(|c| c.is_pod) {
            let pod = pods(&claim.key.namespace, name);
            if let Some(pod) = pod.filter(|pod| *pod.uid == **uid) {
                self.look_at(&pod, effects);
            }
        }
    }

    /// Marks a pod as pending or cancels its eviction.
    fn look_at(&mut self, pod: &ClaimPod, effects: &mut Vec<Effect>) {
        let (namespace, name) = (Arc::clone(&pod.namespace), Arc::clone(&pod.name));
        let reference = PodRef { namespace, name, uid: Arc::clone(&pod.uid) };
        let Some(eviction) = self.pod_eviction(pod) else {
            if self.pending.remove(&reference).is_some() {
                effects.push(Effect::Cancelled(reference));
            }
            return;
        };
        effects.push(Effect::Evict(reference.clone(), eviction.at));
        for rule in rules_of(&eviction) {
            effects.push(Effect::Report(rule, STATUS_PERIOD));
        }
        self.pending.insert(reference, eviction);
    }

    /// The eviction of a pod by all of its claims.
    fn pod_eviction(&self, pod: &ClaimPod) -> Option<Eviction> {
        if pod.node_name.is_empty() {
            return None;
        }
        let mut found: Option<Eviction> = None;
        for name in pod.claim_names() {
            let key = ObjectKey::new(&pod.namespace, name.name);
            let Some(allocated) = self.claims.get(&key) else { continue };
            let Some(eviction) = &allocated.eviction else { continue };
            if !allocated.claim.is_used_by(pod) {
                continue;
            }
            match &mut found {
                Some(found) => found.merge(eviction),
                None => found = Some(eviction.clone()),
            }
        }
        found
    }

    /// The eviction of a pod that must still be deleted.
    pub(super) fn pending(&self, pod: &PodRef) -> Option<Eviction> {
        self.pending.get(pod).filter(|_| !self.evicted.has(&pod.uid)).cloned()
    }

    /// The pod is gone. Returns the rules that report it: those of `by`, the eviction that deleted
    /// it.
    pub(super) fn pod_evicted(&mut self, pod: &PodRef, by: Option<&Eviction>) -> Vec<RuleRef> {
        self.pending.remove(pod);
        self.evicted.add(&pod.uid);
        let rules: Vec<RuleRef> = by.into_iter().flat_map(rules_of).collect();
        for rule in &rules {
            if let Some(number) = self.evicted_by.get_mut(&rule.uid) {
                *number += 1;
            }
        }
        rules
    }

    /// The number of pods that were evicted because of a rule.
    pub(super) fn evicted_by(&self, rule: &str) -> u64 {
        self.evicted_by.get(rule).copied().unwrap_or_default()
    }

    /// The pods that a rule evicts and that are not being deleted. With `simulated`, the rule is
    /// the only one and evicts.
    pub(super) fn pods_of_rule(
        &self,
        rule: &RuleView,
        simulated: bool,
        pods: Pods<'_>,
    ) -> BTreeSet<PodRef> {
        let mut found = BTreeSet::new();
        for AllocatedClaim { claim, eviction } in self.claims.values() {
            let devices = claim.devices.as_deref().unwrap_or_default();
            let computed =
                simulated.then(|| claim_eviction(devices, &self.pools, std::iter::once(rule)));
            let eviction = computed.as_ref().unwrap_or(eviction);
            let is_reason = |e: &Eviction| e.reasons.iter().any(|r| r.is_rule(&rule.rule.uid));
            if !eviction.as_ref().is_some_and(is_reason) {
                continue;
            }
            for consumer in claim.reserved_for.iter().filter(|c| c.is_pod) {
                let pod = pods(&claim.key.namespace, &consumer.name);
                let is_affected = |pod: &ClaimPod| {
                    !pod.is_deleted && !pod.node_name.is_empty() && claim.is_used_by(pod)
                };
                if let Some(ClaimPod { namespace, name, uid, .. }) = pod.filter(is_affected) {
                    found.insert(PodRef { namespace, name, uid });
                }
            }
        }
        found
    }

    /// The numbers of published and of allocated devices that a rule selects.
    pub(super) fn devices_of_rule(&self, rule: &RuleView) -> (usize, usize) {
        let published =
            self.pools.published().filter(|(pool, device)| rule.selects(pool, device)).count();
        let allocated = self.claims.values().flat_map(|a| a.claim.devices.iter().flatten());
        (published, allocated.filter(|d| rule.selects(&d.pool, &d.device)).count())
    }
}

/// The rules among the reasons of an eviction.
fn rules_of(eviction: &Eviction) -> impl Iterator<Item = RuleRef> {
    eviction.reasons.iter().filter_map(|reason| match reason {
        Reason::Rule { name, uid } => {
            Some(RuleRef { name: Arc::clone(name), uid: Arc::clone(uid) })
        }
        Reason::Slice { .. } => None,
    })
}

#[cfg(test)]
mod tests;
