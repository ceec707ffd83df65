//! Waiting until devices with binding conditions are ready.

use api::k8s::api::resource::v1::ResourceClaim;
use api::k8s::jiff::Timestamp;
use base::clock;
use base::metrics::{Family, exponential};
use client::events::EventType;

use super::{ClaimWriteError, ClaimWriter, ReservedClaims};
use crate::bind::reference;
use crate::devices::allocated::{allocation, results};
use crate::devices::binding::{
    BINDING_TIMEOUT, BindingError, has_binding_conditions, is_ready, is_timed_out,
};
use crate::devices::request::ClaimName;
use crate::pod_info::PodInfo;
use crate::profile::DEFAULT_SCHEDULER;

impl ClaimWriter {
    /// Waits until the binding conditions of all devices are true.
    ///
    /// # Errors
    ///
    /// A failure condition is true, a device does not become ready in time, or a claim is gone.
    pub(super) async fn wait_until_ready(
        &self,
        pod: &PodInfo,
        node: &str,
        reserved: &mut ReservedClaims,
    ) -> Result<(), ClaimWriteError> {
        if !reserved.written_mut().any(|claim| has_binding_conditions(claim)) {
            return Ok(());
        }
        let text = format!("waiting for binding conditions for device on node {node}");
        let reason = "BindingConditionsPending";
        self.recorder.event_for(reference(pod), EventType::Normal, reason, text);
        let start = clock::now();
        let waited = tokio::time::timeout(BINDING_TIMEOUT, self.ready(reserved)).await;
        let waited = waited.unwrap_or_else(|_| Err(BindingError::Timeout.into()));
        let outcome = outcome(&waited);
        for claim in reserved.written_mut() {
            count(claim, outcome, (clock::now() - start).as_secs_f64());
        }
        waited
    }

    async fn ready(&self, reserved: &mut ReservedClaims) -> Result<(), ClaimWriteError> {
        let mut changes = self.devices.claim_changes();
        loop {
            changes.mark_unchanged();
            if self.are_ready(reserved)? {
                return Ok(());
            }
            if changes.changed().await.is_err() {
                return Err(BindingError::Timeout.into());
            }
        }
    }

    /// Whether all devices are ready now; stops at the first claim that is not.
    fn are_ready(&self, reserved: &mut ReservedClaims) -> Result<bool, ClaimWriteError> {
        for claim in reserved.written_mut() {
            let newest = self.devices.claim(&ClaimName::of(claim))?;
            claim.clone_from(&newest);
            if is_ready(claim)? {
                continue;
            }
            if is_timed_out(claim, Timestamp::now()) {
                let name = claim.metadata.name.clone().unwrap_or_default();
                return Err(BindingError::ClaimTimeout(name).into());
            }
            return Ok(false);
        }
        Ok(true)
    }
}

fn outcome(waited: &Result<(), ClaimWriteError>) -> &'static str {
    match waited {
        Ok(()) => "success",
        Err(ClaimWriteError::Binding(BindingError::Failed { .. })) => "failure",
        Err(ClaimWriteError::Binding(BindingError::ClaimTimeout(_) | BindingError::Timeout)) => {
            "timeout"
        }
        Err(_) => "error",
    }
}

/// As upstream, the time is observed once per device, also without conditions.
fn count(claim: &ResourceClaim, outcome: &str, seconds: f64) {
    for result in allocation(claim).map(results).unwrap_or_default() {
        WAITS.observe(&[&result.driver, DEFAULT_SCHEDULER, outcome], seconds);
        if result.binding_conditions.as_ref().is_some_and(|conditions| !conditions.is_empty()) {
            ALLOCATIONS.inc(&[&result.driver, DEFAULT_SCHEDULER, outcome]);
        }
    }
}

/// Allocations of devices with binding conditions.
static ALLOCATIONS: Family = Family::counter(
    "scheduler_dra_bindingconditions_allocations_total",
    "[ALPHA] Number of allocations using devices with BindingConditions, counted per driver per scheduling attempt",
    &["driver", "profile", "status"],
);

/// Time until devices with binding conditions are ready.
static WAITS: Family = Family::histogram(
    "scheduler_dra_bindingconditions_wait_duration_seconds",
    "[ALPHA] Time in seconds spent waiting for BindingConditions to be satisfied during PreBind.",
    &["driver", "profile", "status"],
    &WAIT_BOUNDS,
);
/// Upper bounds in seconds.
const WAIT_BOUNDS: [f64; 14] = exponential(0.1, 2.0);

/// The families of the scheduler, in the order in which they are rendered.
pub static METRICS: [&Family; 2] = [&ALLOCATIONS, &WAITS];
