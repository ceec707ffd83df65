//! Defaults of resource lists: rounding, requests from limits, and pod-level resources from the
//! sums of the containers.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::quantity::Quantity;
use crate::value::{ensure_object, get, is_empty, items, object_mut, set, str_at};

/// Rounds every quantity of a resource list up to a multiple of one thousandth.
pub(super) fn round(value: &mut Value, key: &str) {
    let Some(list) = value.get_mut(key).and_then(Value::as_object_mut) else { return };
    for amount in list.values_mut() {
        let Some(parsed) = amount.as_str().and_then(|text| Quantity::parse(text).ok()) else {
            continue;
        };
        let rounded = parsed.round_up_to_milli();
        if rounded != parsed {
            *amount = Value::String(rounded.to_string());
        }
    }
}

/// Copies each limit without a request to the requests.
pub(super) fn requests_from_limits(container: &mut Value) {
    let Some(resources) = object_mut(container, "resources") else { return };
    let Some(limits) = get(resources, "limits").as_object().filter(|l| !l.is_empty()).cloned()
    else {
        return;
    };
    let Some(requests) = ensure_object(resources, "requests").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, amount) in limits {
        requests.entry(name).or_insert(amount);
    }
}

type Amounts = BTreeMap<String, Quantity>;

fn amounts(resources: &Value, key: &str) -> Amounts {
    let list = get(resources, key).as_object();
    list.into_iter()
        .flatten()
        .filter_map(|(k, v)| Some((k.clone(), Quantity::parse(v.as_str()?).ok()?)))
        .collect()
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        total.entry(name.clone()).and_modify(|t| *t = t.plus(*amount)).or_insert(*amount);
    }
}

fn raise(total: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        total.entry(name.clone()).and_modify(|t| *t = (*t).max(*amount)).or_insert(*amount);
    }
}

/// The resources of all containers: the sum of the containers and sidecars, or the maximum during
/// initialization if that is larger.
fn aggregate(spec: &Value, key: &str) -> Amounts {
    let mut total = Amounts::new();
    for container in items(spec, "containers") {
        add(&mut total, &amounts(get(container, "resources"), key));
    }
    let (mut sidecars, mut largest) = (Amounts::new(), Amounts::new());
    for container in items(spec, "initContainers") {
        let mut own = amounts(get(container, "resources"), key);
        if str_at(container, "restartPolicy") == "Always" {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add(&mut own, &sidecars);
        }
        raise(&mut largest, &own);
    }
    raise(&mut total, &largest);
    total
}

/// The total requests of all containers of a pod, by resource.
pub fn aggregate_requests(spec: &Value) -> BTreeMap<String, Quantity> {
    aggregate(spec, "requests")
}

fn supported(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Sets the pod-level resources of a pod that specifies some of them.
pub fn default_pod_level(spec: &mut Value) {
    let Some(resources) = spec.get("resources").filter(|r| r.is_object()) else { return };
    let (no_limits, no_requests) = (is_empty(resources, "limits"), is_empty(resources, "requests"));
    if no_limits && no_requests {
        return;
    }
    let mut limits = get(resources, "limits").as_object().cloned().unwrap_or_default();
    let mut requests = get(resources, "requests").as_object().cloned().unwrap_or_default();
    for (name, amount) in aggregate(spec, "limits") {
        if name.starts_with("hugepages-") && !requests.contains_key(&name) {
            limits.entry(name).or_insert_with(|| Value::String(amount.to_string()));
        }
    }
    if !limits.is_empty() {
        for (name, amount) in aggregate(spec, "requests") {
            if supported(&name) && !name.starts_with("hugepages-") {
                requests.entry(name).or_insert_with(|| Value::String(amount.to_string()));
            }
        }
        for (name, amount) in &limits {
            if supported(name) {
                requests.entry(name.clone()).or_insert_with(|| amount.clone());
            }
        }
    }
    if let Some(resources) = object_mut(spec, "resources") {
        put(resources, "limits", limits);
        put(resources, "requests", requests);
    }
}

fn put(resources: &mut Value, key: &str, list: Map<String, Value>) {
    if !list.is_empty() {
        set(resources, key, list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pod_level_requests_come_from_containers_then_limits() {
        let mut spec = json!({
            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            "containers": [{"resources": {"requests": {"cpu": "250m"}}}, {"resources": {"requests": {"cpu": "250m"}}}],
            "initContainers": [{"resources": {"requests": {"cpu": "100m"}}}],
        });
        default_pod_level(&mut spec);
        assert_eq!(spec["resources"]["requests"], json!({"cpu": "500m", "memory": "1Gi"}));
    }

    #[test]
    fn finer_than_thousandths_is_rounded_up() {
        let mut value = json!({"limits": {"cpu": "100u", "memory": "1Gi"}});
        round(&mut value, "limits");
        assert_eq!(value, json!({"limits": {"cpu": "1m", "memory": "1Gi"}}));
    }
}
