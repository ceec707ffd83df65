//! ServiceLB: nodes announce Services of type LoadBalancer on their own addresses.
//!
//! The controller chooses the nodes of each Service and writes their addresses to its status. The
//! service proxy of every node serves the addresses in the status, so no pods are needed. Labels,
//! events and the choice of addresses are those of k3s's ServiceLB.

mod plan;
mod pool;
mod records;
mod release;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::k8s::api::core::v1::{Node, Pod, Service};
use api::k8s::api::discovery::v1::EndpointSlice;
use api::k8s::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use api::k8s::jiff::Timestamp;
use client::events::EventType;
use client::{Action, Change, Client, Error, EventRecorder, Informer, Patch};
use parking_lot::Mutex;
use serde_json::{Value, json};
use settings::AddressPool;
use sorting::CollectOrdered as _;

use self::plan::{Assignment, Cluster, ErrorCondition};
use self::pool::Allocations;
use self::records::{FINALIZER, NodeRecord, PodRecord, ServiceRecord};
use crate::framework::context::{Context, ReservedPort};
use crate::framework::keyed::{Key, Keyed, settled};
use crate::network::endpointslice::{SERVICE_LABEL, index_by_service};

pub(crate) use release::start as start_release;

/// Name of the controller, as kube-controller-manager lists it.
pub(crate) const CONTROLLER: &str = "service-lb-controller";
/// Service account, and component of events.
const ACCOUNT: &str = "service-controller";
/// Workers: a slow admission webhook delays a few Services, not all.
const WORKERS: usize = 3;
/// The key that only brings assignments up to date.
fn assign_key() -> Key {
    (String::new(), String::new())
}

/// What listeners record and reconciles read.
#[derive(Default)]
struct State {
    cluster: Cluster,
    assignments: BTreeMap<Key, Assignment>,
    /// Virtual addresses; empty without a pool.
    allocations: Allocations,
    pool: AddressPool,
    /// The cluster changed since the assignments were computed.
    is_stale: bool,
}

impl State {
    /// Brings the assignments up to date; returns the Services whose assignment changed.
    fn refresh(&mut self, reserved: &[ReservedPort]) -> Vec<Key> {
        if !std::mem::take(&mut self.is_stale) {
            return Vec::new();
        }
        let now = plan::assign(&self.cluster, reserved);
        let changed = now.iter().filter(|(key, new)| self.assignments.get(*key) != Some(new));
        let mut all: Vec<Key> = changed.map(|(key, _)| key.clone()).collect();
        self.assignments = now;
        if !self.pool.is_empty() {
            let now = pool::allocate(&self.cluster.services, &self.pool, &self.allocations);
            let changed = now.iter().filter(|(key, new)| self.allocations.get(*key) != Some(new));
            all.extend(changed.map(|(key, _)| key.clone()));
            self.allocations = now;
        }
        all
    }

    /// Records a change of a Service; returns the keys to reconcile.
    fn service_changed(&mut self, change: &Change) -> Vec<Key> {
        let object = change.object();
        let key = (object.key.namespace.to_string(), object.key.name.to_string());
        let new = match change {
            Change::Deleted(_) => None,
            _ => ServiceRecord::of(object, !self.pool.is_empty()),
        };
        let is_handled = |record: &ServiceRecord| record.balanced.is_some() || record.needs_cleanup;
        let wakes = new.as_ref().is_some_and(is_handled);
        let old = match new.clone() {
            Some(record) => self.cluster.services.insert(key.clone(), record),
            None => self.cluster.services.remove(&key),
        };
        let is_changed = old != new;
        self.is_stale |= is_changed;
        let assign = is_changed.then(assign_key);
        wakes.then_some(key).into_iter().chain(assign).collect()
    }

    /// Records a change of a Node; returns the keys to reconcile.
    fn node_changed(&mut self, change: &Change) -> Vec<Key> {
        let object = change.object();
        let name = object.key.name.to_string();
        let is_changed = match change {
            Change::Deleted(_) => self.cluster.nodes.remove(&name).is_some(),
            _ => {
                let new = NodeRecord::of(object);
                let is_changed = self.cluster.nodes.get(&name) != Some(&new);
                if is_changed {
                    self.cluster.nodes.insert(name, new);
                }
                is_changed
            }
        };
        if !is_changed {
            return Vec::new();
        }
        self.is_stale = true;
        let services = self.cluster.services.iter();
        let has_nodes = |service: &ServiceRecord| {
            service.balanced.as_ref().is_some_and(|b| b.pool_request.is_none())
        };
        services.filter(|(_, s)| has_nodes(s)).map(|(key, _)| key.clone()).collect()
    }

    /// Records a change of a Pod; returns the keys to reconcile.
    fn pod_changed(&mut self, change: &Change) -> Vec<Key> {
        let object = change.object();
        let key = (object.key.namespace.to_string(), object.key.name.to_string());
        let new = match change {
            Change::Deleted(_) => None,
            _ => PodRecord::of(object),
        };
        if self.cluster.pods.get(&key) == new.as_ref() {
            return Vec::new();
        }
        match new {
            Some(record) => drop(self.cluster.pods.insert(key, record)),
            None => drop(self.cluster.pods.remove(&key)),
        }
        self.is_stale = true;
        vec![assign_key()]
    }

