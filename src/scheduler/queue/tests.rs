//! Tests of the queue.

use super::*;

const BACKOFF_INITIAL: Duration = Duration::from_secs(1);

fn new_queue() -> Queue {
    Queue::new(BACKOFF_INITIAL, Duration::from_secs(10))
}

fn pod(name: &str, priority: i32) -> Arc<PodInfo> {
    Arc::new(PodInfo {
        namespace: "n".into(),
        name: name.into(),
        uid: name.into(),
        priority,
        ..PodInfo::default()
    })
}

fn key(name: &str) -> Key {
    ("n".into(), name.into())
}

#[tokio::test(start_paused = true)]
async fn priority_goes_before_age() {
    let (mut queue, now) = (new_queue(), Instant::now());
    for (name, priority) in [("a", 0), ("b", 5), ("c", 0)] {
        queue.put(pod(name, priority), "", now);
    }
    let order: Vec<String> =
        std::iter::from_fn(|| queue.pop(now)).map(|p| p.name.clone()).collect();
    assert_eq!(order, ["b", "a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn only_events_of_the_rejecting_plugins_wake_a_pod_and_not_before_its_back_off() {
    let (mut queue, now) = (new_queue(), Instant::now());
    queue.put(pod("a", 0), "", now);
    queue.pop(now).unwrap();
    queue.unschedulable(&key("a"), vec!["NodeResourcesFit"], now);
    queue.on_event(&Event::StorageClass, "", now);
    assert!(queue.pop(now).is_none());
    queue.on_event(&Event::AssignedPodDelete(&PodInfo::default()), "", now);
    assert!(queue.pop(now).is_none());
    assert_eq!(queue.next_wake(), Some(now + BACKOFF_INITIAL));
    assert_eq!(queue.pop(now + BACKOFF_INITIAL).unwrap().name, "a");
}

#[tokio::test(start_paused = true)]
async fn unschedulable_pod_is_tried_again_after_five_minutes() {
    let (mut queue, now) = (new_queue(), Instant::now());
    queue.put(pod("a", 0), "", now);
    queue.pop(now).unwrap();
    queue.unschedulable(&key("a"), vec!["NodeAffinity"], now);
    assert!(queue.pop(now + Duration::from_secs(299)).is_none());
    assert!(queue.pop(now + Duration::from_secs(300)).is_some());
}

#[tokio::test(start_paused = true)]
async fn gated_pod_is_not_tried_until_it_is_let_in() {
    let (mut queue, now) = (new_queue(), Instant::now());
    queue.gate(pod("a", 0), "SchedulingGates", now);
    assert!(queue.pop(now + UNSCHEDULABLE_MAX).is_none());
    assert_eq!(queue.next_wake(), None);
    assert_eq!(queue.gated(|pod| pod.name == "a").len(), 1);
    queue.put(pod("a", 0), "", now);
    assert_eq!(queue.pop(now).unwrap().name, "a");
    assert!(queue.is_in_flight(&pod("a", 0)));
    queue.gate(pod("a", 0), "SchedulingGates", now);
    assert!(!queue.is_in_flight(&pod("a", 0)), "its claim was deleted meanwhile");
}

#[tokio::test(start_paused = true)]
async fn an_event_during_a_detached_cycle_is_not_lost() {
    let (mut queue, now) = (new_queue(), Instant::now());
    for (name, has_event) in [("quiet", false), ("changed", true)] {
        queue.put(pod(name, 0), "", now);
        queue.pop(now).unwrap();
        queue.begin_detached(&key(name));
        if has_event {
            queue.on_event(&Event::Node, "NodeAdd", now);
        }
        queue.unschedulable(&key(name), vec!["DynamicResources"], now);
        queue.end_detached(&key(name), now);
        assert_eq!(queue.backoff.values().any(|k| *k == key(name)), has_event, "{name}");
        assert_ordered(&queue);
    }
    queue.put(pod("bound", 0), "", now);
    queue.pop(now).unwrap();
    queue.begin_detached(&key("bound"));
    queue.on_event(&Event::Node, "NodeAdd", now);
    queue.end_detached(&key("bound"), now);
    assert!(queue.is_in_flight(&pod("bound", 0)), "a node was found");
}

/// The sets that order pods have exactly the pods of their state.
fn assert_ordered(queue: &Queue) {
    let of = |is: fn(&QueueState) -> bool| -> BTreeSet<Key> {
        let entries = queue.entries.iter().filter(|(_, entry)| is(&entry.state));
        entries.map(|(key, _)| key.clone()).collect()
    };
    let ordered = |set: &BTreeMap<(Instant, u64), Key>| set.values().cloned().collect();
    let unschedulable: BTreeSet<Key> = ordered(&queue.unschedulable);
    assert_eq!(unschedulable, of(|s| matches!(s, QueueState::Unschedulable(_))));
    let backoff: BTreeSet<Key> = ordered(&queue.backoff);
    assert_eq!(backoff, of(|s| matches!(s, QueueState::Backoff(_))));
    let active: BTreeSet<Key> = queue.active.iter().map(|(_, key)| key.clone()).collect();
    assert_eq!(active, of(|s| matches!(s, QueueState::Active)));
}

#[tokio::test(start_paused = true)]
async fn every_way_out_of_the_unschedulable_pods_removes_the_pod_from_their_order() {
    let (mut queue, mut now) = (new_queue(), Instant::now());
    let names = ["event", "own", "changed", "removed", "gated", "recreated", "late"];
    for name in names {
        queue.put(pod(name, 0), "", now);
        queue.pop(now).unwrap();
        queue.unschedulable(&key(name), vec![name], now);
        assert_ordered(&queue);
        now += Duration::from_millis(1);
    }
    queue.on_own_event(&key("own"), &Event::Node, "", now);
    queue.changed(&key("changed"), "", now);
    queue.remove(&key("removed"));
    queue.gate(pod("gated", 0), "SchedulingGates", now);
    let other = PodInfo { uid: "other".into(), ..(*pod("recreated", 0)).clone() };
    queue.put(Arc::new(other), "", now);
    assert_ordered(&queue);
    assert_eq!(queue.unschedulable.len(), 2, "those that wait for an event");
    assert_eq!(queue.next_wake(), Some(now - Duration::from_millis(6) + BACKOFF_INITIAL));
    now += UNSCHEDULABLE_MAX;
    let order: Vec<String> =
        std::iter::from_fn(|| queue.pop(now)).map(|p| p.name.clone()).collect();
    assert_eq!(order, ["event", "own", "changed", "late", "recreated"]);
    assert_ordered(&queue);
    assert_eq!(queue.next_wake(), None);
}

/// A look at all pods in each call would make it 200 million looks.
#[tokio::test(start_paused = true)]
async fn the_cost_of_a_pod_does_not_grow_with_the_pods_that_wait() {
    const PODS: usize = 10_000;
    let (mut queue, now) = (new_queue(), Instant::now());
    let mut timed = |waiting: usize| {
        for at in 0..waiting {
            let name = format!("waits-{waiting}-{at}");
            queue.put(pod(&name, 1), "", now);
            queue.pop(now).unwrap();
            queue.unschedulable(&key(&name), vec!["NodeAffinity"], now);
        }
        let mut run = || {
            let began = std::time::Instant::now();
            for at in 0..PODS {
                queue.put(pod(&format!("p{at}"), 0), "", now);
                queue.next_wake();
                let popped = queue.pop(now).unwrap();
                queue.remove(&popped.key());
            }
            began.elapsed()
        };
        // The shortest of several runs: other processes share the processor.
        (0..3).map(|_| run()).min().unwrap()
    };
    let (few, many) = (timed(10), timed(PODS));
    assert!(many < few * 10, "{few:?} with 10 pods that wait, {many:?} with {PODS}");
}
