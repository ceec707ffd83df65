//! Evicts pods from nodes whose `NoExecute` taints they do not tolerate, at once or after
//! `tolerationSeconds`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{Node, ObjectReference, Pod, Taint, Toleration};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use base::clock;
use client::events::EventType;
use client::informer::decode;
use client::{Action, Change, Client, DeleteOptions, Error, EventRecorder, Informer, Patch};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::framework::{nodes, pods};
use crate::nodes::metrics;

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Upstream's `--default-unreachable-toleration-seconds`.
const DEFAULT_SECONDS: i64 = 300;
const REASON: &str = "DeletionByTaintManager";
const MESSAGE: &str = "Taint manager: deleting due to NoExecute taint";
const EVENT: &str = "TaintManagerEviction";

struct Controller {
    client: Client,
    recorder: EventRecorder,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    /// With `--fast-node-loss`: seconds that replace the default ones on an unreachable node.
    fast: Option<i64>,
    /// Pods that tolerate their node's taints for a while: uid and since when.
    waiting: Mutex<HashMap<Key, (Option<String>, Instant)>>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("node-controller");
    let recorder = context.recorder(&client, "taint-eviction-controller");
    let (nodes, pods) = (context.informers.of::<Node>(), context.informers.of::<Pod>());
    nodes::index_pods(&pods);
    let mut keyed = Keyed::new();
    let on_node = pods.clone();
    keyed.watches(&nodes, move |change| {
        if !executes_differ(change) {
            return Vec::new();
        }
        let found = on_node.cache().by_index(nodes::BY_NODE, &change.object().key.name);
        found.iter().map(|o| (o.key.namespace.to_string(), o.key.name.to_string())).collect()
    });
    let known = nodes.clone();
    keyed.watches(&pods, move |change| {
        let object = change.object();
        // Only pods on tainted nodes, and those that go, can matter.
        let tainted = nodes::node_of(object)
            .and_then(|node| known.get("", &node))
            .is_some_and(|n| executes(&n).next().is_some());
        let key = || (object.key.namespace.to_string(), object.key.name.to_string());
        (tainted || matches!(change, Change::Deleted(_))).then(key).into_iter().collect()
    });
    let fast = context.config.fast_loss.as_ref().map(|f| f.toleration);
    let controller =
        Arc::new(Controller { client, recorder, nodes, pods, fast, waiting: Mutex::default() });
    keyed.run(&context.tasks, "taint-eviction-controller", 8, move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    });
}

fn executes(node: &Node) -> impl Iterator<Item = &Taint> {
    nodes::taints(node).iter().filter(|t| t.effect == "NoExecute")
}

fn executes_differ(change: &Change) -> bool {
    let of = |object| decode::<Node>(object).map(|n| executes(&n).cloned().collect::<Vec<_>>());
    match change {
        Change::Updated { old, new } => of(old) != of(new),
        Change::Added(_) | Change::Deleted(_) => true,
    }
}

/// What the taints of its node mean for a pod.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// There is no such taint, or all are tolerated without end.
    Stays,
    /// Tolerated for this long.
    For(Duration),
    /// Not tolerated.
    Goes,
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    let (mine, theirs) = (
        toleration.value.as_deref().unwrap_or_default(),
        taint.value.as_deref().unwrap_or_default(),
    );
    let compared = |holds: fn(i64, i64) -> bool| match (theirs.parse(), mine.parse()) {
        (Ok(theirs), Ok(mine)) => holds(theirs, mine),
        _ => false,
    };
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => mine == theirs,
        Some("Lt") => compared(|taint, pod| taint < pod),
        Some("Gt") => compared(|taint, pod| taint > pod),
        Some(_) => false,
    }
}

/// Whether a toleration is, to the letter, what admission gives to pods that say nothing
/// (`DefaultTolerationSeconds`).
fn is_default(toleration: &Toleration) -> bool {
    toleration.key.as_deref() == Some(UNREACHABLE)
        && toleration.operator.as_deref() == Some("Exists")
        && toleration.effect.as_deref() == Some("NoExecute")
        && toleration.toleration_seconds == Some(DEFAULT_SECONDS)
}