    /// The Service of a changed EndpointSlice, if its status depends on endpoints.
    fn slice_changed(&self, change: &Change) -> Option<Key> {
        let object = change.object();
        let key = (object.key.namespace.to_string(), object.label(SERVICE_LABEL)?.to_owned());
        let is_local = |s: &ServiceRecord| {
            s.balanced.as_ref().is_some_and(|b| b.is_local && b.pool_request.is_none())
        };
        self.cluster.services.get(&key).is_some_and(is_local).then_some(key)
    }
}

struct Controller {
    client: Client,
    recorder: EventRecorder,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    state: Arc<Mutex<State>>,
    reserved: Vec<ReservedPort>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(ACCOUNT);
    let recorder = context.recorder(&client, ACCOUNT);
    let informers = &context.informers;
    let (services, slices) = (informers.of::<Service>(), informers.of::<EndpointSlice>());
    index_by_service(&slices);
    let pool = context.config.lb_pool.clone();
    let state = Arc::new(Mutex::new(State { pool, ..State::default() }));
    let mut keyed = Keyed::new();
    let shared = Arc::clone(&state);
    keyed.watches(&services, move |change| shared.lock().service_changed(change));
    let shared = Arc::clone(&state);
    keyed.watches(&informers.of::<Node>(), move |change| shared.lock().node_changed(change));
    let shared = Arc::clone(&state);
    keyed.watches(&informers.of::<Pod>(), move |change| shared.lock().pod_changed(change));
    let shared = Arc::clone(&state);
    keyed.watches(&slices, move |change| shared.lock().slice_changed(change).into_iter().collect());
    let queue = keyed.queue.clone();
    let reserved = context.config.reserved_ports.clone();
    let controller = Arc::new(Controller { client, recorder, services, slices, state, reserved });
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |key| {
        let controller = Arc::clone(&controller);
        for changed in controller.state.lock().refresh(&controller.reserved) {
            queue.add(changed);
        }
        async move { controller.reconcile(&key).await }
    });
}

/// What is to be written to a Service.
struct DesiredStatus {
    condition: Option<ErrorCondition>,
    status: api::k8s::api::core::v1::LoadBalancerStatus,
}

