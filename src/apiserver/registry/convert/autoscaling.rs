//! HorizontalPodAutoscaler v1 shows the CPU utilization target as a field and everything else of v2
//! as annotations (`pkg/apis/autoscaling/v1/conversion.go`).

use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// Names of the parts of a metric in v1 and their paths in v2.
type Parts = &'static [(&'static str, &'static [&'static str])];

/// Source, its name in a metric, parts of its specification, parts of its status.
const SOURCES: [(&str, &str, Parts, Parts); 5] = [
    (
        "Object",
        "object",
        &[
            ("target", &["describedObject"]),
            ("metricName", &["metric", "name"]),
            ("selector", &["metric", "selector"]),
            ("targetValue", &["target", "value"]),
            ("averageValue", &["target", "averageValue"]),
        ],
        &[
            ("target", &["describedObject"]),
            ("metricName", &["metric", "name"]),
            ("selector", &["metric", "selector"]),
            ("currentValue", &["current", "value"]),
            ("averageValue", &["current", "averageValue"]),
        ],
    ),
    (
        "Pods",
        "pods",
        &[
            ("metricName", &["metric", "name"]),
            ("selector", &["metric", "selector"]),
            ("targetAverageValue", &["target", "averageValue"]),
        ],
        &[
            ("metricName", &["metric", "name"]),
            ("selector", &["metric", "selector"]),
            ("currentAverageValue", &["current", "averageValue"]),
        ],
    ),
    (
        "Resource",
        "resource",
        &[
            ("name", &["name"]),
            ("targetAverageUtilization", &["target", "averageUtilization"]),
            ("targetAverageValue", &["target", "averageValue"]),
        ],
        &[
            ("name", &["name"]),
            ("currentAverageUtilization", &["current", "averageUtilization"]),
            ("currentAverageValue", &["current", "averageValue"]),
        ],
    ),
    (
        "ContainerResource",
        "containerResource",
        &[
            ("name", &["name"]),
            ("container", &["container"]),
            ("targetAverageUtilization", &["target", "averageUtilization"]),
            ("targetAverageValue", &["target", "averageValue"]),
        ],
        &[
            ("name", &["name"]),
            ("container", &["container"]),
            ("currentAverageUtilization", &["current", "averageUtilization"]),
            ("currentAverageValue", &["current", "averageValue"]),
        ],
    ),
    (
        "External",
        "external",
        &[
            ("metricName", &["metric", "name"]),
            ("metricSelector", &["metric", "selector"]),
            ("targetValue", &["target", "value"]),
            ("targetAverageValue", &["target", "averageValue"]),
        ],
        &[
            ("metricName", &["metric", "name"]),
            ("metricSelector", &["metric", "selector"]),
            ("currentValue", &["current", "value"]),
            ("currentAverageValue", &["current", "averageValue"]),
        ],
    ),
];

pub(super) fn v1_to_v2(value: Value) -> Value {
    let Value::Object(mut map) = value else { return value };
    map.insert("apiVersion".into(), "autoscaling/v2".into());
    let mut annotations = take_annotations(&mut map);
    let mut parse = |key: &str| {
        annotations
            .remove(key)
            .and_then(|v| v.as_str().and_then(|t| serde_json::from_str::<Value>(t).ok()))
    };
    let (metrics, current, conditions, behavior) =
        (parse(METRICS), parse(CURRENT_METRICS), parse(CONDITIONS), parse(BEHAVIOR));
    put_annotations(&mut map, annotations);
    if let Some(spec) = map.get_mut("spec").and_then(Value::as_object_mut) {
        let mut list = each(metrics, |m| convert(m, true, true));
        if let Some(percent) =
            spec.remove("targetCPUUtilizationPercentage").filter(|p| !p.is_null())
        {
            list.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}));
        }
        if !list.is_empty() {
            spec.insert("metrics".into(), list.into());
        }
        if let Some(behavior) = behavior {
            spec.insert("behavior".into(), behavior);
        }
    }
    if let Some(status) = map.get_mut("status").and_then(Value::as_object_mut) {
        let percent = status.remove("currentCPUUtilizationPercentage").filter(|p| !p.is_null());
        let list = each(current, |m| convert(m, false, true));
        if !list.is_empty() {
            status.insert("currentMetrics".into(), list.into());
        } else if let Some(percent) = percent {
            let metric = json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent}}});
            status.insert("currentMetrics".into(), json!([metric]));
        }
        if let Some(conditions) = conditions {
            status.insert("conditions".into(), conditions);
        }
        // Fields that v2 always has, and those that it omits when empty.
        status.entry("currentMetrics").or_insert(Value::Null);
        if status.get("currentReplicas").and_then(Value::as_i64) == Some(0) {
            status.remove("currentReplicas");
        }
    }
    Value::Object(map)
}

