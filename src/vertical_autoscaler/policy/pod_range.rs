//! Recommendations within the limits for a pod of a LimitRange (`applyPodLimitRange`).

use api::Quantity;

use super::amounts::{Amounts, CPU, MEMORY, amount};
use super::capping::Recommended;
use super::limit_range::LimitItem;
use super::pod::PodView;
use super::scaling::{proportional_limit_of, scale};

/// Chooses target or bound of a recommendation.
type Side = fn(&mut Recommended) -> &mut Amounts;

/// Scales target and bounds of all containers so that their sum is within `range`. Containers
/// without a recommendation count with their requests, which become their recommendation.
pub(super) fn apply(recommended: &mut Vec<Recommended>, pod: &PodView, range: &LimitItem) {
    for container in &pod.containers {
        if recommended.iter().any(|one| one.container == container.name) {
            continue;
        }
        let Some(requests) = container.current().requests.clone().filter(|r| !r.is_empty()) else {
            continue;
        };
        let container = container.name.clone();
        recommended.push(Recommended { container, target: requests, ..Recommended::default() });
    }
    let sides: [Side; 3] = [|r| &mut r.upper, |r| &mut r.target, |r| &mut r.lower];
    for side in sides {
        apply_side(recommended, pod, range, CPU, side);
        apply_side(recommended, pod, range, MEMORY, side);
    }
}

/// The recommendation of a container for `name` on one side. `Some(None)` is a recommendation
/// without this resource.
fn recommendation<'a>(
    recommended: &'a mut [Recommended],
    container: &str,
    name: &str,
    side: Side,
) -> Option<Option<&'a mut Quantity>> {
    let found = recommended.iter_mut().find(|one| one.container == container)?;
    Some(side(found).get_mut(name))
}

/// Upstream scales requests with the factor by which the sum of the limits misses the range.
pub(super) fn apply_side(
    recommended: &mut [Recommended],
    pod: &PodView,
    range: &LimitItem,
    name: &str,
    side: Side,
) {
    let min = amount(range.min.as_ref(), name);
    let max = amount(range.max.as_ref(), name);
    let default = amount(range.default.as_ref(), name);
    let (mut limits, mut requests) = (Quantity::ZERO, Quantity::ZERO);
    for container in &pod.containers {
        let current = container.current();
        let request = amount(current.requests.as_ref(), name);
        let own = match recommendation(recommended, &container.name, name, side) {
            None => request,
            Some(own) => own.map_or(Quantity::ZERO, |own| *own),
        };
        let limit = amount(current.limits.as_ref(), name);
        let (limit, _) = proportional_limit_of(name, limit, request, own, default);
        limits += limit.unwrap_or_default();
        requests += own;
    }
    let is_below_max = max.is_zero() || max >= limits;
    if limits.is_zero() || min <= limits && min <= requests && is_below_max {
        return;
    }
    let (base, result, rounds_up) = if min > requests {
        (requests, min, true)
    } else {
        (limits, if is_below_max { min } else { max }, false)
    };
    for container in &pod.containers {
        let own = recommendation(recommended, &container.name, name, side);
        if let Some(own) = own.flatten() {
            *own = scale(name, *own, base, result, rounds_up).amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::{amounts, pod};
    use super::*;

    /// Containers with request and limit of one resource; their targets; the range; the expected
    /// targets.
    fn check(
        name: &str,
        containers: &[(&str, &str, &str)],
        targets: &[(&str, &str)],
        range: Value,
        expected: &[&str],
    ) {
        let containers = containers.iter().map(|(container, request, limit)| {
            json!({"name": container, "resources": {
                "requests": {name: request}, "limits": {name: limit}}})
        });
        let pod = pod(json!({"spec": {"containers": containers.collect::<Vec<_>>()}}));
        let mut recommended: Vec<Recommended> = targets
            .iter()
            .map(|(container, target)| Recommended {
                container: (*container).to_owned(),
                target: amounts(json!({name: target})),
                ..Recommended::default()
            })
            .collect();
        let range = LimitItem {
            min: Some(amounts(range["min"].clone())),
            max: Some(amounts(range["max"].clone())),
            default: None,
        };
        apply_side(&mut recommended, &pod, &range, name, |r| &mut r.target);
        let found: Vec<String> = recommended.iter().map(|r| r.target[name].to_string()).collect();
        assert_eq!(found, expected, "{targets:?} {range:?}");
    }

    /// `TestApplyPodLimitRange`.
    #[test]
    fn the_sum_of_a_pod_is_scaled_into_the_range() {
        let ones = [("container1", "1", "1"), ("container2", "1", "1")];
        let (one, two) = ("container1", "container2");
        check("cpu", &ones, &[(one, "1"), (two, "1")], json!({"max": {"cpu": "1"}}), &["500m"; 2]);
        let min = json!({"min": {"memory": "4G"}});
        check("memory", &ones, &[(one, "1G"), (two, "1G")], min, &["2G"; 2]);

        let doubled = [("container1", "1", "2"), ("container2", "1", "2")];
        let range = json!({"max": {"memory": "10G"}, "min": {"memory": "4G"}});
        check("memory", &doubled, &[(one, "1G"), (two, "1G")], range.clone(), &["2G"; 2]);
        let large = [("container1", "1G", "2G"), ("container2", "1G", "2G")];
        check("memory", &large, &[(one, "1G")], range.clone(), &["2G"]);
        let second = [("container2", "1", "2")];
        check("memory", &second, &[(one, "1G"), (two, "1G")], range, &["1G", "4G"]);

        let small = [("container1", "1m", "1m"), ("container2", "1m", "1m")];
        let targets = [(one, "15m"), (two, "100m")];
        check("cpu", &small, &targets, json!({"min": {"cpu": "150m"}}), &["20m", "131m"]);
        check("cpu", &small, &targets, json!({"max": {"cpu": "90m"}}), &["11m", "78m"]);
    }
}
