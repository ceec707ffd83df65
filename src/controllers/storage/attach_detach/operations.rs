//! The operations of one volume: which ones run, and when a failed one may run again
//! (`nestedpendingoperations`, `goroutinemap/exponentialbackoff`).

use std::collections::BTreeMap;
use std::time::Duration;

use base::Backoff;
use tokio::time::Instant;

use super::names::NodeName;

/// How long an operation waits for external-attacher (`csiTimeout`).
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// Delays of failed operations: 500 ms doubling to 2 m 2 s.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// Attaches the volume to a node.
    Attach,
    /// Detaches it from a node.
    Detach,
}

impl OperationKind {
    /// The name in logs and metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Attach => "volume_attach",
            Self::Detach => "volume_detach",
        }
    }
}

/// An operation that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunningOperation {
    /// What it does.
    pub(super) kind: OperationKind,
    /// The node.
    pub(super) node: NodeName,
    /// Since when.
    pub(super) since: Instant,
}

impl RunningOperation {
    /// When it has taken too long.
    pub(super) fn deadline(&self) -> Instant {
        self.since + TIMEOUT
    }
}

#[derive(Debug)]
struct FailedOperation {
    kind: OperationKind,
    retry_at: Instant,
    backoff: Backoff,
    error: String,
}

#[derive(Debug, Default)]
struct Slot {
    running: Option<RunningOperation>,
    failed: Option<FailedOperation>,
}

/// The operations of one volume. A volume that may be attached to one node at a time has one slot
/// for all nodes, any other volume one per node.
#[derive(Debug, Default)]
pub(super) struct Operations {
    slots: BTreeMap<Option<NodeName>, Slot>,
    /// The node of the last attach operation, so that nodes take turns.
    last_attach: Option<NodeName>,
}

fn slot_key(is_exclusive: bool, node: &NodeName) -> Option<NodeName> {
    (!is_exclusive).then(|| NodeName::clone(node))
}

impl Operations {
    /// An operation runs that excludes another one for `node`.
    pub(super) fn is_running(&self, is_exclusive: bool, node: &NodeName) -> bool {
        self.running().any(|o| {
            // An operation of the volume's only slot excludes all, too.
            is_exclusive
                || self.slots.get(&None).is_some_and(|s| s.running.is_some())
                || o.node == *node
        })
    }

    /// The operations that run.
    pub(super) fn running(&self) -> impl Iterator<Item = &RunningOperation> {
        self.slots.values().filter_map(|slot| slot.running.as_ref())
    }

    /// Whether an operation may start: none that excludes it runs, and the last failure of its kind
    /// is long enough ago.
    pub(super) fn may_start(
        &self,
        kind: OperationKind,
        is_exclusive: bool,
        node: &NodeName,
        now: Instant,
    ) -> bool {
        let failed = self.slots.get(&slot_key(is_exclusive, node)).and_then(|s| s.failed.as_ref());
        !self.is_running(is_exclusive, node)
            && failed.is_none_or(|failed| failed.kind != kind || failed.retry_at <= now)
    }

    /// Records the start. An operation of another kind than the one that failed starts with the
    /// shortest delay.
    pub(super) fn start(
        &mut self,
        kind: OperationKind,
        is_exclusive: bool,
        node: &NodeName,
        now: Instant,
    ) {
        if kind == OperationKind::Attach {
            self.last_attach = Some(NodeName::clone(node));
        }
        let slot = self.slots.entry(slot_key(is_exclusive, node)).or_default();
        slot.failed = slot.failed.take().filter(|failed| failed.kind == kind);
        slot.running = Some(RunningOperation { kind, node: NodeName::clone(node), since: now });
    }

    /// Ends the operation on `node` successfully; returns it.
    pub(super) fn succeed(&mut self, node: &NodeName) -> Option<RunningOperation> {
        let key = self.key_of(node)?;
        self.slots.remove(&key)?.running
    }

    /// Ends the operation on `node` with an error; returns it, and whether the error differs from
    /// the one before.
    pub(super) fn fail(
        &mut self,
        node: &NodeName,
        error: String,
        now: Instant,
    ) -> Option<(RunningOperation, bool)> {
        let slot = self.slots.get_mut(&self.key_of(node)?)?;
        let running = slot.running.take()?;
        let failed = slot.failed.get_or_insert_with(|| FailedOperation {
            kind: running.kind,
            retry_at: now,
            backoff: Backoff::new(BACKOFF.0, BACKOFF.1),
            error: String::new(),
        });
        failed.retry_at = now + failed.backoff.next_delay();
        let is_new = failed.error != error;
        failed.error = error;
        Some((running, is_new))
    }

