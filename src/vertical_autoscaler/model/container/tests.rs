//! The cases of upstream's `container_test.go`: instead of a mock, the distribution of memory is
//! compared with one to which the expected peaks were added.

use super::*;

const MB: i64 = 1 << 20;
const DAY: i64 = 24 * 3600;
const HOUR: i64 = 3600;
/// 2017-04-18 17:35:05.
const NOW: i64 = 1_492_536_905;

fn container() -> (ContainerState, Aggregate) {
    (ContainerState::default(), Aggregate::new(NOW))
}

/// Asserts that the peaks are these, each with the end of its interval.
fn assert_peaks(aggregate: &Aggregate, peaks: &[(i64, i64)]) {
    let mut expected = Aggregate::new(NOW).memory;
    peaks.iter().for_each(|(bytes, end)| expected.add(number(*bytes), 1.0, *end));
    let rounded = |histogram: &crate::model::histogram::Histogram| histogram.save();
    assert_eq!(rounded(&aggregate.memory), rounded(&expected));
}

#[test]
fn samples_are_aggregated_and_invalid_ones_discarded() {
    let (mut state, mut aggregate) = container();
    let step = DAY / 2;
    for (position, (millis, bytes)) in
        [(3150, 50_000_000), (6300, 100_000_000), (1580, 20_000_000)].into_iter().enumerate()
    {
        let at = NOW + i64::try_from(position).unwrap() * step;
        assert!(state.add_cpu(millis, at, &mut aggregate));
        assert!(state.add_memory(bytes, at, &mut aggregate));
    }
    let mut cpu = Aggregate::new(NOW);
    for (cores, at) in [(3.15, NOW), (6.3, NOW + step), (1.58, NOW + 2 * step)] {
        cpu.add_cpu(cores, at);
    }
    assert_eq!(aggregate.cpu, cpu.cpu);
    assert_eq!((aggregate.samples, aggregate.first_sample), (3, Some(NOW)));
    assert_eq!(aggregate.last_sample, Some(NOW + 2 * step));
    assert_peaks(&aggregate, &[(100_000_000, NOW + DAY), (20_000_000, NOW + 2 * DAY)]);
    let before = aggregate.clone();
    assert!(!state.add_cpu(1000, NOW + 2 * step, &mut aggregate), "the same time again");
    assert!(!state.add_cpu(-1000, NOW + 4 * step, &mut aggregate), "negative CPU");
    assert!(!state.add_memory(-1000, NOW + 4 * step, &mut aggregate), "negative memory");
    assert!(!state.add_memory(1000, NOW, &mut aggregate), "older than the last one");
    assert_eq!(aggregate, before);
}

#[test]
fn a_kill_for_memory_increases_what_was_requested_or_used() {
    for (used, requested, expected) in [
        (None, 1000 * MB, 1200 * MB),
        (None, MB, 101 * MB),
        (Some(3000 * MB), 1000 * MB, 3600 * MB),
        (None, 0, 100 * MB),
    ] {
        let (mut state, mut aggregate) = container();
        if let Some(used) = used {
            assert!(state.add_memory(used, NOW, &mut aggregate));
        }
        state.record_oom(requested, NOW, &mut aggregate).unwrap();
        assert_peaks(&aggregate, &[(expected, NOW + DAY)]);
    }
}

#[test]
fn repeated_kills_do_not_add_up() {
    let (mut state, mut aggregate) = container();
    for requested in [1000 * MB, 999 * MB, 999 * MB] {
        state.record_oom(requested, NOW, &mut aggregate).unwrap();
        assert_peaks(&aggregate, &[(1200 * MB, NOW + DAY)]);
    }
    state.record_oom(2000 * MB, NOW, &mut aggregate).unwrap();
    assert_peaks(&aggregate, &[(2400 * MB, NOW + DAY)]);
}

#[test]
fn an_old_kill_is_discarded() {
    for (interval, age) in [(DAY, 30 * HOUR), (HOUR, 2 * HOUR)] {
        let (mut state, mut aggregate) = container();
        aggregate.rules.interval = interval;
        assert!(state.add_memory(1000 * MB, NOW, &mut aggregate));
        let error = state.record_oom(1000 * MB, NOW - age, &mut aggregate).unwrap_err();
        assert_eq!(error, TooOld(NOW - age));
        assert_peaks(&aggregate, &[(1000 * MB, NOW + interval)]);
    }
}

#[test]
fn a_kill_after_the_interval_begins_a_new_one() {
    for interval in [DAY, HOUR] {
        let (mut state, mut aggregate) = container();
        aggregate.rules.interval = interval;
        assert!(state.add_memory(2000 * MB, NOW, &mut aggregate));
        state.record_oom(1000 * MB, NOW + 2 * interval, &mut aggregate).unwrap();
        let peaks = [(2000 * MB, NOW + interval), (2400 * MB, NOW + 3 * interval)];
        assert_peaks(&aggregate, &peaks);
    }
}

/// kubernetes/autoscaler#8548.
#[test]
fn a_kill_just_before_a_new_interval_counts() {
    let (mut state, mut aggregate) = container();
    assert!(state.add_memory(100 * MB, NOW, &mut aggregate));
    assert!(state.add_memory(2000 * MB, NOW + DAY, &mut aggregate));
    state.record_oom(1000 * MB, NOW + DAY - 1, &mut aggregate).unwrap();
    assert_peaks(&aggregate, &[(100 * MB, NOW + DAY), (2400 * MB, NOW + 2 * DAY)]);
}

#[test]
fn a_policy_sets_the_interval_of_peaks() {
    let (mut state, mut aggregate) = container();
    aggregate.rules.interval = HOUR;
    assert!(state.add_memory(50_000_000, NOW, &mut aggregate));
    assert!(state.add_memory(100_000_000, NOW + HOUR / 2, &mut aggregate));
    assert_peaks(&aggregate, &[(100_000_000, NOW + HOUR)]);
    assert!(state.add_memory(70_000_000, NOW + 2 * HOUR, &mut aggregate));
    assert_peaks(&aggregate, &[(100_000_000, NOW + HOUR), (70_000_000, NOW + 3 * HOUR)]);
}

#[test]
fn a_peak_is_current_until_its_interval_ends() {
    let (mut state, mut aggregate) = container();
    assert_eq!(state.current_peak(NOW), None);
    assert!(state.add_memory(1 << 30, NOW, &mut aggregate));
    assert_eq!(state.current_peak(NOW), Some((f64::from(1 << 30), NOW + DAY)));
    assert_eq!(state.current_peak(NOW + DAY), None);
}
