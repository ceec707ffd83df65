//! Extended resources that device classes serve: the claim that the scheduler makes for a pod.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::ContainerExtendedResourceRequest;
use api::k8s::api::resource::v1::{
    DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sorting::{CollectOrdered as _, CompactSort as _};

use crate::devices::classes::Classes;
use crate::pod_claims::{ContainerRequests, may_be_served};
use crate::pod_info::PodInfo;

/// Name of the claim until the API server has it; no claim can have this name there.
pub(crate) const IN_MEMORY_NAME: &str = "<extended-resources>";
/// Annotation of claims for extended resources.
const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";

/// The extended resources of the pod, if a class serves one of them.
pub(super) fn served_resources(pod: &PodInfo, classes: &Classes) -> Option<BTreeMap<String, i64>> {
    pod.served_requests.as_ref()?;
    let requested = pod.requests.others.iter();
    let resources: BTreeMap<String, i64> = requested
        .filter(|(name, amount)| **amount != 0 && may_be_served(name))
        .map(|(name, amount)| (name.clone(), *amount))
        .collect_map();
    resources.keys().any(|name| classes.serving(name).is_some()).then_some(resources)
}

/// Whether a claim was made for the extended resources of the pod in an earlier cycle.
pub(super) fn is_claim_of(claim: &ResourceClaim, pod: &PodInfo) -> bool {
    let meta = &claim.metadata;
    let annotation = meta.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
    let mut owners = meta.owner_references.iter().flatten();
    annotation.is_some_and(|value| value == "true")
        && owners.any(|o| o.name == pod.name && o.uid == pod.uid && o.controller == Some(true))
}

/// The claim in memory, without requests.
pub(super) fn new_claim(pod: &PodInfo) -> ResourceClaim {
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let metadata = ObjectMeta {
        namespace: Some(pod.namespace.clone()),
        name: Some(IN_MEMORY_NAME.into()),
        uid: Some(base::clock::random_uuid()),
        generate_name: Some(format!("{}-extended-resources-", pod.name)),
        owner_references: Some(vec![owner]),
        annotations: Some([(ANNOTATION.to_owned(), "true".to_owned())].into()),
        ..ObjectMeta::default()
    };
    ResourceClaim { metadata, ..ResourceClaim::default() }
}

/// The claim with these requests.
pub(super) fn with_requests(claim: &ResourceClaim, requests: Vec<DeviceRequest>) -> ResourceClaim {
    let devices = DeviceClaim { requests: Some(requests), ..DeviceClaim::default() };
    ResourceClaim { spec: Some(ResourceClaimSpec { devices: Some(devices) }), ..claim.clone() }
}

/// A request for devices of one resource for one container.
#[derive(Clone, Debug)]
struct MissingAmount {
    name: String,
    count: i64,
}

fn mapping(
    container: &ContainerRequests,
    resource: &str,
    request: &str,
) -> ContainerExtendedResourceRequest {
    ContainerExtendedResourceRequest {
        container_name: container.name.clone(),
        resource_name: resource.to_owned(),
        request_name: request.to_owned(),
    }
}

/// What a container requests of a resource besides the requests that it can reuse, and the requests
/// that serve it.
fn container_request(
    index: usize,
    container: &ContainerRequests,
    resource: &str,
    reusable: &[Option<MissingAmount>],
) -> (Option<MissingAmount>, Vec<ContainerExtendedResourceRequest>) {
    let amount = container.requests.get(resource).copied().flatten().filter(|n| *n != 0);
    let Some(amount) = amount else { return (None, Vec::new()) };
    let (mut sum, mut mappings) = (0, Vec::new());
    for request in reusable.iter().flatten() {
        sum += request.count;
        mappings.push(mapping(container, resource, &request.name));
        if sum >= amount {
            return (None, mappings);
        }
    }
    // The position is among all resources of the container, by name.
    let position = container.requests.keys().position(|name| name == resource).unwrap_or(0);
    let name = format!("container-{index}-request-{position}");
    mappings.push(mapping(container, resource, &name));
    (Some(MissingAmount { name, count: amount - sum }), mappings)
}

/// The requests for one resource, and which request serves which container.
///
/// Init containers that end use the devices of containers after them first; as they run one after
/// the other, only the largest of what they need in addition is requested.
fn resource_requests(
    containers: &[ContainerRequests],
    resource: &str,
) -> (Vec<MissingAmount>, Vec<ContainerExtendedResourceRequest>) {
    let (mut long, mut mappings) = (Vec::with_capacity(containers.len()), Vec::new());
    for (index, container) in containers.iter().enumerate() {
        if container.is_short_lived {
            long.push(None);
            continue;
        }
        let (request, mapped) = container_request(index, container, resource, &[]);
        long.push(request);
        mappings.extend(mapped);
    }
    let (mut short, mut short_mappings): (Vec<MissingAmount>, Vec<_>) = (Vec::new(), Vec::new());
    for (index, container) in containers.iter().enumerate().filter(|(_, c)| c.is_short_lived) {
        let reusable = long.get(index..).unwrap_or_default();
        let (request, mapped) = container_request(index, container, resource, reusable);
        short.extend(request);
        short_mappings.extend(mapped);
    }
    // The first one of the largest.
    let largest = short.iter().rev().max_by_key(|request| request.count).cloned();
    if let Some(largest) = &largest {
        for mapping in &mut short_mappings {
            if short.iter().any(|request| request.name == mapping.request_name) {
                mapping.request_name = largest.name.clone();
            }
        }
    }
    mappings.extend(short_mappings);
    (largest.into_iter().chain(long.into_iter().flatten()).collect(), mappings)
}

/// The requests for these resources, sorted by name, and which request serves which container
/// (`createRequestsAndMappings`).
pub(super) fn requests(
    containers: &[ContainerRequests],
    resources: &[&str],
    classes: &Classes,
) -> (Vec<DeviceRequest>, Vec<ContainerExtendedResourceRequest>) {
    let (mut all, mut mappings) = (Vec::new(), Vec::new());
    for resource in resources {
        let Some(class) = classes.serving(resource) else { continue };
        let (wanted, mapped) = resource_requests(containers, resource);
        mappings.extend(mapped);
        all.extend(wanted.into_iter().map(|wanted| DeviceRequest {
            name: wanted.name,
            exactly: Some(ExactDeviceRequest {
                device_class_name: class.to_owned(),
                allocation_mode: Some("ExactCount".into()),
                count: Some(wanted.count),
                ..ExactDeviceRequest::default()
            }),
            first_available: None,
        }));
    }
    all.compact_sort_by(|a, b| a.name.cmp(&b.name));
    (all, mappings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const A: &str = "example.com/a";
    const B: &str = "example.com/b";
    const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/a";

    fn classes() -> Classes {
        let mut classes = Classes::default();
        for (name, resource) in [("a", A), ("b", B)] {
            let class = json!({"metadata": {"name": name},
                "spec": {"extendedResourceName": resource}});
            classes.set(serde_json::from_value(class).unwrap());
        }
        classes
    }

    fn container(kind: &str, requests: &[(&str, i64)]) -> ContainerRequests {
        let requests = requests.iter().map(|(name, n)| ((*name).to_owned(), Some(*n)));
        ContainerRequests {
            name: kind.to_owned(),
            is_short_lived: kind.starts_with("init"),
            requests: requests.collect(),
        }
    }

    /// The requests as `name=count`, the mappings as `container:request`.
    fn made(containers: &[ContainerRequests], resources: &[&str]) -> (Vec<String>, Vec<String>) {
        let (requests, mappings) = requests(containers, resources, &classes());
        let count = |r: &DeviceRequest| r.exactly.as_ref().unwrap().count.unwrap();
        let requests = requests.iter().map(|r| format!("{}={}", r.name, count(r)));
        let mappings = mappings.iter().map(|m| format!("{}:{}", m.container_name, m.request_name));
        (requests.collect(), mappings.collect())
    }

    /// Rows of upstream's `TestCreateRequestsAndMappings`.
    #[test]
    fn init_containers_reuse_devices_of_containers_after_them() {
        type Row<'a> = (&'a [ContainerRequests], &'a [&'a str], &'a [&'a str], &'a [&'a str]);
        let app = |requests: &[(&str, i64)]| container("app", requests);
        let init = |requests: &[(&str, i64)]| container("init", requests);
        let sidecar = container("sidecar", &[(B, 1)]);
        let rows: &[Row<'_>] = &[
            (&[app(&[("cpu", 1)])], &[A], &[], &[]),
            (&[app(&[(A, 1)])], &[A], &["container-0-request-0=1"], &["app:container-0-request-0"]),
            (
                &[app(&[(A, 1), (B, 2), ("cpu", 1)])],
                &[A, B],
                &["container-0-request-1=1", "container-0-request-2=2"],
                &["app:container-0-request-1", "app:container-0-request-2"],
            ),
            (
                &[app(&[(A, 1)]), container("two", &[(A, 1)])],
                &[A],
                &["container-0-request-0=1", "container-1-request-0=1"],
                &["app:container-0-request-0", "two:container-1-request-0"],
            ),
            (
                &[init(&[(B, 2)]), app(&[(A, 1)])],
                &[A, B],
                &["container-0-request-0=2", "container-1-request-0=1"],
                &["app:container-1-request-0", "init:container-0-request-0"],
            ),
            (
                &[container("init1", &[(B, 1)]), container("init2", &[(B, 2)]), app(&[(A, 1)])],
                &[A, B],
                &["container-1-request-0=2", "container-2-request-0=1"],
                &[
                    "app:container-2-request-0",
                    "init1:container-1-request-0",
                    "init2:container-1-request-0",
                ],
            ),
            (
                &[
                    container("init1", &[(B, 1)]),
                    sidecar,
                    container("init2", &[(B, 2)]),
                    app(&[(B, 1)]),
                ],
                &[B],
                &["container-1-request-0=1", "container-2-request-0=1", "container-3-request-0=1"],
                &[
                    "sidecar:container-1-request-0",
                    "app:container-3-request-0",
                    "init1:container-1-request-0",
                    "init2:container-3-request-0",
                    "init2:container-2-request-0",
                ],
            ),
            (
                &[init(&[(A, 1), (IMPLICIT, 1)])],
                &[IMPLICIT, A],
                &["container-0-request-0=1", "container-0-request-1=1"],
                &["init:container-0-request-0", "init:container-0-request-1"],
            ),
        ];
        for (containers, resources, expected, mappings) in rows {
            let (made_requests, made_mappings) = made(containers, resources);
            assert_eq!(made_requests, *expected, "{containers:?}");
            assert_eq!(made_mappings, *mappings, "{containers:?}");
        }
    }

    #[test]
    fn the_claim_of_a_pod_is_found_by_annotation_and_owner() {
        let pod = PodInfo { name: "p".into(), uid: "u".into(), ..PodInfo::default() };
        let claim = new_claim(&pod);
        assert_eq!(claim.metadata.generate_name.as_deref(), Some("p-extended-resources-"));
        assert!(is_claim_of(&claim, &pod));
        assert!(!is_claim_of(&claim, &PodInfo { uid: "other".into(), ..pod.clone() }));
        assert!(!is_claim_of(&ResourceClaim::default(), &pod));
    }
}
