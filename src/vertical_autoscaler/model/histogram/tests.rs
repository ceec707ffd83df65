//! The cases of upstream's `histogram_test.go`, `histogram_options_test.go` and
//! `decaying_histogram_test.go`.

use super::*;

const EPSILON: f64 = 1e-15;
const HOUR: i64 = 3600;
/// An arbitrary time.
const START: i64 = 1_234_567_890;
/// Values in the buckets 1 to 4, and the starts of the buckets 0 to 5 of [`doubling`].
const VALUES: [f64; 4] = [2.0, 5.0, 10.0, 20.0];
const STARTS: [f64; 6] = [0.0, 1.0, 3.0, 7.0, 15.0, 31.0];

/// Buckets that double: they begin at 0, 1, 3, 7, 15, 31.
fn doubling() -> Buckets {
    Buckets::new(31.0, 1.0, 2.0, EPSILON)
}

fn empty() -> Histogram {
    Histogram::new(doubling(), HOUR)
}

/// Samples at one time, each with the weight of its position.
fn weighted(at: impl Fn(i64) -> i64) -> Histogram {
    let mut histogram = empty();
    for (position, weight) in [1.0, 2.0, 3.0, 4.0].into_iter().enumerate() {
        histogram.add(VALUES[position], weight, at(i64::try_from(position).unwrap()));
    }
    histogram
}

#[test]
fn buckets_grow_exponentially() {
    let buckets = Buckets::new(500.0, 40.0, 1.5, 0.001);
    assert_eq!(buckets.count, 6);
    let starts: Vec<f64> = (0..6).map(|bucket| buckets.start(bucket)).collect();
    assert_eq!(starts, [0.0, 40.0, 100.0, 190.0, 325.0, 527.5]);
    for (value, bucket) in [(-1.0, 0), (39.99, 0), (40.0, 1), (100.0, 2), (900.0, 5)] {
        assert_eq!(buckets.find(value), bucket, "{value}");
    }
    assert_eq!((Buckets::cpu(1e-4).count, Buckets::memory(1e-4).count), (176, 176));
}

#[test]
fn percentiles_of_an_empty_histogram_are_zero() {
    for part in [-0.5, 0.0, 0.5, 1.0, 1.5] {
        assert_eq!(empty().percentile(part), 0.0);
    }
}

#[test]
fn a_percentile_is_the_end_of_its_bucket() {
    // All samples at one time: weights 1, 2, 3, 4 of 10.
    let histogram = weighted(|_| START);
    for (part, bucket) in [
        (-0.1, 1),
        (0.0, 1),
        (0.1, 1),
        (0.2, 2),
        (0.3, 2),
        (0.4, 3),
        (0.5, 3),
        (0.6, 3),
        (0.7, 4),
        (0.8, 4),
        (0.9, 4),
        (1.0, 4),
        (1.1, 4),
    ] {
        assert_eq!(histogram.percentile(part), STARTS[bucket + 1], "{part}");
    }
}

#[test]
fn the_last_bucket_has_its_start_as_percentile() {
    let mut histogram = empty();
    histogram.add(1000.0, 1.0, START);
    assert_eq!(histogram.percentile(1.0), 31.0);
    histogram.add(0.0, 1.0, START);
    assert_eq!(histogram.percentile(0.0), 1.0);
}

#[test]
fn a_histogram_with_less_than_epsilon_is_empty() {
    let mut histogram = Histogram::new(Buckets::new(31.0, 1.0, 2.0, 1e-3), HOUR);
    // The reference is a multiple of the half life: the factor of this time is one.
    let at = 400_000 * HOUR;
    assert!(histogram.is_empty());
    histogram.add(2.0, 2.5e-3, at);
    assert!(!histogram.is_empty());
    histogram.subtract(2.0, 1e-3, at);
    assert!(!histogram.is_empty());
    histogram.subtract(2.0, 1e-3, at);
    assert!(histogram.is_empty());
}

#[test]
fn light_samples_do_not_empty_a_histogram() {
    let mut histogram = Histogram::new(Buckets::new(31.0, 1.0, 2.0, 1e-3), HOUR);
    histogram.add(10.0, 3e-3, START);
    histogram.add(0.1, 3e-4, START);
    histogram.add(999.0, 3e-4, START);
    assert!(!histogram.is_empty());
}

#[test]
fn a_sample_loses_its_weight_with_time() {
    let mut histogram = empty();
    histogram.add(VALUES[1], 1000.0, START);
    // 2^20 / 1000 times the weight of the first sample.
    histogram.add(VALUES[0], 1.0, START + 20 * HOUR);
    assert_eq!(histogram.percentile(0.999), STARTS[2]);
    assert_eq!(histogram.percentile(1.0), STARTS[3]);
}