    /// Forgets a failed attach operation: the volume is attached to `node` nevertheless.
    pub(super) fn forget_failed_attach(&mut self, is_exclusive: bool, node: &NodeName) {
        let key = slot_key(is_exclusive, node);
        let is_it = |slot: &Slot| {
            let failed = slot.failed.as_ref();
            slot.running.is_none() && failed.is_some_and(|f| f.kind == OperationKind::Attach)
        };
        if self.slots.get(&key).is_some_and(is_it) {
            self.slots.remove(&key);
        }
    }

    fn key_of(&self, node: &NodeName) -> Option<Option<NodeName>> {
        let is_it = |slot: &Slot| slot.running.as_ref().is_some_and(|o| o.node == *node);
        self.slots.iter().find(|(_, slot)| is_it(slot)).map(|(key, _)| key.clone())
    }

    /// The next time at which an operation ends or may start again, after `now`.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let deadlines = self.running().map(RunningOperation::deadline);
        let idle = self.slots.values().filter(|slot| slot.running.is_none());
        let retries = idle.filter_map(|slot| slot.failed.as_ref()).map(|failed| failed.retry_at);
        deadlines.chain(retries.filter(|at| *at > now)).min()
    }

    /// No operation runs.
    pub(super) fn is_idle(&self) -> bool {
        self.running().next().is_none()
    }

    /// Nodes in the order in which they are served: those after the last one first.
    pub(super) fn in_turn<'a>(&self, nodes: impl Iterator<Item = &'a NodeName>) -> Vec<NodeName> {
        let (mut next, served): (Vec<NodeName>, Vec<NodeName>) =
            nodes.cloned().partition(|node| Some(node) > self.last_attach.as_ref());
        next.extend(served);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OperationKind::{Attach, Detach};

    fn node(name: &str) -> NodeName {
        name.into()
    }

    /// Starts and reports whether it was allowed.
    fn start(operations: &mut Operations, kind: OperationKind, exclusive: bool, on: &str) -> bool {
        let now = base::clock::now();
        let may = operations.may_start(kind, exclusive, &node(on), now);
        if may {
            operations.start(kind, exclusive, &node(on), now);
        }
        may
    }

    #[tokio::test(start_paused = true)]
    async fn operations_exclude_each_other_per_volume_or_per_node() {
        for kind in [Attach, Detach] {
            let mut exclusive = Operations::default();
            assert!(start(&mut exclusive, kind, true, "a"));
            assert!(!start(&mut exclusive, kind, true, "a"), "the same node");
            assert!(!start(&mut exclusive, kind, true, "b"), "another node");
            // A volume whose PersistentVolume is gone counts as shared.
            assert!(!start(&mut exclusive, Detach, false, "b"));
            let mut shared = Operations::default();
            assert!(start(&mut shared, kind, false, "a"));
            assert!(!start(&mut shared, kind, false, "a"), "the same node");
            assert!(start(&mut shared, kind, false, "b"), "another node");
            assert!(shared.succeed(&node("a")).is_some());
            assert_eq!(shared.running().count(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_delay_the_same_kind_from_half_a_second_to_two_minutes() {
        let (mut operations, a) = (Operations::default(), node("a"));
        let mut want = Duration::from_millis(500);
        for attempt in 0..12 {
            assert!(start(&mut operations, Attach, true, "a"), "attempt {attempt}");
            let now = base::clock::now();
            let (running, is_new) = operations.fail(&a, "no".into(), now).unwrap();
            assert_eq!((running.kind, is_new), (Attach, attempt == 0));
            let delay = operations.next_due(now).unwrap() - now;
            assert!(delay >= want && delay <= want.mul_f64(1.1), "{delay:?} for {want:?}");
            assert!(!start(&mut operations, Attach, true, "b"), "nodes share the delay");
            tokio::time::advance(delay).await;
            want = (want * 2).min(Duration::from_secs(122));
        }
        assert!(start(&mut operations, Attach, true, "a"));
        operations.fail(&a, "no".into(), base::clock::now());
        // Another kind does not wait, and starts with the shortest delay.
        assert!(start(&mut operations, Detach, true, "a"));
        let now = base::clock::now();
        operations.fail(&a, "busy".into(), now);
        assert!(operations.next_due(now).unwrap() - now < Duration::from_millis(600));
        operations.forget_failed_attach(true, &a);
        assert!(operations.next_due(now).is_some(), "it was no attach operation");
        operations.start(Attach, true, &a, now);
        operations.fail(&a, "no".into(), now);
        operations.forget_failed_attach(true, &a);
        assert_eq!(operations.next_due(now), None);
        assert!(operations.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_take_turns() {
        let mut operations = Operations::default();
        let nodes = [node("a"), node("b"), node("c")];
        assert_eq!(operations.in_turn(nodes.iter()), nodes);
        operations.start(Attach, true, &node("b"), base::clock::now());
        assert_eq!(operations.in_turn(nodes.iter()), [node("c"), node("a"), node("b")]);
    }
}
