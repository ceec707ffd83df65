//! Distributions whose samples lose half of their weight per half life, in buckets that grow
//! exponentially (upstream's `recommender/util`).

use super::checkpoint::{HistogramCheckpoint, from_time, to_time};

/// Go's zero time, 0001-01-01, in seconds since the epoch: the reference of a new histogram.
const ZERO_TIME: i64 = -62_135_596_800;
/// The weight of the heaviest bucket of a checkpoint (`MaxCheckpointWeight`).
const CHECKPOINT_WEIGHT_MAX: f64 = 10_000.0;
/// Half lives after which the weights are scaled down and the reference moves
/// (`maxDecayExponent`).
const DECAY_EXPONENT_MAX: i64 = 100;
/// Growth from one bucket to the next (`DefaultHistogramBucketSizeGrowth`).
const GROWTH: f64 = 0.05;

/// The buckets of a histogram (`exponentialHistogramOptions`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Buckets {
    first: f64,
    ratio: f64,
    count: usize,
    epsilon: f64,
}

/// Converts a number within the range of indexes; others become the nearest index.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn index(number: f64) -> usize {
    number as usize
}

/// Converts an index of a bucket or a weight of a checkpoint.
#[allow(clippy::cast_precision_loss, reason = "there are fewer than 2^53 buckets")]
fn float(number: usize) -> f64 {
    number as f64
}

/// A span in seconds as a number.
#[allow(clippy::cast_precision_loss, reason = "an approximation suffices for weights")]
pub(super) fn seconds(span: i64) -> f64 {
    span as f64
}

impl Buckets {
    /// Buckets from zero to `max`; the first has the width `first`, each further one `ratio` times
    /// that of the one before. A bucket with less weight than `epsilon` is empty.
    pub fn new(max: f64, first: f64, ratio: f64, epsilon: f64) -> Self {
        let last = logarithm(ratio, max * (ratio - 1.0) / first + 1.0).ceil();
        Self { first, ratio, count: index(last).saturating_add(1), epsilon }
    }

    /// Buckets of CPU in cores. Other values need another version of checkpoints.
    pub fn cpu(epsilon: f64) -> Self {
        Self::new(1000.0, 0.01, 1.0 + GROWTH, epsilon)
    }

    /// Buckets of memory in bytes. Other values need another version of checkpoints.
    pub fn memory(epsilon: f64) -> Self {
        Self::new(1e12, 1e7, 1.0 + GROWTH, epsilon)
    }

    fn last(&self) -> usize {
        self.count.saturating_sub(1)
    }

    /// The bucket of a value; the last one also has all greater values.
    fn find(&self, value: f64) -> usize {
        if value < self.first {
            return 0;
        }
        let bucket = logarithm(self.ratio, value * (self.ratio - 1.0) / self.first + 1.0);
        index(bucket).min(self.last())
    }

    /// The least value of a bucket.
    fn start(&self, bucket: usize) -> f64 {
        if bucket == 0 {
            return 0.0;
        }
        self.first * (self.ratio.powf(float(bucket)) - 1.0) / (self.ratio - 1.0)
    }
}

fn logarithm(base: f64, number: f64) -> f64 {
    number.ln() / base.ln()
}

/// Why a checkpoint cannot be loaded; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CheckpointError {
    /// The form of another version.
    #[error("unsupported checkpoint version {0}")]
    Version(String),
    /// The sum of weights is negative or no number.
    #[error("cannot load checkpoint with negative weight {0}")]
    Weight(f64),
    /// There is no such bucket.
    #[error("checkpoint has bucket {0} that is exceeding histogram buckets {1}")]
    Bucket(i64, usize),
    /// There is no such bucket.
    #[error("checkpoint has a negative bucket {0}")]
    NegativeBucket(i64),
}

/// A decaying histogram (`decayingHistogram`).
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    buckets: Buckets,
    /// In seconds.
    half_life: i64,
    weights: Vec<f64>,
    total: f64,
    /// First bucket that is not empty, otherwise the last one.
    min: usize,
    /// Last bucket that is not empty, otherwise the first one.
    max: usize,
    /// The time at which a sample has its own weight; a multiple of the half life.
    reference: i64,
}

impl Histogram {
    /// An empty histogram with a half life in seconds.
    pub fn new(buckets: Buckets, half_life: i64) -> Self {
        Self {
            buckets,
            half_life,
            weights: vec![0.0; buckets.count],
            total: 0.0,
            min: buckets.last(),
            max: 0,
            reference: ZERO_TIME,
        }
    }

    fn weight(&self, bucket: usize) -> f64 {
        self.weights.get(bucket).copied().unwrap_or_default()
    }

    /// Adds a sample.
    pub fn add(&mut self, value: f64, weight: f64, at: i64) {
        let weight = weight * self.decay_factor(at);
        let bucket = self.buckets.find(value);
        if let Some(sum) = self.weights.get_mut(bucket) {
            *sum += weight;
        }
        self.total += weight;
        if self.weight(bucket) >= self.buckets.epsilon {
            self.min = self.min.min(bucket);
            self.max = self.max.max(bucket);
        }
    }