impl Controller {
    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let (namespace, name) = key;
        let Some(service) = self.services.get(namespace, name) else { return Ok(Action::Done) };
        let record = self.state.lock().cluster.services.get(key).cloned();
        match record {
            Some(record) if record.needs_cleanup => self.clean_up(&service).await?,
            Some(ServiceRecord { balanced: Some(balanced), .. }) => {
                let wanted = match balanced.pool_request {
                    None => self.desired_status(key, &service, balanced.is_local),
                    Some(_) => self.virtual_status(key, &service),
                };
                if let Some(wanted) = wanted {
                    self.ensure(&service, wanted).await?;
                }
            }
            _ => {}
        }
        Ok(Action::Done)
    }

    /// The status that a Service gets; `None` while its assignment is not computed.
    fn desired_status(
        &self,
        key: &Key,
        service: &Service,
        is_local: bool,
    ) -> Option<DesiredStatus> {
        let with_endpoints = is_local.then(|| self.nodes_with_endpoints(key));
        let spec = service.spec.as_ref()?;
        let state = self.state.lock();
        let assignment = state.assignments.get(key)?.clone();
        let nodes: Vec<&NodeRecord> = assignment
            .nodes
            .iter()
            .filter(|name| with_endpoints.as_ref().is_none_or(|list| list.contains(*name)))
            .filter_map(|name| state.cluster.nodes.get(name))
            .filter(|node| node.is_ready)
            .collect();
        let status = plan::load_balancer_status(&plan::addresses(&nodes, spec), spec);
        drop(state);
        Some(DesiredStatus { condition: plan::conflict_condition(&assignment), status })
    }

    /// The status of a Service with virtual addresses; `None` while these are not allocated.
    fn virtual_status(&self, key: &Key, service: &Service) -> Option<DesiredStatus> {
        let allocation = self.state.lock().allocations.get(key)?.clone();
        let status = plan::load_balancer_status(&allocation.addresses, service.spec.as_ref()?);
        Some(DesiredStatus { condition: plan::address_condition(&allocation), status })
    }

    /// The nodes of ready pods of a Service (k3s's `getStatus`). Processes of nodes, as those of
    /// the ingress, count as well.
    fn nodes_with_endpoints(&self, (namespace, name): &Key) -> BTreeSet<String> {
        let slices = self.slices.by_index(SERVICE_LABEL, &format!("{namespace}/{name}"));
        let endpoints = slices.into_iter().flat_map(|slice| slice.endpoints.unwrap_or_default());
        endpoints
            .filter(|e| {
                let target = e.target_ref.as_ref().and_then(|target| target.kind.as_deref());
                matches!(target, Some("Pod" | "Node"))
            })
            .filter(|e| e.conditions.as_ref().and_then(|c| c.ready) == Some(true))
            .filter_map(|e| e.node_name)
            .collect_set()
    }

    /// Writes finalizer, addresses and condition of a Service where they differ.
    async fn ensure(&self, service: &Service, wanted: DesiredStatus) -> Result<(), Error> {
        let meta = &service.metadata;
        let finalizers = meta.finalizers.as_deref().unwrap_or_default();
        let is_new = !finalizers.iter().any(|name| name == FINALIZER);
        let status = service.status.as_ref();
        let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let condition = wanted.condition.as_ref();
        let has_status = plan::status_is_current(service, &wanted.status);
        let has_condition = plan::condition_is_current(conditions, condition);
        if !is_new && has_status && has_condition {
            return Ok(());
        }
        if is_new {
            let text = "Ensuring load balancer";
            self.recorder.event(service, EventType::Normal, "EnsuringLoadBalancer", text);
        }
        let mut patch = json!({"metadata": {"resourceVersion": meta.resource_version}});
        if is_new {
            let finalizers: Vec<&str> =
                finalizers.iter().map(String::as_str).chain([FINALIZER]).collect();
            patch["metadata"]["finalizers"] = json!(finalizers);
        }
        if !has_status {
            patch["status"]["loadBalancer"] = json!({"ingress": wanted.status.ingress});
        }
        if !has_condition {
            let generation = meta.generation;
            patch["status"]["conditions"] =
                json!(with_condition(conditions, condition, generation));
        }
        if !self.patch(service, &patch).await? {
            return Ok(());
        }
        if !has_status || (is_new && wanted.status.ingress.is_none()) {
            self.report_addresses(service, &wanted);
        }
        if let Some(condition) = condition.filter(|_| !has_condition) {
            let text = format!("Error syncing load balancer: {}", condition.message);
            self.recorder.event(service, EventType::Warning, "SyncLoadBalancerFailed", text);
        }
        Ok(())
    }

    /// Records k3s's events about the addresses of a Service.
    fn report_addresses(&self, service: &Service, wanted: &DesiredStatus) {
        if wanted.status.ingress.is_some() {
            let before = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
            let (before, now) = (plan::shown(before), plan::shown(Some(&wanted.status)));
            let text = format!("Updated LoadBalancer with new IPs: {before} -> {now}");
            self.recorder.event(service, EventType::Normal, "UpdatedLoadBalancer", text);
        } else if wanted.condition.as_ref().is_none_or(|c| c.kind != pool::ADDRESS_ERROR) {
            let text = "There are no available nodes for LoadBalancer";
            self.recorder.event(service, EventType::Warning, "UnAvailableLoadBalancer", text);
        }
    }

    /// Removes finalizer and addresses of a Service that is deleted or has another type.
    async fn clean_up(&self, service: &Service) -> Result<(), Error> {
        let text = "Deleting load balancer";
        self.recorder.event(service, EventType::Normal, "DeletingLoadBalancer", text);
        if self.patch(service, &cleanup_patch(service)).await? {
            let text = "Deleted load balancer";
            self.recorder.event(service, EventType::Normal, "DeletedLoadBalancer", text);
        }
        Ok(())
    }

    /// Patches the status of a Service. `false`: the Service has changed or is deleted, and its
    /// event reconciles it again.
    async fn patch(&self, service: &Service, patch: &Value) -> Result<bool, Error> {
        patch_status(&self.client, service, patch).await
    }
}

/// Patches the status of a Service, and its finalizers with it. `false`: the Service has changed or
/// is deleted.
async fn patch_status(client: &Client, service: &Service, patch: &Value) -> Result<bool, Error> {
    let meta = &service.metadata;
    let (namespace, name) =
        (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    let result = client.patch::<Service>(namespace, name, "status", &Patch::Merge(patch)).await;
    let is_written = result.is_ok();
    settled(result).map(|()| is_written)
}

/// The patch that takes the finalizer, the addresses and the condition from a Service.
fn cleanup_patch(service: &Service) -> Value {
    let meta = &service.metadata;
    let others: Vec<&String> =
        meta.finalizers.iter().flatten().filter(|name| *name != FINALIZER).collect();
    let conditions = service.status.as_ref().and_then(|s| s.conditions.as_deref());
    json!({
        "metadata": {"resourceVersion": meta.resource_version, "finalizers": others},
        "status": {
            "loadBalancer": {"ingress": null},
            "conditions": with_condition(conditions.unwrap_or_default(), None, None),
        },
    })
}

/// The conditions of a Service with those of ServiceLB replaced or removed.
fn with_condition(
    conditions: &[Condition],
    wanted: Option<&ErrorCondition>,
    generation: Option<i64>,
) -> Vec<Condition> {
    let others = conditions.iter().filter(|c| !plan::is_own_condition(c)).cloned();
    let wanted = wanted.map(|wanted| Condition {
        type_: wanted.kind.into(),
        status: "True".into(),
        reason: wanted.reason.into(),
        message: wanted.message.clone(),
        observed_generation: generation,
        last_transition_time: Time(Timestamp::now()),
    });
    others.chain(wanted).collect()
}
