//! The Node object: registration, status and lease. Pods do not depend on it.

mod addresses;
pub(crate) mod allocatable;
mod extended;
mod flags;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::k8s::api::coordination::v1::{Lease, LeaseSpec};
use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use base::{Backoff, Kind, Shutdown};
use client::events::EventType;
use client::{Change, Patch, owner_reference};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::config::{Config, addresses_changed};
use crate::context::Node;
use crate::events;
use crate::machine;
use crate::volumes;

use self::flags::NodeFlags;

/// Renewal interval and duration of the lease (`nodeLeaseDurationSeconds` 40, renewed at a
/// quarter).
const RENEW_INTERVAL: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;
/// Interval of status queries while the runtime is not ready.
const NOT_READY_INTERVAL: Duration = Duration::from_millis(250);

/// How long the first status waits for the CSINode of the node.
const CSI_NODE_WAIT: Duration = Duration::from_secs(5);

/// Keys of problem entries.
const DELETED: &str = "node/deleted";
const REJECTED: &str = "node/refused";

/// The observed state of the Node object.
#[derive(Debug, Default)]
struct ObservedNode {
    /// The object was deleted.
    deleted: AtomicBool,
    /// Another component set the status of the node to unknown.
    overruled: AtomicBool,
    /// The node was cordoned when the object was last observed.
    unschedulable: AtomicBool,
}

impl ObservedNode {
    /// Returns the reason of an event if `spec.unschedulable` changed.
    fn schedulable(&self, object: &core::Node) -> Option<&'static str> {
        let now = object.spec.as_ref().and_then(|s| s.unschedulable) == Some(true);
        let changed = self.unschedulable.swap(now, Ordering::Relaxed) != now;
        let reason = if now { events::NODE_NOT_SCHEDULABLE } else { events::NODE_SCHEDULABLE };
        changed.then_some(reason)
    }
}

