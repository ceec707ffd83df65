//! Nodes: taints that follow their conditions, and the verdict that a silent node is lost.

mod decide;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::k8s::api::coordination::v1::Lease;
use api::k8s::api::core::v1::{Node, ObjectReference, Pod};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use base::clock;
use client::events::EventType;
use client::{Action, Change, Client, Error, EventRecorder, Informer, Patch, Queue};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use self::decide::{Member, Zone};
use crate::context::Context;
use crate::keyed::{Key, Keyed, settled};
use crate::{nodes, pods};

/// `--node-monitor-grace-period`.
const GRACE: Duration = Duration::from_secs(50);
/// `--node-startup-grace-period`, for nodes that never reported a status.
const STARTUP_GRACE: Duration = Duration::from_secs(60);
const LEASES: &str = "kube-node-lease";

/// When a node was last heard of, by our own clock, and what it then said.
#[derive(Debug)]
struct Heard {
    uid: Option<String>,
    at: Instant,
    /// `lastHeartbeatTime` of `Ready`.
    heartbeat: Option<Time>,
    reported: bool,
}

#[derive(Debug, Default)]
struct State {
    heard: HashMap<String, Heard>,
    /// When a node's lease was last renewed.
    renewed: HashMap<String, Instant>,
    /// All nodes that count, as last reconciled; `None` before the first reconcile.
    members: Option<HashMap<String, Member>>,
    /// No zone has a ready node: then nobody is given up, the fault is rather ours.
    all_disrupted: bool,
    /// When the next node of a zone may be given up.
    next: HashMap<String, Instant>,
}

struct Controller {
    client: Client,
    recorder: EventRecorder,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    leases: Informer<Lease>,
    queue: Queue<Key>,
    state: Arc<Mutex<State>>,
}

/// Starts the controller. One worker: verdicts depend on the other nodes of the zone.
pub(crate) fn start(context: &Context) {
    let client = context.client("node-controller");
    let recorder = context.recorder(&client, "node-controller");
    let informers = &context.informers;
    let (nodes, pods, leases) =
        (informers.of::<Node>(), informers.of::<Pod>(), informers.of::<Lease>());
    nodes::index_pods(&pods);
    let state: Arc<Mutex<State>> = Arc::default();
    let mut keyed = Keyed::new();
    keyed.wakes_itself(&nodes);
    keyed.needs(&pods);
    keyed.needs(&leases);
    let heard = Arc::clone(&state);
    // A renewal wakes nobody: the node's timer looks at it when it is due.
    leases.on_change(move |change| renewed(&heard, change));
    let queue = keyed.queue.clone();
    let controller = Arc::new(Controller { client, recorder, nodes, pods, leases, queue, state });
    keyed.run(context, "node-lifecycle-controller", 1, move |(_, name)| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&name).await }
    });
}

fn renewed(state: &Mutex<State>, change: &Change) {
    let object = change.object();
    if &*object.key.namespace != LEASES {
        return;
    }
    let name = object.key.name.to_string();
    match change {
        Change::Deleted(_) => drop(state.lock().renewed.remove(&name)),
        Change::Updated { old, new } if renew_time(old) == renew_time(new) => {}
        Change::Added(_) | Change::Updated { .. } => {
            state.lock().renewed.insert(name, clock::now());
        }
    }
}

