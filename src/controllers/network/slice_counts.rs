//! Counts of the EndpointSlices of a controller, for its metrics.

use std::collections::HashMap;
use std::sync::Arc;

use api::Object;
use api::k8s::api::discovery::v1::EndpointSlice;
use client::Informer;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::network::endpointslice::SERVICE_LABEL;

/// Label of EndpointSlices with the controller that writes them.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// The slices of a controller.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SliceCounts {
    pub(super) endpoints: usize,
    pub(super) slices: usize,
    /// As many slices as there would be if each but one of the same family and ports were full.
    pub(super) desired: usize,
}

/// The fields of a slice that are counted.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Counted {
    address_type: String,
    ports: Value,
    endpoints: Option<Vec<IgnoredAny>>,
}

/// Counts the slices that `manager` writes and that hold up to `max` endpoints.
pub(super) fn count(slices: &Informer<EndpointSlice>, manager: &str, max: usize) -> SliceCounts {
    count_in(&slices.cache().list(""), manager, max)
}

fn count_in(slices: &[Arc<Object>], manager: &str, max: usize) -> SliceCounts {
    let mut counts = SliceCounts::default();
    let mut groups: HashMap<String, usize> = HashMap::new();
    for slice in slices.iter().filter(|slice| slice.label(MANAGED_BY) == Some(manager)) {
        let counted: Counted = serde_json::from_slice(slice.raw()).unwrap_or_default();
        let number = counted.endpoints.map_or(0, |endpoints| endpoints.len());
        let service = slice.label(SERVICE_LABEL).unwrap_or_default();
        let Counted { address_type, ports, .. } = counted;
        let group = format!("{}/{service} {address_type} {ports}", slice.key.namespace);
        *groups.entry(group).or_default() += number;
        counts.slices += 1;
        counts.endpoints += number;
    }
    counts.desired = groups.values().map(|number| number.div_ceil(max).max(1)).sum();
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn slices_of_one_service_and_ports_could_be_merged() {
        let slice = |name: &str, manager: &str, service: &str, port: i32, endpoints: usize| {
            Arc::new(
                Object::from_value(json!({"kind": "EndpointSlice",
                    "apiVersion": "discovery.k8s.io/v1",
                    "metadata": {"name": name, "namespace": "n",
                        "labels": {MANAGED_BY: manager, SERVICE_LABEL: service}},
                    "addressType": "IPv4", "ports": [{"port": port}],
                    "endpoints": vec![json!({"addresses": ["10.0.0.1"]}); endpoints]}))
                .unwrap(),
            )
        };
        let slices = [
            slice("a", "us", "s", 80, 2),
            slice("b", "us", "s", 80, 1),
            slice("c", "us", "s", 81, 4),
            slice("d", "us", "t", 80, 0),
            slice("e", "others", "s", 80, 3),
        ];
        let want = SliceCounts { endpoints: 7, slices: 4, desired: 4 };
        assert_eq!(count_in(&slices, "us", 3), want);
        assert_eq!(count_in(&slices, "none", 3), SliceCounts::default());
    }
}
