//! The cases of upstream's `estimator_test.go` and `recommender_test.go`.

use super::*;
use crate::model::container::ContainerState;

const DAY: i64 = 24 * 3600;
/// 2017-04-18 17:35:05.
const NOW: i64 = 1_492_536_905;

/// An aggregate with samples of one core and 1 GB.
fn filled(samples: i64, interval: i64) -> Aggregate {
    let mut aggregate = Aggregate::new(NOW);
    let mut state = ContainerState::default();
    for number in 0..samples {
        let at = NOW + number * interval;
        assert!(state.add_cpu(1000, at, &mut aggregate));
        assert!(state.add_memory(1_000_000_000, at, &mut aggregate));
    }
    aggregate
}

fn policy(controlled: &[&str]) -> ContainerPolicy {
    let controlled = controlled.iter().map(|name| (*name).to_owned()).collect();
    ContainerPolicy { controlled_resources: Some(controlled), ..ContainerPolicy::default() }
}

/// CPU and memory of an amount.
fn texts(list: &ResourceList) -> (Option<&str>, Option<&str>) {
    let text = |name: &str| list.get(name).map(|quantity| quantity.0.as_str());
    (text("cpu"), text("memory"))
}

#[test]
fn confidence_is_the_shorter_of_time_and_samples() {
    // 9 samples in 16 minutes: 9 / 1440.
    assert_eq!(confidence(&filled(9, 120)), 0.00625);
    // 9 samples in 8 seconds.
    assert_eq!(confidence(&filled(9, 1)), 8.0 / 86_400.0);
    assert_eq!(confidence(&Aggregate::new(NOW)), 0.0);
}

#[test]
fn confidence_scales_an_amount() {
    let estimator = |multiplier, exponent| Estimator { percentile: 0.9, multiplier, exponent };
    // 3.14 * (1 + 0.1 / 0.00625)^2.
    let scaled = estimator(0.1, 2.0);
    assert_eq!(scaled.with_confidence(3140, 0.00625), 907_460);
    assert_eq!(scaled.with_confidence(3_140_000_000, 0.00625), 907_460_000_000);
    assert_eq!(scaled.with_confidence(3140, 0.5), 4521);
    assert_eq!(scaled.with_confidence(3_140_000_000, 0.5), 4_521_600_000);
    // Without history: everything, or nothing.
    assert_eq!(scaled.with_confidence(3140, 0.0), 100_000_000_000_000);
    assert_eq!(estimator(1.0, 1.0).with_confidence(3140, 0.0), 100_000_000_000_000);
    assert_eq!(estimator(1.0, -1.0).with_confidence(3140, 0.0), 0);
    assert_eq!(with_margin(3140), 3611);
}

#[test]
fn a_percentile_is_near_the_samples() {
    let mut aggregate = Aggregate::new(NOW);
    for (cores, bytes) in [(1.0, 1e9), (2.0, 2e9), (3.0, 3e9)] {
        aggregate.add_cpu(cores, NOW);
        aggregate.memory.add(bytes, 1.0, NOW);
    }
    let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.05;
    assert!(near(aggregate.cpu.percentile(0.2), 1.0));
    assert!(near(aggregate.memory.percentile(0.5), 2e9));
}

#[test]
fn the_least_amounts_are_divided_between_containers() {
    let empty = Aggregate::new(NOW);
    for (count, cpu, memory) in [(1, "25m", "250Mi"), (2, "12m", "125Mi")] {
        let containers = vec![("c", &empty, None); count];
        for container in recommend(&containers).container_recommendations {
            let all = [
                container.target,
                container.uncapped_target,
                container.lower_bound,
                container.upper_bound,
            ];
            for amounts in all {
                assert_eq!(texts(&amounts), (Some(cpu), Some(memory)), "{count}");
            }
        }
    }
    assert_eq!(recommend(&[]), Recommendation::default());
}

#[test]
fn only_controlled_resources_are_recommended() {
    let empty = Aggregate::new(NOW);
    for (controlled, has_cpu, has_memory) in [
        (&["memory"][..], false, true),
        (&["memory", "cpu"], true, true),
        (&["example.com/gpu"], false, false),
        (&[], false, false),
    ] {
        let policy = policy(controlled);
        let all = recommend(&[("c", &empty, Some(&policy))]).container_recommendations;
        for amounts in [&all[0].target, &all[0].lower_bound, &all[0].upper_bound] {
            let (cpu, memory) = texts(amounts);
            assert_eq!((cpu.is_some(), memory.is_some()), (has_cpu, has_memory), "{controlled:?}");
        }
    }
}

#[test]
fn a_recommendation_narrows_with_the_history() {
    let of = |aggregate: &Aggregate| {
        let mut all = recommend(&[("c", aggregate, None)]).container_recommendations;
        let one = all.remove(0);
        [one.lower_bound, one.target, one.upper_bound].map(|amounts| {
            let (cpu, memory) = texts(&amounts);
            (cpu.unwrap().to_owned(), memory.unwrap().to_owned())
        })
    };
    let pair = |cpu: &str, memory: &str| (cpu.to_owned(), memory.to_owned());
    // The bucket of one core ends at 0.01 * (1.05^37 - 1) / 0.05 = 1.016281, that of 1 GB at
    // 1016281388 bytes; 15 % more are the target. One sample per minute for an hour is 1 / 24 of
    // full confidence, limited by the time between the first and the last: 59 minutes.
    let target = pair("1168m", "1168723596");
    let hour = of(&filled(60, 60));
    assert_eq!(hour[1], target);
    // 1168 * (1 + 0.001 / 0.0409722)^-2 and 1168 * (1 + 1 / 0.0409722).
    assert_eq!((hour[0].0.as_str(), hour[2].0.as_str()), ("1113m", "29675m"));
    let week = of(&filled(8 * 24 * 60, 60));
    assert_eq!(week[1], target);
    assert_eq!((week[0].0.as_str(), week[2].0.as_str()), ("1167m", "1314m"));
    // The bounds depend on the confidence alone, not on the age of the history.
    assert_eq!(of(&filled(1, DAY))[2].0, "100G");
}
