//! The total requests and limits of a pod: sums over containers, peaks of init containers.

use std::collections::BTreeMap;

use api::quantity::Quantity;
use api::value::{entries, get, has, items, str_at};
use serde_json::Value;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// The field of `resources` that is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `requests`.
    Requests,
    /// `limits`.
    Limits,
}

impl Side {
    fn field(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Limits => "limits",
        }
    }
}

/// The amounts of a resource list; invalid quantities are skipped, because validation reports them.
pub fn amounts(object: &Value, field: &str) -> Amounts {
    entries(object, field)
        .filter_map(|(name, q)| Some((name.clone(), Quantity::from_value(q).ok()?)))
        .collect()
}

/// Adds `more` to `sum`.
pub fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        sum.entry(name.clone()).and_modify(|have| *have = have.plus(*amount)).or_insert(*amount);
    }
}

fn raise(peak: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let have = peak.entry(name.clone()).or_insert(*amount);
        if *amount > *have {
            *have = *amount;
        }
    }
}

/// Whether the pod sets pod-level resources.
pub fn pod_level(spec: &Value) -> bool {
    let own = get(spec, "resources");
    [Side::Requests, Side::Limits]
        .iter()
        .any(|side| entries(own, side.field()).any(|(name, _)| supported(name)))
}

/// Whether pod-level resources support this name.
fn supported(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// The total of one side over the pod's `spec`, without overhead.
pub fn total(spec: &Value, side: Side) -> Amounts {
    let of = |container: &Value| amounts(get(container, "resources"), side.field());
    let mut sum = Amounts::new();
    for container in items(spec, "containers") {
        add(&mut sum, &of(container));
    }
    // A restartable init container runs alongside all containers after it.
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in items(spec, "initContainers") {
        let mut own = of(container);
        if str_at(container, "restartPolicy") == "Always" {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add(&mut own, &sidecars);
        }
        raise(&mut peak, &own);
    }
    raise(&mut sum, &peak);
    for (name, amount) in amounts(get(spec, "resources"), side.field()) {
        if supported(&name) {
            sum.insert(name, amount);
        }
    }
    sum
}

/// The total including the overhead of the runtime class; limits include it only if there is a
/// limit.
pub fn total_with_overhead(spec: &Value, side: Side) -> Amounts {
    let mut sum = total(spec, side);
    if has(spec, "overhead") {
        let mut overhead = amounts(spec, "overhead");
        if side == Side::Limits {
            overhead.retain(|name, _| sum.get(name).is_some_and(|have| !have.is_zero()));
        }
        add(&mut sum, &overhead);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cpu(value: &str) -> Value {
        json!({"requests": {"cpu": value}})
    }

    #[test]
    fn usage_is_the_peak_of_init_containers_and_the_sum_of_sidecars() {
        let spec = json!({
            "containers": [{"resources": cpu("1")}, {"resources": cpu("500m")}],
            "initContainers": [{"resources": cpu("2")}, {"restartPolicy": "Always", "resources": cpu("250m")}, {"resources": cpu("1600m")}],
            "overhead": {"cpu": "10m"},
        });
        // max(1 + 0.5 + 0.25, 2, 0.25, 1.6 + 0.25)
        assert_eq!(total(&spec, Side::Requests)["cpu"].to_string(), "2");
        assert_eq!(total_with_overhead(&spec, Side::Requests)["cpu"].to_string(), "2010m");
        assert!(total_with_overhead(&spec, Side::Limits).is_empty());
    }
}
