//! Endpoints: the elder form of EndpointSlices, one object per Service, at most 1000 addresses.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ObjectReference, Pod, Service,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use client::{Action, Client, DeleteOptions, Error, Informer};
use sorting::CompactSort as _;

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};
use crate::framework::pods;
use crate::network::endpoint_builder::{addresses, appears, hostname, target_port};
use crate::network::selectors::{index_by_selector, pods_of, services_of_pod};

/// `maxCapacity` of the endpoints controller; beyond it the object is marked truncated.
const ADDRESSES_MAX: usize = 1000;
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const HEADLESS: &str = "service.kubernetes.io/headless";
const MANAGED_BY: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("endpoint-controller");
    let informers = &context.informers;
    let (services, pods, endpoints) =
        (informers.of::<Service>(), informers.of::<Pod>(), informers.of::<Endpoints>());
    index_by_selector(&services);
    let mut keyed = Keyed::new();
    keyed.watches_self(&services);
    keyed.watches_self(&endpoints);
    let known = services.clone();
    keyed.watches(&pods, move |change| services_of_pod(&known, change));
    keyed.run(&context.tasks, "endpoints-controller", 5, move |(namespace, name)| {
        let (client, services, pods, endpoints) =
            (client.clone(), services.clone(), pods.clone(), endpoints.clone());
        async move { reconcile(&client, &services, &pods, &endpoints, &namespace, &name).await }
    });
}

async fn reconcile(
    client: &Client,
    services: &Informer<Service>,
    pods: &Informer<Pod>,
    endpoints: &Informer<Endpoints>,
    namespace: &str,
    name: &str,
) -> Result<Action, Error> {
    let Some(service) = services.get(namespace, name) else {
        // Endpoints without a service belong to users, unless this controller created them.
        let ours = endpoints
            .get(namespace, name)
            .is_some_and(|e| e.metadata.labels.is_some_and(|l| l.contains_key(MANAGED_BY.0)));
        if ours {
            settled(client.delete::<Endpoints>(namespace, name, &DeleteOptions::default()).await)?;
        }
        return Ok(Action::Done);
    };
    let spec = service.spec.clone().unwrap_or_default();
    let Some(selector) = spec.selector.filter(|s| !s.is_empty()) else { return Ok(Action::Done) };
    let chosen = pods_of(pods, namespace, &selector);
    let (subsets, truncated) = subsets(&service, &chosen);
    let old = endpoints.get(namespace, name);
    let wanted = build_endpoints(&service, old.as_ref(), subsets, truncated);
    match old {
        None => match client.create(namespace, &wanted).await {
            Err(error) if error.is_already_exists() || error.is_namespace_terminating() => {}
            other => drop(other?),
        },
        Some(old)
            if old.subsets != wanted.subsets
                || old.metadata.labels != wanted.metadata.labels
                || old.metadata.annotations != wanted.metadata.annotations =>
        {
            settled(client.update(&wanted).await)?;
        }
        Some(_) => {}
    }
    Ok(Action::Done)
}

fn build_endpoints(
    service: &Service,
    old: Option<&Endpoints>,
    subsets: Option<Vec<EndpointSubset>>,
    truncated: bool,
) -> Endpoints {
    let headless = service.spec.as_ref().is_some_and(|s| s.cluster_ip.as_deref() == Some("None"));
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    labels.insert(MANAGED_BY.0.into(), MANAGED_BY.1.into());
    if headless {
        labels.insert(HEADLESS.into(), String::new());
    }
    let mut endpoints = old.cloned().unwrap_or_else(|| Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        ..Endpoints::default()
    });
    endpoints.subsets = subsets;
    endpoints.metadata.labels = Some(labels);
    let annotations = endpoints.metadata.annotations.get_or_insert_default();
    annotations.remove(OVER_CAPACITY);
    if truncated {
        annotations.insert(OVER_CAPACITY.into(), "truncated".into());
    }
    if annotations.is_empty() {
        endpoints.metadata.annotations = None;
    }
    endpoints
}

