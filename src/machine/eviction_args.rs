//! The settings of eviction in `--kubelet-arg` and in files of KubeletConfiguration.

use std::time::Duration;

use node::{EvictionThresholds, ThresholdError};

use crate::command_line::components::Arguments;
use crate::command_line::components::kubelet_config::EVICTION_HARD;
use crate::error_catalogue::CommandError;

const SOFT: &str = "eviction-soft";
const SOFT_GRACE: &str = "eviction-soft-grace-period";
const MIN_RECLAIM: &str = "eviction-minimum-reclaim";

/// When pods are evicted, and how.
#[derive(Debug, Clone, Default)]
pub(super) struct EvictionSettings {
    thresholds: EvictionThresholds,
    /// The longest grace period of a pod that a soft threshold evicts, in seconds.
    max_pod_grace: Option<i64>,
    pressure_transition: Option<Duration>,
}

impl EvictionSettings {
    /// Writes the settings to the configuration of the node.
    pub(super) fn apply(&self, config: &mut node::Config) {
        config.eviction.clone_from(&self.thresholds);
        config.eviction_max_pod_grace = self.max_pod_grace.unwrap_or_default();
        if let Some(period) = self.pressure_transition {
            config.pressure_transition = period;
        }
    }
}

/// Parses the settings. Thresholds that no argument sets have their defaults.
///
/// # Errors
/// The first argument that is invalid, by name.
pub(super) fn parse(arguments: &Arguments) -> Result<EvictionSettings, CommandError> {
    type Set = fn(&mut EvictionThresholds, &str) -> Result<(), ThresholdError>;
    let mut thresholds = EvictionThresholds::default();
    let setters: [(&str, Set); 4] = [
        (EVICTION_HARD, EvictionThresholds::set_hard),
        (SOFT, EvictionThresholds::set_soft),
        (SOFT_GRACE, EvictionThresholds::set_soft_grace),
        (MIN_RECLAIM, EvictionThresholds::set_min_reclaim),
    ];
    for (name, set) in setters {
        if let Some(text) = arguments.value(name) {
            set(&mut thresholds, text).map_err(|error| arguments.invalid(name, error))?;
        }
    }
    let ignored = arguments.boolean("experimental-allocatable-ignore-eviction")?;
    thresholds.set_allocatable(ignored.unwrap_or_default());
    thresholds.check().map_err(|error| arguments.invalid(SOFT, error))?;
    // A negative number of seconds is the shortest grace period, as in the kubelet.
    let seconds = i64::from(i32::MIN)..=i64::from(i32::MAX);
    Ok(EvictionSettings {
        thresholds,
        max_pod_grace: arguments.number("eviction-max-pod-grace-period", seconds)?,
        pressure_transition: arguments
            .duration("eviction-pressure-transition-period", Duration::ZERO)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::components::kubelet::KUBELET;

    fn parsed(given: &[&str]) -> Result<node::Config, String> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        let arguments = KUBELET.parse(&given).map_err(|error| error.to_string())?;
        let settings = parse(&arguments).map_err(|error| error.to_string())?;
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let mut config = node::Config::new("n", ip, "/d".into(), "/r".into());
        settings.apply(&mut config);
        Ok(config)
    }

    #[test]
    fn arguments_set_the_thresholds() {
        let config = parsed(&[
            "eviction-hard=memory.available<200Mi,pid.available<10%",
            "eviction-soft=memory.available<400Mi",
            "eviction-soft-grace-period=memory.available=1m30s",
            "eviction-minimum-reclaim=memory.available=0,nodefs.available=500Mi",
            "eviction-max-pod-grace-period=60",
            "eviction-pressure-transition-period=30s",
        ])
        .unwrap();
        let texts = config.eviction.texts();
        let hard: Vec<_> = texts.hard.keys().copied().collect();
        assert_eq!(hard, ["memory.available", "pid.available"], "others are not watched");
        assert_eq!(texts.soft["memory.available"], "400Mi");
        assert_eq!(texts.soft_grace["memory.available"], "1m30s");
        assert_eq!(texts.min_reclaim["nodefs.available"], "500Mi");
        assert_eq!(config.eviction_max_pod_grace, 60);
        assert_eq!(config.pressure_transition, Duration::from_secs(30));
        assert_eq!(parsed(&[]).unwrap().eviction, EvictionThresholds::default());
    }

    #[test]
    fn invalid_settings_are_refused_by_name() {
        for (given, want) in [
            (
                "eviction-hard=mem.available<1",
                "--kubelet-arg=eviction-hard=mem.available<1: unsupported eviction signal",
            ),
            (
                "eviction-soft=memory.available<1Gi",
                "--kubelet-arg=eviction-soft=memory.available<1Gi: grace period must be specified \
                 for the soft eviction threshold memory.available",
            ),
            (
                "eviction-soft-grace-period=memory.available=-1s",
                "invalid eviction grace period specified: -1s",
            ),
            (
                "eviction-minimum-reclaim=memory.available=-1",
                "negative eviction minimum reclaim specified for memory.available",
            ),
            ("eviction-max-pod-grace-period=x", "must be a number from"),
        ] {
            let error = parsed(&[given]).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
