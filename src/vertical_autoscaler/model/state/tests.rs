//! The cases of upstream's `cluster_test.go` and `checkpoint_writer_test.go`, for observations that
//! are kept by autoscaler instead of by labels.

use super::*;

const DAY: i64 = 24 * 3600;
/// 2017-04-18 17:35:05.
const NOW: i64 = 1_492_536_905;

fn selector(text: &str) -> LabelSelector {
    LabelSelector::parse(text).unwrap()
}

/// An autoscaler with a container of a pod.
fn observed() -> Observed {
    let mut observed = Observed::default();
    observed.set_selector(&selector("a=b"));
    observed.observe("pod-1", "c", MemoryRules::default(), NOW);
    observed
}

fn add_sample(observed: &mut Observed, pod: &str, at: i64) {
    let (state, aggregate) = observed.container(pod, "c").unwrap();
    assert!(state.add_cpu(1, at, aggregate));
}

fn collect(observed: Observed, now: i64) -> Observed {
    let mut all = State::default();
    all.autoscalers.insert(Default::default(), observed);
    all.collect(now);
    all.autoscalers.remove(&Default::default()).unwrap()
}

#[test]
fn pods_share_the_distributions_of_a_container() {
    let mut observed = observed();
    observed.observe("pod-2", "c", MemoryRules::default(), NOW);
    observed.observe("pod-2", "d", MemoryRules::default(), NOW);
    add_sample(&mut observed, "pod-1", NOW);
    add_sample(&mut observed, "pod-2", NOW);
    let counts: Vec<_> = observed.aggregates().iter().map(|(c, a)| (&**c, a.samples)).collect();
    assert_eq!(counts, [("c", 2), ("d", 0)]);
    assert!(observed.container("pod-1", "d").is_none());
    assert!(observed.container("pod-3", "c").is_none());
}

#[test]
fn expired_distributions_are_removed_and_begin_again() {
    let mut with_sample = observed();
    add_sample(&mut with_sample, "pod-1", NOW);
    let kept = collect(with_sample, NOW + 7 * DAY);
    assert_eq!(kept.aggregates().len(), 1);
    let mut removed = collect(kept, NOW + 9 * DAY);
    assert!(removed.aggregates().is_empty());
    removed.observe("pod-1", "c", MemoryRules::default(), NOW + 10 * DAY);
    add_sample(&mut removed, "pod-1", NOW + 10 * DAY);
    assert_eq!(removed.aggregates()["c"].samples, 1);
}

#[test]
fn empty_distributions_are_removed_with_their_pods_or_when_expired() {
    let kept = collect(observed(), NOW + 60);
    assert_eq!(kept.aggregates().len(), 1);
    assert!(collect(kept, NOW + 9 * DAY).aggregates().is_empty());
    let mut without_pod = observed();
    without_pod.retain_pods(|_| false);
    assert!(collect(without_pod, NOW).aggregates().is_empty());
}

#[test]
fn collection_is_rate_limited() {
    let mut all = State::default();
    all.collect(NOW + 9 * DAY);
    let mut with_sample = observed();
    add_sample(&mut with_sample, "pod-1", NOW);
    all.autoscalers.insert(Default::default(), with_sample);
    let count = |all: &State| all.autoscalers.values().map(|o| o.aggregates().len()).sum::<usize>();
    all.collect(NOW + 9 * DAY + COLLECT_INTERVAL / 2);
    assert_eq!(count(&all), 1);
    all.collect(NOW + 9 * DAY + COLLECT_INTERVAL);
    assert_eq!(count(&all), 0);
}

#[test]
fn another_selector_drops_the_observations() {
    let mut observed = observed();
    observed.set_selector(&selector("a=b"));
    assert!(observed.has_pod("pod-1"));
    observed.set_selector(&LabelSelector::nothing());
    assert!(!observed.has_pod("pod-1"));
    assert_eq!(observed.aggregates().len(), 1, "kept until the target is found again");
    observed.set_selector(&selector("a=c"));
    assert!(observed.aggregates().is_empty());
}

#[test]
fn what_a_checkpoint_restored_survives_the_first_selector() {
    let mut observed = Observed::default();
    observed.restore("c", Aggregate::new(NOW));
    observed.set_selector(&selector("a=b"));
    assert_eq!(observed.aggregates().len(), 1);
}

#[test]
fn the_number_of_containers_is_bounded() {
    let mut observed = Observed::default();
    for number in 0..=CONTAINERS_MAX {
        observed.observe("pod", &format!("c{number}"), MemoryRules::default(), NOW);
    }
    assert_eq!(observed.aggregates().len(), CONTAINERS_MAX);
    assert!(observed.container("pod", &format!("c{CONTAINERS_MAX}")).is_none());
}

#[test]
fn a_checkpoint_lacks_the_peak_of_the_current_interval() {
    let mut observed = observed();
    let (state, aggregate) = observed.container("pod-1", "c").unwrap();
    assert!(state.add_memory(1 << 30, NOW, aggregate));
    let saved = |now| observed.without_current_peaks("c", now).unwrap().memory.is_empty();
    assert!(saved(NOW));
    assert!(!saved(NOW + DAY), "the interval has ended");
    assert!(observed.without_current_peaks("d", NOW).is_none());
}
