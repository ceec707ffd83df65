//! Defaults of HorizontalPodAutoscalers in both versions.

use serde_json::{Value, json};

use crate::value::{default_to, ensure_object, has, is_empty, object_mut, set};

pub(super) fn v1(object: &mut Value) {
    if let Some(spec) = ensure_object(object, "spec") {
        default_to(spec, "minReplicas", 1);
    }
    // The CPU target has a default only if the object has no metrics of the newer version.
    const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
    let others = object.pointer("/metadata/annotations").is_some_and(|a| a.get(METRICS).is_some());
    if let (false, Some(spec)) = (others, object_mut(object, "spec")) {
        default_to(spec, "targetCPUUtilizationPercentage", 80);
    }
}

pub(super) fn v2(object: &mut Value) {
    let Some(spec) = ensure_object(object, "spec") else { return };
    default_to(spec, "minReplicas", 1);
    if is_empty(spec, "metrics") {
        set(
            spec,
            "metrics",
            json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]),
        );
    }
    let Some(behavior) = object_mut(spec, "behavior") else { return };
    let hundred_percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    if let Some(up) = ensure_object(behavior, "scaleUp") {
        default_to(up, "stabilizationWindowSeconds", 0);
        default_to(up, "selectPolicy", "Max");
        if !has(up, "policies") {
            set(
                up,
                "policies",
                json!([{"type": "Pods", "value": 4, "periodSeconds": 15}, hundred_percent]),
            );
        }
    }
    if let Some(down) = ensure_object(behavior, "scaleDown") {
        default_to(down, "selectPolicy", "Max");
        if !has(down, "policies") {
            set(down, "policies", json!([hundred_percent]));
        }
    }
}
