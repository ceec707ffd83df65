//! Nodes: taints that follow their conditions, and the verdict that a silent node is lost.

mod decide;
mod flag_taints;
pub(crate) mod metrics;
mod node_health;
mod tunnel_health;

use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::k8s::api::coordination::v1::Lease;
use api::k8s::api::core::v1::{Node, ObjectReference, Pod};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use base::{Kind, clock};
use client::events::EventType;
use client::{Action, Change, Client, Error, EventRecorder, Informer, Patch, Queue};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::framework::context::{Context, FastLoss};
use crate::framework::keyed::{Key, Keyed, settled};
use crate::framework::{nodes, pods};
use crate::nodes::node_lifecycle::node_health::NodeHealth;
use crate::nodes::node_lifecycle::tunnel_health::{TunnelHealth, Verdict};

/// How soon a node is looked at again whose lease turned out to be fresher than our cache.
const CACHE_LAG: Duration = Duration::from_secs(1);
const LEASES: &str = "kube-node-lease";

struct Controller {
    client: Client,
    recorder: EventRecorder,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    leases: Informer<Lease>,
    queue: Queue<Key>,
    ledger: Arc<Mutex<NodeHealth>>,
    /// `--node-monitor-grace-period`.
    grace: Duration,
    /// `--node-startup-grace-period`, for nodes that never reported a status.
    startup_grace: Duration,
}

/// Starts the controller. One worker: verdicts depend on the other nodes of the zone.
pub(crate) fn start(context: &Context) {
    let client = context.client("node-controller");
    let recorder = context.recorder(&client, "node-controller");
    let informers = &context.informers;
    let (nodes, pods, leases) =
        (informers.of::<Node>(), informers.of::<Pod>(), informers.of::<Lease>());
    nodes::index_pods(&pods);
    let tuning = &context.config.tuning;
    let (grace, startup_grace) = (tuning.node_monitor_grace, tuning.node_startup_grace);
    let ledger = Arc::new(Mutex::new(NodeHealth::new(grace)));
    let mut keyed = Keyed::new();
    keyed.watches_self(&nodes);
    keyed.waits_for_sync(&pods);
    keyed.waits_for_sync(&leases);
    let heard = Arc::clone(&ledger);
    // A renewal adds no key: the node's timer checks it when it is due.
    leases.on_change(move |change| renewed(&heard, change));
    let queue = keyed.queue.clone();
    if let Some(fast) = &context.config.fast_loss {
        let own_node = context.config.node_name.as_deref();
        ledger.lock().evidence = Some(TunnelHealth::new(own_node, fast, grace, clock::now()));
        follow(context, fast.clone(), Arc::clone(&ledger), queue.clone());
    }
    let controller = Arc::new(Controller {
        client,
        recorder,
        nodes,
        pods,
        leases,
        queue,
        ledger,
        grace,
        startup_grace,
    });
    keyed.run(&context.tasks, "node-lifecycle-controller", 1, move |(_, name)| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile_measured(&name).await }
    });
}

/// Hands news of tunnels on.
fn follow(
    context: &Context,
    mut fast: FastLoss,
    ledger: Arc<Mutex<NodeHealth>>,
    queue: Queue<Key>,
) {
    let shutdown = context.tasks.shutdown().clone();
    context.tasks.spawn(Kind::Critical, "node-tunnels", async move {
        loop {
            let told = Arc::clone(&fast.tunnels.borrow_and_update());
            let wake = {
                let mut ledger = ledger.lock();
                ledger.evidence.as_mut().map(|e| e.tell(told, clock::now())).unwrap_or_default()
            };
            for name in wake {
                queue.add((String::new(), name));
            }
            tokio::select! {
                () = shutdown.requested() => return Ok::<(), std::convert::Infallible>(()),
                changed = fast.tunnels.changed() => if changed.is_err() {
                    shutdown.requested().await;
                },
            }
        }
    });
}

fn renewed(ledger: &Mutex<NodeHealth>, change: &Change) {
    let object = change.object();
    if &*object.key.namespace != LEASES {
        return;
    }
    let name = object.key.name.to_string();
    match change {
        Change::Deleted(_) => ledger.lock().lease_gone(&name),
        Change::Updated { old, new } if renew_time(old) == renew_time(new) => {}
        Change::Added(_) | Change::Updated { .. } => {
            ledger.lock().renewed(&name, clock::now());
        }
    }
}

fn renew_time(lease: &Object) -> Option<Timestamp> {
    let lease: Lease = lease.decode().ok()?;
    lease.spec?.renew_time.map(|t| t.0)
}

/// Time since the object was made, by the wall clock; nothing for one from the future.
fn age(node: &Node) -> Duration {
    let made = node.metadata.creation_timestamp.as_ref().map(|t| t.0.as_second());
    let made = made.and_then(|s| u64::try_from(s).ok()).unwrap_or(u64::MAX);
    clock::unix_time().saturating_sub(Duration::from_secs(made))
}

fn node_reference(name: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(name.to_owned()),
        uid,
        ..ObjectReference::default()
    }
}

impl Controller {
    async fn reconcile_measured(&self, name: &str) -> Result<Action, Error> {
        let began = clock::now();
        let outcome = self.reconcile(name).await;
        metrics::updated(clock::now().saturating_duration_since(began));
        outcome
    }

