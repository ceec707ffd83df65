//! Waiting until devices with binding conditions are ready.

use api::k8s::api::resource::v1::ResourceClaim;
use api::k8s::jiff::Timestamp;
use base::clock;
use client::events::EventType;

use super::{ClaimWriteError, ClaimWriter, ReservedClaims};
use crate::bind::record;
use crate::devices::allocated::{allocation, results};
use crate::devices::binding::{
    BINDING_TIMEOUT, BindingError, has_binding_conditions, is_ready, is_timed_out,
};
use crate::devices::request::ClaimName;
use crate::metrics::{BINDING_CONDITIONS_ALLOCATIONS, BINDING_CONDITIONS_WAITS};
use crate::pod_info::PodInfo;
use crate::profile::scheduler_name;

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
        let what = (EventType::Normal, "BindingConditionsPending");
        record(&self.recorder, pod, "Scheduling", what, text);
        let start = clock::now();
        let waited = tokio::time::timeout(BINDING_TIMEOUT, self.ready(reserved)).await;
        let waited = waited.unwrap_or_else(|_| Err(BindingError::Timeout.into()));
        let outcome = outcome(&waited);
        for claim in reserved.written_mut() {
            count(claim, scheduler_name(pod), outcome, (clock::now() - start).as_secs_f64());
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
fn count(claim: &ResourceClaim, profile: &str, outcome: &str, seconds: f64) {
    for result in allocation(claim).map(results).unwrap_or_default() {
        let labels = [result.driver.as_str(), profile, outcome];
        BINDING_CONDITIONS_WAITS.observe(&labels, seconds);
        if result.binding_conditions.as_ref().is_some_and(|conditions| !conditions.is_empty()) {
            BINDING_CONDITIONS_ALLOCATIONS.inc(&labels);
        }
    }
}