/// Pods that offer the same ports.
struct Group {
    ports: Vec<EndpointPort>,
    ready: Vec<EndpointAddress>,
    not_ready: Vec<EndpointAddress>,
}

/// Addresses grouped by the ports they offer, in a fixed order; ready ones are kept first when
/// there are too many.
fn subsets(service: &Service, chosen: &[Pod]) -> (Option<Vec<EndpointSubset>>, bool) {
    let Some(spec) = service.spec.as_ref() else { return (None, false) };
    let family =
        spec.ip_families.as_ref().and_then(|f| f.first().cloned()).unwrap_or_else(|| "IPv4".into());
    let publish = spec.publish_not_ready_addresses == Some(true);
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    let mut pods: Vec<(&Pod, bool)> = chosen
        .iter()
        .filter(|p| appears(p, publish))
        .map(|p| (p, publish || pods::is_ready(p)))
        .collect();
    pods.compact_sort_by_key(|(_, ready)| !ready);
    let mut count = 0;
    let mut truncated = false;
    for (pod, ready) in pods {
        let Some(ip) = addresses(pod, &family).into_iter().next() else { continue };
        if count >= ADDRESSES_MAX {
            truncated = true;
            break;
        }
        count += 1;
        let offered = spec.ports.iter().flatten().filter_map(|port| {
            Some(EndpointPort {
                name: port.name.clone(),
                port: target_port(port, pod)?,
                protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
                app_protocol: port.app_protocol.clone(),
            })
        });
        let ports: Vec<EndpointPort> = offered.collect();
        if ports.is_empty() && spec.ports.iter().flatten().next().is_some() {
            continue;
        }
        let address = EndpointAddress {
            ip,
            hostname: hostname(pod, name),
            node_name: pod.spec.as_ref().and_then(|s| s.node_name.clone()),
            target_ref: Some(ObjectReference {
                kind: Some("Pod".into()),
                namespace: pod.metadata.namespace.clone(),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
                ..ObjectReference::default()
            }),
        };
        let key = format!("{ports:?}");
        let group = groups.entry(key).or_insert_with(|| Group {
            ports,
            ready: Vec::new(),
            not_ready: Vec::new(),
        });
        if ready { group.ready.push(address) } else { group.not_ready.push(address) }
    }
    let sorted = |mut list: Vec<EndpointAddress>| {
        list.compact_sort_by(|a, b| a.ip.cmp(&b.ip));
        (!list.is_empty()).then_some(list)
    };
    let all: Vec<EndpointSubset> = groups
        .into_values()
        .map(|Group { ports, ready, not_ready }| EndpointSubset {
            addresses: sorted(ready),
            not_ready_addresses: sorted(not_ready),
            ports: (!ports.is_empty()).then_some(ports),
        })
        .collect();
    ((!all.is_empty()).then_some(all), truncated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ready_and_unready_addresses_stand_apart() {
        let service: Service = serde_json::from_value(json!({"metadata": {"name": "s"},
            "spec": {"ipFamilies": ["IPv4"], "ports": [{"port": 80}]}}))
        .unwrap();
        let pod = |name: &str, ip: &str, ready: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": name},
                "status": {"phase": "Running", "podIP": ip,
                "conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap()
        };
        let (subsets, truncated) = subsets(
            &service,
            &[
                pod("b", "10.0.0.2", "True"),
                pod("a", "10.0.0.1", "True"),
                pod("c", "10.0.0.3", "False"),
            ],
        );
        let subsets = subsets.unwrap();
        let ips = |list: &Option<Vec<EndpointAddress>>| {
            list.iter().flatten().map(|a| a.ip.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            (ips(&subsets[0].addresses), ips(&subsets[0].not_ready_addresses), truncated),
            (vec!["10.0.0.1".into(), "10.0.0.2".into()], vec!["10.0.0.3".into()], false)
        );
    }
}