#[test]
fn weights_are_scaled_before_they_overflow() {
    let mut histogram = empty();
    histogram.add(VALUES[1], 1.0, START);
    histogram.add(VALUES[0], 1.0, START + 101 * HOUR);
    assert_eq!(histogram.percentile(1.0), STARTS[2]);
    // Thousands of years later, and earlier.
    for at in [START + 30_000_000 * HOUR, i64::MAX, i64::MIN, START] {
        histogram.add(VALUES[2], 1.0, at);
        assert!(histogram.percentile(0.9).is_finite());
    }
}

#[test]
fn percentiles_follow_the_decayed_weights() {
    // One half life between samples: weights 1/8, 2/4, 3/2 and 4.
    let histogram = weighted(|position| START + position * HOUR);
    for (part, bucket) in
        [(0.0, 1), (0.02, 1), (0.03, 2), (0.1, 2), (0.11, 3), (0.34, 3), (0.35, 4), (1.0, 4)]
    {
        assert_eq!(histogram.percentile(part), STARTS[bucket + 1], "{part}");
    }
}

#[test]
fn a_checkpoint_has_relative_weights() {
    let saved = |samples: &[(f64, f64)]| {
        let mut histogram = empty();
        // A multiple of the half life, so that weights are not scaled.
        samples.iter().for_each(|(value, weight)| histogram.add(*value, *weight, 400_000 * HOUR));
        let checkpoint = histogram.save();
        let weights: Vec<_> = checkpoint.bucket_weights.into_iter().collect();
        (checkpoint.total_weight, weights)
    };
    assert_eq!(saved(&[]), (0.0, vec![]));
    assert_eq!(saved(&[(2.0, 1.0)]), (1.0, vec![(1, 10_000)]));
    assert_eq!(saved(&[(2.0, 1.0), (5.0, 1e5)]), (100_001.0, vec![(2, 10_000)]), "rounds to zero");
    assert_eq!(
        saved(&[(2.0, 1.0), (5.0, 1e4), (10.0, 50.0)]),
        (10_051.0, vec![(1, 1), (2, 10_000), (3, 50)])
    );
}

#[test]
fn a_checkpoint_has_the_reference() {
    let mut histogram = empty();
    assert_eq!(histogram.save().reference_timestamp, None);
    histogram.add(2.0, 1.0, START);
    let reference = histogram.save().reference_timestamp.unwrap();
    assert_eq!(reference.0.to_string(), "2009-02-14T00:00:00Z", "23:31:30 of the day before");
    let mut loaded = empty();
    loaded.load(&histogram.save()).unwrap();
    assert_eq!((loaded.reference, loaded.percentile(1.0)), (histogram.reference, STARTS[2]));
}

fn checkpoint(total_weight: f64, weights: &[(i64, u32)]) -> HistogramCheckpoint {
    let bucket_weights = weights.iter().copied().collect();
    HistogramCheckpoint { total_weight, bucket_weights, reference_timestamp: None }
}

#[test]
fn loading_distributes_the_total_weight() {
    let mut histogram = empty();
    histogram.load(&checkpoint(6.0, &[(0, 1), (1, 2)])).unwrap();
    assert_eq!((histogram.total, &histogram.weights[..2]), (6.0, &[2.0, 4.0][..]));
    histogram.load(&checkpoint(6.0, &[])).unwrap();
    assert!(histogram.is_empty());
    histogram.load(&checkpoint(6.0, &[(5, 0)])).unwrap();
    assert!(histogram.is_empty());
}

#[test]
fn a_checkpoint_out_of_range_is_refused_and_changes_nothing() {
    let mut histogram = weighted(|_| START);
    let before = histogram.clone();
    for (bad, text) in [
        (checkpoint(1.0, &[(-1, 1)]), "checkpoint has a negative bucket -1"),
        (
            checkpoint(1.0, &[(99, 1)]),
            "checkpoint has bucket 99 that is exceeding histogram buckets 6",
        ),
        (checkpoint(-1.0, &[]), "cannot load checkpoint with negative weight -1"),
        (checkpoint(f64::NAN, &[(1, 1)]), "cannot load checkpoint with negative weight NaN"),
    ] {
        assert_eq!(histogram.load(&bad).unwrap_err().to_string(), text);
    }
    assert_eq!(histogram, before);
}

/// kubernetes/autoscaler#7726.
#[test]
fn a_histogram_is_not_empty_after_its_lightest_bucket_was_rounded() {
    let mut histogram = empty();
    let at = 400_000 * HOUR;
    histogram.add(2.0, EPSILON, at);
    histogram.add(5.0, CHECKPOINT_WEIGHT_MAX * EPSILON - EPSILON, at);
    assert!(!histogram.is_empty());
    let mut loaded = empty();
    loaded.load(&histogram.save()).unwrap();
    assert!(!loaded.is_empty());
}
