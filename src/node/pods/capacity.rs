//! Whether the node has enough allocatable resources left for a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Quantity;

use crate::pods::pod::Pod;
use crate::pods::rejection::Rejection;
use crate::pods::resource_claims::without_claimed_requests;
use crate::pods::resources;

/// Returns reason and message if the node has too few resources left besides those of `others`.
pub(crate) fn insufficient_resource(
    pod: &Pod,
    others: &[Arc<Pod>],
    allocatable: &BTreeMap<String, Quantity>,
) -> Option<Rejection> {
    let zero = Quantity::from_int(0);
    if let Some(most) = allocatable.get("pods")
        && i64::try_from(others.len()).unwrap_or(i64::MAX) >= most.value()
    {
        return Some(Rejection::new(
            "OutOfpods",
            format!(
                "Node didn't have enough resource: pods, requested: 1, used: \
                 {}, capacity: {}",
                others.len(),
                most.value()
            ),
        ));
    }
    let own = without_claimed_requests(pod);
    for name in resources::pod_resource_names(&own) {
        let wanted = resources::pod_request(&own, &name);
        if wanted.is_zero() {
            continue;
        }
        let used = others.iter().fold(zero, |sum, p| sum.plus(resources::pod_request(p, &name)));
        let capacity = match allocatable.get(&name) {
            Some(capacity) => *capacity,
            // The device manager counts the resources of device plugins when it allocates devices.
            // Other extended resources in the Node's status count for the scheduler alone.
            None if resources::is_extended(&name) => continue,
            None => zero,
        };
        if wanted.plus(used) > capacity {
            let number = |q: Quantity| if name == "cpu" { q.milli_value() } else { q.value() };
            let message = format!(
                "Node didn't have enough resource: {name}, requested: {}, used: \
                 {}, capacity: {}",
                number(wanted),
                number(used),
                number(capacity)
            );
            return Some(Rejection::new(format!("OutOf{name}"), message));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_extended_resources_are_left_to_the_scheduler() {
        let pod = |name: &str| {
            crate::pods::pod::tests::pod(
                json!({"containers": [{"name": "a", "resources": {"requests": {name: "1"}}}]}),
            )
        };
        let allocatable = BTreeMap::from([("cpu".to_owned(), Quantity::from_int(2))]);
        assert_eq!(insufficient_resource(&pod("example.com/x"), &[], &allocatable), None);
        let rejection = insufficient_resource(&pod("memory"), &[], &allocatable).unwrap();
        assert_eq!(rejection.reason, "OutOfmemory");
        let known = BTreeMap::from([("example.com/x".to_owned(), Quantity::from_int(0))]);
        let rejection = insufficient_resource(&pod("example.com/x"), &[], &known).unwrap();
        assert_eq!(rejection.reason, "OutOfexample.com/x");
    }

    #[test]
    fn requests_that_a_claim_serves_need_no_capacity() {
        let name = "deviceclass.resource.kubernetes.io/gpu";
        let mut object = crate::pods::pod::tests::pod(
            json!({"containers": [{"name": "a", "resources": {"requests": {name: "1"}}}]}),
        )
        .object;
        let pod = |object| crate::pods::pod::Pod::new(object, crate::pods::pod::PodOrigin::Api);
        let rejection = insufficient_resource(&pod(object.clone()).unwrap(), &[], &BTreeMap::new());
        assert_eq!(rejection.unwrap().reason, format!("OutOf{name}"));
        let mapping = json!([{"containerName": "a", "resourceName": name, "requestName": "r"}]);
        let status = json!({"extendedResourceClaimStatus":
            {"resourceClaimName": "c", "requestMappings": mapping}});
        object.status = Some(serde_json::from_value(status).unwrap());
        assert_eq!(insufficient_resource(&pod(object).unwrap(), &[], &BTreeMap::new()), None);
    }
}