fn renew_time(lease: &Object) -> Option<Timestamp> {
    let lease: Lease = lease.decode().ok()?;
    lease.spec?.renew_time.map(|t| t.0)
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
    async fn reconcile(&self, name: &str) -> Result<Action, Error> {
        let Some(node) = self.nodes.get("", name) else {
            self.forget(name);
            self.judge_zones(name, None);
            return Ok(Action::Done);
        };
        self.register(name, &node);
        let silent_for = self.listen(name, &node);
        let grace = if nodes::ready(&node).is_some() { GRACE } else { STARTUP_GRACE };
        if silent_for > grace {
            let lost = decide::lost(&node, Timestamp::now());
            if !lost.is_empty() {
                return self.lose(name, &node, lost).await;
            }
        }
        let zones = self.judge_zones(name, Some(&node));
        let (no_execute, wait) = self.no_execute(&node, zones.as_ref());
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
        let due = (silent_for <= grace)
            .then(|| (grace - silent_for).saturating_add(Duration::from_millis(1)));
        Ok(due.into_iter().chain(wait).min().map_or(Action::Done, Action::After))
    }

    /// Tells of a node seen for the first time.
    fn register(&self, name: &str, node: &Node) {
        let known = {
            let state = self.state.lock();
            state.heard.get(name).is_some_and(|h| h.uid == node.metadata.uid)
        };
        if !known {
            let text = format!("Node {name} event: Registered Node {name} in Controller");
            let reference = node_reference(name, node.metadata.uid.clone());
            self.recorder.event_for(reference, EventType::Normal, "RegisteredNode", text);
        }
    }

    fn forget(&self, name: &str) {
        let known = self.state.lock().heard.remove(name);
        if let Some(heard) = known {
            let text = format!("Node {name} event: Removing Node {name} from Controller");
            let reference = node_reference(name, heard.uid);
            self.recorder.event_for(reference, EventType::Normal, "RemovingNode", text);
        }
    }

    /// Notes signs of life and tells for how long there was none. What was written before our own start is a sign as of our
    /// start, so that a restart gives up nobody.
    fn listen(&self, name: &str, node: &Node) -> Duration {
        let now = clock::now();
        let ready = nodes::condition(node, "Ready");
        let heartbeat = ready.and_then(|c| c.last_heartbeat_time.clone());
        let mut state = self.state.lock();
        let renewed = state.renewed.get(name).copied();
        let fresh = || Heard {
            uid: node.metadata.uid.clone(),
            at: now,
            heartbeat: heartbeat.clone(),
            reported: ready.is_some(),
        };
        let heard = state.heard.entry(name.to_owned()).or_insert_with(fresh);
        let differs = heard.uid != node.metadata.uid || heard.reported != ready.is_some();
        if differs || heard.heartbeat != heartbeat {
            *heard = fresh();
        }
        heard.at = renewed.map_or(heard.at, |at| at.max(heard.at));
        now.saturating_duration_since(heard.at)
    }

    /// Writes that the node is not heard of, unless the server knows better than our cache.
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
                    self.state.lock().renewed.insert(name.to_owned(), clock::now());
                    return Ok(Action::After(GRACE));
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
        settled(self.client.patch::<Node>("", name, "status", &Patch::Strategic(&patch)).await)?;
        if was_ready {
            let text = format!("Node {name} status is now: NodeNotReady");
            let reference = node_reference(name, node.metadata.uid.clone());
            self.recorder.event_for(reference, EventType::Normal, "NodeNotReady", text);
        }
        // The written status wakes this key again, for the taints.
        Ok(Action::Done)
    }

    /// The zones with this node as it is now; `None` when all of them are fully disrupted. When that begins or ends, every
    /// node is looked at again.
    fn judge_zones(
        &self,
        name: &str,
        node: Option<&Node>,
    ) -> Option<BTreeMap<String, (Zone, usize)>> {
        let mut state = self.state.lock();
        let members = state.members.get_or_insert_with(|| {
            let member = |n: Node| Some((n.metadata.name.clone()?, decide::member(&n)?));
            self.nodes.list("").into_iter().filter_map(member).collect()
        });
        match node.and_then(decide::member) {
            Some(member) => drop(members.insert(name.to_owned(), member)),
            None => drop(members.remove(name)),
        }
        let zones = decide::zones(members.values());
        let disrupted = !zones.is_empty() && zones.values().all(|(zone, _)| *zone == Zone::Full);
        if disrupted != state.all_disrupted {
            state.all_disrupted = disrupted;
            let now = clock::now();
            for (name, heard) in &mut state.heard {
                if !disrupted {
                    heard.at = now;
                }
                self.queue.add((String::new(), name.clone()));
            }
        }
        (!disrupted).then_some(zones)
    }

    /// Which `NoExecute` taint of ours the node should have now, and when to look again if its zone's rate forbids more.
    fn no_execute(
        &self,
        node: &Node,
        zones: Option<&BTreeMap<String, (Zone, usize)>>,
    ) -> (Option<&'static str>, Option<Duration>) {
        let Some(wanted) = decide::no_execute(node) else { return (None, None) };
        let Some(zones) = zones else { return (None, None) };
        if decide::executed(node).is_some() {
            return (Some(wanted), None);
        }
        let zone = nodes::zone(node);
        let (kind, size) = zones.get(&zone).copied().unwrap_or((Zone::Normal, 1));
        let rate = decide::rate(kind, size);
        if rate <= 0.0 {
            // The zone's next change of state comes with a change of one of its nodes; look again at the normal pace.
            return (None, Some(GRACE));
        }
        let now = clock::now();
        let mut state = self.state.lock();
        match state.next.get(&zone) {
            Some(next) if *next > now => (None, Some(*next - now)),
            Some(_) | None => {
                state.next.insert(zone, now + Duration::from_secs_f64(1.0 / rate));
                (Some(wanted), None)
            }
        }
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
                    {"type": "Ready", "status": "False", "lastTransitionTime": Time(Timestamp::now())},
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
