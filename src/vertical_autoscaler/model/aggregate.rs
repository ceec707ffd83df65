//! The distributions of the usage of one container of an autoscaler, over all of its pods
//! (upstream's `AggregateContainerState`).

use api::Quantity;

use super::checkpoint::{CheckpointStatus, VERSION, from_time, to_time};
use super::histogram::{Buckets, CheckpointError, Histogram};
use crate::types::ContainerPolicy;

/// The weight of a sample of CPU (`minSampleWeight`).
const CPU_WEIGHT: f64 = 0.1;
/// The weight below which a bucket is empty (`epsilon`): a sample that is as old as the whole
/// window still counts.
const EPSILON: f64 = 0.001 * CPU_WEIGHT;
/// Half life of both distributions in seconds (`--cpu-histogram-decay-half-life` and
/// `--memory-histogram-decay-half-life`).
const HALF_LIFE: i64 = 24 * 3600;

/// How memory is aggregated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryRules {
    /// Factor of memory after the container was killed for memory.
    pub bump_ratio: f64,
    /// Least increase in bytes after the container was killed for memory.
    pub min_bump: f64,
    /// Seconds of which the peak is one sample.
    pub interval: i64,
    /// Number of intervals after which samples are dropped.
    pub intervals: i64,
}

impl Default for MemoryRules {
    /// The defaults of `--oom-bump-up-ratio`, `--oom-min-bump-up-bytes`,
    /// `--memory-aggregation-interval` and `--memory-aggregation-interval-count`.
    fn default() -> Self {
        Self {
            bump_ratio: 1.2,
            min_bump: 100.0 * 1024.0 * 1024.0,
            interval: 24 * 3600,
            intervals: 8,
        }
    }
}

impl MemoryRules {
    /// The rules of a container policy; what it does not set has its default.
    pub fn of(policy: Option<&ContainerPolicy>) -> Self {
        let mut rules = Self::default();
        let Some(policy) = policy else { return rules };
        let number = |quantity: &Option<api::k8s::apimachinery::pkg::api::resource::Quantity>| {
            let parsed = Quantity::parse(&quantity.as_ref()?.0).ok()?;
            Some(parsed.as_f64())
        };
        if let Some(ratio) = number(&policy.oom_bump_up_ratio) {
            rules.bump_ratio = ratio;
        }
        if let Some(bump) = number(&policy.oom_min_bump_up) {
            rules.min_bump = bump;
        }
        if let Some(interval) = policy.memory_aggregation_interval_seconds {
            rules.interval = i64::from(interval).max(1);
        }
        if let Some(intervals) = policy.memory_aggregation_interval_count {
            rules.intervals = intervals.max(1);
        }
        rules
    }

    /// Seconds after which samples are dropped.
    pub fn window(&self) -> i64 {
        self.interval.saturating_mul(self.intervals)
    }
}

/// The distributions of one container.
#[derive(Debug, Clone, PartialEq)]
pub struct Aggregate {
    /// Samples of CPU in cores.
    pub cpu: Histogram,
    /// Peaks of memory in bytes, one per pod and interval.
    pub memory: Histogram,
    /// Time of the first sample of CPU.
    pub first_sample: Option<i64>,
    /// Time of the last sample of CPU.
    pub last_sample: Option<i64>,
    /// Number of samples of CPU.
    pub samples: i64,
    /// How memory is aggregated.
    pub rules: MemoryRules,
    created: i64,
}

impl Aggregate {
    /// Distributions without a sample.
    pub fn new(now: i64) -> Self {
        Self {
            cpu: Histogram::new(Buckets::cpu(EPSILON), HALF_LIFE),
            memory: Histogram::new(Buckets::memory(EPSILON), HALF_LIFE),
            first_sample: None,
            last_sample: None,
            samples: 0,
            rules: MemoryRules::default(),
            created: now,
        }
    }

    /// Adds a sample of CPU.
    pub fn add_cpu(&mut self, cores: f64, at: i64) {
        self.cpu.add(cores, CPU_WEIGHT, at);
        self.last_sample = Some(self.last_sample.map_or(at, |last| last.max(at)));
        self.first_sample = Some(self.first_sample.map_or(at, |first| first.min(at)));
        self.samples = self.samples.saturating_add(1);
    }

    /// Whether there is no sample of CPU.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Whether all samples are too old, or none arrived for as long.
    pub fn is_expired(&self, now: i64) -> bool {
        let since = self.last_sample.filter(|_| !self.is_empty()).unwrap_or(self.created);
        now.saturating_sub(since) >= self.rules.window()
    }

    /// The form in a checkpoint.
    pub fn save(&self, now: i64) -> CheckpointStatus {
        CheckpointStatus {
            last_update_time: Some(to_time(now)),
            version: VERSION.to_owned(),
            cpu_histogram: self.cpu.save(),
            memory_histogram: self.memory.save(),
            first_sample_start: self.first_sample.map(to_time),
            last_sample_start: self.last_sample.map(to_time),
            total_samples_count: self.samples,
        }
    }

    /// The distributions of a checkpoint.
    ///
    /// # Errors
    /// The checkpoint has another version, or a bucket or a weight that is out of range.
    pub fn load(checkpoint: &CheckpointStatus, now: i64) -> Result<Self, CheckpointError> {
        if checkpoint.version != VERSION {
            return Err(CheckpointError::Version(checkpoint.version.clone()));
        }
        let mut loaded = Self::new(now);
        loaded.samples = checkpoint.total_samples_count.max(0);
        loaded.first_sample = checkpoint.first_sample_start.as_ref().map(from_time);
        loaded.last_sample = checkpoint.last_sample_start.as_ref().map(from_time);
        loaded.memory.load(&checkpoint.memory_histogram)?;
        loaded.cpu.load(&checkpoint.cpu_histogram)?;
        Ok(loaded)
    }
}

#[cfg(test)]
mod tests;
