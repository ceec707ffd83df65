//! Settings of single controllers that kube-controller-manager has as flags, with its defaults.

use std::time::Duration;

/// Settings of the controllers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// `--node-monitor-grace-period`: after this time without a sign of life a node is lost.
    pub node_monitor_grace: Duration,
    /// `--node-startup-grace-period`, for nodes that never reported a status.
    pub node_startup_grace: Duration,
    /// `--terminated-pod-gc-threshold`: finished pods that are kept.
    pub terminated_pods: usize,
    /// `--cluster-signing-duration`: default and maximum validity of signed certificates.
    pub signing_duration: Duration,
    /// `--legacy-service-account-token-clean-up-period`: how long a generated service account token
    /// is unused until it becomes invalid, and how long it is invalid until it is deleted.
    pub legacy_token_clean_up: Duration,
    /// `--node-cidr-mask-size-ipv4` and `--node-cidr-mask-size-ipv6`.
    pub node_masks: (u8, u8),
    /// False with `--disable-force-detach-on-timeout`: a volume stays attached to a node that is
    /// not ready until the node is marked as out of service.
    pub force_detach_on_timeout: bool,
    /// Autoscaling of pods.
    pub autoscaling: Autoscaling,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            node_monitor_grace: Duration::from_secs(50),
            node_startup_grace: Duration::from_secs(60),
            terminated_pods: 12_500,
            signing_duration: Duration::from_secs(365 * 24 * 60 * 60),
            legacy_token_clean_up: Duration::from_secs(365 * 24 * 60 * 60),
            node_masks: (24, 64),
            force_detach_on_timeout: true,
            autoscaling: Autoscaling::default(),
        }
    }
}

/// The flags `--horizontal-pod-autoscaler-*`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Autoscaling {
    /// Interval between reconciles of an autoscaler.
    pub sync_period: Duration,
    /// Seconds for which the highest recommendation applies instead of smaller ones.
    pub downscale_stabilization: i32,
    /// How far the usage may be from its target before replicas change, as a share of one.
    pub tolerance: f64,
    /// When the CPU of a pod that starts counts.
    pub startup: Startup,
}

impl Default for Autoscaling {
    fn default() -> Self {
        Self {
            sync_period: Duration::from_secs(15),
            downscale_stabilization: 300,
            tolerance: 0.1,
            startup: Startup::default(),
        }
    }
}

/// When the CPU of a pod that starts counts for its autoscaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Startup {
    /// For how many seconds after its start a pod's CPU counts only when a whole window was
    /// measured since it became ready.
    pub cpu_initialization: i64,
    /// A pod that turned unready within this many seconds of its start has never been ready.
    pub initial_readiness: i64,
}

impl Default for Startup {
    fn default() -> Self {
        Self { cpu_initialization: 300, initial_readiness: 30 }
    }
}