/// `fast` replaces the default seconds on an unreachable node.
fn verdict<'a>(
    taints: impl Iterator<Item = &'a Taint>,
    tolerations: &[Toleration],
    fast: Option<i64>,
) -> Verdict {
    let mut least: Option<i64> = None;
    for taint in taints {
        let Some(used) = tolerations.iter().find(|t| tolerates(t, taint)) else {
            return Verdict::Goes;
        };
        let seconds = match fast {
            Some(fast) if is_default(used) => Some(fast.min(DEFAULT_SECONDS)),
            _ => used.toleration_seconds,
        };
        if let Some(seconds) = seconds {
            least = Some(least.map_or(seconds, |l| l.min(seconds)));
        }
    }
    match least.map(u64::try_from) {
        None => Verdict::Stays,
        Some(Ok(0) | Err(_)) => Verdict::Goes,
        Some(Ok(seconds)) => Verdict::For(Duration::from_secs(seconds)),
    }
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Action, Error> {
        let (namespace, name) = (&key.0, &key.1);
        let Some(pod) = self.pods.get(namespace, name) else {
            self.cancel(&key);
            return Ok(Action::Done);
        };
        let spec = pod.spec.as_ref();
        let node = spec.and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty());
        let Some(node) = node.and_then(|n| self.nodes.get("", n)) else { return Ok(Action::Done) };
        if pod.metadata.deletion_timestamp.is_some() {
            self.waiting.lock().remove(&key);
            return Ok(Action::Done);
        }
        let tolerations = spec.and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
        match verdict(executes(&node), tolerations, self.fast) {
            Verdict::Stays => {
                self.cancel(&key);
                Ok(Action::Done)
            }
            Verdict::Goes => {
                self.cancel(&key);
                self.evict(&pod, &key, clock::now()).await
            }
            Verdict::For(time) => {
                let now = clock::now();
                let since = {
                    let mut waiting = self.waiting.lock();
                    let entry = waiting
                        .entry(key.clone())
                        .or_insert_with(|| (pod.metadata.uid.clone(), now));
                    if entry.0 != pod.metadata.uid {
                        *entry = (pod.metadata.uid.clone(), now);
                    }
                    entry.1
                };
                let waited = now.saturating_duration_since(since);
                if waited < time {
                    return Ok(Action::After(time - waited));
                }
                let done = self.evict(&pod, &key, since + time).await;
                if done.is_ok() {
                    self.waiting.lock().remove(&key);
                }
                done
            }
        }
    }

    fn tell(&self, (namespace, name): &Key, text: &str) {
        let reference = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            ..ObjectReference::default()
        };
        let text = format!("{text} Pod {namespace}/{name}");
        self.recorder.event_for(reference, EventType::Normal, EVENT, text);
    }

    fn cancel(&self, key: &Key) {
        let waited = self.waiting.lock().remove(key);
        if waited.is_some() {
            self.tell(key, "Cancelling deletion of");
        }
    }

    /// Deletes the pod, whose eviction was due at `due`.
    async fn evict(&self, pod: &Pod, key: &Key, due: Instant) -> Result<Action, Error> {
        self.tell(key, "Marking for deletion");
        let (namespace, name) = (&key.0, &key.1);
        let marked = pods::condition(pod, "DisruptionTarget")
            .is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some(REASON));
        if !marked {
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": REASON, "message": MESSAGE,
                "lastTransitionTime": Time(Timestamp::now()),
                "observedGeneration": pod.metadata.generation,
            }]}});
            settled(
                self.client
                    .patch::<Pod>(namespace, name, "status", &Patch::Strategic(&patch))
                    .await,
            )?;
        }
        let options = DeleteOptions { uid: pod.metadata.uid.clone(), ..DeleteOptions::default() };
        settled(self.client.delete::<Pod>(namespace, name, &options).await)?;
        metrics::pod_deleted(clock::now().saturating_duration_since(due));
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(taints: serde_json::Value, tolerations: serde_json::Value) -> Verdict {
        let taints: Vec<Taint> = serde_json::from_value(taints).unwrap();
        let tolerations: Vec<Toleration> = serde_json::from_value(tolerations).unwrap();
        verdict(taints.iter(), &tolerations, None)
    }

    #[test]
    fn fast_loss_shortens_the_default_toleration_of_unreachable_nodes_alone() {
        let taint =
            |key: &str| Taint { key: key.into(), effect: "NoExecute".into(), ..Taint::default() };
        let run = |key: &str, tolerations: serde_json::Value| {
            let tolerations: Vec<Toleration> = serde_json::from_value(tolerations).unwrap();
            verdict([taint(key)].iter(), &tolerations, Some(1))
        };
        let (unreachable, not_ready) = (UNREACHABLE, "node.kubernetes.io/not-ready");
        let of = |key: &str, seconds: i64| {
            json!([{"key": key, "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": seconds}])
        };
        let seconds = |s| Verdict::For(Duration::from_secs(s));
        assert_eq!(run(unreachable, of(unreachable, 300)), seconds(1));
        assert_eq!(run(unreachable, of(unreachable, 301)), seconds(301));
        assert_eq!(run(not_ready, of(not_ready, 300)), seconds(300));
        let by_hand = json!([{"key": unreachable, "operator": "Exists", "tolerationSeconds": 300}]);
        assert_eq!(run(unreachable, by_hand), seconds(300));
    }

    #[test]
    fn the_shortest_toleration_counts() {
        let taints =
            json!([{"key": "a", "effect": "NoExecute"}, {"key": "b", "effect": "NoExecute"}]);
        let both = json!([{"key": "a", "operator": "Exists", "tolerationSeconds": 300},
            {"key": "b", "operator": "Exists", "tolerationSeconds": 5}]);
        assert_eq!(judge(taints.clone(), both), Verdict::For(Duration::from_secs(5)));
        assert_eq!(
            judge(taints.clone(), json!([{"key": "a", "operator": "Exists"}])),
            Verdict::Goes
        );
        assert_eq!(judge(taints, json!([{"operator": "Exists"}])), Verdict::Stays);
        assert_eq!(judge(json!([]), json!([])), Verdict::Stays);
    }

    #[test]
    fn values_and_seconds_of_zero_or_less() {
        let taint = json!([{"key": "a", "value": "v", "effect": "NoExecute"}]);
        assert_eq!(judge(taint.clone(), json!([{"key": "a", "value": "w"}])), Verdict::Goes);
        let at_once = json!([{"key": "a", "value": "v", "tolerationSeconds": -1}]);
        assert_eq!(judge(taint, at_once), Verdict::Goes);
    }
}
