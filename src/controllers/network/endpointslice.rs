//! EndpointSlices: the endpoints of every Service with a selector, at most 100 per slice.

mod hints;
pub(crate) mod metrics;
mod topology;
mod trigger_times;

use std::collections::{BTreeMap, BTreeSet};

use api::k8s::api::core::v1::{Node, ObjectReference, Pod, Service};
use api::k8s::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use client::events::EventType;
use client::{Action, Client, DeleteOptions, Error, EventRecorder, Informer, owner_reference};
use sorting::{CollectOrdered as _, CompactSort as _};

use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::framework::pods;
use crate::network::endpoint_builder::{addresses, appears, hostname, target_port};
use crate::network::selectors::{index_by_selector, pods_of, services_of_pod};
use parking_lot::Mutex;
use trigger_times::TriggerTimes;

/// `--max-endpoints-per-slice`.
const ENDPOINTS_MAX: usize = 100;
/// Label of slices with the name of their Service, and the index by it.
pub(crate) const SERVICE_LABEL: &str = "kubernetes.io/service-name";
const MANAGED_BY: (&str, &str) =
    ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io");
const HEADLESS: &str = "service.kubernetes.io/headless";

struct Controller {
    client: Client,
    recorder: EventRecorder,
    services: Informer<Service>,
    pods: Informer<Pod>,
    slices: Informer<EndpointSlice>,
    nodes: Informer<Node>,
    /// Services whose endpoints have hints for `topology-mode: Auto`.
    hinted: Mutex<BTreeSet<Key>>,
    trigger_times: TriggerTimes,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("endpointslice-controller");
    let recorder = context.recorder(&client, "endpoint-slice-controller");
    let informers = &context.informers;
    let (services, pods, slices, nodes) = (
        informers.of::<Service>(),
        informers.of::<Pod>(),
        informers.of::<EndpointSlice>(),
        informers.of::<Node>(),
    );
    index_by_service(&slices);
    index_by_selector(&services);
    let mut keyed = Keyed::new();
    keyed.watches_self(&services);
    let known = services.clone();
    keyed.watches(&pods, move |change| services_of_pod(&known, change));
    keyed.watches(&slices, |change| {
        let object = change.object();
        let ours = object.label(MANAGED_BY.0) == Some(MANAGED_BY.1);
        let service = object.label(SERVICE_LABEL).filter(|_| ours);
        service.map(|s| (object.key.namespace.to_string(), s.to_owned())).into_iter().collect()
    });
    let known = services.clone();
    keyed.watches(&nodes, move |change| match topology::concerns(change) {
        true => topology::services(&known.list("")),
        false => Vec::new(),
    });
    let controller = std::sync::Arc::new(Controller {
        client,
        recorder,
        services,
        pods,
        slices,
        nodes,
        hinted: Mutex::default(),
        trigger_times: TriggerTimes::default(),
    });
    crate::framework::collectors::collect(&controller, Controller::count);
    keyed.run(&context.tasks, "endpointslice-controller", 5, move |(namespace, name)| {
        let controller = std::sync::Arc::clone(&controller);
        async move {
            let outcome = controller.reconcile(&namespace, &name).await;
            metrics::synced(&outcome);
            outcome
        }
    });
}

/// Makes `slices` searchable by `NAMESPACE/SERVICE` under [`SERVICE_LABEL`].
pub(crate) fn index_by_service(slices: &Informer<EndpointSlice>) {
    slices.add_index(SERVICE_LABEL, |o| {
        o.label(SERVICE_LABEL).map(|s| format!("{}/{s}", o.key.namespace)).into_iter().collect()
    });
}

/// Endpoints that share their ports, which makes a slice.
#[derive(Debug, Clone, PartialEq)]
struct Group {
    family: String,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
}

/// The desired endpoints of a Service by address family and ports, before they are split into
/// slices.
fn groups(service: &Service, pods: &[Pod], zone_of: &dyn Fn(&str) -> Option<String>) -> Vec<Group> {
    let Some(spec) = service.spec.as_ref() else { return Vec::new() };
    let families: Vec<String> = spec.ip_families.clone().unwrap_or_else(|| vec!["IPv4".into()]);
    let publish = spec.publish_not_ready_addresses == Some(true);
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let mut groups: Vec<Group> = Vec::new();
    for family in families {
        for pod in pods.iter().filter(|p| appears(p, true)) {
            let addresses = addresses(pod, &family);
            if addresses.is_empty() {
                continue;
            }
            let mut ports: Vec<EndpointPort> = Vec::new();
            for port in spec.ports.iter().flatten() {
                if let Some(number) = target_port(port, pod) {
                    ports.push(EndpointPort {
                        name: Some(port.name.clone().unwrap_or_default()),
                        port: Some(number),
                        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
                        app_protocol: port.app_protocol.clone(),
                    });
                }
            }
            if ports.is_empty() && spec.ports.iter().flatten().next().is_some() {
                continue;
            }
            let endpoint = endpoint(pod, name, addresses, publish, zone_of);
            match groups.iter_mut().find(|g| g.family == family && g.ports == ports) {
                Some(group) => group.endpoints.push(endpoint),
                None => {
                    groups.push(Group { family: family.clone(), ports, endpoints: vec![endpoint] })
                }
            }
        }
        // A service without endpoints still has one, empty slice per family, so that watchers know.
        if !groups.iter().any(|g| g.family == family) {
            groups.push(Group { family, ports: Vec::new(), endpoints: Vec::new() });
        }
    }
    for group in &mut groups {
        group.endpoints.compact_sort_by(|a, b| a.addresses.cmp(&b.addresses));
    }
    groups
}