/// Registers the node and keeps its status and lease current until shutdown.
pub(crate) async fn run(
    node: Arc<Node>,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
    let object = loop {
        match register(&node).await {
            Ok(object) => break object,
            Err(error) => {
                tracing::debug!(%error, "cannot register the node, retrying");
                if let client::Error::Api(status) = &error
                    && !error.is_retryable()
                {
                    let what = format!("this node cannot register: {}", status.message);
                    let fix = "correct what the message names, such as --node-label, and restart \
                        this node";
                    node.tasks.problems().put(REJECTED, what, fix);
                }
            }
        }
        if !backoff.wait_or(&shutdown, node.api.client.transport().back()).await {
            return Ok(());
        }
    };
    node.tasks.problems().clear(REJECTED);
    let left = node.csi.read_volumes_in_use(object.status.as_ref()).await;
    volumes::unstage_left(&node, left);
    volumes::scsi::take_over(&node, object.status.as_ref()).await;
    // The node is not ready without its CSINode, which exists already after a restart.
    let csi_node = node.csi.initialize();
    if !matches!(tokio::time::timeout(CSI_NODE_WAIT, csi_node).await, Ok(Ok(()))) {
        let csi_node = create_csi_node(Arc::clone(&node), shutdown.clone());
        node.tasks.spawn(Kind::Request, "csi-node", csi_node);
    }
    let observed = Arc::new(ObservedNode::default());
    watch_node_object(&node, &observed);
    let mut reporter =
        NodeReporter { node, observed, object, written: Value::Null, lease: None, status_at: None };
    let mut addresses = reporter.node.identity.config.addresses.clone();
    let mut renew_at = base::clock::now();
    while !shutdown.is_requested() {
        let deleted = reporter.observed.deleted.load(Ordering::Relaxed);
        if !deleted {
            reporter.annotate().await;
        }
        let ready = deleted || reporter.status().await;
        if base::clock::now() >= renew_at {
            if !deleted {
                reporter.renew().await;
            }
            renew_at = base::clock::now() + RENEW_INTERVAL;
        }
        let check_at = base::clock::now() + reporter.node.identity.config.status_check_interval;
        let renew_at = renew_at.min(check_at);
        let next =
            if ready { renew_at } else { renew_at.min(base::clock::now() + NOT_READY_INTERVAL) };
        tokio::select! {
            () = shutdown.requested() => break,
            () = reporter.node.caches.status_changed.notified() => {}
            () = reporter.node.devices.capacity_changed() => {}
            () = addresses_changed(&mut addresses) => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
    Ok(())
}

/// Attempts to create the CSINode of the node until it exists.
async fn create_csi_node(
    node: Arc<Node>,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
    while let Err(error) = node.csi.initialize().await {
        tracing::debug!(%error, "cannot create the CSINode, retrying");
        if !backoff.wait_or(&shutdown, node.api.client.transport().back()).await {
            break;
        }
    }
    Ok(())
}

/// Watches the Node object. As with the kubelet, a deleted object is not recreated before the next
/// start, because an administrator removed the node on purpose.
fn watch_node_object(node: &Arc<Node>, observed: &Arc<ObservedNode>) {
    let (weak, observed) = (Arc::downgrade(node), Arc::clone(observed));
    node.api.own_node.on_change(move |change| {
        let Some(node) = weak.upgrade() else { return };
        match change {
            Change::Deleted(_) => {
                observed.deleted.store(true, Ordering::Relaxed);
                let name = &node.identity.config.node_name;
                let what = format!(
                    "the Node object {name} was deleted while this node runs; its \
                    pods are stopped"
                );
                let fix = "to register the node again, restart kube-lite on this machine \
                    (`systemctl restart kube-lite`); to remove it, stop kube-lite";
                node.tasks.problems().put(DELETED, what, fix);
            }
            Change::Added(object) | Change::Updated { new: object, .. } => {
                let Some(object) = client::informer::decode::<core::Node>(object) else { return };
                node.caches
                    .labels
                    .store(Arc::new(object.metadata.labels.clone().unwrap_or_default()));
                if let Some(reason) = observed.schedulable(&object) {
                    let message =
                        format!("Node {} status is now: {reason}", node.identity.config.node_name);
                    node.api.events.object_event(&object, EventType::Normal, reason, message);
                }
                let back = observed.deleted.swap(false, Ordering::Relaxed);
                if back {
                    node.tasks.problems().clear(DELETED);
                }
                let unknown = status::is_unknown(object.status.as_ref());
                if !unknown && !back {
                    return;
                }
                observed.overruled.store(true, Ordering::Relaxed);
            }
        }
        node.caches.status_changed.notify_one();
    });
}

/// Label of the kind of machine, and its deprecated name. A value that is there already stays.
const INSTANCE_TYPE: [&str; 2] =
    ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"];
/// Taint of a node that waits for a cloud controller
/// (`cloudproviderapi.TaintExternalCloudProvider`).
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Taints of a new node: those of the flags, and that of nodes without cloud controller.
fn initial_taints(config: &Config) -> Vec<core::Taint> {
    let mut taints = config.taints.clone();
    if config.external_cloud {
        taints.push(core::Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    taints
}

/// The merge patch of the parts that a cloud controller would set or reads, where they differ.
fn cloud_patch(config: &Config, node: &core::Node) -> Option<Value> {
    let mut patch = serde_json::Map::new();
    let spec = node.spec.as_ref();
    let has_id = spec.and_then(|s| s.provider_id.as_ref()).is_some_and(|id| !id.is_empty());
    if !has_id && !config.provider_id.is_empty() {
        patch.insert("spec".into(), json!({"providerID": config.provider_id}));
    }
    let annotations = addresses::changed(config, node.metadata.annotations.as_ref());
    if !annotations.is_empty() {
        patch.insert("metadata".into(), json!({"annotations": annotations}));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Labels that every node has.
fn labels(node: &Node) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (key, value) in [
        ("kubernetes.io/hostname", node.identity.config.hostname.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", machine::architecture()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", machine::architecture()),
    ] {
        out.insert(key.to_owned(), value.to_owned());
    }
    let config = &node.identity.config;
    for key in INSTANCE_TYPE {
        if !config.instance_type.is_empty() && !config.labels.contains_key(key) {
            out.insert(key.to_owned(), config.instance_type.clone());
        }
    }
    out
}

/// Creates the Node object, or updates an existing one to the flags.
async fn register(node: &Node) -> Result<core::Node, client::Error> {
    let name = &node.identity.config.node_name;
    let mut own = labels(node);
    let flags =
        NodeFlags { labels: &node.identity.config.labels, taints: &node.identity.config.taints };
    let mut annotations = flags.annotations();
    annotations
        .insert("volumes.kubernetes.io/controller-managed-attach-detach".into(), "true".into());
    annotations.extend(addresses::of_new_node(&node.identity.config));
    let mut labels = node.identity.config.labels.clone();
    labels.extend(own.clone());
    let taints = initial_taints(&node.identity.config);
    let object = core::Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(core::NodeSpec {
            provider_id: Some(node.identity.config.provider_id.clone()).filter(|p| !p.is_empty()),
            taints: (!taints.is_empty()).then_some(taints),
            ..core::NodeSpec::default()
        }),
        ..core::Node::default()
    };
    let registered = match node.api.client.create("", &object).await {
        Ok(created) => created,
        Err(error) if error.is_already_exists() => {
            let existing: core::Node = node.api.client.get("", name).await?;
            let have = existing.metadata.labels.as_ref();
            let is_known = |key: &str| have.is_some_and(|labels| labels.contains_key(key));
            own.retain(|key, _| !(INSTANCE_TYPE.contains(&key.as_str()) && is_known(key)));
            let patches = [
                flags.patch(&existing, &own, base::clock::unix_time().as_secs()),
                cloud_patch(&node.identity.config, &existing),
            ];
            let mut current = existing;
            for patch in patches.into_iter().flatten() {
                current = node.api.client.patch("", name, "", &Patch::Merge(&patch)).await?;
            }
            current
        }
        Err(error) => return Err(error),
    };
    node.caches.labels.store(Arc::new(registered.metadata.labels.clone().unwrap_or_default()));
    Ok(registered)
}

struct NodeReporter {
    node: Arc<Node>,
    observed: Arc<ObservedNode>,
    object: core::Node,
    /// The last written status, without times.
    written: Value,
    lease: Option<Lease>,
    status_at: Option<Instant>,
}

impl NodeReporter {
    /// Updates the annotations with the addresses after these have changed.
    async fn annotate(&mut self) {
        let Some(patch) = cloud_patch(&self.node.identity.config, &self.object) else { return };
        let name = &self.node.identity.config.node_name;
        match self.node.api.client.patch("", name, "", &Patch::Merge(&patch)).await {
            Ok(object) => self.object = object,
            Err(error) => tracing::debug!(%error, "cannot update the annotations of the node"),
        }
    }

    /// Writes the status if it changed or the interval is over; returns whether the node is ready.
    async fn status(&mut self) -> bool {
        let (mut status, ready) = status::node_status(&self.node).await;
        if self.written.is_null() && self.node.devices.is_new_node() {
            extended::reset(&mut status, self.object.status.as_ref());
        }
        if self.node.identity.config.external_cloud {
            status::leave_addresses(&mut status, self.object.status.as_ref());
        }
        let overruled = self.observed.overruled.swap(false, Ordering::Relaxed);
        let late = |at: Instant| at.elapsed() >= self.node.identity.config.status_interval;
        let due = overruled || self.status_at.is_none_or(late);
        if status == self.written && !due {
            return ready;
        }
        let before = self.object.status.clone().unwrap_or_default();
        let patch = json!({"status": status::with_times(&status, &before)});
        let name = &self.node.identity.config.node_name;
        match self
            .node
            .api
            .client
            .patch::<core::Node>("", name, "status", &Patch::Strategic(&patch))
            .await
        {
            Ok(object) => {
                if let Some(reason) = status::readiness_event(&before, ready) {
                    let message = format!("Node {name} status is now: {reason}");
                    self.node.api.events.object_event(&object, EventType::Normal, reason, message);
                }
                for reason in status::pressure_events(&before, &status) {
                    let message = format!("Node {name} status is now: {reason}");
                    self.node.api.events.object_event(&object, EventType::Normal, reason, message);
                }
                // Before the first write, the status is that of an earlier process.
                let reboot = status::reboot(&before, name, &self.node.identity.machine.boot_id);
                if let Some(message) = reboot.filter(|_| self.written.is_null()) {
                    let kind = EventType::Warning;
                    self.node.api.events.object_event(&object, kind, events::REBOOTED, message);
                }
                self.node
                    .caches
                    .labels
                    .store(Arc::new(object.metadata.labels.clone().unwrap_or_default()));
                self.node.csi.on_node_status(object.status.as_ref());
                self.object = object;
                self.written = status;
                self.status_at = Some(base::clock::now());
            }
            Err(error) => {
                self.observed.overruled.fetch_or(overruled, Ordering::Relaxed);
                tracing::debug!(%error, "cannot write the node status");
            }
        }
        ready
    }

    async fn renew(&mut self) {
        if let Err(error) = self.try_renew().await {
            tracing::debug!(%error, "cannot renew the node lease");
            self.lease = None;
        }
    }

    async fn try_renew(&mut self) -> Result<(), client::Error> {
        const NAMESPACE: &str = "kube-node-lease";
        let name = self.node.identity.config.node_name.clone();
        let now = jiff::Timestamp::from_microsecond(
            i64::try_from(base::clock::unix_time().as_micros()).unwrap_or_default(),
        );
        let now = now.ok().map(MicroTime);
        let known = match self.lease.take() {
            Some(lease) => Some(lease),
            None => match self.node.api.client.get::<Lease>(NAMESPACE, &name).await {
                Ok(lease) => Some(lease),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error),
            },
        };
        self.lease = Some(match known {
            Some(mut lease) => {
                let spec = lease.spec.get_or_insert_default();
                spec.holder_identity = Some(name);
                spec.lease_duration_seconds = Some(LEASE_SECONDS);
                spec.renew_time = now;
                self.node.api.client.update(&lease).await?
            }
            None => {
                let mut owner = owner_reference(&self.object);
                (owner.controller, owner.block_owner_deletion) = (None, None);
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(name.clone()),
                        namespace: Some(NAMESPACE.to_owned()),
                        owner_references: Some(vec![owner]),
                        ..ObjectMeta::default()
                    },
                    spec: Some(LeaseSpec {
                        holder_identity: Some(name),
                        lease_duration_seconds: Some(LEASE_SECONDS),
                        renew_time: now,
                        ..LeaseSpec::default()
                    }),
                };
                self.node.api.client.create(NAMESPACE, &lease).await?
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_an_external_cloud_waits_for_its_controller() {
        let ip = "192.0.2.1".parse().unwrap();
        let mut config = Config::new("n", ip, "/d".into(), "/r".into());
        config.provider_id = "kube-lite://n".to_owned();
        assert!(initial_taints(&config).is_empty());
        let patch = |config: &Config, value: Value| {
            cloud_patch(config, &serde_json::from_value(value).unwrap())
        };
        let notes = json!({"annotations": addresses::of_new_node(&config)});
        let id = json!({"spec": {"providerID": "kube-lite://n"}});
        assert_eq!(patch(&config, json!({"metadata": notes})), Some(id));
        let known = json!({"metadata": notes, "spec": {"providerID": "k3s://n"}});
        assert_eq!(patch(&config, known), None, "a provider id never changes");
        config.provider_id = String::new();
        (config.external_cloud, config.addresses_are_set) = (true, true);
        let taint = initial_taints(&config).remove(0);
        assert_eq!((&*taint.key, &*taint.effect), (UNINITIALIZED, "NoSchedule"));
        let note = json!({"metadata": {"annotations": {addresses::PROVIDED: "192.0.2.1"}}});
        assert_eq!(patch(&config, json!({"metadata": {}})), Some(note.clone()));
        assert_eq!(patch(&config, note), None);
    }

    #[test]
    fn cordoning_and_uncordoning_are_events() {
        let node = |unschedulable: Option<bool>| core::Node {
            spec: Some(core::NodeSpec { unschedulable, ..core::NodeSpec::default() }),
            ..core::Node::default()
        };
        let observed = ObservedNode::default();
        assert_eq!(observed.schedulable(&node(None)), None);
        assert_eq!(observed.schedulable(&node(Some(true))), Some("NodeNotSchedulable"));
        assert_eq!(observed.schedulable(&node(Some(true))), None);
        assert_eq!(observed.schedulable(&node(Some(false))), Some("NodeSchedulable"));
        assert_eq!(observed.schedulable(&node(None)), None);
    }
}
