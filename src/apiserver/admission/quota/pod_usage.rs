//! The usage of pods: what they request and limit, until they have ended.

use api::quantity::Quantity;
use api::value::{get, int_at, str_at, str_in};
use serde_json::Value;

use super::super::pod_resources::{Amounts, Side, total_with_overhead};

/// Whether the pod counts: it is not terminated, and not stuck beyond its grace period.
fn counts(pod: &Value) -> bool {
    if matches!(str_in(pod, &["status", "phase"]), "Failed" | "Succeeded") {
        return false;
    }
    let meta = get(pod, "metadata");
    let deleted = str_at(meta, "deletionTimestamp").parse::<jiff::Timestamp>();
    match (deleted, int_at(meta, "deletionGracePeriodSeconds")) {
        (Ok(at), Some(grace)) => {
            jiff::Timestamp::now().as_second() <= at.as_second().saturating_add(grace)
        }
        _ => true,
    }
}

fn compute(requests: &Amounts, limits: &Amounts, used: &mut Amounts) {
    for (name, amount) in requests {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage")
            || name.starts_with("hugepages-")
        {
            used.insert(name.clone(), *amount);
            used.insert(format!("requests.{name}"), *amount);
        } else if name.contains('/')
            && (!name.contains("kubernetes.io/")
                || name.starts_with("deviceclass.resource.kubernetes.io/"))
        {
            used.insert(format!("requests.{name}"), *amount);
        }
    }
    for (name, amount) in limits {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.insert(format!("limits.{name}"), *amount);
        }
    }
}

/// Adds the usage of a pod besides its number.
pub(super) fn pod_usage(pod: &Value, used: &mut Amounts) {
    if !counts(pod) {
        return;
    }
    used.insert("pods".into(), Quantity::units(1));
    let spec = get(pod, "spec");
    compute(
        &total_with_overhead(spec, Side::Requests),
        &total_with_overhead(spec, Side::Limits),
        used,
    );
}
