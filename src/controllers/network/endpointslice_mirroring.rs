//! Mirrors Endpoints of Services without selector, which users write, as EndpointSlices: one slice
//! for each address family and set of ports.

pub(crate) mod metrics;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::k8s::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use api::k8s::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use base::clock;
use client::events::EventType;
use client::{Action, Client, DeleteOptions, Error, EventRecorder, Informer, owner_reference};
use sorting::CompactSort as _;

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};
use crate::network::endpointslice::{SERVICE_LABEL, index_by_service};
use metrics::EndpointChanges;

/// Maximum number of mirrored addresses of a subset (`--mirroring-max-endpoints-per-subset`).
const ENDPOINTS_MAX: usize = 1000;
/// Number of workers (`--mirroring-concurrent-service-endpoint-syncs`).
const WORKERS: usize = 5;
/// Label of the slices that this controller writes.
const MANAGED_BY: (&str, &str) =
    ("endpointslice.kubernetes.io/managed-by", "endpointslicemirroring-controller.k8s.io");
/// Label of Endpoints that a user excludes from mirroring.
const SKIP_LABEL: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Annotation of Endpoints that are a lock of a leader election, the form of old clients.
const LEADER_ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotations that apply to the Endpoints only and are not copied to slices.
const NOT_MIRRORED_ANNOTATIONS: [&str; 2] = [
    "endpoints.kubernetes.io/last-change-trigger-time",
    "kubectl.kubernetes.io/last-applied-configuration",
];

/// Dependencies of the controller.
struct Controller {
    client: Client,
    recorder: EventRecorder,
    endpoints: Informer<Endpoints>,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("endpointslicemirroring-controller");
    let recorder = context.recorder(&client, "endpoint-slice-mirroring-controller");
    let informers = &context.informers;
    let (endpoints, services, slices) =
        (informers.of::<Endpoints>(), informers.of::<Service>(), informers.of::<EndpointSlice>());
    index_by_service(&slices);
    let mut keyed = Keyed::new();
    keyed.watches_self(&endpoints);
    keyed.watches_self(&services);
    keyed.watches(&slices, |change| {
        let object = change.object();
        let is_own = object.label(MANAGED_BY.0) == Some(MANAGED_BY.1);
        let service = object.label(SERVICE_LABEL).filter(|_| is_own);
        service.map(|s| (object.key.namespace.to_string(), s.to_owned())).into_iter().collect()
    });
    let controller = Arc::new(Controller { client, recorder, endpoints, services, slices });
    crate::framework::collectors::collect(&controller, Controller::count);
    keyed.run(
        &context.tasks,
        "endpointslice-mirroring-controller",
        WORKERS,
        move |(namespace, name)| {
            let controller = Arc::clone(&controller);
            async move {
                let began = clock::now();
                let outcome = controller.reconcile(&namespace, &name).await;
                metrics::synced(clock::now().saturating_duration_since(began));
                outcome
            }
        },
    );
}

/// Whether these Endpoints are mirrored: their Service has no selector, and they are neither
/// excluded by a label nor a lock of a leader election.
fn is_mirrored(endpoints: &Endpoints, service: &Service) -> bool {
    let meta = &endpoints.metadata;
    let skipped = meta.labels.as_ref().and_then(|l| l.get(SKIP_LABEL)).is_some_and(|v| v == "true");
    let leader = meta.annotations.as_ref().is_some_and(|a| a.contains_key(LEADER_ANNOTATION));
    let selects = service.spec.as_ref().is_some_and(|s| s.selector.is_some());
    !skipped && !leader && !selects
}

/// Converts the ports of a subset, in the order of names.
fn ports(subset: &EndpointSubset) -> Vec<EndpointPort> {
    let port = |p: &api::k8s::api::core::v1::EndpointPort| EndpointPort {
        name: Some(p.name.clone().unwrap_or_default()),
        port: Some(p.port),
        protocol: Some(p.protocol.clone().unwrap_or_else(|| "TCP".into())),
        app_protocol: p.app_protocol.clone(),
    };
    let mut ports: Vec<EndpointPort> = subset.ports.iter().flatten().map(port).collect();
    ports.compact_sort_by(|a, b| (&a.name, a.port).cmp(&(&b.name, b.port)));
    ports
}