fn endpoint(
    pod: &Pod,
    service: &str,
    addresses: Vec<String>,
    publish: bool,
    zone_of: &dyn Fn(&str) -> Option<String>,
) -> Endpoint {
    let meta = &pod.metadata;
    let terminating = meta.deletion_timestamp.is_some();
    let serving = pods::is_ready(pod);
    let node = pod.spec.as_ref().and_then(|s| s.node_name.clone());
    Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(publish || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(pod, service),
        zone: node.as_deref().and_then(zone_of),
        node_name: node,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

/// The writes that turn `have` into `want`. Slices are matched by family and ports; a slice keeps
/// the endpoints it has.
#[derive(Debug, Default)]
struct Plan {
    create: Vec<EndpointSlice>,
    update: Vec<EndpointSlice>,
    delete: Vec<EndpointSlice>,
    /// Slices that need no write, unless their hints are wrong.
    unchanged: Vec<EndpointSlice>,
    /// Endpoints that no slice has yet.
    added: usize,
    /// Endpoints that slices have and that are not wanted.
    removed: usize,
}

fn plan(service: &Service, want: Vec<Group>, have: Vec<EndpointSlice>) -> Plan {
    let mut plan = Plan::default();
    let mut left: Vec<EndpointSlice> = have;
    for group in want {
        let belongs = |s: &EndpointSlice| {
            s.address_type == group.family && s.ports.as_deref().unwrap_or_default() == group.ports
        };
        let (mine, others): (Vec<EndpointSlice>, Vec<EndpointSlice>) =
            left.into_iter().partition(belongs);
        left = others;
        let mut todo: BTreeMap<String, Endpoint> =
            group.endpoints.iter().map(|e| (id(e), e.clone())).collect_map();
        let mut filled: Vec<(EndpointSlice, Vec<Endpoint>)> = Vec::new();
        for slice in mine {
            let known = slice.endpoints.iter().flatten();
            let kept: Vec<Endpoint> =
                known.filter_map(|e| Some(with_known_hints(todo.remove(&id(e))?, e))).collect();
            plan.removed += slice.endpoints.as_ref().map_or(0, Vec::len).saturating_sub(kept.len());
            filled.push((slice, kept));
        }
        let mut rest: Vec<Endpoint> = todo.into_values().collect();
        plan.added += rest.len();
        for (_, endpoints) in &mut filled {
            let room = ENDPOINTS_MAX.saturating_sub(endpoints.len()).min(rest.len());
            endpoints.extend(rest.drain(..room));
        }
        let had_one = !filled.is_empty();
        let keep_one = filled.iter().all(|(_, e)| e.is_empty()) && rest.is_empty();
        for (index, (slice, endpoints)) in filled.into_iter().enumerate() {
            if endpoints.is_empty() && !(keep_one && index == 0) {
                plan.delete.push(slice);
                continue;
            }
            let wanted = build_slice(service, &slice, &group, endpoints);
            if wanted == slice {
                plan.unchanged.push(slice);
            } else {
                plan.update.push(wanted);
            }
        }
        if group.endpoints.is_empty() && !had_one {
            plan.create.push(build_slice(service, &EndpointSlice::default(), &group, Vec::new()));
        }
        while !rest.is_empty() {
            let endpoints: Vec<Endpoint> = rest.drain(..rest.len().min(ENDPOINTS_MAX)).collect();
            plan.create.push(build_slice(service, &EndpointSlice::default(), &group, endpoints));
        }
    }
    plan.delete.extend(left);
    plan
}

/// An endpoint that did not change keeps its hints, so that only [`hints`] decides about them.
fn with_known_hints(wanted: Endpoint, known: &Endpoint) -> Endpoint {
    let kept = Endpoint { hints: known.hints.clone(), ..wanted.clone() };
    if kept == *known { kept } else { wanted }
}

fn id(endpoint: &Endpoint) -> String {
    let uid = endpoint.target_ref.as_ref().and_then(|r| r.uid.clone()).unwrap_or_default();
    format!("{uid}/{}", endpoint.addresses.join(","))
}

/// The slice with these endpoints and the labels that it must have.
fn build_slice(
    service: &Service,
    slice: &EndpointSlice,
    group: &Group,
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    let meta = &service.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let headless = service.spec.as_ref().is_some_and(|s| s.cluster_ip.as_deref() == Some("None"));
    let mut labels: BTreeMap<String, String> = meta.labels.clone().unwrap_or_default();
    labels.retain(|k, _| k != HEADLESS);
    labels.insert(SERVICE_LABEL.into(), name.clone());
    labels.insert(MANAGED_BY.0.into(), MANAGED_BY.1.into());
    if headless {
        labels.insert(HEADLESS.into(), String::new());
    }
    let mut slice = slice.clone();
    if slice.metadata.name.is_none() {
        slice.metadata = ObjectMeta {
            generate_name: Some(format!("{name}-")),
            namespace: meta.namespace.clone(),
            owner_references: Some(vec![owner_reference(service)]),
            ..ObjectMeta::default()
        };
    }
    slice.metadata.labels = Some(labels);
    slice.address_type.clone_from(&group.family);
    slice.ports = (!group.ports.is_empty()).then(|| group.ports.clone());
    slice.endpoints = (!endpoints.is_empty()).then_some(endpoints);
    slice
}

/// The selector of a Service whose slices this controller writes.
fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref()?;
    let selector = spec.selector.as_ref().filter(|selector| !selector.is_empty());
    selector.filter(|_| spec.type_.as_deref() != Some("ExternalName"))
}

impl Controller {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(service) = self.services.get(namespace, name) else {
            self.trigger_times.forget(&key);
            return Ok(Action::Done);
        };
        let Some(selector) = selector(&service) else { return Ok(Action::Done) };
        let spec = service.spec.clone().unwrap_or_default();
        if service.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let chosen = pods_of(&self.pods, namespace, selector);
        let zone_of = |node: &str| {
            self.nodes
                .cache()
                .get("", node)
                .and_then(|n| n.label("topology.kubernetes.io/zone").map(str::to_owned))
        };
        let want = groups(&service, &chosen, &zone_of);
        let ours = |s: &EndpointSlice| {
            s.metadata
                .labels
                .as_ref()
                .is_some_and(|l| l.get(MANAGED_BY.0).map(String::as_str) == Some(MANAGED_BY.1))
                && s.metadata.deletion_timestamp.is_none()
        };
        let have: Vec<EndpointSlice> = self
            .slices
            .by_index(SERVICE_LABEL, &format!("{namespace}/{name}"))
            .into_iter()
            .filter(ours)
            .collect();
        let mut plan = plan(&service, want, have);
        if topology::is_auto(&service) {
            self.share_by_topology(&service, &mut plan);
        } else {
            hints::reconcile(&mut plan, spec.traffic_distribution.as_deref());
            if self.hinted.lock().remove(&key) {
                for family in spec.ip_families.iter().flatten() {
                    let text = "Topology Aware Hints has been disabled";
                    self.hints_event(&service, false, text, family);
                }
            }
        }
        let trigger = self.trigger_times.next(&key, &service, &chosen);
        for slice in plan.create.iter_mut().chain(&mut plan.update) {
            trigger_times::annotate(slice, trigger);
        }
        metrics::planned(&plan);
        let outcome = self.apply(&service, namespace, plan).await;
        if let Err(error) = &outcome {
            if !error.is_namespace_terminating() {
                let text = format!(
                    "Error updating Endpoint Slices for Service {namespace}/{name}: {error}"
                );
                self.recorder.event(
                    &service,
                    EventType::Warning,
                    "FailedToUpdateEndpointSlices",
                    text,
                );
            }
        }
        outcome.map(|()| Action::Done)
    }

    /// Writes hints for `topology-mode: Auto`, with upstream's events.
    fn share_by_topology(&self, service: &Service, plan: &mut Plan) {
        let meta = &service.metadata;
        let key =
            (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        let shares = topology::Shares::of(&self.nodes.list(""));
        for (family, outcome) in topology::reconcile(plan, shares.as_ref()) {
            match outcome {
                Ok(()) => {
                    if self.hinted.lock().insert(key.clone()) {
                        let text = "Topology Aware Hints has been enabled";
                        self.hints_event(service, true, text, &family);
                    }
                }
                Err(error) => {
                    self.hinted.lock().remove(&key);
                    self.hints_event(service, false, &error.to_string(), &family);
                }
            }
        }
    }

    fn hints_event(&self, service: &Service, enabled: bool, text: &str, family: &str) {
        let (kind, reason) = match enabled {
            true => (EventType::Normal, "TopologyAwareHintsEnabled"),
            false => (EventType::Warning, "TopologyAwareHintsDisabled"),
        };
        self.recorder.event(service, kind, reason, format!("{text}, addressType: {family}"));
    }

    async fn apply(&self, service: &Service, namespace: &str, plan: Plan) -> Result<(), Error> {
        let changed = plan.create.len() + plan.update.len() + plan.delete.len();
        for slice in &plan.create {
            self.client.create(namespace, slice).await?;
            metrics::written("create");
        }
        for slice in &plan.update {
            settled(self.client.update(slice).await)?;
            metrics::written("update");
        }
        let doomed: BTreeSet<String> =
            plan.delete.into_iter().filter_map(|s| s.metadata.name).collect_set();
        for name in doomed {
            settled(
                self.client
                    .delete::<EndpointSlice>(namespace, &name, &DeleteOptions::default())
                    .await,
            )?;
            metrics::written("delete");
        }
        metrics::applied(service, changed);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
