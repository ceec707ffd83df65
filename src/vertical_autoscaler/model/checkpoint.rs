//! The kind VerticalPodAutoscalerCheckpoint, in which distributions survive a restart.

use std::collections::BTreeMap;

use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use api::k8s::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The form of the data that this program writes and reads (`SupportedCheckpointVersion`).
pub const VERSION: &str = "v3";

/// A VerticalPodAutoscalerCheckpoint: the distributions of one container of an autoscaler.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Checkpoint {
    /// Name and namespace.
    pub metadata: ObjectMeta,
    /// The container.
    pub spec: CheckpointSpec,
    /// The data.
    pub status: CheckpointStatus,
}

/// `VerticalPodAutoscalerCheckpointSpec`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointSpec {
    /// Name of the autoscaler, in the same namespace.
    #[serde(rename = "vpaObjectName")]
    pub autoscaler: String,
    /// Name of the container.
    pub container_name: String,
}

/// `VerticalPodAutoscalerCheckpointStatus`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointStatus {
    /// When it was written.
    pub last_update_time: Option<Time>,
    /// [`VERSION`].
    pub version: String,
    /// The distribution of CPU.
    pub cpu_histogram: HistogramCheckpoint,
    /// The distribution of memory peaks.
    pub memory_histogram: HistogramCheckpoint,
    /// Time of the first sample of CPU.
    pub first_sample_start: Option<Time>,
    /// Time of the last sample of CPU.
    pub last_sample_start: Option<Time>,
    /// Number of samples of CPU.
    pub total_samples_count: i64,
}

/// `HistogramCheckpoint`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HistogramCheckpoint {
    /// The time at which samples have their own weight.
    pub reference_timestamp: Option<Time>,
    /// Relative weights by bucket.
    pub bucket_weights: BTreeMap<i64, u32>,
    /// The sum of weights.
    pub total_weight: f64,
}

/// The time of seconds since the epoch; one that does not exist becomes the epoch.
pub fn to_time(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// The seconds since the epoch.
pub fn from_time(time: &Time) -> i64 {
    time.0.as_second()
}