    /// Removes a sample that was added before.
    pub fn subtract(&mut self, value: f64, weight: f64, at: i64) {
        let weight = weight * self.decay_factor(at);
        let epsilon = self.buckets.epsilon;
        let less = |from: f64| if from - weight < epsilon { 0.0 } else { from - weight };
        self.total = less(self.total);
        if let Some(sum) = self.weights.get_mut(self.buckets.find(value)) {
            *sum = less(*sum);
        }
        self.update_range();
    }

    /// The end of the bucket below which there is the given part of the weight; zero without
    /// samples.
    pub fn percentile(&self, part: f64) -> f64 {
        if self.is_empty() {
            return 0.0;
        }
        let threshold = part * self.total;
        let mut sum = 0.0;
        let mut bucket = self.min;
        while bucket < self.max {
            sum += self.weight(bucket);
            if sum >= threshold {
                break;
            }
            bucket += 1;
        }
        // The last bucket has no end.
        self.buckets.start(bucket.saturating_add(1).min(self.buckets.last()))
    }

    /// Whether there is no sample with a relevant weight.
    pub fn is_empty(&self) -> bool {
        self.weight(self.min) < self.buckets.epsilon
    }

    fn update_range(&mut self) {
        let is_light = |weights: &[f64], bucket: usize| {
            weights.get(bucket).is_none_or(|weight| *weight < self.buckets.epsilon)
        };
        while self.min < self.buckets.last() && is_light(&self.weights, self.min) {
            self.min += 1;
        }
        while self.max > 0 && is_light(&self.weights, self.max) {
            self.max -= 1;
        }
    }

    /// The factor of the weight of a sample at this time.
    fn decay_factor(&mut self, at: i64) -> f64 {
        let span = self.half_life.saturating_mul(DECAY_EXPONENT_MAX);
        if at > self.reference.saturating_add(span) {
            self.shift_reference(at);
        }
        (seconds(at.saturating_sub(self.reference)) / seconds(self.half_life)).exp2()
    }

    /// Moves the reference near `to` without a change of relative weights.
    fn shift_reference(&mut self, to: i64) {
        let half = self.half_life / 2;
        let rounded = to.saturating_add(half).div_euclid(self.half_life.max(1));
        let reference = rounded.saturating_mul(self.half_life);
        let exponent = seconds(self.reference.saturating_sub(reference)) / seconds(self.half_life);
        let factor = (exponent + 0.5).floor().exp2();
        self.weights.iter_mut().for_each(|weight| *weight *= factor);
        self.total *= factor;
        self.update_range();
        self.reference = reference;
    }

    /// The form in a checkpoint: relative weights, without those that round to zero.
    pub fn save(&self) -> HistogramCheckpoint {
        let heaviest = self.weights.iter().copied().fold(0.0, f64::max);
        let ratio = CHECKPOINT_WEIGHT_MAX / heaviest;
        let mut checkpoint = HistogramCheckpoint {
            reference_timestamp: (self.reference != ZERO_TIME).then(|| to_time(self.reference)),
            total_weight: self.total,
            ..HistogramCheckpoint::default()
        };
        let range = self.weights.iter().enumerate().take(self.max.saturating_add(1));
        for (bucket, weight) in range.skip(self.min) {
            let relative = u32::try_from(index((weight * ratio + 0.5).floor())).unwrap_or(u32::MAX);
            if let (Ok(bucket), true) = (i64::try_from(bucket), relative > 0) {
                checkpoint.bucket_weights.insert(bucket, relative);
            }
        }
        checkpoint
    }

    /// Replaces the histogram by that of a checkpoint.
    ///
    /// # Errors
    /// The checkpoint has a bucket or a weight that is out of range; nothing is changed.
    pub fn load(&mut self, checkpoint: &HistogramCheckpoint) -> Result<(), CheckpointError> {
        let total = checkpoint.total_weight;
        if !total.is_finite() || total < 0.0 {
            return Err(CheckpointError::Weight(total));
        }
        let mut loaded = Self::new(self.buckets, self.half_life);
        let mut sum = 0.0;
        for (&bucket, &weight) in &checkpoint.bucket_weights {
            let found = match usize::try_from(bucket) {
                Err(_) => return Err(CheckpointError::NegativeBucket(bucket)),
                Ok(found) => found,
            };
            let Some(slot) = loaded.weights.get_mut(found) else {
                return Err(CheckpointError::Bucket(bucket, self.buckets.count));
            };
            *slot = f64::from(weight);
            sum += f64::from(weight);
            loaded.min = loaded.min.min(found);
            loaded.max = loaded.max.max(found);
        }
        if sum > 0.0 {
            loaded.weights.iter_mut().for_each(|weight| *weight *= total / sum);
            loaded.total = total;
        } else {
            (loaded.min, loaded.max) = (self.buckets.last(), 0);
        }
        // A light bucket of the checkpoint may have become lighter than what counts as empty.
        loaded.update_range();
        loaded.reference = checkpoint.reference_timestamp.as_ref().map_or(ZERO_TIME, from_time);
        *self = loaded;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
