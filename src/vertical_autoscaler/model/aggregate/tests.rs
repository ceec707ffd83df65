//! The cases of upstream's `aggregate_container_state_test.go`.

use super::*;
use serde_json::json;

const DAY: i64 = 24 * 3600;
/// 2017-04-18 17:35:05.
const NOW: i64 = 1_492_536_905;

#[test]
fn a_checkpoint_contains_both_distributions() {
    let mut aggregate = Aggregate::new(NOW);
    (aggregate.first_sample, aggregate.last_sample) = (Some(NOW), Some(NOW + 31 * DAY));
    aggregate.samples = 10;
    aggregate.cpu.add(1.0, 33.0, NOW + 31 * DAY);
    aggregate.memory.add(1.0, 55.0, NOW);
    aggregate.memory.add(1e7, 55.0, NOW);
    let saved = aggregate.save(NOW + 40 * DAY);
    let value = serde_json::to_value(&saved).unwrap();
    assert_eq!(value["lastUpdateTime"], "2017-05-28T17:35:05Z");
    assert_eq!(value["firstSampleStart"], "2017-04-18T17:35:05Z");
    assert_eq!(value["lastSampleStart"], "2017-05-19T17:35:05Z");
    assert_eq!((&value["totalSamplesCount"], &value["version"]), (&json!(10), &json!("v3")));
    assert_eq!(value["cpuHistogram"]["bucketWeights"], json!({"36": 10_000}));
    assert_eq!(value["memoryHistogram"]["bucketWeights"], json!({"0": 10_000, "1": 10_000}));
    let read: CheckpointStatus = serde_json::from_value(value).unwrap();
    let loaded = Aggregate::load(&read, NOW).unwrap();
    assert_eq!(loaded.cpu.percentile(0.9), aggregate.cpu.percentile(0.9));
    assert_eq!(loaded.memory.percentile(0.9), aggregate.memory.percentile(0.9));
}

#[test]
fn a_checkpoint_as_upstream_writes_it_is_loaded() {
    let checkpoint = json!({"version": "v3", "lastUpdateTime": null,
        "firstSampleStart": "2018-01-01T02:03:04Z", "lastSampleStart": "2018-02-01T02:03:04Z",
        "totalSamplesCount": 20,
        "memoryHistogram": {"referenceTimestamp": null, "bucketWeights": {"0": 10}, "totalWeight": 33},
        "cpuHistogram": {"bucketWeights": {"0": 10}, "totalWeight": 44}});
    let checkpoint: CheckpointStatus = serde_json::from_value(checkpoint).unwrap();
    let loaded = Aggregate::load(&checkpoint, NOW).unwrap();
    let times = (loaded.first_sample, loaded.last_sample, loaded.samples);
    assert_eq!(times, (Some(1_514_772_184), Some(1_517_450_584), 20));
    assert!(!loaded.cpu.is_empty() && !loaded.memory.is_empty());
}

#[test]
fn a_checkpoint_of_another_version_is_refused() {
    let other = CheckpointStatus { version: "foo".to_owned(), ..CheckpointStatus::default() };
    let error = Aggregate::load(&other, NOW).unwrap_err();
    assert_eq!(error.to_string(), "unsupported checkpoint version foo");
}

#[test]
fn an_aggregate_expires_after_its_window() {
    let mut filled = Aggregate::new(0);
    filled.add_cpu(1.0, NOW);
    let empty = Aggregate::new(NOW);
    for mut aggregate in [filled, empty] {
        assert!(!aggregate.is_expired(NOW + 7 * DAY));
        assert!(aggregate.is_expired(NOW + 8 * DAY));
        aggregate.rules.intervals = 4;
        assert!(!aggregate.is_expired(NOW + 4 * DAY - 3600));
        assert!(aggregate.is_expired(NOW + 4 * DAY));
    }
}

#[test]
fn a_policy_overrides_the_rules_of_memory() {
    let default = MemoryRules::default();
    assert_eq!((default.bump_ratio, default.min_bump), (1.2, 104_857_600.0));
    let of = |policy: serde_json::Value| {
        MemoryRules::of(Some(&serde_json::from_value::<ContainerPolicy>(policy).unwrap()))
    };
    assert_eq!(MemoryRules::of(None), default);
    assert_eq!(of(json!({})), default);
    let set = of(json!({"oomBumpUpRatio": "1.5", "oomMinBumpUp": "50Mi",
        "memoryAggregationIntervalSeconds": 3600, "memoryAggregationIntervalCount": 4}));
    let expected =
        MemoryRules { bump_ratio: 1.5, min_bump: 52_428_800.0, interval: 3600, intervals: 4 };
    assert_eq!((set, set.window()), (expected, 4 * 3600));
    let zero = of(json!({"memoryAggregationIntervalSeconds": 0, "oomBumpUpRatio": "many"}));
    assert_eq!((zero.interval, zero.bump_ratio), (1, 1.2), "invalid amounts have no effect");
}