/// Converts an address of a subset.
fn endpoint(address: &EndpointAddress, ip: IpAddr, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..Default::default() }),
        hostname: address.hostname.clone().filter(|h| !h.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

/// Numbers of addresses that are not mirrored.
#[derive(Debug, Default, PartialEq, Eq)]
struct SkippedAddresses {
    invalid: usize,
    /// Addresses beyond [`ENDPOINTS_MAX`] of their subset.
    too_many: usize,
}

/// Returns the slices that mirror the Endpoints, still without names.
fn desired_slices(endpoints: &Endpoints) -> (Vec<EndpointSlice>, SkippedAddresses) {
    let mut slices: Vec<EndpointSlice> = Vec::new();
    let mut skipped = SkippedAddresses::default();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = ports(subset);
        let mut remaining = ENDPOINTS_MAX;
        let ready = subset.addresses.iter().flatten().map(|a| (a, true));
        let others = subset.not_ready_addresses.iter().flatten().map(|a| (a, false));
        for (address, ready) in ready.chain(others) {
            let Ok(ip) = address.ip.parse::<IpAddr>() else {
                skipped.invalid += 1;
                continue;
            };
            if remaining == 0 {
                skipped.too_many += 1;
                continue;
            }
            remaining -= 1;
            let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
            let endpoint = endpoint(address, ip, ready);
            let belongs = |s: &&mut EndpointSlice| {
                s.address_type == family && s.ports.as_deref().unwrap_or_default() == ports
            };
            match slices.iter_mut().find(belongs) {
                Some(slice) => slice.endpoints.get_or_insert_default().push(endpoint),
                None => slices.push(EndpointSlice {
                    metadata: metadata(endpoints),
                    address_type: family.to_owned(),
                    ports: (!ports.is_empty()).then(|| ports.clone()),
                    endpoints: Some(vec![endpoint]),
                }),
            }
        }
    }
    for endpoints in slices.iter_mut().filter_map(|s| s.endpoints.as_mut()) {
        endpoints.compact_sort_by(|a, b| a.addresses.cmp(&b.addresses));
    }
    (slices, skipped)
}

/// The metadata of a slice that mirrors the Endpoints.
fn metadata(endpoints: &Endpoints) -> ObjectMeta {
    let meta = &endpoints.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let mut labels = meta.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_LABEL.to_owned(), name.clone());
    labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
    let mut annotations: BTreeMap<String, String> = meta.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !NOT_MIRRORED_ANNOTATIONS.contains(&key.as_str()));
    ObjectMeta {
        generate_name: Some(format!("{name}-")),
        namespace: meta.namespace.clone(),
        labels: Some(labels),
        annotations: (!annotations.is_empty()).then_some(annotations),
        owner_references: Some(vec![owner_reference(endpoints)]),
        ..ObjectMeta::default()
    }
}

/// The writes that change the existing slices to the desired ones.
#[derive(Debug, Default)]
struct SliceWrites {
    create: Vec<EndpointSlice>,
    update: Vec<EndpointSlice>,
    delete: Vec<EndpointSlice>,
    /// What changes for endpoints whose family and ports remain, and for new ones.
    changes: EndpointChanges,
}

