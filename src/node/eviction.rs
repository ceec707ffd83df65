//! Node-pressure eviction: measures memory, disks and processes, and chooses the pods to evict.

mod layout;
mod local_storage;
mod measure;
mod message;
pub(crate) mod metrics;
pub(crate) mod monitor;
pub(crate) mod pressure;
pub(crate) mod ranking;
mod state;

use crate::config::Config;
use crate::config::thresholds::EvictionThreshold;
use crate::pods::pod::Pod;

/// The grace period in seconds of an eviction: one second for a hard threshold, else that of the
/// pod, but at most `evictionMaxPodGracePeriod`, and at least one second.
fn grace(config: &Config, threshold: EvictionThreshold, pod: &Pod) -> i64 {
    if threshold.is_hard() {
        return ranking::GRACE;
    }
    let most = config.eviction_max_pod_grace;
    let own = pod.spec().termination_grace_period_seconds.unwrap_or(most);
    most.min(own).max(ranking::GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::thresholds::{Signal, ThresholdValue};
    use crate::pods::pod::tests::pod;
    use serde_json::json;
    use std::time::Duration;

    /// Upstream's `TestMemoryPressure` (a grace period of 5 s), and the floor of the pod worker.
    #[test]
    fn soft_evictions_have_the_grace_period_of_the_pod_up_to_a_maximum() {
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let mut config = Config::new("n", address, "/d".into(), "/r".into());
        let mut of = |most: i64, seconds: u64, own: serde_json::Value| {
            config.eviction_max_pod_grace = most;
            let threshold = EvictionThreshold {
                signal: Signal::MemoryAvailable,
                value: ThresholdValue::Share(0.1),
                grace: Duration::from_secs(seconds),
                min_reclaim: None,
            };
            let spec = json!({"containers": [], "terminationGracePeriodSeconds": own});
            grace(&config, threshold, &pod(spec))
        };
        assert_eq!(of(5, 0, json!(30)), 1, "a hard threshold");
        assert_eq!(of(5, 60, json!(30)), 5);
        assert_eq!(of(60, 60, json!(30)), 30);
        assert_eq!(of(60, 60, json!(null)), 60);
        assert_eq!(of(0, 60, json!(30)), 1);
        assert_eq!(of(-5, 60, json!(30)), 1);
    }
}