pub(super) fn v2_to_v1(value: Value) -> Value {
    let Value::Object(mut map) = value else { return value };
    map.insert("apiVersion".into(), "autoscaling/v1".into());
    let mut annotations = take_annotations(&mut map);
    for key in [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR] {
        annotations.remove(key);
    }
    let mut keep = |key: &str, value: Value| {
        annotations.insert(key.to_owned(), value.to_string().into());
    };
    if let Some(spec) = map.get_mut("spec").and_then(Value::as_object_mut) {
        let mut others = Vec::new();
        for metric in
            spec.remove("metrics").as_ref().and_then(Value::as_array).into_iter().flatten()
        {
            match cpu_utilization(metric, "target") {
                Some(percent) => {
                    spec.insert("targetCPUUtilizationPercentage".into(), percent.clone());
                }
                None => others.push(convert(metric, true, false)),
            }
        }
        if !others.is_empty() {
            keep(METRICS, others.into());
        }
        if let Some(behavior) = spec.remove("behavior").filter(|b| !b.is_null()) {
            keep(BEHAVIOR, behavior);
        }
    }
    if let Some(status) = map.get_mut("status").and_then(Value::as_object_mut) {
        let metrics =
            status.remove("currentMetrics").filter(|m| m.as_array().is_some_and(|m| !m.is_empty()));
        for metric in metrics.as_ref().and_then(Value::as_array).into_iter().flatten() {
            if let Some(percent) = cpu_utilization(metric, "current") {
                status.insert("currentCPUUtilizationPercentage".into(), percent.clone());
            }
        }
        if metrics.is_some() {
            keep(CURRENT_METRICS, each(metrics, |m| convert(m, false, false)).into());
        }
        if let Some(conditions) =
            status.remove("conditions").filter(|c| c.as_array().is_some_and(|c| !c.is_empty()))
        {
            keep(CONDITIONS, conditions);
        }
        status.entry("currentReplicas").or_insert_with(|| 0.into());
    }
    put_annotations(&mut map, annotations);
    Value::Object(map)
}

fn each(list: Option<Value>, f: impl Fn(&Value) -> Value) -> Vec<Value> {
    list.as_ref().and_then(Value::as_array).into_iter().flatten().map(f).collect()
}

fn cpu_utilization<'a>(metric: &'a Value, part: &str) -> Option<&'a Value> {
    let resource =
        metric.get("resource").filter(|r| r.get("name").and_then(Value::as_str) == Some("cpu"))?;
    resource.get(part)?.get("averageUtilization").filter(|v| !v.is_null())
}

/// One metric, its specification or its status, from v1 to v2 or back.
fn convert(metric: &Value, is_spec: bool, to_v2: bool) -> Value {
    let kind = metric.get("type").and_then(Value::as_str).unwrap_or_default();
    let Some((_, field, spec, status)) = SOURCES.iter().find(|(name, ..)| *name == kind) else {
        return metric.clone();
    };
    let Some(source) = metric.get(field) else { return metric.clone() };
    let mut out = json!({});
    for (name, path) in if is_spec { *spec } else { *status } {
        if to_v2 {
            if let Some(value) = source.get(name).filter(|v| !v.is_null()) {
                set(&mut out, path, value.clone());
            }
        } else {
            let found = path.iter().try_fold(source, |value, key| value.get(key));
            if let Some(value) = found.filter(|v| !v.is_null()) {
                set(&mut out, &[name], value.clone());
            }
        }
    }
    if is_spec && to_v2 {
        let has = |key: &str| out.get("target").and_then(|t| t.get(key)).is_some();
        let target = match (has("averageUtilization"), has("averageValue")) {
            (true, _) => "Utilization",
            (_, true) => "AverageValue",
            _ => "Value",
        };
        set(&mut out, &["target", "type"], target.into());
    }
    let mut map = Map::new();
    map.insert("type".into(), kind.into());
    map.insert((*field).to_owned(), out);
    Value::Object(map)
}

fn set(value: &mut Value, path: &[&str], new: Value) {
    let Some((first, rest)) = path.split_first() else { return };
    if let Value::Object(map) = value {
        if rest.is_empty() {
            map.insert((*first).to_owned(), new);
        } else {
            set(map.entry((*first).to_owned()).or_insert_with(|| json!({})), rest, new);
        }
    }
}

fn take_annotations(map: &mut Map<String, Value>) -> Map<String, Value> {
    let metadata = map.get_mut("metadata").and_then(Value::as_object_mut);
    match metadata.and_then(|m| m.remove("annotations")) {
        Some(Value::Object(annotations)) => annotations,
        _ => Map::new(),
    }
}

fn put_annotations(map: &mut Map<String, Value>, annotations: Map<String, Value>) {
    if annotations.is_empty() {
        return;
    }
    if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("annotations".into(), annotations.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_has_the_cpu_target_as_a_field_and_the_rest_as_annotations() {
        let v2 = json!({"apiVersion": "autoscaling/v2", "metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "metrics": [
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
            {"type": "Pods", "pods": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "5"}}}]}});
        let v1 = v2_to_v1(v2.clone());
        assert_eq!(v1["spec"]["targetCPUUtilizationPercentage"], 50);
        assert_eq!(
            v1["metadata"]["annotations"][METRICS],
            r#"[{"pods":{"metricName":"q","targetAverageValue":"5"},"type":"Pods"}]"#
        );
        let back = v1_to_v2(v1);
        assert_eq!(back["spec"]["metrics"][0], v2["spec"]["metrics"][1]);
        assert_eq!(back["spec"]["metrics"][1], v2["spec"]["metrics"][0]);
        assert_eq!(back["metadata"], json!({"name": "h"}));
    }
}