/// Compares the desired slices with the existing ones. A surplus slice becomes a missing one of the
/// same address family instead of being deleted, as upstream does, so that fewer objects change.
fn plan(desired: Vec<EndpointSlice>, mut existing: Vec<EndpointSlice>) -> SliceWrites {
    let mut plan = SliceWrites::default();
    let mut new = Vec::new();
    for desired_slice in desired {
        let same = |s: &EndpointSlice| {
            s.address_type == desired_slice.address_type && s.ports == desired_slice.ports
        };
        match existing.iter().position(same) {
            Some(at) => {
                let existing_slice = existing.remove(at);
                plan.changes.add(Some(&existing_slice), &desired_slice);
                plan.update.extend(changed(&existing_slice, &desired_slice));
            }
            None => {
                plan.changes.add(None, &desired_slice);
                new.push(desired_slice);
            }
        }
    }
    for desired_slice in new {
        // `addressType` is immutable.
        match existing.iter().position(|s| s.address_type == desired_slice.address_type) {
            Some(at) => {
                let existing_slice = existing.remove(at);
                plan.update.extend(changed(&existing_slice, &desired_slice));
            }
            None => plan.create.push(desired_slice),
        }
    }
    plan.delete = existing;
    plan
}

/// Returns the existing slice with the desired content, or `None` if it has it already.
fn changed(existing_slice: &EndpointSlice, desired_slice: &EndpointSlice) -> Option<EndpointSlice> {
    let mut slice = existing_slice.clone();
    slice.metadata.labels.clone_from(&desired_slice.metadata.labels);
    slice.metadata.annotations.clone_from(&desired_slice.metadata.annotations);
    slice.metadata.owner_references.clone_from(&desired_slice.metadata.owner_references);
    slice.ports.clone_from(&desired_slice.ports);
    slice.endpoints.clone_from(&desired_slice.endpoints);
    (slice != *existing_slice).then_some(slice)
}

