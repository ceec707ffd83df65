//! The conditions of an autoscaler.

use api::k8s::api::autoscaling::v2::{
    HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;

/// Sets a condition. Its transition time changes only with its status.
pub(super) fn set_condition(
    status: &mut HorizontalPodAutoscalerStatus,
    kind: &str,
    holds: bool,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let value = if holds { "True" } else { "False" };
    let all = status.conditions.get_or_insert_default();
    let found = all.iter_mut().find(|c| c.type_ == kind);
    let since = match &found {
        Some(old) if old.status == value => old.last_transition_time.clone(),
        _ => Some(Time(now)),
    };
    let new = HorizontalPodAutoscalerCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: since,
        observed_generation: None,
    };
    match found {
        Some(old) => *old = new,
        None => all.push(new),
    }
}
