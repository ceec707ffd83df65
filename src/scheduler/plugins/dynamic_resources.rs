//! DynamicResources: allocates devices for the ResourceClaims of a pod, and for extended resources
//! that device classes serve.
//!
//! `pre_filter` collects the claims and prepares the allocator, `filter` allocates on one node, and
//! `reserve` keeps others from the devices of the chosen node. `bind/claims.rs` writes.

mod cycle;
pub(crate) mod extended;
mod hints;
mod pod_claims;
mod score;

use std::sync::Arc;

use crate::devices::binding::ClaimRelease;
use crate::devices::store::Devices;
use crate::event::Event;
use crate::framework::{CycleState, Plugin, PostFilterResult, PreBind, Snapshot};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::rejection::{FitError, Rejection};

/// The claims of the pod in one cycle. Copies for preemption share the state, because preemption
/// frees no devices.
#[derive(Clone)]
pub(super) struct DynamicResources {
    cycle: Arc<cycle::ClaimCycle>,
}

impl Plugin for DynamicResources {
    const NAME: &'static str = "DynamicResources";

    fn pre_enqueue(pod: &PodInfo, devices: &Devices) -> bool {
        pod.resource_claims.is_empty() || pod_claims::pod_claims(pod, devices).is_ok()
    }

    fn queueing_hint(event: &Event<'_>, pod: &PodInfo) -> bool {
        hints::queueing_hint(event, pod)
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let pod = snapshot.pod;
        if pod.resource_claims.is_empty() && pod.served_requests.is_none() {
            return None;
        }
        let devices = snapshot.listers.devices().cloned().unwrap_or_default();
        let cycle = cycle::ClaimCycle::new(pod, &devices)?;
        Some(Self { cycle: Arc::new(cycle) })
    }

    fn verdict(&self) -> Result<(), Rejection> {
        self.cycle.verdict.clone()
    }

    fn filter(&self, _: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        self.cycle.filter(node)
    }

    fn release(&self, pod: &PodInfo) -> Option<ClaimRelease> {
        self.cycle.release(pod)
    }

    /// As upstream, fails if another plugin rejected all nodes before `pre_filter` ran: its state
    /// is missing then.
    fn post_filter(state: &CycleState<'_>, _: &FitError) -> Option<PostFilterResult> {
        let is_prepared = state.has_prepared(Self::NAME);
        (!is_prepared).then(|| PostFilterResult::Failed("not found".into()))
    }

    fn scores_after_filter(&self) -> bool {
        true
    }

    fn score(&self, _: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        self.cycle.score(node)
    }

    fn normalize_score(&self, scores: &mut [i64]) {
        score::normalize(scores);
    }

    fn reserve(&self, node: &NodeInfo, writes: &mut Vec<PreBind>) -> Result<(), Rejection> {
        writes.push(PreBind::BindClaims(Arc::new(self.cycle.reserve(node)?)));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