impl Controller {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let of_service =
            self.slices.cache().by_index(SERVICE_LABEL, &format!("{namespace}/{name}"));
        let is_own = |o: &&Arc<api::Object>| o.label(MANAGED_BY.0) == Some(MANAGED_BY.1);
        let existing: Vec<EndpointSlice> =
            of_service.iter().filter(is_own).filter_map(|o| client::informer::decode(o)).collect();
        let endpoints = self.endpoints.get(namespace, name);
        let service = self.services.get(namespace, name);
        let both = endpoints.as_ref().zip(service.as_ref());
        let mirrored = both.filter(|(endpoints, service)| is_mirrored(endpoints, service));
        let Some((endpoints, _)) = mirrored else {
            self.delete(namespace, existing).await?;
            return Ok(Action::Done);
        };
        let (desired, skipped) = desired_slices(endpoints);
        self.report_skipped(endpoints, &skipped);
        let plan = plan(desired, existing);
        metrics::planned(plan.changes, &skipped);
        if endpoints.metadata.deletion_timestamp.is_none() {
            for slice in &plan.create {
                match self.client.create(namespace, slice).await {
                    Err(error) if error.is_namespace_terminating() => return Ok(Action::Done),
                    other => drop(other?),
                }
                metrics::written("create");
            }
        }
        for slice in &plan.update {
            settled(self.client.update(slice).await)?;
            metrics::written("update");
        }
        for slice in plan.delete {
            self.delete(namespace, vec![slice]).await?;
            metrics::written("delete");
        }
        Ok(Action::Done)
    }

    async fn delete(&self, namespace: &str, slices: Vec<EndpointSlice>) -> Result<(), Error> {
        for name in slices.into_iter().filter_map(|s| s.metadata.name) {
            let options = DeleteOptions::default();
            settled(self.client.delete::<EndpointSlice>(namespace, &name, &options).await)?;
        }
        Ok(())
    }

    /// Records a Warning event for each kind of skipped addresses.
    fn report_skipped(&self, endpoints: &Endpoints, skipped: &SkippedAddresses) {
        let SkippedAddresses { invalid, too_many } = skipped;
        if *invalid > 0 {
            let text =
                format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
            self.recorder.event(endpoints, EventType::Warning, "InvalidIPAddress", text);
        }
        if *too_many > 0 {
            // The number includes the invalid addresses.
            let all = invalid + too_many;
            let text = format!(
                "A max of {ENDPOINTS_MAX} addresses can be mirrored to EndpointSlices per \
                    Endpoints subset. {all} addresses were skipped"
            );
            self.recorder.event(endpoints, EventType::Warning, "TooManyAddressesToMirror", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn endpoints(subsets: serde_json::Value) -> Endpoints {
        serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "n", "uid": "u", "labels": {"a": "b"},
                "annotations": {"c": "d",
                    "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
            "subsets": subsets,
        }))
        .unwrap()
    }

    fn named(mut slice: EndpointSlice, name: &str) -> EndpointSlice {
        slice.metadata.name = Some(name.to_owned());
        slice.metadata.generate_name = None;
        slice
    }

    #[test]
    fn a_subset_becomes_one_slice_per_address_family() {
        let (slices, skipped) = desired_slices(&endpoints(json!([{
            "addresses": [{"ip": "10.1.2.4", "hostname": "h"}, {"ip": "fd00::1"}, {"ip": "x"}],
            "notReadyAddresses": [{"ip": "10.1.2.3"}],
            "ports": [{"name": "http", "port": 80}],
        }])));
        assert_eq!(skipped, SkippedAddresses { invalid: 1, too_many: 0 });
        let first = serde_json::to_value(&slices[0]).unwrap();
        assert_eq!(
            first["endpoints"],
            json!([{"addresses": ["10.1.2.3"], "conditions": {"ready": false}},
                {"addresses": ["10.1.2.4"], "conditions": {"ready": true}, "hostname": "h"}])
        );
        assert_eq!(first["ports"], json!([{"name": "http", "port": 80, "protocol": "TCP"}]));
        assert_eq!(
            first["metadata"]["labels"],
            json!({"a": "b", "kubernetes.io/service-name": "s",
                "endpointslice.kubernetes.io/managed-by":
                    "endpointslicemirroring-controller.k8s.io"})
        );
        assert_eq!(first["metadata"]["annotations"], json!({"c": "d"}));
        assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!((slices.len(), &*slices[1].address_type), (2, "IPv6"));
    }

    #[test]
    fn at_most_1000_addresses_of_a_subset_are_mirrored() {
        let many: Vec<_> =
            (0..1002).map(|i| json!({"ip": format!("10.1.{}.{}", i / 250, i % 250)})).collect();
        let (slices, skipped) = desired_slices(&endpoints(json!([{"addresses": many}])));
        assert_eq!(slices[0].endpoints.as_ref().unwrap().len(), 1000);
        assert_eq!(skipped, SkippedAddresses { invalid: 0, too_many: 2 });
    }

    #[test]
    fn slices_keep_their_names_when_ports_change_and_are_deleted_with_the_last_address() {
        let of = |port: i32| {
            desired_slices(&endpoints(
                json!([{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": port}]}]),
            ))
            .0
        };
        assert_eq!(plan(of(80), Vec::new()).create.len(), 1);
        let existing = vec![named(of(80).remove(0), "s-x")];
        let same = plan(of(80), existing.clone());
        assert!(same.create.is_empty() && same.update.is_empty() && same.delete.is_empty());
        let moved = plan(of(81), existing.clone());
        assert_eq!(moved.update[0].metadata.name.as_deref(), Some("s-x"));
        assert!(moved.create.is_empty() && moved.delete.is_empty());
        assert_eq!(plan(Vec::new(), existing).delete.len(), 1);
    }

    #[test]
    fn endpoints_with_a_selector_a_skip_label_or_a_leader_are_not_mirrored() {
        let mut service: Service =
            serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {}})).unwrap();
        let mut own = endpoints(json!([]));
        assert!(is_mirrored(&own, &service));
        own.metadata.labels = Some([(SKIP_LABEL.to_owned(), "true".to_owned())].into());
        assert!(!is_mirrored(&own, &service));
        own = endpoints(json!([]));
        own.metadata.annotations = Some([(LEADER_ANNOTATION.to_owned(), String::new())].into());
        assert!(!is_mirrored(&own, &service));
        own = endpoints(json!([]));
        service.spec.as_mut().unwrap().selector = Some(BTreeMap::new());
        assert!(!is_mirrored(&own, &service));
    }
}