    async fn reconcile(&self, name: &str) -> Result<Action, Error> {
        let now = clock::now();
        let Some(node) = self.nodes.get("", name) else {
            self.forget(name);
            self.judge(name, None, now);
            return Ok(Action::Done);
        };
        self.register(name, &node);
        let heard = self.ledger.lock().listen(name, &node, age(&node), now);
        let silent_for = now.saturating_duration_since(heard);
        let grace = if nodes::ready(&node).is_some() { self.grace } else { self.startup_grace };
        let verdict = self.ledger.lock().verdict(name, heard, now);
        if silent_for > grace || verdict == Verdict::Lost {
            let lost = decide::lost(&node, Timestamp::now());
            if !lost.is_empty() {
                return self.lose(name, &node, lost).await;
            }
        }
        self.judge(name, Some(&node), now);
        let (no_execute, wait) = self.ledger.lock().no_execute(&node, verdict, now);
        if let Some(taints) = decide::taints(&node, no_execute, Timestamp::now()) {
            let patch = json!({
                "metadata": {"resourceVersion": node.metadata.resource_version},
                "spec": {"taints": taints},
            });
            settled(self.client.patch::<Node>("", name, "", &Patch::Merge(&patch)).await)?;
        }
        let labels = decide::labels(&node);
        if !labels.is_empty() {
            let patch = json!({"metadata": {"labels": labels}});
            settled(self.client.patch::<Node>("", name, "", &Patch::Merge(&patch)).await)?;
        }
        if nodes::ready(&node) == Some("Unknown") {
            self.mark_pods(name).await?;
        }
        if let Some((taints, applied)) = flag_taints::taints(&node, Timestamp::now()) {
            let patch = json!({
                "metadata": {
                    "resourceVersion": node.metadata.resource_version,
                    "annotations": {flag_taints::APPLIED: applied},
                },
                "spec": {"taints": taints},
            });
            // A conflict with what was written above wakes this key again.
            settled(self.client.patch::<Node>("", name, "", &Patch::Merge(&patch)).await)?;
        }
        let due = (silent_for <= grace)
            .then(|| (grace - silent_for).saturating_add(Duration::from_millis(1)));
        let spared = match verdict {
            Verdict::Spared(left) => Some(left),
            Verdict::Leases | Verdict::Lost => None,
        };
        let next = due.into_iter().chain(wait).chain(spared).min();
        Ok(next.map_or(Action::Done, Action::After))
    }

    /// Records an event for a node seen for the first time.
    fn register(&self, name: &str, node: &Node) {
        if !self.ledger.lock().knows(name, node.metadata.uid.as_deref()) {
            let text = format!("Node {name} event: Registered Node {name} in Controller");
            let reference = node_reference(name, node.metadata.uid.clone());
            self.recorder.event_for(reference, EventType::Normal, "RegisteredNode", text);
        }
    }

    fn forget(&self, name: &str) {
        let known = self.ledger.lock().forget(name);
        if let Some(uid) = known {
            let text = format!("Node {name} event: Removing Node {name} from Controller");
            let reference = node_reference(name, uid);
            self.recorder.event_for(reference, EventType::Normal, "RemovingNode", text);
        }
    }

    /// Judges the zones with this node as it is now; when one changes, every node is looked at
    /// again.
    fn judge(&self, name: &str, node: Option<&Node>, now: Instant) {
        let wake = self.ledger.lock().judge(name, node, || self.nodes.list(""), now);
        for other in wake.into_iter().filter(|other| other != name) {
            self.queue.add((String::new(), other));
        }
    }

    /// Writes that the node stopped reporting, unless the server has newer data than the cache.
    async fn lose(
        &self,
        name: &str,
        node: &Node,
        conditions: Vec<serde_json::Value>,
    ) -> Result<Action, Error> {
        match self.client.get::<Lease>(LEASES, name).await {
            Ok(lease) => {
                let live = lease.spec.and_then(|s| s.renew_time).map(|t| t.0);
                if self.leases.cache().get(LEASES, name).and_then(|l| renew_time(&l)) != live {
                    self.ledger.lock().renewed(name, clock::now());
                    return Ok(Action::After(CACHE_LAG));
                }
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        let was_ready = nodes::ready(node) == Some("True");
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "status": {"conditions": conditions},
        });
        match self.client.patch::<Node>("", name, "status", &Patch::Strategic(&patch)).await {
            Ok(_) => {}
            // What changed or removed it wakes this key again.
            Err(error) if error.is_not_found() || error.is_conflict() => return Ok(Action::Done),
            Err(error) => return Err(error),
        }
        if was_ready {
            let text = format!("Node {name} status is now: NodeNotReady");
            let reference = node_reference(name, node.metadata.uid.clone());
            self.recorder.event_for(reference, EventType::Normal, "NodeNotReady", text);
        }
        // The written status wakes this key again, for the taints.
        Ok(Action::Done)
    }

    /// Pods of a lost node are not ready any more.
    async fn mark_pods(&self, node: &str) -> Result<(), Error> {
        for pod in self.pods.by_index(nodes::BY_NODE, node) {
            if !pods::is_ready(&pod) {
                continue;
            }
            let meta = &pod.metadata;
            let patch = json!({
                "metadata": {"uid": meta.uid},
                "status": {"conditions": [
                    {"type": "Ready", "status": "False",
                        "lastTransitionTime": Time(Timestamp::now())},
                ]},
            });
            let (namespace, name) = (
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            );
            settled(
                self.client
                    .patch::<Pod>(namespace, name, "status", &Patch::Strategic(&patch))
                    .await,
            )?;
            let text = "Node is not ready";
            self.recorder.event(&pod, EventType::Warning, "NodeNotReady", text);
        }
        Ok(())
    }
}
