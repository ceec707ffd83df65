//! The requests and limits of a pod's group: what the pod's resources come to, and what the kernel
//! has.

use super::{Cgroups, PodGroupLimits};
use crate::pods::pod::Pod;
use crate::pods::resources::{self, Qos};

/// Requests and limits of a pod's group in units of the kernel (`cm.ResourceConfig`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PodGroupConfig {
    /// CPU shares, as of v1.
    pub(crate) shares: Option<i64>,
    /// CPU quota in microseconds of [`resources::CPU_PERIOD`].
    pub(crate) quota: Option<i64>,
    /// Memory limit in bytes.
    pub(crate) memory: Option<i64>,
}

/// The kernel's own mapping of shares 2…262144 to weights 1…10000.
pub(super) fn weight(shares: i64) -> i64 {
    (1 + ((shares - 2) * 9999) / 262_142).clamp(1, 10_000)
}

/// The shares of a weight (`cpuWeightToCPUShares`); several shares have one weight.
fn shares_of_weight(weight: i64) -> i64 {
    ((weight - 1) * 262_142) / 9999 + 2
}

/// Whether the shares that were read from a group are those that were written: weights of v2 are
/// coarser (`CPUSharesEqualAfterV2RoundTrip`).
pub(crate) fn are_equal_shares(written: i64, read: i64) -> bool {
    written == read || shares_of_weight(weight(written)) == read
}

impl PodGroupConfig {
    /// What the resources of a pod come to (`ResourceConfigForPod`). A limit that is `None` is not
    /// changed: limits cannot be removed.
    pub(crate) fn of(pod: &Pod, group: PodGroupLimits) -> Self {
        let (requests, limits) = (resources::pod_requests(pod), resources::pod_limits(pod));
        let is_best_effort = resources::qos(pod) == Qos::BestEffort;
        let cpu = if is_best_effort { 0 } else { requests.cpu_milli };
        let has_quota = limits.cpu_complete && limits.cpu_milli > 0 && !group.is_cpu_unlimited;
        let has_memory = limits.memory_complete && limits.memory > 0;
        Self {
            shares: Some(resources::shares(cpu)),
            quota: has_quota.then(|| resources::quota(limits.cpu_milli)),
            memory: has_memory.then_some(limits.memory),
        }
    }

    /// Whether a group with the settings `self` has those of `desired`.
    fn has(self, desired: Self) -> bool {
        let shares = self.shares.zip(desired.shares);
        shares.is_none_or(|(has, desired)| are_equal_shares(desired, has))
            && (desired.quota.is_none() || self.quota == desired.quota)
            && (desired.memory.is_none() || self.memory == desired.memory)
    }
}

impl Cgroups {
    /// Reads the settings of a pod's group; each is `None` without a group or a limit.
    pub(crate) fn pod_config(&self, pod: &Pod) -> PodGroupConfig {
        let path = self.pod_path(pod);
        let shares = self.limit(&path, "cpu", "cpu.shares");
        let shares = if self.is_v2() { shares.map(shares_of_weight) } else { shares };
        PodGroupConfig {
            shares,
            quota: self.limit(&path, "cpu", "cpu.cfs_quota_us"),
            memory: self.limit(&path, "memory", "memory.limit_in_bytes"),
        }
    }

    /// Whether the group of a pod exists and differs from the pod's resources.
    pub(crate) fn is_resized(&self, pod: &Pod, limits: PodGroupLimits) -> bool {
        let present = self.pod_config(pod);
        present.shares.is_some() && !present.has(PodGroupConfig::of(pod, limits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn shares_are_compared_as_the_kernel_rounds_them() {
        assert_eq!((weight(2), weight(1024), weight(262_144)), (1, 39, 10_000));
        assert_eq!(shares_of_weight(39), 998);
        assert!(are_equal_shares(1024, 1024) && are_equal_shares(1024, 998));
        assert!(!are_equal_shares(1024, 512));
    }

    #[test]
    fn a_group_has_the_limits_of_the_pod_or_of_all_its_containers() {
        let of = |spec| PodGroupConfig::of(&pod(spec), PodGroupLimits::default());
        let limited = json!({"limits": {"cpu": "20m", "memory": "35Mi"}});
        let one = of(json!({"containers": [{"name": "a", "resources": limited}, {"name": "b"}]}));
        assert_eq!((one.shares, one.quota, one.memory), (Some(20), None, None));
        let level = of(json!({"containers": [{"name": "a", "resources": limited}, {"name": "b"}],
            "resources": {"requests": {"cpu": "80m"},
                "limits": {"cpu": "80m", "memory": "95Mi"}}}));
        let expected = (Some(81), Some(8000), Some(99_614_720));
        assert_eq!((level.shares, level.quota, level.memory), expected);
        let none = of(json!({"containers": [{"name": "a"}], "overhead": {"cpu": "1"}}));
        assert_eq!(none.shares, Some(2), "overhead gives a pod without requests no shares");
    }

    #[test]
    fn a_group_that_differs_is_resized() {
        let mount = tempfile::tempdir().unwrap();
        let cgroups = Cgroups::in_folder(mount.path().to_owned());
        let spec = |memory: &str| {
            pod(json!({"containers": [{"name": "a"}],
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": memory}}}))
        };
        let (small, large) = (spec("1Mi"), spec("2Mi"));
        assert!(!cgroups.is_resized(&small, PodGroupLimits::default()), "there is no group");
        let folder = mount.path().join(cgroups.pod_path(&small).trim_start_matches('/'));
        std::fs::create_dir_all(&folder).unwrap();
        for (file, text) in
            [("cpu.weight", "39\n"), ("cpu.max", "100000 100000\n"), ("memory.max", "1048576\n")]
        {
            std::fs::write(folder.join(file), text).unwrap();
        }
        assert!(!cgroups.is_resized(&small, PodGroupLimits::default()));
        assert!(cgroups.is_resized(&large, PodGroupLimits::default()));
        std::fs::write(folder.join("memory.max"), "max\n").unwrap();
        assert!(cgroups.is_resized(&small, PodGroupLimits::default()), "a limit is added");
        assert_eq!(cgroups.pod_config(&small).memory, None);
    }
}
